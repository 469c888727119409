//! Which namespaces this Redis holds. A namespace lives as long as there is something in it, whatever a configuration
//! says: the workers of all processes serve those that are written down here.

use super::{Store, StoreError, keys::Keys};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

/// The namespaces a process knows of.
#[derive(Clone)]
pub(super) struct InUse(Arc<Mutex<BTreeSet<String>>>);

impl InUse {
    pub(super) fn new(first: &str) -> InUse {
        InUse(Arc::new(Mutex::new([first.to_owned()].into())))
    }

    pub(super) fn note(&self, namespace: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace.to_owned());
    }

    /// Their keys.
    pub(super) fn all(&self) -> Vec<Keys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|name| Keys::new(name)).collect()
    }
}

impl Store {
    /// The namespaces that gateways have worked in.
    pub async fn namespaces(&self) -> Result<BTreeSet<String>, StoreError> {
        let key = Keys::namespaces();
        Ok(redis::cmd("SMEMBERS").arg(key).query_async(&mut self.main.of(key)).await?)
    }

    /// Writes down that somebody works in these.
    pub async fn note_namespaces(&self, names: &BTreeSet<String>) -> Result<(), StoreError> {
        let key = Keys::namespaces();
        Ok(redis::cmd("SADD").arg(key).arg(names).query_async(&mut self.main.of(key)).await?)
    }
}
