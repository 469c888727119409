//! Chunks that wait for another batch's answers: they register with the chunk that asks, and its commit serves them.

use super::{
    Store, StoreError,
    chunks::Lease,
    commit::{Delta, KEYS_PER_LOOK, STAGED},
    marks::paired,
    pages::{FrameRow, Origin},
    record,
    runs::Row,
    script,
};
use crate::{
    clock::{self, Millis},
    domain::{chunk::Item, id::ChunkId, key::CacheKey},
};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};

/// Chunks that may wait for one chunk; more of them look for their answers in the cache.
const MAX_WAITERS: usize = 256;
/// Copied answers read back at once; they may be large.
const KEYS_PER_READ: usize = 50;
/// Sent by text: inside a MULTI there is no second try for a script Redis has forgotten.
const SERVE_TEXT: &str = include_str!("scripts/serve.lua");

/// What became of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    Done,
    /// It was before.
    Again,
    /// It takes no more waiters.
    Later,
    /// The chunk has given its questions away, and waits for others itself.
    Moving,
    /// The chunk is settled, or there is none.
    Gone,
}

/// What a commit gives to a chunk that waits for it.
#[derive(Debug)]
pub struct Served {
    pub waiter: ChunkId,
    /// Fragments written for the open pages of the waiter's batch; the MULTI makes them live.
    pub fragments: Vec<(u32, FrameRow)>,
    /// The questions it did not answer.
    pub left: Vec<Item>,
    /// Exact bytes of a provider's file or body with these.
    pub left_bytes: u64,
    /// Results, by page, that give the number back they drew from their run: no success came of them.
    pub given_back: Vec<(u32, Vec<Row>)>,
    /// What the waiter's batch gains.
    pub delta: Delta,
}

impl Store {
    /// Registers a chunk that waits with the one that asks; repeatable.
    pub async fn register(&self, waiter: ChunkId, owner: ChunkId) -> Result<Registered, StoreError> {
        let mut call = script!("register").prepare_invoke();
        call.key(self.keys.chunk(owner)).key(self.keys.waiters(owner)).key(self.keys.batch(owner.batch));
        call.arg(waiter.to_string()).arg(MAX_WAITERS);
        let answer: String = call.invoke_async(&mut self.main.clone()).await?;
        match answer.as_str() {
            "ok" => Ok(Registered::Done),
            "again" => Ok(Registered::Again),
            "later" => Ok(Registered::Later),
            "moving" => Ok(Registered::Moving),
            "gone" => Ok(Registered::Gone),
            other => Err(StoreError::corrupt("register script's answer", other)),
        }
    }

    /// The chunks registered with this one.
    pub async fn waiters(&self, chunk: ChunkId) -> Result<BTreeSet<ChunkId>, StoreError> {
        let names: Vec<String> =
            redis::cmd("SMEMBERS").arg(self.keys.waiters(chunk)).query_async(&mut self.main.clone()).await?;
        Ok(read_waiters(&names))
    }

    /// Has the chunks look again that are registered with this one.
    pub async fn wake_waiters(&self, chunk: ChunkId) -> Result<(), StoreError> {
        for waiter in self.waiters(chunk).await? {
            let mut due = redis::cmd("ZADD"); // one in a worker's hands does not stand there
            due.arg(self.keys.delayed()).arg(&["XX", "LT"]).arg(0).arg(waiter.to_string());
            due.query_async::<()>(&mut self.main.clone()).await?;
        }
        Ok(())
    }

    /// Whether a chunk is in a worker's hands.
    pub async fn is_claimed(&self, chunk: ChunkId) -> Result<bool, StoreError> {
        Ok(redis::cmd("EXISTS").arg(self.keys.fence(chunk)).query_async(&mut self.main.clone()).await?)
    }

    /// How many prompts each of these teams has under way.
    pub async fn under_way<const N: usize>(&self, teams: [&str; N]) -> Result<[u64; N], StoreError> {
        let mut ask = redis::cmd("HMGET");
        ask.arg(self.keys.shares()).arg(&teams);
        let told: [Option<u64>; N] = ask.query_async(&mut self.main.clone()).await?;
        Ok(told.map(Option::unwrap_or_default))
    }

    /// No chunk can register any more; false if another dispatch has this one.
    pub async fn close_registration(&self, lease: &Lease) -> Result<bool, StoreError> {
        let mut call = script!("close").prepare_invoke();
        call.key(self.keys.fence(lease.chunk)).key(self.keys.chunk(lease.chunk)).arg(lease.token.as_str());
        Ok(call.invoke_async::<u8>(&mut self.main.clone()).await? == 1)
    }

