//! Names of our own making: batches, chunks, dispatch tokens. Each has one text form, parsed and printed here only.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use std::fmt;
use uuid::Uuid;

/// A batch, `batch_` and 32 hex digits of a UUIDv7: ids sort by creation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(Uuid);

impl BatchId {
    /// `now_ms` and `random` are arguments so that the domain needs neither clock nor dice.
    pub fn new(now_ms: u64, random: &[u8; 10]) -> BatchId {
        BatchId(uuid::Builder::from_unix_timestamp_millis(now_ms, random).into_uuid())
    }

    /// The 32 hex digits that Redis keys carry.
    pub fn hex(&self) -> String {
        self.0.simple().to_string()
    }

    /// When it was created, in Unix milliseconds: what the id begins with. None for an id no batch of ours has.
    pub fn created_at(&self) -> Option<u64> {
        let (seconds, nanos) = self.0.get_timestamp()?.to_unix();
        Some(seconds * 1_000 + u64::from(nanos) / 1_000_000)
    }

    pub fn from_hex(text: &str) -> Option<BatchId> {
        let strict = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        strict.then(|| Uuid::try_parse(text).ok().map(BatchId)).flatten()
    }

    pub fn parse(text: &str) -> Option<BatchId> {
        BatchId::from_hex(text.strip_prefix("batch_")?)
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch_{}", self.0.simple())
    }
}

impl fmt::Debug for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A chunk: its batch and its number there. A function of both, so planning twice makes the same chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId {
    pub batch: BatchId,
    pub number: u32,
}

impl ChunkId {
    /// The text Redis keys carry: `<batch hex>.<number>`.
    pub fn parse(text: &str) -> Option<ChunkId> {
        let (batch, number) = text.split_once('.')?;
        Some(ChunkId { batch: BatchId::from_hex(batch)?, number: number.parse().ok()? })
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.batch.0.simple(), self.number)
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The right to change a chunk, fresh at every dispatch: 22 base64url characters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(String);

impl Token {
    pub fn new(random: &[u8; 16]) -> Token {
        Token(URL_SAFE_NO_PAD.encode(random))
    }

    pub fn from_stored(text: &str) -> Token {
        Token(text.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first 16 characters of every wire id of a chunk: four that name the deployment and namespace, twelve drawn
/// for the chunk (not a piece of its UUIDv7, whose head is a clock). By it a batch found at a provider is known as ours.
#[derive(Clone, PartialEq, Eq)]
pub struct WireTag(String);

impl WireTag {
    pub const LEN: usize = 16;

    pub fn new(deployment: &str, namespace: &str, random: &[u8; 9]) -> WireTag {
        WireTag(format!("{}{}", WireTag::home(deployment, namespace), URL_SAFE_NO_PAD.encode(random)))
    }

    /// The four characters by which every wire id of a deployment and namespace begins.
    pub fn home(deployment: &str, namespace: &str) -> String {
        let mut home = Sha256::new();
        home.update((deployment.len() as u64).to_be_bytes());
        home.update(deployment);
        home.update(namespace);
        URL_SAFE_NO_PAD.encode(&home.finalize()[..3])
    }

    pub fn from_stored(text: &str) -> Option<WireTag> {
        (text.len() == WireTag::LEN).then(|| WireTag(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for WireTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_from_their_text() {
        let batch = BatchId::new(1_796_000_000_000, &[7; 10]);
        assert_eq!(BatchId::parse(&batch.to_string()), Some(batch));
        assert_eq!(batch.created_at(), Some(1_796_000_000_000));
        let chunk = ChunkId { batch, number: 3 };
        assert_eq!(ChunkId::parse(&chunk.to_string()), Some(chunk));
    }

    #[test]
    fn an_id_no_batch_can_have_is_refused() {
        for text in ["", "batch_", "batch_0", "batch_xyz", "msgbatch_0", &format!("batch_{}", "A".repeat(32))] {
            assert_eq!(BatchId::parse(text), None, "{text}");
        }
    }
}
