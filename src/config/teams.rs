//! `[teams.NAME]` of the file, and `BATCHGATE_KEY_HASHES`: who may ask, and with which keys.

use super::{namespaces::Named, value::key_hash};
use crate::{
    clock::{self, Millis},
    domain::{
        batch::CacheMode,
        quota::Bounds,
        team::{Role, Team, TeamKey, Teams},
    },
};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The file's tables, by name.
pub(super) type FileTeams = BTreeMap<String, FileTeam>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTeam {
    #[serde(default)]
    keys: Vec<FileKey>,
    #[serde(default)]
    role: Role,
    #[serde(default)]
    cache: CacheMode,
    providers: Option<BTreeSet<String>>,
    max_open_batches: Option<u64>,
    max_pending_prompts: Option<u64>,
    namespace: Option<String>,
    read: Option<Vec<String>>,
    write: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileKey {
    name: String,
    hash: String,
    expires: Option<String>,
}

/// Reads the teams; `hashes` are the keys of the environment, which are those of the team `default`: an admin, unless the
/// file says otherwise. `accounts` are the names `providers` may list.
/// `bounds` hold for a team that names none.
pub(super) fn teams(
    file: FileTeams,
    hashes: &[[u8; 32]],
    accounts: &[&str],
    bounds: Bounds,
    mistakes: &mut Vec<String>,
) -> Teams {
    let mut teams = Vec::new();
    for (name, table) in file {
        if !Team::is_name(&name) {
            mistakes.push(format!("team {name:?}: a name is 1 to 40 of a-z, 0-9 and -"));
        }
        for provider in table.providers.iter().flatten().filter(|provider| !accounts.contains(&provider.as_str())) {
            mistakes
                .push(format!("team {name}: no provider is called {provider:?}; there are: {}", accounts.join(", ")));
        }
        let keys = keys(&name, &table.keys, mistakes);
        let bounds = own_bounds(&name, &table, bounds, mistakes);
        let FileTeam { role, cache, providers, namespace, read, write, .. } = table;
        let namespaces = Named { namespace, read, write }.of(&name, mistakes);
        teams.push((Team { name, role, cache, providers, bounds, namespaces }, keys));
    }
    let from_environment = hashes.iter().zip(1..).map(|(hash, number)| TeamKey {
        name: format!("BATCHGATE_KEY_HASHES {number}"),
        hash: *hash,
        expires: None,
    });
    match teams.iter_mut().find(|(team, _)| team.name == Team::DEFAULT) {
        Some((_, keys)) => keys.extend(from_environment),
        None if hashes.is_empty() => {}
        None => teams.push((Team { bounds, ..Team::new(Team::DEFAULT, Role::Admin) }, from_environment.collect())),
    }
    refuse_repeats(&teams, mistakes);
    Teams(teams.into_iter().map(|(team, keys)| (Arc::new(team), keys)).collect())
}

fn own_bounds(team: &str, table: &FileTeam, bounds: Bounds, mistakes: &mut Vec<String>) -> Bounds {
    let mut within = |name: &str, given: Option<u64>, most: u64, default: u64| match given {
        Some(number) if !(1..=most).contains(&number) => {
            mistakes.push(format!("team {team}: {name} must be from 1 to {most}"));
            default
        }
        given => given.unwrap_or(default),
    };
    let (batches, prompts) = (table.max_open_batches, table.max_pending_prompts);
    Bounds {
        open_batches: within("max_open_batches", batches, Bounds::MOST_BATCHES, bounds.open_batches),
        pending_prompts: within("max_pending_prompts", prompts, Bounds::MOST_PROMPTS, bounds.pending_prompts),
    }
}

fn keys(team: &str, table: &[FileKey], mistakes: &mut Vec<String>) -> Vec<TeamKey> {
    let (mut keys, mut names) = (Vec::new(), BTreeSet::new());
    for FileKey { name, hash, expires } in table {
        if name.is_empty() || name.len() > 100 || !names.insert(name) {
            mistakes.push(format!("team {team}: key {name:?}: a key's name is unique in its team, of 1 to 100 bytes"));
        }
        let hash = key_hash(hash).map_err(|why| mistakes.push(format!("team {team}: key {name:?}: {why}")));
        let end = expires.as_deref().map(moment).transpose();
        let end = end.map_err(|why| mistakes.push(format!("team {team}: key {name:?}: expires: {why}")));
        if let (Ok(hash), Ok(expires)) = (hash, end) {
            keys.push(TeamKey { name: name.clone(), hash, expires });
        }
    }
    keys
}

/// A day, which begins in UTC, or a moment.
fn moment(text: &str) -> Result<Millis, String> {
    let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    clock::parse_rfc3339(&whole).ok_or_else(|| {
        format!(
            "{text:?} is no day like \"2027-06-01\" (its beginning in UTC) and no time like \"2027-06-01T12:00:00Z\""
        )
    })
}

/// One key must not say two things of who is asking.
fn refuse_repeats(teams: &[(Team, Vec<TeamKey>)], mistakes: &mut Vec<String>) {
    let mut seen: BTreeMap<[u8; 32], String> = BTreeMap::new();
    for (team, keys) in teams {
        for key in keys {
            let here = format!("key {:?} of team {}", key.name, team.name);
            if let Some(there) = seen.insert(key.hash, here.clone()) {
                mistakes.push(format!("{there} and {here} are the same key: make one of its own for each"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, hashes: &[[u8; 32]]) -> (Teams, Vec<String>) {
        let (file, mut mistakes) = (toml::from_str(text).expect("TOML"), Vec::new());
        (teams(file, hashes, &["anthropic", "openai"], Bounds::default(), &mut mistakes), mistakes)
    }

    fn key(name: &str, digit: char) -> String {
        format!("{{name = \"{name}\", hash = \"sha256:{}\"}}", digit.to_string().repeat(64))
    }

    #[test]
    fn the_environments_keys_are_an_admins() {
        assert!(read("", &[]).0.are_open());
        let (teams, mistakes) = read("", &[[1; 32], [2; 32]]);
        assert_eq!((mistakes.len(), teams.keys().count()), (0, 2));
        assert!(teams.keys().all(|(team, _)| team.name == "default" && team.is_admin()));
        let (teams, _) = read(&format!("[default]\nkeys = [{}]\n", key("own", '3')), &[[1; 32]]);
        assert_eq!(teams.keys().count(), 2);
        assert!(teams.keys().all(|(team, _)| !team.is_admin()), "unless the file says otherwise");
    }

    #[test]
    fn a_day_ends_a_key_at_its_beginning() {
        assert_eq!(moment("1970-01-02"), Ok(86_400_000));
        assert_eq!(moment("1970-01-01T00:00:01Z"), Ok(1_000));
        for bad in ["", "soon", "2027-13-01", "2027-06-01T00:00:00"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_team_s_own_bounds_go_first() {
        let (teams, mistakes) = read("[a]\nmax_open_batches = 3\n[b]\nmax_pending_prompts = 7\n", &[]);
        let bounds: Vec<Bounds> = teams.0.iter().map(|(team, _)| team.bounds).collect();
        let default = Bounds::default();
        assert_eq!(mistakes, Vec::<String>::new());
        assert_eq!(bounds, [Bounds { open_batches: 3, ..default }, Bounds { pending_prompts: 7, ..default }]);
        let told = read("[a]\nmax_open_batches = 0\n[b]\nmax_pending_prompts = 1000000001\n", &[]).1;
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("team a: max_open_batches must be from 1 to 10000"), "{told:?}");
    }

    #[test]
    fn mistakes_name_team_and_key() {
        let text = format!(
            "[Evals]\n[a]\nproviders = [\"mistral\"]\nkeys = [{}, {}, {{name = \"late\", hash = \"sha256:\", expires = \"soon\"}}]\n\
             [b]\nkeys = [{}]\n",
            key("one", '1'),
            key("one", '2'),
            key("same", '1')
        );
        let told = read(&text, &[]).1;
        for piece in [
            "team \"Evals\"",
            "no provider is called \"mistral\"; there are: anthropic, openai",
            "key \"one\": a key's name is unique",
            "key \"late\": a key hash is",
            "key \"late\": expires:",
            "key \"one\" of team a and key \"same\" of team b are the same key",
        ] {
            assert!(told.iter().any(|mistake| mistake.contains(piece)), "{piece}: {told:#?}");
        }
    }
}
