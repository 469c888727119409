//! When each key of a team was last used, for whoever wonders whether it may be taken away.

use super::{Store, StoreError, keys::Keys};
use crate::clock::Millis;
use std::collections::HashMap;

/// Between a team's name, which has none, and its key's.
const BETWEEN: char = '/';

impl Store {
    pub async fn note_key_use(&self, team: &str, key: &str, now: Millis) -> Result<(), StoreError> {
        let mut hset = redis::cmd("HSET");
        hset.arg(Keys::key_uses()).arg(format!("{team}{BETWEEN}{key}")).arg(now);
        Ok(hset.query_async(&mut self.main.of(&Keys::key_uses())).await?)
    }

    /// By team and name of the key. Keys that are not configured any more may be among them.
    pub async fn key_uses(&self) -> Result<HashMap<(String, String), Millis>, StoreError> {
        let mut hgetall = redis::cmd("HGETALL");
        hgetall.arg(Keys::key_uses());
        let noted: HashMap<String, Millis> = hgetall.query_async(&mut self.main.of(&Keys::key_uses())).await?;
        let parted = |(name, at): (String, Millis)| {
            let (team, key) = name.split_once(BETWEEN)?;
            Some(((team.to_owned(), key.to_owned()), at))
        };
        Ok(noted.into_iter().filter_map(parted).collect())
    }
}
