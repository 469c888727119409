//! The one transaction a chunk is settled in: all of its results, its state and its batch's progress, or nothing.
//! Doing it twice changes nothing. Staging, which comes before, touches no key that anybody reads.

use super::{
    Store, StoreError,
    chunks::{Lease, NewChunk},
    janitor::{Noted, REMEMBERED},
    joins::{Served, read_waiters},
    keys::Keys,
    pages::{FrameRow, Origin},
    record::{self, Known, StoredAnswer},
    runs::Row,
    script,
};
use crate::{
    clock::{self, Millis},
    domain::{
        batch::CacheMode,
        chunk::ChunkState,
        id::{BatchId, ChunkId, Token},
        key::CacheKey,
        outcome::Usage,
    },
};
use bytes::Bytes;
use redis::{Value, aio::MultiplexedConnection};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

/// Staged answers live at least this long: from the first line of a download to its commit.
pub(super) const STAGED: Duration = Duration::from_secs(24 * 60 * 60);
/// Times a MULTI is begun anew because its fence moved without being taken away.
const ATTEMPTS: u32 = 5;
/// Keys looked at in one round trip.
pub(super) const KEYS_PER_LOOK: usize = 500;

/// Sent by text: inside a MULTI there is no second try for a script Redis has forgotten.
const PROGRESS_TEXT: &str = include_str!("scripts/progress.lua");

/// Under whose name a chunk's answers are staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Of a dispatch that reads them all: what it leaves behind is worthless.
    Dispatch(Token),
    /// Of the chunk: its dispatches ask one by one, and each goes on where the one before ended.
    Chunk(ChunkId),
}

impl Stage {
    fn name(&self, keys: &Keys, key: &CacheKey) -> String {
        match self {
            Stage::Dispatch(token) => keys.staged(token, key),
            Stage::Chunk(chunk) => keys.staged_for(*chunk, key),
        }
    }
}

/// Everything that changes when a chunk is settled.
pub struct Settled<'a> {
    pub lease: &'a Lease,
    /// The batch's counter of the state the chunk is in: `c_planned`, `c_submitting` or `c_running`; none if others asked.
    pub counter: Option<&'static str>,
    pub mode: CacheMode,
    /// Its answers are copies of the cache's own: they enter nothing.
    pub cached: bool,
    pub stage: &'a Stage,
    /// The provider batch that was read to its end for it; none if it is settled without: the janitor looks after what
    /// there may be.
    pub harvested: Option<&'a str>,
    /// With `use`: an entry from before this moment (`max_age`) gives way, any other stays.
    pub fresh_since: Option<Millis>,
    /// Keys with a staged answer.
    pub answered: &'a [CacheKey],
    /// Questions that ended without an answer.
    pub failed: &'a [CacheKey],
    /// Fragments written for the batch's open pages; the MULTI makes them live.
    pub fragments: &'a [(u32, FrameRow)],
    /// What is asked again.
    pub follow_ups: &'a [NewChunk],
    /// Results, by page, that give the number back they drew from their run: no success came of them.
    pub given_back: &'a [(u32, Vec<Row>)],
    /// Every chunk that waits for this one; none where it waits no more.
    pub served: BTreeMap<ChunkId, Option<Served>>,
    pub delta: Delta,
}

/// What a commit adds to its batch's counts; results, not questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    pub succeeded: u64,
    pub failed: u64,
    pub canceled: u64,
    pub expired: u64,
    pub usage: Usage,
    /// How many of `succeeded` came from the cache, or from another batch's call.
    pub cached: u64,
    pub joined: u64,
    /// Prompts of this chunk the provider never reported as done in a poll; may be negative for those asked again.
    pub reported: i64,
}

impl Delta {
    /// What changes, by the batch's own names.
    pub(super) fn fields(&self) -> Vec<(&'static str, i64)> {
        let Delta { succeeded, failed, canceled, expired, usage, cached, joined, reported } = *self;
        let Usage { input_tokens, cached_input_tokens, output_tokens } = usage;
        let counts = [
            ("succeeded", succeeded),
            ("failed", failed),
            ("canceled", canceled),
            ("expired", expired),
            ("cached", cached),
            ("joined", joined),
            ("input_tokens", input_tokens),
            ("cached_input_tokens", cached_input_tokens),
            ("output_tokens", output_tokens),
        ];
        let counts = counts.map(|(name, delta)| (name, i64::try_from(delta).unwrap_or(i64::MAX)));
        counts.into_iter().chain([("reported", reported)]).filter(|(_, delta)| *delta != 0).collect()
    }
}

