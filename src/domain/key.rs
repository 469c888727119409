//! The cache key: SHA-256 over a versioned canonical form of everything that can change the answer.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use std::fmt;

/// The identity of a question (and its sample number). 32 bytes; 43 characters of base64url in text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// Characters of the text form.
    pub const TEXT_LEN: usize = 43;

    pub fn from_bytes(bytes: [u8; 32]) -> CacheKey {
        CacheKey(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub fn parse(text: &str) -> Option<CacheKey> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Some(CacheKey(bytes.try_into().ok()?))
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheKey({self})")
    }
}