    /// Serves a chunk that waits, in the transaction of the chunk it waits for.
    pub(super) fn serve(&self, owner: ChunkId, served: &Served, pipe: &mut redis::Pipeline) {
        let Served { waiter, fragments, left, left_bytes, given_back, delta } = served;
        let (keys, batch) = (&self.keys, waiter.batch);
        let call = pipe.cmd("EVAL").arg(SERVE_TEXT).arg(7);
        call.arg(keys.chunk(*waiter)).arg(keys.items(*waiter)).arg(keys.fence(*waiter)).arg(keys.batch(batch));
        call.arg(keys.claimed()).arg(keys.delayed()).arg(keys.seal());
        call.arg(waiter.to_string()).arg(owner.to_string()).arg(keys.prefix()).arg(batch.hex());
        call.arg(Origin::Joined { waiter: waiter.number, owner }.name());
        call.arg(if left.is_empty() { Vec::new() } else { record::pack_items(left) }).arg(left.len());
        call.arg(left.iter().map(|item| u64::from(item.results())).sum::<u64>()).arg(*left_bytes);
        call.arg(clock::now_ms()).arg(fragments.len());
        for (page, row) in fragments {
            call.arg(*page).arg(row.to_stored());
        }
        for (name, delta) in delta.fields() {
            call.arg(name).arg(delta);
        }
        call.ignore();
        for (page, rows) in given_back {
            self.give_back_call(batch, *page, rows, pipe);
        }
    }

    /// Copies the answers of these questions that the cache has by now to where the dispatch stages its own; answers from
    /// before `fresh_since` are no answers. Tells the bytes of each. None: another dispatch has the chunk.
    pub async fn copy_hits(
        &self,
        lease: &Lease,
        keys: &[CacheKey],
        fresh_since: Option<Millis>,
    ) -> Result<Option<HashMap<CacheKey, usize>>, StoreError> {
        let mut copied = Vec::new();
        for slice in keys.chunks(KEYS_PER_LOOK) {
            let mut call = script!("copy_hits").prepare_invoke();
            call.key(self.keys.fence(lease.chunk));
            for key in slice {
                call.key(self.keys.cached(key)).key(self.keys.staged(&lease.token, key));
            }
            call.arg(lease.token.as_str()).arg(clock::millis(STAGED));
            let there: Vec<u8> = call.invoke_async(&mut self.main.clone()).await?;
            if there.is_empty() && !slice.is_empty() {
                return Ok(None);
            }
            copied.extend(paired(slice, there)?.filter(|(_, there)| *there == 1).map(|(key, _)| *key));
        }
        let mut sizes = HashMap::with_capacity(copied.len());
        for slice in copied.chunks(KEYS_PER_READ) {
            sizes.extend(self.weigh_copies(lease, slice, fresh_since).await?);
        }
        let bad: Vec<&CacheKey> = copied.iter().filter(|key| !sizes.contains_key(*key)).collect();
        self.unstage(&lease.token, bad.into_iter()).await?;
        Ok(Some(sizes))
    }

    /// Bytes of each copy that is an answer to its question, and young enough.
    async fn weigh_copies(
        &self,
        lease: &Lease,
        keys: &[CacheKey],
        fresh_since: Option<Millis>,
    ) -> Result<Vec<(CacheKey, usize)>, StoreError> {
        let names: Vec<String> = keys.iter().map(|key| self.keys.staged(&lease.token, key)).collect();
        let values: Vec<Option<Bytes>> = redis::cmd("MGET").arg(&names).query_async(&mut self.main.clone()).await?;
        let size = |(key, stored): (&CacheKey, Option<Bytes>)| {
            let stored = stored?;
            // One that cannot be trusted is the next look-up's to set aside.
            let answer = record::unpack_cached(key, &stored).ok().flatten()?;
            let fresh = fresh_since.is_none_or(|bound| answer.from.at >= bound);
            fresh.then_some((*key, stored.len()))
        };
        Ok(paired(keys, values)?.filter_map(size).collect())
    }
}

/// A name nobody can read is nobody who waits.
pub(super) fn read_waiters(names: &[String]) -> BTreeSet<ChunkId> {
    names.iter().filter_map(|name| ChunkId::parse(name)).collect()
}