/// What became of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    Done,
    /// Another dispatch has the chunk; nothing was changed.
    Lost,
    /// Chunks wait for this one that are not served yet; nothing was changed.
    Newcomers,
}

impl Store {
    /// Notes that a dispatch is about to stage, so that what it leaves behind is found if it dies.
    pub async fn begin_staging(&self, lease: &Lease, patience: Duration) -> Result<(), StoreError> {
        let due = clock::now_ms() + clock::millis(patience);
        let mut pipe = redis::pipe();
        pipe.atomic().zadd(self.keys.chores(), stage_chore(lease.chunk, &lease.token), due).ignore();
        pipe.sadd(self.keys.stages(lease.chunk.batch), fragment_name(lease.chunk, &lease.token)).ignore();
        Ok(pipe.query_async(&mut self.main.clone()).await?)
    }

    /// Nothing of this dispatch is staged any more.
    pub(super) async fn end_staging(&self, chunk: ChunkId, token: &Token) -> Result<(), StoreError> {
        let mut srem = redis::cmd("SREM");
        srem.arg(self.keys.stages(chunk.batch)).arg(fragment_name(chunk, token));
        Ok(srem.query_async(&mut self.main.clone()).await?)
    }

    /// Whether a dispatch of this batch may have left something staged.
    pub(super) async fn has_stages(&self, batch: BatchId) -> Result<bool, StoreError> {
        Ok(redis::cmd("EXISTS").arg(self.keys.stages(batch)).query_async(&mut self.main.clone()).await?)
    }

    /// Stages packed answers ([`record::pack_cached`]) under the dispatch's token, with the cache's time to live, which a
    /// rename carries along. False: another dispatch has the chunk, nothing was staged.
    pub async fn stage(
        &self,
        lease: &Lease,
        answers: &[(CacheKey, Vec<u8>)],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let mut call = script!("stage").prepare_invoke();
        call.key(self.keys.fence(lease.chunk));
        call.arg(lease.token.as_str()).arg(clock::millis(ttl.max(STAGED)));
        for (key, packed) in answers {
            call.key(self.keys.staged(&lease.token, key)).arg(packed);
        }
        Ok(call.invoke_async::<u8>(&mut self.main.clone()).await? == 1)
    }

    /// Removes staged answers of a dispatch that lost its chunk: the chore that would have may have run already.
    pub async fn unstage(&self, token: &Token, keys: impl Iterator<Item = &CacheKey>) -> Result<(), StoreError> {
        let names: Vec<String> = keys.map(|key| self.keys.staged(token, key)).collect();
        self.unlink(&names).await
    }

    /// Removes fragments that were written and are no page's.
    pub async fn remove_fragments(&self, batch: BatchId, fragments: &[(u32, FrameRow)]) -> Result<(), StoreError> {
        let names = fragments.iter().flat_map(|(page, row)| self.fragment_names(batch, *page, row));
        self.unlink(&names.collect::<Vec<_>>()).await
    }

