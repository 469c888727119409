//! In which order a loop looks at the namespaces: each round begins behind the one that had something last, so none waits
//! for another's work to end. In a cluster the node of one may be away, or hang: then it is left out, and its node
//! is only asked now and then whether it is there again, so that the others do not wait for it each time.

use crate::pipeline::{Gateway, spaces::Spaces};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Between two questions to a node that failed. Each waits two seconds at most.
const REST: Duration = Duration::from_secs(10);

pub(super) struct Rounds {
    spaces: Arc<Spaces>,
    first: usize,
    /// Namespaces that failed, by name, and when they are asked again.
    resting: HashMap<String, Instant>,
}

impl Rounds {
    pub(super) fn of(spaces: &Arc<Spaces>) -> Rounds {
        Rounds { spaces: Arc::clone(spaces), first: 0, resting: HashMap::new() }
    }

    /// All namespaces that do not rest, each with what [`Rounds::had`] wants to know; all of them, if all rest: then it
    /// is Redis that is away.
    pub(super) async fn order(&mut self) -> Vec<(usize, Arc<Gateway>)> {
        let mut all: Vec<_> = self.spaces.all().into_iter().enumerate().collect();
        let first = self.first % all.len().max(1);
        all.rotate_left(first);
        if self.resting.is_empty() {
            return all;
        }
        let mut awake = Vec::with_capacity(all.len());
        for (at, gateway) in &all {
            if !self.rests(gateway, all.len()).await {
                awake.push((*at, Arc::clone(gateway)));
            }
        }
        if awake.is_empty() { all } else { awake }
    }

    async fn rests(&mut self, gateway: &Gateway, of: usize) -> bool {
        let name = &gateway.settings.namespace;
        let Some(until) = self.resting.get(name) else { return false };
        if self.resting.len() == of || Instant::now() < *until {
            return true;
        }
        let back = gateway.store.ping().await.is_ok();
        if back {
            self.resting.remove(name);
        } else {
            self.resting.insert(name.clone(), Instant::now() + REST);
        }
        !back
    }

    /// This one had something: the next round begins behind it.
    pub(super) fn had(&mut self, at: usize) {
        self.first = at + 1;
    }

    /// Whether this one answered.
    pub(super) fn answered(&mut self, gateway: &Gateway, answered: bool) {
        let name = &gateway.settings.namespace;
        if !answered {
            self.resting.insert(name.clone(), Instant::now() + REST);
        } else if !self.resting.is_empty() {
            self.resting.remove(name);
        }
    }
}
