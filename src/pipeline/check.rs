//! What an operator wants to know before he relies on an installation. Judges what was found; asks nobody.

use crate::{clock::Millis, domain::home::Standing, provider::CallError, store::inspect::Inspection};
use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Ok,
    /// It works, and will cost something one day.
    Warning,
    /// Nobody answered, so nothing is known.
    Unreachable,
    Wrong,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What: `configuration`, `redis`, `policy`, `durability`, `home`, `clock`, `public_url`, `provider <name>`.
    pub what: String,
    pub level: Level,
    /// What was found and, if it is not well, the remedy.
    pub detail: String,
}

impl Finding {
    pub fn new(what: impl Into<String>, level: Level, detail: impl Into<String>) -> Finding {
        Finding { what: what.into(), level, detail: detail.into() }
    }
}

/// Clocks apart by more than this are told; by more than the second, leases and expiries of ours mean something else.
const APART_MS: Millis = 2_000;
const FAR_APART_MS: Millis = 60_000;

/// Judges a Redis. `now`: our clock when it told its own; `deployment`: our own.
pub fn redis(seen: &Inspection, deployment: &str, now: Millis) -> Vec<Finding> {
    vec![version(seen), policy(seen), durability(seen), home(seen, deployment), clock(seen.now, now)]
}

fn version(seen: &Inspection) -> Finding {
    let told = |level, detail: String| Finding::new("redis", level, detail);
    if seen.info.is_empty() {
        let detail = "it answers, and does not let us read INFO: see yourself that it is Redis 7.0 or newer, with \
                      maxmemory-policy noeviction and appendonly yes";
        return told(Level::Warning, detail.to_owned());
    }
    let (valkey, redis) = (seen.fact("valkey_version"), seen.fact("redis_version"));
    let name = if valkey.is_empty() { format!("Redis {redis}") } else { format!("Valkey {valkey}") };
    let major: u32 = redis.split('.').next().and_then(|text| text.parse().ok()).unwrap_or(0);
    match seen.fact("role") {
        _ if major < 7 => told(Level::Wrong, format!("{name}: Redis 7.0 or newer, or Valkey, is needed")),
        "slave" => told(Level::Wrong, format!("{name} at {} is a replica: it takes no writes", seen.place)),
        _ => told(Level::Ok, format!("{name} at {}", seen.place)),
    }
}

fn policy(seen: &Inspection) -> Finding {
    let told = |level, detail: String| Finding::new("policy", level, detail);
    let policy = seen.fact("maxmemory_policy");
    let remedy = "CONFIG SET maxmemory-policy noeviction, and write it into redis.conf";
    match policy {
        "" => told(Level::Warning, "maxmemory-policy is not told: it must be noeviction".to_owned()),
        "noeviction" if seen.fact("maxmemory") == "0" => {
            let detail =
                "noeviction, and no maxmemory: Redis grows until the machine has no memory left; set maxmemory";
            told(Level::Warning, detail.to_owned())
        }
        "noeviction" => told(Level::Ok, format!("noeviction, maxmemory {}", seen.fact("maxmemory_human"))),
        _ if policy.starts_with("allkeys-") => {
            told(Level::Wrong, format!("{policy} evicts jobs, and the gateway refuses to start: {remedy}"))
        }
        _ => told(Level::Warning, format!("{policy} evicts cached answers, which are paid again: {remedy}")),
    }
}

fn durability(seen: &Inspection) -> Finding {
    let told = |level, detail: &str| Finding::new("durability", level, detail);
    let replicas = !matches!(seen.fact("connected_slaves"), "" | "0");
    match (seen.fact("aof_enabled"), seen.fact("aof_last_write_status")) {
        ("1", "err") => told(Level::Wrong, "it cannot write its append-only file: make room on its disk"),
        ("1", _) => told(Level::Ok, "the append-only file is on"),
        ("", _) => told(Level::Warning, "not told: appendonly must be yes"),
        _ if replicas => told(
            Level::Warning,
            "no append-only file, but replicas: a crash costs what they had not got yet; set appendonly yes",
        ),
        _ => told(
            Level::Warning,
            "no append-only file and no replica: a crash of Redis loses jobs and paid answers; CONFIG SET appendonly yes, \
             and write it into redis.conf",
        ),
    }
}

fn home(seen: &Inspection, deployment: &str) -> Finding {
    match Standing::judge(seen.home.as_ref(), seen.restored.as_ref(), deployment, &seen.place) {
        Standing::Original if seen.home.is_none() => {
            Finding::new("home", Level::Ok, format!("nobody works here yet; it becomes the home of {deployment:?}"))
        }
        Standing::Original => Finding::new("home", Level::Ok, format!("at home in the deployment {deployment:?}")),
        Standing::Copy(sign) => {
            let detail = format!("a copy ({sign}): gateways only read here until `batchgate adopt`");
            Finding::new("home", Level::Wrong, detail)
        }
    }
}

