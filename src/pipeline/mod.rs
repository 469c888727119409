//! VERBS, in the order data meets them: submit (number, page, plan), forecast, join, dispatch, collect, commit, seal, read, cancel;
//! janitor and reconcile, for what none of them sees.
//! Knows nothing of HTTP servers, loops or terminals; each verb does one thing once and says what comes next.

pub mod account;
pub mod budget;
pub mod cancel;
pub mod check;
pub mod collect;
pub mod commit;
pub mod creates;
pub mod dispatch;
pub mod doubt;
pub mod forecast;
pub mod foreign;
pub mod frames;
mod group;
pub mod home;
pub mod janitor;
pub mod join;
pub mod line;
pub mod number;
pub mod online;
pub mod open_page;
pub mod outgoing;
pub mod page;
pub mod patience;
pub mod pause;
pub mod plan;
pub mod poison;
pub mod read;
pub mod reconcile;
pub mod retry;
pub mod room;
pub mod seal;
pub mod spaces;
pub mod submit;

use crate::{
    clock::Millis,
    domain::{limits::BatchLimits, outcome::Ending, prompt::Endpoint, room::CacheMax, route::Routes},
    provider::{BatchProvider, online::Online},
    store::{Store, StoreError, chunks::Chunk},
};
use online::desk::{Desk, Seats};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::Notify;

/// What every verb works with: one namespace. There is one for each ([`spaces::Spaces`]); they share all but its store,
/// its name and its times.
#[derive(Clone)]
pub struct Gateway {
    pub store: Store,
    /// What else is looked into at accept: the other namespaces that the asking team reads, in its order.
    pub also: Vec<Store>,
    /// By account name.
    pub providers: BTreeMap<String, Provider>,
    pub routes: Routes,
    pub settings: Settings,
    pub wake: Arc<Wake>,
}

/// How an account is asked.
#[derive(Clone)]
pub enum Provider {
    Batch(Arc<dyn BatchProvider>),
    /// One by one.
    Online(Arc<Desk>),
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
    pub janitor: Duration,
    pub cache_max: CacheMax,
    pub retention: Duration,
    pub reconcile: reconcile::Mode,
    pub reconcile_every: Duration,
}

impl Gateway {
    /// What one provider batch of this account may hold: the provider's limits and ours, whichever is tighter.
    pub fn limits(&self, account: &str, endpoint: Endpoint) -> BatchLimits {
        let provider = self.providers.get(account).expect("routes name configured accounts only");
        let limits = match provider {
            Provider::Batch(provider) => provider.limits(endpoint),
            Provider::Online(desk) => Online::limits(desk.concurrency.max(online::GROUP)),
        };
        BatchLimits { max_bytes: limits.max_bytes.min(self.settings.chunk_bytes), ..limits }
    }

    /// Why the batch of this chunk wants no more answers, once it does not.
    pub async fn ending(&self, chunk: &Chunk, now: Millis) -> Result<Option<Ending>, StoreError> {
        Ok(match self.store.progress(chunk.id.batch).await? {
            // A batch that is gone wants nothing more, and neither does one that ended.
            None => Some(Ending::Canceled),
            Some(progress) if progress.cancel_requested || progress.ended_at.is_some() => Some(Ending::Canceled),
            Some(_) if now > chunk.deadline => Some(Ending::Expired),
            Some(_) => None,
        })
    }

    /// A seat at every desk that has one: to be taken before a claim.
    pub fn seats(&self) -> Seats {
        Seats::take(self.providers.iter().filter_map(|(account, provider)| match provider {
            Provider::Online(desk) => Some((account, desk)),
            Provider::Batch(_) => None,
        }))
    }
}
