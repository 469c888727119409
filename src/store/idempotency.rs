//! Idempotency-Key records: a lock while the first request is in work, then its answer for a day.

use super::{Store, StoreError, script, uploads::Remembered};
use serde::{Deserialize, Serialize};

/// A lock of work in hand lapses after this; it is renewed with the upload.
const LOCK_MS: u64 = 90_000;
/// How long an answer is given again.
pub const REMEMBER_MS: u64 = 24 * 60 * 60 * 1000;

/// The answer the first request got, and what it asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstAnswer {
    /// Digest of the first request's content type and body.
    pub request: String,
    pub batch: String,
    pub body: String,
    /// It had ended already when it was created.
    pub ended: bool,
}

/// What a key was found to be.
pub enum KeyState {
    /// Ours to use: the lock that proves it.
    Free(Lock),
    InWork,
    Answered(FirstAnswer),
}

#[derive(Clone, Debug)]
pub struct Lock {
    record_key: String,
    value: String,
}

impl Lock {
    /// The record that accept writes in place of this lock.
    pub fn remember(&self, answer: &FirstAnswer) -> Remembered {
        Remembered {
            record_key: self.record_key.clone(),
            lock: self.value.clone(),
            record: serde_json::to_string(answer).expect("strings serialize"),
            ttl_ms: REMEMBER_MS,
        }
    }
}

impl Store {
    /// Takes the key, or says what it is. `random` makes the lock ours alone.
    pub async fn take_key(&self, team: &str, key: &str, random: &str) -> Result<KeyState, StoreError> {
        let record_key = self.keys.idempotency(team, key);
        let value = format!("lock:{random}");
        let mut set = redis::cmd("SET");
        set.arg(&record_key).arg(&value).arg("NX").arg("GET").arg("PX").arg(LOCK_MS);
        let found: Option<String> = set.query_async(&mut self.main.clone()).await?;
        match found {
            None => Ok(KeyState::Free(Lock { record_key, value })),
            Some(text) if text.starts_with("lock:") => Ok(KeyState::InWork),
            Some(text) => {
                let answer =
                    serde_json::from_str(&text).map_err(|why| StoreError::corrupt("idempotency record", why))?;
                Ok(KeyState::Answered(answer))
            }
        }
    }

    /// Keeps the lock while its upload goes on; false if it has lapsed and is no longer ours.
    pub async fn renew_key(&self, lock: &Lock) -> Result<bool, StoreError> {
        self.change_lock(lock, LOCK_MS).await
    }

    /// Frees the key: the request got no 2xx, and may be sent again.
    pub async fn free_key(&self, lock: &Lock) -> Result<(), StoreError> {
        self.change_lock(lock, 0).await.map(|_| ())
    }

    async fn change_lock(&self, lock: &Lock, keep_ms: u64) -> Result<bool, StoreError> {
        let mut call = script!("lock").prepare_invoke();
        call.key(&lock.record_key).arg(&lock.value).arg(keep_ms);
        Ok(call.invoke_async::<u8>(&mut self.main.clone()).await? == 1)
    }
}