    /// Staged answers, read back to be packed for their readers. All must be there.
    pub async fn staged(&self, stage: &Stage, keys: &[CacheKey]) -> Result<Vec<(CacheKey, StoredAnswer)>, StoreError> {
        let names: Vec<String> = keys.iter().map(|key| stage.name(&self.keys, key)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let values: Vec<Option<Bytes>> = redis::cmd("MGET").arg(&names).query_async(&mut self.main.clone()).await?;
        let absent = |key: &CacheKey| StoreError::corrupt(format!("staged answer {key}"), "absent or another's");
        let unpack = |(key, stored): (&CacheKey, Option<Bytes>)| {
            // The key inside the entry proves the pairing, not the order of the reply.
            let answer = record::unpack_cached(key, &stored.ok_or_else(|| absent(key))?)?.ok_or_else(|| absent(key))?;
            Ok((*key, answer))
        };
        keys.iter().zip(values).map(unpack).collect()
    }

    /// Settles a chunk: the only writer of outcomes. Repeatable: what was applied once is only tidied up.
    ///
    /// # Errors
    /// Nothing was applied, or nobody can say: call again while the chunk is held.
    pub async fn commit(&self, settled: &Settled<'_>, cache_ttl: Duration) -> Result<Committed, StoreError> {
        for _ in 0..ATTEMPTS {
            let mut connection = self.dedicated().await?;
            if !self.watch_fence(&mut connection, settled.lease).await? {
                return self.look_back(settled, cache_ttl).await;
            }
            if !self.watch_waiters(&mut connection, settled).await? {
                return Ok(Committed::Newcomers);
            }
            let stale = match (settled.mode, settled.fresh_since) {
                (CacheMode::Use, Some(bound)) => self.watch_stale(&mut connection, settled.answered, bound).await?,
                _ => HashSet::new(),
            };
            fail_point!("before_exec");
            match self.transaction(settled, &stale, cache_ttl).query_async::<Option<Value>>(&mut connection).await {
                Ok(Some(replies)) => {
                    settled.lease.sure.give_back();
                    fail_point!("after_exec");
                    // The chunk is settled; what is not tidied up now is the chore's.
                    if let Err(error) = self.after_exec(settled, &stale, &replies, cache_ttl).await {
                        tracing::warn!(chunk = %settled.lease.chunk, %error, "tidy up after a commit; the sweeper will");
                    }
                    return Ok(Committed::Done);
                }
                Ok(None) => {} // the fence, or a watched entry, changed between look and EXEC: look again
                // The connection broke, or a command inside failed: EXEC may have been applied all the same.
                Err(error) => match self.look_back(settled, cache_ttl).await? {
                    Committed::Done => return Ok(Committed::Done),
                    Committed::Lost | Committed::Newcomers => return Err(error.into()),
                },
            }
        }
        Ok(Committed::Lost)
    }

    /// Whether this token settled the chunk, though no reply said so; then the cache is given what it may have missed.
    async fn look_back(&self, settled: &Settled<'_>, cache_ttl: Duration) -> Result<Committed, StoreError> {
        let lease = settled.lease;
        let chunk = self.chunk(lease.chunk).await?;
        if chunk.and_then(|chunk| chunk.settled_by).as_deref() != Some(lease.token.as_str()) {
            return Ok(Committed::Lost);
        }
        if let Err(error) = self.mend_cache(settled, cache_ttl).await {
            tracing::warn!(chunk = %lease.chunk, %error, "the cache may lack answers of this chunk");
        }
        Ok(Committed::Done)
    }

    /// Writes answers of a settled chunk that the cache lacks, from the fragments its batch reads them from. A page that
    /// was sealed meanwhile has none any more: its answers are safe in the batch, and asked again for the next one.
    async fn mend_cache(&self, settled: &Settled<'_>, cache_ttl: Duration) -> Result<(), StoreError> {
        if settled.mode == CacheMode::Off || settled.cached {
            return Ok(());
        }
        let mut lacking = self.lacking(settled.answered, cache_ttl).await?;
        if lacking.is_empty() {
            return Ok(());
        }
        let (chunk, all) = (settled.lease.chunk, lacking.len());
        for (page, row) in settled.fragments {
            for frame in 0..row.frames {
                let Some(records) = self.fragment_frame(chunk.batch, *page, row, frame).await? else { break };
                let mut pipe = redis::pipe();
                for (key, known) in records {
                    if let Known::Answered(answer) = known
                        && lacking.remove(&key)
                    {
                        let set = pipe.cmd("SET").arg(self.keys.cached(&key)).arg(record::pack_cached(&key, &answer));
                        set.arg("NX").arg("PX").arg(clock::millis(cache_ttl)).ignore();
                    }
                }
                pipe.query_async::<()>(&mut self.main.clone()).await?;
            }
        }
        tracing::warn!(%chunk, mended = all - lacking.len(), lost = lacking.len(), "a commit left answers out of the cache");
        Ok(())
    }

    /// Which of these keys the cache has no entry of; the others live on for as long as a fresh one.
    async fn lacking(&self, keys: &[CacheKey], cache_ttl: Duration) -> Result<HashSet<CacheKey>, StoreError> {
        let mut lacking = HashSet::new();
        for slice in keys.chunks(KEYS_PER_LOOK) {
            let mut pipe = redis::pipe();
            for key in slice {
                pipe.exists(self.keys.cached(key));
                pipe.cmd("PEXPIRE").arg(self.keys.cached(key)).arg(clock::millis(cache_ttl)).arg("GT").ignore();
            }
            let there: Vec<bool> = pipe.query_async(&mut self.main.clone()).await?;
            lacking.extend(slice.iter().zip(there).filter(|(_, there)| !there).map(|(key, _)| *key));
        }
        Ok(lacking)
    }

    async fn watch_fence(&self, connection: &mut MultiplexedConnection, lease: &Lease) -> Result<bool, StoreError> {
        let fence = self.keys.fence(lease.chunk);
        redis::cmd("WATCH").arg(&fence).query_async::<()>(connection).await?;
        let token: Option<String> = redis::cmd("GET").arg(&fence).query_async(connection).await?;
        Ok(token.as_deref() == Some(lease.token.as_str()))
    }

    /// Whether all that wait are served. Watches them, so that a MULTI on this connection is not executed if one comes.
    async fn watch_waiters(
        &self,
        connection: &mut MultiplexedConnection,
        settled: &Settled<'_>,
    ) -> Result<bool, StoreError> {
        let name = self.keys.waiters(settled.lease.chunk);
        redis::cmd("WATCH").arg(&name).query_async::<()>(connection).await?;
        let waiting: Vec<String> = redis::cmd("SMEMBERS").arg(&name).query_async(connection).await?;
        Ok(read_waiters(&waiting).iter().all(|waiter| settled.served.contains_key(waiter)))
    }

    /// The MULTI. Its first command is a plain write, which a full Redis refuses at queueing, and with it all the rest.
    fn transaction(&self, settled: &Settled<'_>, stale: &HashSet<CacheKey>, cache_ttl: Duration) -> redis::Pipeline {
        let Settled { lease, stage, answered, fragments, follow_ups, cached, .. } = settled;
        let chunk = lease.chunk;
        let mut pipe = redis::pipe();
        pipe.atomic();
        let state = [
            ("state", "settled".to_owned()),
            ("settled_by", lease.token.to_string()),
            ("settled_at", clock::now_ms().to_string()),
            ("succeeded", answered.len().to_string()),
            ("failed", settled.failed.len().to_string()),
        ];
        pipe.hset_multiple(self.keys.chunk(chunk), &state).ignore();
        for key in *answered {
            let (staged, cached) = (stage.name(&self.keys, key), self.keys.cached(key));
            match entry(settled, stale.contains(key)) {
                Entry::Replaces => pipe.cmd("RENAME").arg(staged).arg(cached).ignore(),
                Entry::IfFree => pipe.cmd("RENAMENX").arg(staged).arg(cached),
                Entry::No => continue,
            };
            if cache_ttl < STAGED || matches!(stage, Stage::Chunk(_)) {
                pipe.cmd("PEXPIRE").arg(self.keys.cached(key)).arg(clock::millis(cache_ttl)).ignore();
            }
        }
        for (page, row) in *fragments {
            let directory = self.keys.fragments(chunk.batch, *page);
            let origin = Origin::Chunk { number: chunk.number, cached: *cached };
            pipe.hset(directory, origin.name(), row.to_stored()).ignore();
            for frame in self.fragment_names(chunk.batch, *page, row) {
                pipe.persist(frame).ignore();
            }
        }
        for follow_up in *follow_ups {
            follow_up.write(self, &mut pipe);
            if settled.mode.marks() && !follow_up.joins {
                self.move_marks((chunk, follow_up.id), follow_up.items.iter().map(|item| &item.key), &mut pipe);
            }
        }
        for served in settled.served.values().flatten() {
            self.serve(chunk, served, &mut pipe);
        }
        for (page, rows) in settled.given_back {
            self.give_back_call(chunk.batch, *page, rows, &mut pipe);
        }
        self.progress_call(settled, &mut pipe);
        pipe.zrem(self.keys.claimed(), chunk.to_string()).ignore();
        pipe.del(self.keys.fence(chunk)).ignore();
        pipe.del(self.keys.said(chunk)).ignore();
        if let Some(remote) = settled.harvested {
            pipe.cmd("SET").arg(self.keys.noted(remote)).arg(Noted::Harvested.text());
            pipe.arg("EX").arg(REMEMBERED).ignore();
        }
        pipe
    }

    fn progress_call(&self, settled: &Settled<'_>, pipe: &mut redis::Pipeline) {
        let batch = settled.lease.chunk.batch;
        let barren = settled.delta.succeeded == 0 && settled.follow_ups.is_empty();
        let call = pipe.cmd("EVAL").arg(PROGRESS_TEXT).arg(4);
        call.arg(self.keys.batch(batch)).arg(self.keys.seal()).arg(self.keys.delayed());
        call.arg(self.keys.chunk(settled.lease.chunk)).arg(batch.hex()).arg(settled.counter.unwrap_or_default());
        call.arg(u8::from(barren));
        call.arg(settled.lease.chunk.to_string()).arg(self.keys.prefix()).arg(settled.fragments.len());
        for (page, _) in settled.fragments {
            call.arg(*page);
        }
        call.arg(settled.follow_ups.len());
        for follow_up in settled.follow_ups {
            call.arg(follow_up.id.number);
        }
        for (name, delta) in settled.delta.fields() {
            call.arg(name).arg(delta);
        }
        call.ignore();
    }

    /// Tidies up: staged answers that found an older one in their place, and that one's time to live. The replies are
    /// those of RENAMENX, in the order of the keys it was called for.
    async fn after_exec(
        &self,
        settled: &Settled<'_>,
        stale: &HashSet<CacheKey>,
        replies: &Value,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let lease = settled.lease;
        let mut renamed = redis::from_redis_value::<Vec<i64>>(replies.clone()).unwrap_or_default().into_iter();
        let stayed = |key: &&CacheKey| match entry(settled, stale.contains(*key)) {
            Entry::Replaces => false,
            Entry::IfFree => renamed.next() == Some(0),
            Entry::No => true,
        };
        let left: Vec<&CacheKey> = settled.answered.iter().filter(stayed).collect();
        if settled.mode.marks() {
            self.unmark(lease.chunk, settled.answered.iter().chain(settled.failed)).await?;
        }
        let mut pipe = redis::pipe();
        for key in &left {
            pipe.unlink(settled.stage.name(&self.keys, key)).ignore();
            if settled.mode != CacheMode::Off && !settled.cached {
                pipe.cmd("PEXPIRE").arg(self.keys.cached(key)).arg(clock::millis(ttl)).arg("GT").ignore();
            }
        }
        pipe.srem(self.keys.stages(lease.chunk.batch), fragment_name(lease.chunk, &lease.token)).ignore();
        pipe.zrem(self.keys.chores(), stage_chore(lease.chunk, &lease.token)).ignore();
        Ok(pipe.query_async(&mut self.main.clone()).await?)
    }

    /// Removes what a dispatch staged and never committed: its answers and its fragments. Live fragments stay.
    pub(super) async fn clear_stage(&self, chunk: ChunkId, token: &Token) -> Result<(), StoreError> {
        let items = match self.items(chunk).await {
            Ok(items) => items,
            Err(StoreError::Corrupt { .. }) => return Ok(()), // the batch has ended and took its chunks' items along
            Err(away) => return Err(away),
        };
        let staged: Vec<String> = items.iter().map(|item| self.keys.staged(token, &item.key)).collect();
        self.unlink(&staged).await?;
        if self.chunk(chunk).await?.is_some_and(|chunk| chunk.state == ChunkState::Settled) {
            let kept: Vec<String> = items.iter().map(|item| self.keys.staged_for(chunk, &item.key)).collect();
            self.unlink(&kept).await?;
            self.unmark(chunk, items.iter().map(|item| &item.key)).await?;
        }
        let pages: BTreeSet<u32> = items.iter().flat_map(|item| &item.places).map(|at| at.page).collect();
        self.clear_fragments(chunk, pages, token).await?;
        for waiter in self.waiters(chunk).await? {
            // Its items do not tell: some may have been answered since, and all of them go with their batch's end.
            if let Some(progress) = self.remains(waiter.batch).await? {
                self.clear_fragments(waiter, 0..progress.pages, token).await?;
            }
        }
        Ok(())
    }

    /// Removes the fragments a dispatch wrote for a chunk, its own or one that waits, as far as they are not live.
    async fn clear_fragments(
        &self,
        chunk: ChunkId,
        pages: impl IntoIterator<Item = u32>,
        token: &Token,
    ) -> Result<(), StoreError> {
        let name = fragment_name(chunk, token);
        for page in pages {
            let live = self.fragments(chunk.batch, page).await?.into_iter().any(|(_, row)| row.name == name);
            if !live {
                self.remove_row(|frame| self.keys.fragment(chunk.batch, page, &name, frame)).await?;
            }
        }
        Ok(())
    }
}

/// How a staged answer enters the cache.
enum Entry {
    Replaces,
    /// The first answer stays.
    IfFree,
    No,
}

fn entry(settled: &Settled<'_>, stale: bool) -> Entry {
    match settled.mode {
        _ if settled.cached => Entry::No,
        CacheMode::Refresh => Entry::Replaces,
        CacheMode::Use if stale => Entry::Replaces,
        CacheMode::Use | CacheMode::Bypass | CacheMode::Only => Entry::IfFree,
        CacheMode::Off => Entry::No,
    }
}

/// The name of the fragments a dispatch writes for a chunk, its own or one that waits for it: the chunk's number and the
/// dispatch's token.
pub fn fragment_name(chunk: ChunkId, token: &Token) -> String {
    format!("{}.{token}", chunk.number)
}

fn stage_chore(chunk: ChunkId, token: &Token) -> String {
    format!("stage:{chunk}:{token}")
}
