//! The cache key: SHA-256 over a versioned canonical form of everything that can change the answer.
//!
//! ```text
//! ["batchgate/1", who, endpoint, [betas, sorted], salt or null, body, sample]
//! ```
//!
//! in the text of [`canonical`]. The sample comes last, so a question is hashed once and each of its samples costs a few
//! bytes more. Not in it: the API version (it only decides refusals), the client's `custom_id`, the team, and the body's
//! top-level members named by [`left_out`]. Golden vectors: `tests/fixtures/keys/golden.json`, also read by
//! `scripts/check-keys` in Python.

use crate::domain::{
    batch::Salt,
    canonical::{self, ExponentOutOfRange},
    id::BatchId,
    prompt::{Endpoint, Prompt},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fmt;

/// The version of the canonical form. A new one must fall back to the old and re-key on a hit.
pub const KEY_VERSION: &str = "batchgate/1";

/// Top-level body members that cannot change the answer: who asks, how it is billed, filed and cached at the provider.
/// A closed list per endpoint. Whatever is not in it counts, and so does everything nested.
///
/// | endpoint | left out |
/// |---|---|
/// | `/v1/messages` | `metadata`, `service_tier` |
/// | `/v1/chat/completions`, `/v1/responses` | `metadata`, `prompt_cache_key`, `prompt_cache_retention`, `safety_identifier`, `service_tier`, `store`, `user` |
/// | `/v1/embeddings`, `/v1/completions` | `user` |
/// | `/v1/moderations` | nothing |
///
/// Where a provider does not know one of these words it counts, for there it is not known to be harmless.
pub fn left_out(endpoint: Endpoint) -> &'static [&'static str] {
    match endpoint {
        Endpoint::Messages => &["metadata", "service_tier"],
        Endpoint::ChatCompletions | Endpoint::Responses => &[
            "metadata",
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "user",
        ],
        Endpoint::Embeddings | Endpoint::Completions => &["user"],
        Endpoint::Moderations => &[],
    }
}

/// Everything that can change the answer but the sample number, hashed.
#[derive(Clone)]
pub struct Question {
    /// After the comma before the sample number.
    state: Sha256,
}

impl Question {
    /// What this prompt asks. Prompts that came through [`Prompt::parse`] never fail: it has seen their numbers.
    pub fn new(prompt: &Prompt, salt: Option<&Salt>) -> Result<Question, ExponentOutOfRange> {
        let parts = Parts {
            who: &prompt.who,
            endpoint: prompt.endpoint,
            betas: &prompt.headers.betas,
            salt,
            body: prompt.body.as_object(),
        };
        Ok(Question { state: Sha256::new_with_prefix(parts.text()?) })
    }

    /// The key of the n-th sample, counted from 0.
    pub fn sample(&self, n: u64) -> CacheKey {
        let number = canonical::number(&n.to_string()).expect("a u64 has at most 19 zeros");
        let mut state = self.state.clone();
        state.update(number);
        state.update(b"]");
        CacheKey(state.finalize().into())
    }

    /// Sixteen bytes to tell questions apart by when counting repeats within a batch. Not a key.
    pub fn digest(&self) -> [u8; 16] {
        let full: [u8; 32] = self.state.clone().finalize().into();
        std::array::from_fn(|n| full[n])
    }
}

/// What goes into the hash, by name: two of the same type would be swapped sooner or later.
struct Parts<'a> {
    who: &'a str,
    endpoint: Endpoint,
    betas: &'a [String],
    salt: Option<&'a Salt>,
    body: Option<&'a Map<String, Value>>,
}

impl Parts<'_> {
    fn text(&self) -> Result<Vec<u8>, ExponentOutOfRange> {
        let mut out = Vec::with_capacity(4096);
        out.push(b'[');
        canonical::string(KEY_VERSION, &mut out);
        out.push(b',');
        canonical::string(self.who, &mut out);
        out.push(b',');
        canonical::string(self.endpoint.path(), &mut out);
        out.push(b',');
        // How a request is batched does not change its answer, and newer clients no longer send it.
        let mut betas: Vec<&String> = self.betas.iter().filter(|beta| !beta.starts_with("message-batches-")).collect();
        betas.sort_unstable();
        betas.dedup();
        canonical::write(&betas.into_iter().cloned().map(Value::String).collect(), &mut out)?;
        out.push(b',');
        canonical::write(self.salt.map_or(&Value::Null, Salt::value), &mut out)?;
        out.push(b',');
        canonical::object(self.body.unwrap_or(&Map::new()), left_out(self.endpoint), &mut out)?;
        out.push(b',');
        Ok(out)
    }
}

/// The identity of a question (and its sample number). 32 bytes; 43 characters of base64url in text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// Characters of the text form.
    pub const TEXT_LEN: usize = 43;

    /// The name of a prompt that asks nothing, for it could not be accepted: where its failure is found on its page.
    /// Made of its place alone, so that no question of anybody has it; never looked up, never asked, never stored.
    pub fn of_nothing(batch: BatchId, position: u32) -> CacheKey {
        let place = format!("batchgate/nothing {batch} {position}");
        CacheKey(Sha256::digest(place).into())
    }

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

#[cfg(test)]
mod tests;
