//! What a server said of the questions of a chunk that is asked one by one, noted as it comes: whoever has the chunk next
//! goes on where this dispatch ended, and a death loses no more than what was in the air.

use super::{Store, StoreError, chunks::Lease, record, script};
use crate::{
    clock,
    domain::{
        id::ChunkId,
        key::CacheKey,
        outcome::{Failure, Usage},
    },
};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, time::Duration};

/// Answers of a chunk that is not settled yet are kept longer than any deadline; the commit gives them the cache's time.
const KEPT: Duration = Duration::from_secs(45 * 24 * 60 * 60);

/// The latest word on one question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The answer is staged; `size`: its packed bytes.
    Answered { usage: Usage, size: usize },
    /// Failed for good.
    Failed(Failure),
    /// Failed so often, and to be asked again.
    Tried { attempts: u8 },
}

impl Word {
    /// Nothing more will be said of this question.
    pub fn is_last(&self) -> bool {
        match self {
            Word::Answered { .. } | Word::Failed(_) => true,
            Word::Tried { .. } => false,
        }
    }
}

/// A word on its way into Redis, with the packed answer ([`record::pack_cached`]) if it is one.
#[derive(Clone, Debug)]
pub struct Saying {
    pub key: CacheKey,
    pub word: Word,
    pub packed: Option<Vec<u8>>,
}

impl Store {
    /// Notes words and stages their answers, all or nothing. False: another dispatch has the chunk, nothing was changed.
    pub async fn note_said(&self, lease: &Lease, sayings: &[Saying]) -> Result<bool, StoreError> {
        let chunk = lease.chunk;
        let mut call = script!("said").prepare_invoke();
        call.key(self.keys.fence(chunk)).key(self.keys.said(chunk)).key(self.keys.chunk(chunk));
        call.key(self.keys.batch(chunk.batch));
        for saying in sayings.iter().filter(|saying| saying.packed.is_some()) {
            call.key(self.keys.staged_for(chunk, &saying.key));
        }
        call.arg(lease.token.as_str()).arg(clock::millis(KEPT));
        call.arg(sayings.iter().filter(|saying| saying.word.is_last()).count()).arg(sayings.len());
        for saying in sayings {
            call.arg(saying.key.to_string()).arg(record::pack_json(&saying.word));
        }
        for packed in sayings.iter().filter_map(|saying| saying.packed.as_ref()) {
            call.arg(packed);
        }
        Ok(call.invoke_async::<u8>(&mut self.main.clone()).await? == 1)
    }

    /// All words so far on the questions of a chunk; none of one that goes by batches.
    pub async fn said(&self, chunk: ChunkId) -> Result<HashMap<CacheKey, Word>, StoreError> {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(self.keys.said(chunk));
        let stored: HashMap<String, Vec<u8>> = ask.query_async(&mut self.main.clone()).await?;
        let read = |(key, word): (String, Vec<u8>)| {
            let parsed = CacheKey::parse(&key);
            let key = parsed.ok_or_else(|| StoreError::corrupt(format!("words on {chunk}"), "odd key"))?;
            Ok((key, record::unpack_json(&word, "word on a question")?))
        };
        stored.into_iter().map(read).collect()
    }
}
