//! Variables that look like settings of ours and are none: a misspelt one would do nothing, silently.

use super::Environment;
use std::collections::BTreeSet;

/// What every setting's name begins with.
const OURS: &str = "BATCHGATE_";
/// Read elsewhere: the file of tables, by [`super::Config::load`], and what the client commands are told.
const ELSEWHERE: [&str; 3] = ["BATCHGATE_CONFIG", "BATCHGATE_URL", "BATCHGATE_KEY"];
/// Letters that may differ for a name to be taken for another.
const NEAR: usize = 4;

/// A mistake for each variable that nobody asks for, with the nearest name there is. One that is set to nothing is not
/// set; and what a cluster says of a service called `batchgate` is no setting.
pub(super) fn settings(environment: &Environment, asked: &BTreeSet<String>) -> Vec<String> {
    let known = || asked.iter().map(String::as_str).filter(|name| name.starts_with(OURS)).chain(ELSEWHERE);
    let set = environment.iter().filter(|(_, value)| !value.is_empty()).map(|(name, _)| name.as_str());
    let strange = set.filter(|name| name.starts_with(OURS) && !known().any(|known| known == *name) && !is_a_link(name));
    let told = |name: &str| match known().min_by_key(|known| distance(name, known)) {
        Some(near) if distance(name, near) <= NEAR => format!("{name} is no setting: is it {near}?"),
        _ => format!("{name} is no setting, and would do nothing: take it away"),
    };
    strange.map(told).collect()
}

/// Kubernetes and Docker put the addresses of services into the environment: `BATCHGATE_SERVICE_HOST`,
/// `BATCHGATE_REDIS_PORT_6379_TCP_ADDR`, and so on.
fn is_a_link(name: &str) -> bool {
    let port = |(_, rest): (&str, &str)| rest.is_empty() || rest.starts_with('_');
    ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"].iter().any(|word| name.split_once(word).is_some_and(port))
}

/// How many letters have to be changed, put in or taken away to make the one of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], at + 1);
        for (n, theirs) in other.bytes().enumerate() {
            let changed = corner + usize::from(letter != theirs);
            corner = row[n + 1];
            row[n + 1] = changed.min(corner + 1).min(row[n] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(set: &[&str], expect: &[&str]) {
        let environment: Environment = set.iter().map(|name| ((*name).to_owned(), "x".into())).collect();
        let asked = ["BATCHGATE_LEASE", "BATCHGATE_CACHE_MAX", "BATCHGATE_POLL_MAX", "ANTHROPIC_API_KEY"];
        assert_eq!(settings(&environment, &asked.map(str::to_owned).into()), expect, "{set:?}");
    }

    #[test]
    fn a_misspelt_setting_is_told_with_the_nearest_name() {
        check(&["BATCHGATE_LEASE", "BATCHGATE_URL", "BATCHGATE_CONFIG", "HOME", "ANTHROPIC_APIKEY"], &[]);
        check(
            &["BATCHGATE_LAESE", "BATCHGATE_POLLMAX", "BATCHGATE_SOMETHING_ELSE"],
            &[
                "BATCHGATE_LAESE is no setting: is it BATCHGATE_LEASE?",
                "BATCHGATE_POLLMAX is no setting: is it BATCHGATE_POLL_MAX?",
                "BATCHGATE_SOMETHING_ELSE is no setting, and would do nothing: take it away",
            ],
        );
    }

    #[test]
    fn what_a_cluster_says_of_its_services_is_no_setting() {
        let links = [
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_METRICS",
            "PORT",
            "PORT_8080_TCP",
            "REDIS_PORT_6379_TCP_ADDR",
        ];
        check(&links.map(|name| format!("{OURS}{name}")).each_ref().map(String::as_str), &[]);
        check(&["BATCHGATE_PORTER"], &["BATCHGATE_PORTER is no setting, and would do nothing: take it away"]);
    }

    #[test]
    fn a_distance_counts_letters() {
        for (one, other, letters) in [("", "abc", 3), ("abc", "abc", 0), ("abc", "acb", 2), ("kitten", "sitting", 3)] {
            assert_eq!(distance(one, other), letters, "{one} {other}");
        }
    }
}
