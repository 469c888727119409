//! The namespaces. Each is a [`Gateway`] of its own: the same connections, accounts, seats and wake-ups, with its own keys
//! in Redis and its own times to keep things. Verbs know one gateway and so one namespace; only a look into the cache may
//! go further, into what else the asking team reads.
//!
//! Beside the namespaces of the configuration there are those that Redis remembers: a namespace that no team names any
//! more is served for what is in it. So a batch is found in one of a few places, and no index says in which.

use super::Gateway;
use crate::{
    clock::Millis,
    domain::{key::CacheKey, route::Routes, team::Namespaces},
    store::{StoreError, record::StoredAnswer},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

/// What differs in a namespace from the settings of the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// How long it keeps answers.
    pub cache_ttl: Option<Duration>,
    /// How long it keeps batches that ended.
    pub retention: Option<Duration>,
}

/// What a configuration says of namespaces, and of who answers in all of them.
#[derive(Clone, Debug)]
pub struct Configured {
    /// Those that teams name, and the default one.
    pub names: BTreeSet<String>,
    pub terms: BTreeMap<String, Terms>,
    /// Name accounts of the gateway only.
    pub routes: Routes,
}

/// All namespaces that this process serves.
pub struct Spaces {
    common: Arc<Gateway>,
    state: RwLock<State>,
}

struct State {
    configured: Configured,
    open: BTreeMap<String, Arc<Gateway>>,
}

impl Spaces {
    /// `common`: the default namespace's gateway.
    pub fn new(common: Gateway, configured: Configured) -> Spaces {
        let state = State { configured: configured.clone(), open: BTreeMap::new() };
        let spaces = Spaces { common: Arc::new(common), state: RwLock::new(state) };
        spaces.configure(configured);
        spaces
    }

    /// For what is no namespace's: accounts, keys, the home.
    pub fn common(&self) -> &Arc<Gateway> {
        &self.common
    }

    /// From now on these are the configuration's. What was begun goes on as it was begun, and none is closed.
    pub fn configure(&self, configured: Configured) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let known = std::mem::take(&mut state.open);
        let names: BTreeSet<&String> = configured.names.iter().chain(known.keys()).collect();
        state.open = names.into_iter().map(|name| (name.clone(), self.gateway(name, &configured))).collect();
        state.configured = configured;
    }

    /// Who answers which model from now on.
    pub fn routes(&self) -> Routes {
        self.state.read().unwrap_or_else(PoisonError::into_inner).configured.routes.clone()
    }

    fn gateway(&self, name: &str, configured: &Configured) -> Arc<Gateway> {
        let Terms { cache_ttl, retention } = configured.terms.get(name).copied().unwrap_or_default();
        let (store, routes) = (self.common.store.of(name), configured.routes.clone());
        let mut gateway = Gateway { store, routes, ..Gateway::clone(&self.common) };
        let settings = &mut gateway.settings;
        name.clone_into(&mut settings.namespace);
        settings.cache_ttl = cache_ttl.unwrap_or(settings.cache_ttl);
        settings.retention = retention.unwrap_or(settings.retention);
        Arc::new(gateway)
    }

    /// Every namespace, by name.
    pub fn all(&self) -> Vec<Arc<Gateway>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).open.values().cloned().collect()
    }

    /// One namespace for each Redis there is: one of all, or in a cluster one of each node that holds any.
    pub fn one_per_node(&self) -> Vec<Arc<Gateway>> {
        let nodes = self.all().into_iter().rev().map(|gateway| (gateway.store.node(), gateway));
        nodes.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// The gateway for a team that works in these: in the one it writes, reading the others.
    pub fn of(&self, namespaces: &Namespaces) -> Arc<Gateway> {
        let one = self.open(&namespaces.write);
        if namespaces.also.is_empty() {
            return one;
        }
        let also = namespaces.also.iter().map(|name| self.open(name).store.clone()).collect();
        Arc::new(Gateway { also, ..Gateway::clone(&one) })
    }

    fn open(&self, name: &str) -> Arc<Gateway> {
        let known = self.state.read().unwrap_or_else(PoisonError::into_inner).open.get(name).cloned();
        known.unwrap_or_else(|| {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            let gateway = self.gateway(name, &state.configured);
            Arc::clone(state.open.entry(name.to_owned()).or_insert(gateway))
        })
    }

    /// Opens what other processes, and earlier configurations, worked in; `works`: says in Redis in what we do.
    pub async fn learn(&self, works: bool) -> Result<(), StoreError> {
        let noted = self.common.store.namespaces().await?;
        let ours = self.state.read().unwrap_or_else(PoisonError::into_inner).configured.names.clone();
        self.note(works, &noted, &ours).await?;
        for name in noted.iter().filter(|name| Namespaces::is_name(name)) {
            self.open(name);
        }
        Ok(())
    }

    /// Says in Redis that these are worked in: before anything is accepted there.
    pub async fn announce(&self, names: &BTreeSet<String>) -> Result<(), StoreError> {
        let all_known = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            names.iter().all(|name| state.configured.names.contains(name))
        };
        if all_known { Ok(()) } else { self.common.store.note_namespaces(names).await }
    }

    async fn note(&self, works: bool, noted: &BTreeSet<String>, ours: &BTreeSet<String>) -> Result<(), StoreError> {
        let missing: BTreeSet<String> = ours.difference(noted).cloned().collect();
        if works && !missing.is_empty() {
            self.common.store.note_namespaces(&missing).await?;
        }
        Ok(())
    }
}

impl Gateway {
    /// The answers of those keys that have one: in the namespace itself, then in what else the asking team reads, in its
    /// order. What is found elsewhere is only copied: nothing is written there, and nothing lives longer for it.
    pub async fn look_up(
        &self,
        keys: &[CacheKey],
        fresh_since: Option<Millis>,
    ) -> Result<HashMap<CacheKey, StoredAnswer>, StoreError> {
        let mut hits = self.store.look_up(keys, fresh_since).await?;
        for store in &self.also {
            let lacking: Vec<CacheKey> = keys.iter().filter(|key| !hits.contains_key(key)).copied().collect();
            if lacking.is_empty() {
                break;
            }
            hits.extend(store.look_up(&lacking, fresh_since).await?);
        }
        Ok(hits)
    }
}
