//! VERBS, in the order data meets them: submit (number, page, plan), forecast, dispatch, collect, commit, seal, read, cancel.
//! Knows nothing of HTTP servers, loops or terminals; each verb does one thing once and says what comes next.

pub mod cancel;
pub mod collect;
pub mod commit;
pub mod dispatch;
pub mod forecast;
pub mod frames;
pub mod line;
pub mod number;
pub mod open_page;
pub mod page;
pub mod plan;
pub mod poison;
pub mod read;
pub mod seal;
pub mod submit;

use crate::{
    domain::{limits::BatchLimits, prompt::Endpoint, route::Routes},
    provider::BatchProvider,
    store::Store,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::Notify;

/// What every verb works with.
pub struct Gateway {
    pub store: Store,
    /// By account name.
    pub providers: BTreeMap<String, Arc<dyn BatchProvider>>,
    pub routes: Routes,
    pub settings: Settings,
    pub wake: Wake,
}

/// Wakes the loops of this process when there is something for them. Only a shortcut: being due is data in Redis, and
/// the loops of other processes find it there within half a second.
#[derive(Default)]
pub struct Wake {
    /// A chunk is due.
    pub chunks: Notify,
    /// A page was touched.
    pub pages: Notify,
}

/// The figures that bound the work; `config` documents each with its variable and default.
#[derive(Clone, Debug)]
pub struct Settings {
    pub deployment: String,
    pub namespace: String,
    pub chunk: usize,
    pub chunk_bytes: u64,
    pub attempts: u8,
    pub poll_min: Duration,
    pub poll_max: Duration,
    pub lease: Duration,
    pub cache_ttl: Duration,
    pub retention: Duration,
}

impl Gateway {
    /// What one provider batch of this account may hold: the provider's limits and ours, whichever is tighter.
    pub fn limits(&self, account: &str, endpoint: Endpoint) -> BatchLimits {
        let provider = self.providers.get(account).expect("routes name configured accounts only");
        let limits = provider.limits(endpoint);
        BatchLimits { max_bytes: limits.max_bytes.min(self.settings.chunk_bytes), ..limits }
    }
}
