//! Where a Redis is at home, and how a copy of it is told from the original.
//!
//! Staging that works on a copy of production's Redis would poll, cancel and buy again what is production's. So a Redis
//! remembers its home, and whoever finds signs of a copy only reads until `batchgate adopt`. The signs err to the cheap
//! side: a copy taken for the original costs money, an original taken for a copy costs one command.
//!
//! A sign is: the mark that `scripts/restore` leaves; another deployment's name, for what is under way bears that name
//! at the providers; a Redis reached at a place where it never was at home, by name and port. Every socket and loopback
//! address counts as one place, so tunnels, private servers and other spellings of `localhost` are no sign.

use std::{collections::BTreeSet, fmt};

/// What every socket and loopback address is called.
pub const LOCAL: &str = "local";

/// What a Redis remembers of where it is at home.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Home {
    /// Its `BATCHGATE_DEPLOYMENT`.
    pub deployment: String,
    /// As its gateways reach it, each spelling a place: `redis.prod:6379/0`, or [`LOCAL`].
    pub places: BTreeSet<String>,
}

/// The mark of `scripts/restore`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub at: String,
    pub source: String,
}

/// What a Redis is to the gateway that looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Original,
    Copy(Sign),
}

/// Why it is taken for a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    Restored(Restored),
    /// It is at home in a deployment of this name.
    Foreign(String),
    /// It never was at home at this place.
    Moved(String),
}

impl Standing {
    /// `home`: none where nobody worked yet. `deployment`, `place`: the gateway's own.
    pub fn judge(home: Option<&Home>, restored: Option<&Restored>, deployment: &str, place: &str) -> Standing {
        match (home, restored) {
            (_, Some(mark)) => Standing::Copy(Sign::Restored(mark.clone())),
            (Some(home), None) if home.deployment != deployment => {
                Standing::Copy(Sign::Foreign(home.deployment.clone()))
            }
            (Some(home), None) if !home.places.contains(place) => Standing::Copy(Sign::Moved(place.to_owned())),
            (Some(_) | None, None) => Standing::Original,
        }
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sign::Restored(Restored { at, source }) => write!(f, "it was restored from {source} at {at}"),
            Sign::Foreign(deployment) => write!(f, "it is at home in the deployment {deployment:?}"),
            Sign::Moved(place) => write!(f, "it was never at home at {place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_a_copy() {
        let home = Home { deployment: "prod".to_owned(), places: [LOCAL.to_owned(), "r:1/0".to_owned()].into() };
        let mark = Restored { at: "now".to_owned(), source: "x.rdb".to_owned() };
        let judge = |home, mark, deployment, place| Standing::judge(home, mark, deployment, place);
        assert_eq!(judge(None, None, "any", "anywhere"), Standing::Original);
        assert_eq!(judge(Some(&home), None, "prod", LOCAL), Standing::Original);
        assert_eq!(judge(Some(&home), None, "prod", "r:1/0"), Standing::Original);
        assert_eq!(judge(Some(&home), None, "prod", "r:2/0"), Standing::Copy(Sign::Moved("r:2/0".to_owned())));
        assert_eq!(judge(Some(&home), None, "staging", LOCAL), Standing::Copy(Sign::Foreign("prod".to_owned())));
        for home in [None, Some(&home)] {
            assert_eq!(judge(home, Some(&mark), "prod", LOCAL), Standing::Copy(Sign::Restored(mark.clone())));
        }
    }
}
