//! Who answers a question that is in flight: a mark for each, so that nobody asks it twice. A mark names a chunk, or the
//! upload that will make one. It is set before the cache is looked up a second time and removed after the answer entered
//! it, so whoever sets one and finds no answer is the only one who asks.

use super::{Store, StoreError, commit::KEYS_PER_LOOK, script};
use crate::domain::{
    chunk::By,
    id::{BatchId, ChunkId, Token},
    key::CacheKey,
};
use std::collections::{HashMap, HashSet};

/// An upload marks right before it becomes a batch. One that did not for so long is given up by those who wait for it.
const SILENT_MS: u64 = 20_000;

/// The text of [`Store::move_marks`]: inside a MULTI there is no second try for a script Redis has forgotten.
pub(super) const MOVE_TEXT: &str = include_str!("scripts/move_marks.lua");

/// What came of the marks an upload set.
#[derive(Debug, Default)]
pub struct Marked {
    /// Marked just now: nobody had them.
    pub ours: Vec<CacheKey>,
    /// Others have them.
    pub others: HashMap<CacheKey, Option<ChunkId>>,
}

/// Who answers a question of a chunk that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Nobody did: the question is its own now.
    Us,
    Chunk(ChunkId),
    /// An upload that is no batch yet.
    Upload,
}

impl Store {
    /// Marks questions of an upload; those that have a mark keep it. None: the upload has lapsed.
    pub async fn mark(&self, batch: BatchId, keys: &[CacheKey]) -> Result<Option<Marked>, StoreError> {
        let (mut marked, own) = (Marked::default(), batch.hex());
        for slice in keys.chunks(KEYS_PER_LOOK) {
            let mut call = script!("mark").prepare_invoke();
            call.key(self.keys.upload(batch)).key(self.keys.uploads());
            for key in slice {
                call.key(self.keys.mark(key));
            }
            let holders: Vec<String> = call.arg(&own).arg(self.skew_ms).invoke_async(&mut self.main.clone()).await?;
            if holders.is_empty() {
                return Ok(None);
            }
            for (key, holder) in paired(slice, holders)? {
                if holder.is_empty() {
                    marked.ours.push(*key);
                } else if holder != own {
                    marked.others.insert(*key, ChunkId::parse(&holder));
                }
            }
        }
        Ok(Some(marked))
    }

    /// Says that an upload which has marked goes on: there may be much to write before it becomes a batch.
    pub async fn still_marking(&self, batch: BatchId) -> Result<(), StoreError> {
        let mut call = script!("mark").prepare_invoke();
        call.key(self.keys.upload(batch)).key(self.keys.uploads()).arg(batch.hex()).arg(self.skew_ms);
        Ok(call.invoke_async(&mut self.main.clone()).await?)
    }

    /// Says which chunk of an upload has these questions; those whose mark is another's keep it.
    pub async fn point_marks(&self, chunk: ChunkId, keys: impl Iterator<Item = &CacheKey>) -> Result<(), StoreError> {
        let names: Vec<String> = keys.map(|key| self.keys.mark(key)).collect();
        for slice in names.chunks(KEYS_PER_LOOK) {
            let mut call = script!("move_marks").prepare_invoke();
            for name in slice {
                call.key(name);
            }
            call.arg(chunk.batch.hex()).arg(chunk.to_string());
            call.invoke_async::<u32>(&mut self.main.clone()).await?;
        }
        Ok(())
    }

