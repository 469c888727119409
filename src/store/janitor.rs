//! What the janitor keeps and remembers: answers that no commit brings, which provider batches are done with, and how far
//! its walks are. Nothing here is a chunk's.

use super::{Store, StoreError};
use crate::{
    clock::{self, Millis},
    domain::key::CacheKey,
};
use std::{collections::HashMap, time::Duration};

/// Providers keep results for a month, so this is how long a batch must be remembered, in seconds.
pub(super) const REMEMBERED: u64 = 31 * 24 * 60 * 60;
/// A walk that nobody went on with for so long begins anew, in seconds.
const WALK: u64 = 24 * 60 * 60;

/// What is known of a provider's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// Read by its chunk's worker, and settled by what it brought.
    Harvested,
    /// Read by the janitor.
    Kept,
    /// Another's.
    Foreign,
    /// Its results are gone.
    Gone,
    /// Its results are not there, since this moment by our clock; they may be late.
    Missing { since: Millis },
}

impl Noted {
    pub(super) fn text(self) -> String {
        match self {
            Noted::Harvested => "harvested".to_owned(),
            Noted::Kept => "kept".to_owned(),
            Noted::Foreign => "foreign".to_owned(),
            Noted::Gone => "gone".to_owned(),
            Noted::Missing { since } => format!("missing:{since}"),
        }
    }

    /// None for a word nobody knows: the batch is looked at again.
    fn parse(text: &str) -> Option<Noted> {
        Some(match text {
            "harvested" => Noted::Harvested,
            "kept" => Noted::Kept,
            "foreign" => Noted::Foreign,
            "gone" => Noted::Gone,
            _ => Noted::Missing { since: text.strip_prefix("missing:")?.parse().ok()? },
        })
    }
}

impl Store {
    /// What is known of these provider batches, by id; those nobody noted are absent.
    pub async fn noted<'a>(&self, remotes: &[&'a str]) -> Result<HashMap<&'a str, Noted>, StoreError> {
        if remotes.is_empty() {
            return Ok(HashMap::new());
        }
        let names: Vec<String> = remotes.iter().map(|remote| self.keys.noted(remote)).collect();
        let found: Vec<Option<String>> = redis::cmd("MGET").arg(&names).query_async(&mut self.main.clone()).await?;
        if found.len() != remotes.len() {
            return Err(StoreError::corrupt("MGET answer", format!("{} values for {}", found.len(), remotes.len())));
        }
        let known = remotes.iter().zip(found).filter_map(|(remote, text)| Some((*remote, Noted::parse(&text?)?)));
        Ok(known.collect())
    }

    /// Remembers what a provider's batch is. A worker that harvested it meanwhile knows better than "missing".
    pub async fn note(&self, remote: &str, noted: Noted) -> Result<(), StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(self.keys.noted(remote)).arg(noted.text()).arg("EX").arg(REMEMBERED);
        if matches!(noted, Noted::Missing { .. }) {
            set.arg("NX");
        }
        Ok(set.query_async(&mut self.main.clone()).await?)
    }

    /// Keeps packed answers ([`super::record::pack_cached`]) whose keys are free; how many were.
    pub async fn keep(&self, answers: &[(CacheKey, Vec<u8>)], ttl: Duration) -> Result<usize, StoreError> {
        if answers.is_empty() {
            return Ok(0);
        }
        let mut pipe = redis::pipe();
        for (key, packed) in answers {
            pipe.cmd("SET").arg(self.keys.cached(key)).arg(packed).arg("NX").arg("PX").arg(clock::millis(ttl));
        }
        let kept: Vec<Option<String>> = pipe.query_async(&mut self.main.clone()).await?;
        Ok(kept.into_iter().flatten().count())
    }

    /// Where the walk through an account's batches goes on, as [`Store::set_walk`] was told; none at the beginning.
    pub async fn walk(&self, account: &str) -> Result<Option<String>, StoreError> {
        Ok(redis::cmd("GET").arg(self.keys.walk(account)).query_async(&mut self.main.clone()).await?)
    }

    /// None: at the beginning.
    pub async fn set_walk(&self, account: &str, place: Option<&str>) -> Result<(), StoreError> {
        let key = self.keys.walk(account);
        let Some(place) = place else { return self.unlink(&[key]).await };
        Ok(redis::cmd("SET").arg(key).arg(place).arg("EX").arg(WALK).query_async(&mut self.main.clone()).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_comes_back_and_an_unknown_word_is_nothing() {
        let all = [Noted::Harvested, Noted::Kept, Noted::Foreign, Noted::Gone, Noted::Missing { since: 7 }];
        for noted in all {
            assert_eq!(Noted::parse(&noted.text()), Some(noted));
        }
        for text in ["", "else", "missing:", "missing:x"] {
            assert_eq!(Noted::parse(text), None, "{text}");
        }
    }
}
