//! Namespaces: which ones a team reads and writes, and `[namespaces.NAME]`, how long one keeps what.

use super::value::kept;
use crate::{domain::team::Namespaces, pipeline::spaces::Terms};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The file's tables, by name.
pub(super) type FileNamespaces = BTreeMap<String, FileNamespace>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileNamespace {
    cache_ttl: Option<String>,
    retention: Option<String>,
}

/// How long each namespace keeps what, where the file says so. One that no team names may be among them: it may have been
/// in use, and what is left in it goes by its table.
pub(super) fn terms(file: FileNamespaces, mistakes: &mut Vec<String>) -> BTreeMap<String, Terms> {
    let mut terms = BTreeMap::new();
    for (name, table) in file {
        check_name(&format!("[namespaces.{name}]"), &name, mistakes);
        let mut time = |member: &str, text: Option<String>| {
            let told = text.as_deref().map(kept).transpose();
            told.unwrap_or_else(|why| {
                mistakes.push(format!("[namespaces.{name}]: {member}: {why}"));
                None
            })
        };
        let (cache_ttl, retention) = (time("cache_ttl", table.cache_ttl), time("retention", table.retention));
        terms.insert(name, Terms { cache_ttl, retention });
    }
    terms
}

/// A team's `namespace`, or its `read` and `write`.
#[cfg_attr(test, derive(Deserialize))]
pub(super) struct Named {
    pub(super) namespace: Option<String>,
    pub(super) read: Option<Vec<String>>,
    pub(super) write: Option<String>,
}

impl Named {
    /// What a team's table says; the default namespace where it says nothing or a mistake.
    pub(super) fn of(self, team: &str, mistakes: &mut Vec<String>) -> Namespaces {
        let before = mistakes.len();
        let place = format!("team {team}");
        let named = match (self.namespace, self.read, self.write) {
            (None, None, None) => Namespaces::default(),
            (Some(name), None, None) => {
                check_name(&format!("{place}: namespace"), &name, mistakes);
                Namespaces::one(&name)
            }
            (None, Some(read), Some(write)) => read_and_write(&place, &read, &write, mistakes),
            (Some(_), _, _) => {
                mistakes.push(format!(
                    "{place}: namespace is short for read and write: say either the one or the other two"
                ));
                Namespaces::default()
            }
            (None, Some(_), None) => {
                mistakes.push(format!("{place}: read needs write: name the one of them that its answers go to"));
                Namespaces::default()
            }
            (None, None, Some(write)) => {
                mistakes
                    .push(format!("{place}: write needs read: say namespace = {write:?} to read and write only there"));
                Namespaces::default()
            }
        };
        if mistakes.len() == before { named } else { Namespaces::default() }
    }
}

fn read_and_write(place: &str, read: &[String], write: &str, mistakes: &mut Vec<String>) -> Namespaces {
    for (at, name) in read.iter().enumerate() {
        check_name(&format!("{place}: read"), name, mistakes);
        if read[..at].contains(name) {
            mistakes.push(format!("{place}: read names {name:?} twice: once is enough"));
        }
    }
    if !read.iter().any(|name| name == write) {
        mistakes.push(format!("{place}: write names {write:?}, which is not among read: add it there"));
    }
    let also = read.iter().filter(|name| *name != write).cloned().collect();
    Namespaces { write: write.to_owned(), also }
}

fn check_name(place: &str, name: &str, mistakes: &mut Vec<String>) {
    if !Namespaces::is_name(name) {
        mistakes.push(format!(
            "{place}: {name:?} is no name of a namespace: it is 1 to 40 of a-z, 0-9 and -, and not \"sys\", which is the gateway's own"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn named(text: &str) -> Result<Namespaces, Vec<String>> {
        let mut mistakes = Vec::new();
        let named = toml::from_str::<Named>(text).expect("TOML").of("t", &mut mistakes);
        if mistakes.is_empty() { Ok(named) } else { Err(mistakes) }
    }

    #[test]
    fn a_team_names_one_or_reads_several_and_writes_one() {
        assert_eq!(named(""), Ok(Namespaces::default()));
        assert_eq!(named("namespace = \"shared\""), Ok(Namespaces::one("shared")));
        assert_eq!(named("read = [\"a\"]\nwrite = \"a\""), Ok(Namespaces::one("a")));
        let named = named("read = [\"b\", \"own\", \"a\"]\nwrite = \"own\"").expect("no mistake");
        assert_eq!(named.all().collect::<Vec<_>>(), ["own", "b", "a"], "the one it writes comes first");
    }

    #[test]
    fn what_cannot_be_meant_is_told_with_its_remedy() {
        for (text, piece) in [
            ("namespace = \"Shared\"", "namespace: \"Shared\" is no name"),
            ("namespace = \"sys\"", "not \"sys\""),
            ("namespace = \"\"", "1 to 40"),
            ("namespace = \"a\"\nwrite = \"a\"", "short for read and write"),
            ("read = [\"a\"]", "read needs write"),
            ("write = \"a\"", "write needs read: say namespace = \"a\""),
            ("read = []\nwrite = \"a\"", "not among read"),
            ("read = [\"a\", \"b\"]\nwrite = \"c\"", "write names \"c\", which is not among read"),
            ("read = [\"a\", \"a\"]\nwrite = \"a\"", "names \"a\" twice"),
            ("read = [\"a\", \"b_c\"]\nwrite = \"a\"", "read: \"b_c\" is no name"),
        ] {
            let told = named(text).expect_err(text);
            assert!(told.len() == 1 && told[0].starts_with("team t: ") && told[0].contains(piece), "{text}: {told:?}");
        }
        assert_eq!(named("read = [\"A\", \"A\"]\nwrite = \"b\"").expect_err("many").len(), 4, "all at once");
    }

    #[test]
    fn a_namespace_says_how_long_it_keeps_what() {
        let read = |text: &str| {
            let mut mistakes = Vec::new();
            (terms(toml::from_str(text).expect("TOML"), &mut mistakes), mistakes)
        };
        let (told, mistakes) = read("[own]\ncache_ttl = \"7d\"\n[kept]\nretention = \"1s\"");
        assert!(mistakes.is_empty(), "{mistakes:?}");
        assert_eq!(told["own"], Terms { cache_ttl: Some(Duration::from_secs(7 * 86_400)), retention: None });
        assert_eq!(told["kept"], Terms { cache_ttl: None, retention: Some(Duration::from_secs(1)) });
        let (_, mistakes) = read("[Own]\n[a]\ncache_ttl = \"soon\"\nretention = \"0s\"\n[sys]");
        for piece in [
            "[namespaces.Own]: \"Own\" is no name",
            "[namespaces.a]: cache_ttl: \"soon\"",
            "[namespaces.a]: retention: must be from 1s to ten years",
            "[namespaces.sys]: \"sys\" is no name",
        ] {
            assert!(mistakes.iter().any(|mistake| mistake.contains(piece)), "{piece}: {mistakes:#?}");
        }
        assert_eq!(mistakes.len(), 4, "{mistakes:#?}");
    }
}