    /// Moves the marks of these questions from one chunk to another, in a transaction of the caller's.
    pub(super) fn move_marks<'a>(
        &self,
        (from, to): (ChunkId, ChunkId),
        keys: impl ExactSizeIterator<Item = &'a CacheKey>,
        pipe: &mut redis::Pipeline,
    ) {
        let call = pipe.cmd("EVAL").arg(MOVE_TEXT).arg(keys.len());
        for key in keys {
            call.arg(self.keys.mark(key));
        }
        call.arg(from.to_string()).arg(to.to_string()).ignore();
    }

    /// Removes the marks of these questions, as far as they name `holder`: a chunk, or a batch and its chunks.
    pub async fn unmark(&self, holder: impl ToString, keys: impl Iterator<Item = &CacheKey>) -> Result<(), StoreError> {
        let (names, holder): (Vec<String>, _) = (keys.map(|key| self.keys.mark(key)).collect(), holder.to_string());
        for slice in names.chunks(KEYS_PER_LOOK) {
            let mut call = script!("unmark").prepare_invoke();
            for name in slice {
                call.key(name);
            }
            call.arg(&holder).invoke_async::<u32>(&mut self.main.clone()).await?;
        }
        Ok(())
    }

    /// Removes what an upload marked that is given up.
    pub(super) async fn unmark_upload(&self, batch: BatchId, pages: u32) -> Result<(), StoreError> {
        for page in 0..pages {
            let Some(manifest) = self.manifest(batch, page).await? else { continue };
            let asked = manifest.entries.iter().filter(|entry| entry.ask.is_some());
            self.unmark(batch.hex(), asked.map(|entry| &entry.key)).await?;
        }
        Ok(())
    }

    /// Which of these questions somebody has in flight, as far as their marks say.
    pub async fn marked(&self, keys: &[CacheKey]) -> Result<HashSet<CacheKey>, StoreError> {
        let mut marked = HashSet::new();
        for slice in keys.chunks(KEYS_PER_LOOK) {
            let names: Vec<String> = slice.iter().map(|key| self.keys.mark(key)).collect();
            let holders: Vec<Option<String>> =
                redis::cmd("MGET").arg(&names).query_async(&mut self.main.clone()).await?;
            marked.extend(paired(slice, holders)?.filter(|(_, holder)| holder.is_some()).map(|(key, _)| *key));
        }
        Ok(marked)
    }

    /// Finds out who answers these questions of a chunk that waits; those that nobody does are its own from now on, and so
    /// is what those of `give_way` have that are planned and in nobody's hands. None: another dispatch has the chunk.
    pub async fn take_marks(
        &self,
        chunk: ChunkId,
        token: &Token,
        keys: &[CacheKey],
        give_way: &[ChunkId],
    ) -> Result<Option<HashMap<CacheKey, Answers>>, StoreError> {
        let server = if give_way.is_empty() { String::new() } else { self.server().await? };
        let mut answers = HashMap::with_capacity(keys.len());
        for slice in keys.chunks(KEYS_PER_LOOK) {
            let mut call = script!("take_marks").prepare_invoke();
            call.key(self.keys.fence(chunk)).key(self.keys.uploads());
            for key in slice {
                call.key(self.keys.mark(key));
            }
            call.arg(chunk.to_string()).arg(chunk.batch.hex()).arg(token.as_str()).arg(self.keys.prefix());
            call.arg(self.skew_ms).arg(SILENT_MS).arg(&server);
            for chunk in give_way {
                call.arg(chunk.to_string());
            }
            let said: Vec<String> = call.invoke_async(&mut self.main.clone()).await?;
            if said.is_empty() {
                return Ok(None);
            }
            for (key, said) in paired(slice, said)? {
                let answer = match said.as_str() {
                    "" => Answers::Us,
                    "later" => Answers::Upload,
                    chunk => ChunkId::parse(chunk).map_or(Answers::Upload, Answers::Chunk),
                };
                answers.insert(*key, answer);
            }
        }
        Ok(Some(answers))
    }
}

impl Answers {
    /// The other chunk that does.
    pub fn chunk(&self) -> Option<ChunkId> {
        match self {
            Answers::Chunk(chunk) => Some(*chunk),
            Answers::Us | Answers::Upload => None,
        }
    }
}

impl Marked {
    /// Whose call answers a question.
    pub fn by(&self, key: &CacheKey) -> By {
        self.others.get(key).map_or(By::Us, |holder| By::Another(*holder))
    }
}

/// Scripts and MGET answer in the order of their keys.
pub(super) fn paired<T>(keys: &[CacheKey], values: Vec<T>) -> Result<impl Iterator<Item = (&CacheKey, T)>, StoreError> {
    if keys.len() != values.len() {
        return Err(StoreError::corrupt("answer", format!("{} values for {} keys", values.len(), keys.len())));
    }
    Ok(keys.iter().zip(values))
}
