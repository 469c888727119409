//! Whose account a provider's calls reach. A name in the configuration says too little: another organisation's key may be
//! put under it, and that organisation knows nothing of what was made before.

use serde::{Deserialize, Serialize};

/// Where an account is, and whose it is as far as replies say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The base URL, without a user or a password in it.
    pub base: String,
    /// Organisation, or organisation/workspace, of the reply headers. None: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organisation: Option<String>,
}

/// What the keys of an account are to something that was made under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kin {
    /// One of them reaches the account it was made in.
    Same,
    /// One of them reaches the same organisation at another base URL. It may be the same account through a proxy, or
    /// another region that knows nothing of it.
    Moved,
    /// Not every key has been heard, and none that was is of that account.
    Unknown,
    /// All of them belong to somebody else.
    Another,
}

impl Identity {
    /// `keys`: as whom each key of the account was last heard; none for one that was not.
    pub fn kin<'a>(&self, keys: impl Iterator<Item = Option<&'a Identity>>) -> Kin {
        let mut kin = Kin::Another;
        for key in keys {
            match key.map(|key| self.beside(key)) {
                Some(Kin::Same) => return Kin::Same,
                Some(Kin::Moved) => kin = Kin::Moved,
                None if kin == Kin::Another => kin = Kin::Unknown,
                Some(Kin::Unknown | Kin::Another) | None => {}
            }
        }
        kin
    }

    /// What one key is that was heard as `other`. Who says nothing of an organisation contradicts none.
    pub fn beside(&self, other: &Identity) -> Kin {
        // One reply may name the organisation alone, where another names the workspace, too.
        let agree = |(one, other): (&String, &String)| {
            let within = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
            one == other || within(one, other) || within(other, one)
        };
        match (self.base == other.base, self.organisation.as_ref().zip(other.organisation.as_ref()).map(agree)) {
            (true, None | Some(true)) => Kin::Same,
            (false, Some(true)) => Kin::Moved,
            (true, Some(false)) | (false, None | Some(false)) => Kin::Another,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(base: &str, organisation: Option<&str>) -> Identity {
        Identity { base: base.to_owned(), organisation: organisation.map(str::to_owned) }
    }

    #[test]
    fn organisation_and_place_together_say_whose_it_is() {
        let made = identity("https://a/v1", Some("org-1"));
        for (base, organisation, kin) in [
            ("https://a/v1", Some("org-1"), Kin::Same),
            ("https://a/v1", None, Kin::Same),
            ("https://a/v1", Some("org-1/workspace-1"), Kin::Same),
            ("https://a/v1", Some("org-11"), Kin::Another),
            ("https://a/v1", Some("org-2"), Kin::Another),
            ("https://b/v1", Some("org-1"), Kin::Moved),
            ("https://b/v1", Some("org-2"), Kin::Another),
            ("https://b/v1", None, Kin::Another),
        ] {
            assert_eq!(made.beside(&identity(base, organisation)), kin, "{base} {organisation:?}");
        }
        assert_eq!(identity("https://a", None).beside(&identity("https://a", Some("org-9"))), Kin::Same);
    }

    #[test]
    fn one_key_of_the_account_is_enough_and_an_unheard_one_leaves_it_open() {
        let made = identity("https://a", Some("org-1"));
        let (same, other) = (made.clone(), identity("https://a", Some("org-2")));
        let moved = identity("https://b", Some("org-1"));
        assert_eq!(made.kin([Some(&other), Some(&same)].into_iter()), Kin::Same);
        assert_eq!(made.kin([Some(&other), None].into_iter()), Kin::Unknown);
        assert_eq!(made.kin([None, Some(&moved)].into_iter()), Kin::Moved);
        assert_eq!(made.kin([Some(&moved), None].into_iter()), Kin::Moved);
        assert_eq!(made.kin([Some(&other)].into_iter()), Kin::Another);
    }
}
