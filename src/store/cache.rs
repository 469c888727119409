//! The cache of answers: looked up at accept, written by commits alone (`commit.rs`). Entries verify themselves.

use super::{Store, StoreError, marks::paired, record, record::StoredAnswer};
use crate::{clock::Millis, domain::key::CacheKey};
use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use std::collections::{HashMap, HashSet};

/// Keys per MGET; larger is slower and costs the client memory (measured, see `design.md` section 4).
const KEYS_PER_READ: usize = 500;
/// The same where only the ages are looked at, and answers may be large.
const AGES_PER_READ: usize = 50;

impl Store {
    /// The answers of those keys that have one. An entry that answers another question is a miss: it is set aside,
    /// logged and counted, and the question is asked again. One from before `fresh_since` is a miss, too.
    pub async fn look_up(
        &self,
        keys: &[CacheKey],
        fresh_since: Option<Millis>,
    ) -> Result<HashMap<CacheKey, StoredAnswer>, StoreError> {
        let mut hits = HashMap::with_capacity(keys.len());
        for slice in keys.chunks(KEYS_PER_READ) {
            let names: Vec<String> = slice.iter().map(|key| self.keys.cached(key)).collect();
            let values: Vec<Option<Bytes>> = redis::cmd("MGET").arg(&names).query_async(&mut self.main.clone()).await?;
            for (key, stored) in pair(slice, values)? {
                match record::unpack_cached(key, &stored) {
                    Ok(Some(answer)) if is_stale(&answer, fresh_since) => {}
                    Ok(Some(answer)) => {
                        hits.insert(*key, answer);
                    }
                    Ok(None) => self.set_aside(key, "it answers another question").await?,
                    Err(why) => self.set_aside(key, &why.to_string()).await?,
                }
            }
        }
        Ok(hits)
    }

    /// Which of these keys have an entry from before `bound`. Watches them all, so that a MULTI on this connection is not
    /// executed if one of them changes.
    pub(super) async fn watch_stale(
        &self,
        connection: &mut MultiplexedConnection,
        keys: &[CacheKey],
        bound: Millis,
    ) -> Result<HashSet<CacheKey>, StoreError> {
        let mut stale = HashSet::new();
        for slice in keys.chunks(AGES_PER_READ) {
            let names: Vec<String> = slice.iter().map(|key| self.keys.cached(key)).collect();
            redis::cmd("WATCH").arg(&names).query_async::<()>(connection).await?;
            let values: Vec<Option<Bytes>> = redis::cmd("MGET").arg(&names).query_async(connection).await?;
            for (key, stored) in pair(slice, values)? {
                // One that cannot be trusted is the look-up's to set aside.
                if let Ok(Some(answer)) = record::unpack_cached(key, &stored)
                    && is_stale(&answer, Some(bound))
                {
                    stale.insert(*key);
                }
            }
        }
        Ok(stale)
    }

    /// Takes a cache entry that cannot be trusted out of the way, keeping it for an operator.
    async fn set_aside(&self, key: &CacheKey, why: &str) -> Result<(), StoreError> {
        tracing::error!(%key, why, "cache entry set aside");
        metrics::counter!("batchgate_cache_suspect_total").increment(1);
        let mut rename = redis::cmd("RENAME");
        rename.arg(self.keys.cached(key)).arg(self.keys.suspect(key));
        let gone = |error: &redis::RedisError| error.to_string().contains("no such key");
        match rename.query_async::<()>(&mut self.main.clone()).await {
            Err(error) if !gone(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn is_stale(answer: &StoredAnswer, fresh_since: Option<Millis>) -> bool {
    fresh_since.is_some_and(|bound| answer.from.at < bound)
}

/// MGET answers in the order of its keys, one value each; the pairing is Redis's contract and is checked by count here,
/// and by the key inside each entry at unpacking.
fn pair(keys: &[CacheKey], values: Vec<Option<Bytes>>) -> Result<impl Iterator<Item = (&CacheKey, Bytes)>, StoreError> {
    Ok(paired(keys, values)?.filter_map(|(key, value)| Some((key, value?))))
}
