//! What somebody told to pause: of it nothing new is sent, while what runs is looked after to its end. Pure. An account in
//! trouble pauses by itself, and is another matter: [`super::account`].

use super::account::Millis;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is paused. Its text, `all`, `provider:<name>` or `team:<name>`, is its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    All,
    /// An account, by its configured name.
    Provider(String),
    Team(String),
}

impl Scope {
    /// Reads an id; none if it is no such text.
    pub fn parse(text: &str) -> Option<Scope> {
        let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let named = |name: &str| (!name.is_empty() && name.bytes().all(plain)).then(|| name.to_owned());
        match text.split_once(':') {
            None if text == "all" => Some(Scope::All),
            Some(("provider", name)) => named(name).map(Scope::Provider),
            Some(("team", name)) => named(name).map(Scope::Team),
            _ => None,
        }
    }

    pub fn covers(&self, account: &str, team: &str) -> bool {
        match self {
            Scope::All => true,
            Scope::Provider(name) => name == account,
            Scope::Team(name) => name == team,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::All => f.write_str("all"),
            Scope::Provider(name) => write!(f, "provider:{name}"),
            Scope::Team(name) => write!(f, "team:{name}"),
        }
    }
}

/// Who told it and when; the stored shape, version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The team whose key it was.
    pub by: String,
    /// Unix milliseconds.
    pub since: Millis,
}

/// A pause that holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paused {
    pub scope: Scope,
    pub told: Told,
}

impl Paused {
    /// For whoever's prompts wait; `since` is its moment as people write it. Whose key told it is for admins to know.
    pub fn detail(&self, since: &str) -> String {
        let (what, flag) = match &self.scope {
            Scope::All => ("everything".to_owned(), "--all".to_owned()),
            Scope::Provider(name) => (format!("provider {name}"), format!("--provider {name}")),
            Scope::Team(name) => (format!("team {name}"), format!("--team {name}")),
        };
        format!(
            "{what} was paused by an operator at {since}: nothing new is sent until an admin runs `batchgate resume {flag}`"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_and_nothing_else_is_one() {
        for text in ["all", "provider:openai", "team:evals-2"] {
            assert_eq!(Scope::parse(text).expect("an id").to_string(), text);
        }
        for text in ["", "All", "all:", "provider:", "provider:a:b", "team:Évals", "key:x", "openai"] {
            assert_eq!(Scope::parse(text), None, "{text}");
        }
    }

    #[test]
    fn who_waits_is_not_told_whose_key_it_was() {
        let told = Told { by: "ops-secret".to_owned(), since: 0 };
        for scope in [Scope::All, Scope::Provider("openai".to_owned()), Scope::Team("evals".to_owned())] {
            let detail = Paused { scope, told: told.clone() }.detail("1970-01-01T00:00:00Z");
            assert!(detail.contains("paused by an operator at 1970-01-01T00:00:00Z"), "{detail}");
            assert!(!detail.contains("ops-secret"), "{detail}");
        }
    }

    #[test]
    fn a_scope_covers_what_is_its_own() {
        let of = |text: &str| Scope::parse(text).expect("an id");
        assert!(of("all").covers("openai", "evals"));
        assert!(
            of("provider:openai").covers("openai", "evals") && !of("provider:openai").covers("anthropic", "openai")
        );
        assert!(of("team:evals").covers("openai", "evals") && !of("team:evals").covers("evals", "data"));
    }
}