fn clock(theirs: Millis, ours: Millis) -> Finding {
    let apart = theirs.abs_diff(ours);
    let detail = format!("Redis's clock and ours are {apart} ms apart");
    match apart {
        _ if apart > FAR_APART_MS => Finding::new("clock", Level::Wrong, format!("{detail}: set one of them (NTP)")),
        _ if apart > APART_MS => {
            Finding::new("clock", Level::Warning, format!("{detail}: is one of them not set (NTP)?"))
        }
        _ => Finding::new("clock", Level::Ok, detail),
    }
}

/// Judges what an account answered to a call that costs nothing, asked with one of its keys (`which`).
pub fn provider(account: &str, which: &str, answered: &Result<(), CallError>) -> Finding {
    let (level, detail) = match answered {
        Ok(()) => (Level::Ok, format!("{which} is let in")),
        Err(error @ CallError::Paused { auth: true, .. }) => {
            (Level::Wrong, format!("{which} is refused: put a valid one into its variable ({})", error.head()))
        }
        Err(error @ CallError::Paused { .. }) => (
            Level::Wrong,
            format!(
                "{which} is let in, and the account does nothing for it: see its quota and credit ({})",
                error.head()
            ),
        ),
        Err(error @ (CallError::NotFound { .. } | CallError::Refused { .. })) => (
            Level::Wrong,
            format!("what answers at its base_url is no such API: is the address right? ({})", error.head()),
        ),
        Err(error @ CallError::Again { .. }) => (Level::Unreachable, format!("no answer: {}", error.head())),
    };
    Finding::new(format!("provider {account}"), level, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::home::{Home, Restored};

    fn seen(facts: &[(&str, &str)]) -> Inspection {
        let well = [
            ("redis_version", "7.0.15"),
            ("role", "master"),
            ("maxmemory_policy", "noeviction"),
            ("maxmemory", "4096"),
            ("aof_enabled", "1"),
            ("aof_last_write_status", "ok"),
        ];
        let info = well.iter().chain(facts).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Inspection { info, now: 100_000, place: "local".into(), ..Inspection::default() }
    }

    fn level(seen: &Inspection, what: &str, now: Millis) -> Level {
        let found = redis(seen, "prod", now);
        found.into_iter().find(|finding| finding.what == what).expect("it is looked at").level
    }

    #[test]
    fn what_is_well_is_well() {
        assert!(redis(&seen(&[]), "prod", 100_500).iter().all(|finding| finding.level == Level::Ok));
    }

    #[test]
    fn each_trouble_is_told_for_what_it_is() {
        for (facts, what, expect) in [
            (&[("redis_version", "6.2.1")][..], "redis", Level::Wrong),
            (&[("redis_version", "7.2.4"), ("valkey_version", "8.0.1")], "redis", Level::Ok),
            (&[("role", "slave")], "redis", Level::Wrong),
            (&[("maxmemory_policy", "allkeys-lru")], "policy", Level::Wrong),
            (&[("maxmemory_policy", "volatile-ttl")], "policy", Level::Warning),
            (&[("maxmemory", "0")], "policy", Level::Warning),
            (&[("aof_enabled", "0")], "durability", Level::Warning),
            (&[("aof_enabled", "0"), ("connected_slaves", "2")], "durability", Level::Warning),
            (&[("aof_last_write_status", "err")], "durability", Level::Wrong),
        ] {
            assert_eq!(level(&seen(facts), what, 100_000), expect, "{facts:?}");
        }
        let nothing = Inspection { info: std::collections::HashMap::new(), ..seen(&[]) };
        for what in ["redis", "policy", "durability"] {
            assert_eq!(level(&nothing, what, 100_000), Level::Warning, "{what}");
        }
        for (ours, expect) in [(97_000, Level::Warning), (103_000, Level::Warning), (200_000, Level::Wrong)] {
            assert_eq!(level(&seen(&[]), "clock", ours), expect, "{ours}");
        }
    }

    #[test]
    fn a_copy_is_told() {
        let home = Home { deployment: "prod".into(), places: ["local".to_owned()].into() };
        let at_home = Inspection { home: Some(home.clone()), ..seen(&[]) };
        assert_eq!(level(&at_home, "home", 100_000), Level::Ok);
        let foreign = Home { deployment: "other".into(), ..home.clone() };
        let restored = Some(Restored { at: "2026".into(), source: "a dump".into() });
        for copy in [
            Inspection { home: Some(foreign), ..seen(&[]) },
            Inspection { home: Some(home), place: "redis:6379/0".into(), ..seen(&[]) },
            Inspection { restored, ..seen(&[]) },
        ] {
            assert_eq!(level(&copy, "home", 100_000), Level::Wrong, "{copy:?}");
        }
    }

    #[test]
    fn a_providers_answer_says_what_to_do() {
        let detail = "x".to_owned();
        for (answered, expect) in [
            (Ok(()), Level::Ok),
            (Err(CallError::Paused { auth: true, detail: detail.clone() }), Level::Wrong),
            (Err(CallError::Paused { auth: false, detail: detail.clone() }), Level::Wrong),
            (Err(CallError::NotFound { detail: detail.clone() }), Level::Wrong),
            (Err(CallError::Again { after: None, detail }), Level::Unreachable),
        ] {
            assert_eq!(provider("a", "its key", &answered).level, expect, "{answered:?}");
        }
    }
}
