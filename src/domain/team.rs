//! A team: who it is, which keys are its, and what it may do. Pure: who presents a key is the door's to find out, and what
//! time it is the caller's to say.

use super::{
    batch::CacheMode,
    quota::Bounds,
    route::{Route, Routes},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc};

/// What a team may do beside using its own batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    #[default]
    Member,
    /// Reads the batches of every team, the metrics and the list of keys. Changes no batch but its own.
    Admin,
}

/// The namespaces a team works in: whose answers it reads, and where its own and its batches go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// Looked in first.
    pub write: String,
    /// Looked in after it, in this order: a hit is copied into the batch, and nothing is written there.
    pub also: Vec<String>,
}

impl Namespaces {
    /// Where everybody works who says nothing else.
    pub const DEFAULT: &str = "default";
    /// What belongs to the gateway as a whole has the place of this one in Redis.
    const TAKEN: &str = "sys";

    /// Reads and writes this one.
    pub fn one(name: &str) -> Namespaces {
        Namespaces { write: name.to_owned(), also: Vec::new() }
    }

    /// True if `name` can be a namespace's: `[a-z0-9-]{1,40}`, and not `sys`.
    pub fn is_name(name: &str) -> bool {
        Team::is_name(name) && name != Namespaces::TAKEN
    }

    /// All of them, in the order in which they are looked in.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.write.as_str()).chain(self.also.iter().map(String::as_str))
    }
}

impl Default for Namespaces {
    fn default() -> Namespaces {
        Namespaces::one(Namespaces::DEFAULT)
    }
}

/// Who is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    /// `[a-z0-9-]{1,40}`.
    pub name: String,
    pub role: Role,
    /// What a batch means that says nothing of the cache.
    pub cache: CacheMode,
    /// Accounts that may answer it; none: all of them.
    pub providers: Option<BTreeSet<String>>,
    /// How much it may have in work at once.
    pub bounds: Bounds,
    pub namespaces: Namespaces,
}

impl Team {
    /// The one team of a gateway without teams: an admin who may ask everybody.
    pub const DEFAULT: &str = "default";

    pub fn new(name: &str, role: Role) -> Team {
        let (cache, bounds, namespaces) = Default::default();
        Team { name: name.to_owned(), role, cache, providers: None, bounds, namespaces }
    }

    /// True if `name` can be a team's.
    pub fn is_name(name: &str) -> bool {
        (1..=40).contains(&name.len()) && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    }

    pub fn is_admin(&self) -> bool {
        self.role == Role::Admin
    }

    /// Of all accounts those that may answer it, in their order.
    pub fn routes(&self, all: &Routes) -> Routes {
        let allowed = |route: &&Route| self.providers.as_ref().is_none_or(|names| names.contains(&route.account));
        Routes::new(all.iter().filter(allowed).cloned().collect())
    }
}

/// A key of a team, as far as the gateway knows it: never the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamKey {
    /// What the configuration calls it; unique in its team.
    pub name: String,
    /// SHA-256 of the key as it is sent. Keys are 256 random bits, so a plain digest keeps them safe.
    pub hash: [u8; 32],
    /// From this moment on (Unix milliseconds) it opens nothing; none: it has no end.
    pub expires: Option<u64>,
}

impl TeamKey {
    pub fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| now >= expires)
    }
}

/// All teams of a configuration with their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Teams(pub Vec<(Arc<Team>, Vec<TeamKey>)>);

impl Teams {
    /// Nobody needs a key: only for a listener on loopback.
    pub fn are_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Every namespace that a team names, and the default one.
    pub fn namespaces(&self) -> BTreeSet<String> {
        let named = self.0.iter().flat_map(|(team, _)| team.namespaces.all());
        named.chain([Namespaces::DEFAULT]).map(str::to_owned).collect()
    }

    pub fn keys(&self) -> impl Iterator<Item = (&Arc<Team>, &TeamKey)> {
        self.0.iter().flat_map(|(team, keys)| keys.iter().map(move |key| (team, key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_ends_at_its_moment() {
        let key = |expires| TeamKey { name: "ci".into(), hash: [0; 32], expires };
        assert!(!key(None).is_expired(u64::MAX));
        assert!(!key(Some(10)).is_expired(9));
        assert!(key(Some(10)).is_expired(10));
    }

    #[test]
    fn a_team_asks_whom_it_may() {
        let all = Routes::default();
        let mut team = Team::new("evals", Role::Member);
        assert_eq!(team.routes(&all), all);
        team.providers = Some(["anthropic".to_owned()].into());
        assert!(team.routes(&all).find("claude-haiku-4-5").is_ok());
        let told = team.routes(&all).find("gpt-5-mini").expect_err("not on the list");
        assert!(told.contains("claude-* to anthropic") && !told.contains("openai"), "{told}");
    }

    #[test]
    fn names_are_short_and_plain() {
        for name in ["evals", "a", "team-7", &"x".repeat(40)] {
            assert!(Team::is_name(name), "{name}");
        }
        for name in ["", "Evals", "a_b", "a:b", "ä", &"x".repeat(41)] {
            assert!(!Team::is_name(name), "{name}");
        }
        assert!(Namespaces::is_name("shared") && !Namespaces::is_name("sys") && !Namespaces::is_name("a_b"));
    }
}
