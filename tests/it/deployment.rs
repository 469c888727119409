//! What an operator is handed, held against the code: the image's build, the compose file, the alerts and the board.
//! Whether they run is what `scripts/container-check` looks at.

use crate::support::source::{files, home};
use batchgate::telemetry::catalog::{Kind, METRICS};
use serde_json::Value;
use std::collections::BTreeSet;

fn read(path: &str) -> String {
    std::fs::read_to_string(home().join(path)).unwrap_or_else(|why| panic!("read {path}: {why}"))
}

/// Every word of a text that begins with `prefix`.
fn words(text: &str, prefix: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !word(c)).filter(|found| found.starts_with(prefix)).map(str::to_owned).collect()
}

/// A setting that the compose file does not hand on would do nothing there, silently.
#[test]
fn the_compose_file_hands_on_every_setting() {
    let config = files().into_iter().find(|file| file.path == "config.rs").expect("config.rs is there");
    let code = config.text.split("#[cfg(test)]").next().unwrap_or_default();
    let given = read("docker-compose.yml");
    let keys = given.lines().filter_map(|line| line.trim().split_once(':').map(|(name, _)| name));
    let keys: BTreeSet<String> = keys.filter(|name| name.starts_with("BATCHGATE_")).map(str::to_owned).collect();
    let missing: Vec<_> = words(code, "BATCHGATE_").difference(&keys).cloned().collect();
    assert!(missing.is_empty(), "docker-compose.yml: the gateway's environment lacks {missing:?}");
}

/// What the binary includes must be in the build's context, which is a list of what may enter it.
#[test]
fn the_image_is_built_from_all_that_the_binary_includes() {
    let (dockerfile, let_in) = (read("Dockerfile"), read(".dockerignore"));
    let mut included = BTreeSet::from(["src".to_owned()]);
    for file in files() {
        for (at, _) in file.text.match_indices("include_str!(").chain(file.text.match_indices("include_bytes!(")) {
            let path = file.text[at..].split('"').nth(1).unwrap_or_default();
            let up = path.matches("../").count();
            let outside = up > file.path.matches('/').count();
            let first = path.trim_start_matches("../").split('/').next().unwrap_or_default();
            if outside && first != "tests" {
                included.insert(first.to_owned());
            }
        }
    }
    assert!(included.contains("openapi.yaml") && included.contains("samples"), "{included:?}");
    for name in included {
        assert!(dockerfile.contains(&format!("COPY {name} ")), "Dockerfile: no COPY of {name}, which src includes");
        assert!(let_in.lines().any(|line| line == format!("!{name}")), ".dockerignore: keeps out {name}");
    }
}

/// Three lines: what it means, where to look, what to do.
#[test]
fn every_alert_has_its_runbook_and_its_test() {
    let (alerts, tests) = (read("watch/prometheus/alerts.yml"), read("watch/prometheus/alerts_test.yml"));
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    assert!(rules.len() > 10, "{} alerts", rules.len());
    for rule in rules {
        let name = rule.lines().next().unwrap_or_default();
        let runbook = rule.split("runbook: |\n").nth(1).unwrap_or_default();
        let lines: Vec<&str> = runbook.lines().map(str::trim).take_while(|line| !line.is_empty()).take(3).collect();
        let told =
            ["Means: ", "Look: ", "Do: "].iter().zip(&lines).filter(|(word, line)| line.starts_with(**word)).count();
        assert_eq!((lines.len(), told), (3, 3), "{name}: {lines:?}");
        assert!(rule.contains("severity: critical") || rule.contains("severity: warning"), "{name} has no severity");
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} is not seen to fire in alerts_test.yml");
    }
}

#[test]
fn the_board_is_whole() {
    let board: Value = serde_json::from_str(&read("watch/grafana/boards/batchgate.json")).expect("JSON");
    let source = read("watch/grafana/provisioning/datasources/prometheus.yml");
    let (mut ids, mut titles) = (BTreeSet::new(), BTreeSet::new());
    let mut taken: BTreeSet<(u64, u64)> = BTreeSet::new();
    for panel in board["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")) && titles.insert(title), "twice: {title}");
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        for cell in (at("y")..at("y") + at("h")).flat_map(|y| (at("x")..at("x") + at("w")).map(move |x| (x, y))) {
            assert!(cell.0 < 24 && taken.insert(cell), "{title} lies over another panel, or beyond the edge");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(
            panel["description"].as_str().is_some_and(|about| !about.is_empty()),
            "{title} says nothing about itself"
        );
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title} shows nothing");
        for target in targets {
            let uid = target["datasource"]["uid"].as_str().expect("a source");
            assert!(source.contains(&format!("uid: {uid}\n")), "{title}: {uid} is not provisioned");
            assert!(target["expr"].as_str().is_some_and(|expr| !expr.is_empty()), "{title}: an empty expression");
        }
    }
}

/// A panel or an alert on a metric that does not exist shows nothing and never fires, and nobody notices.
#[test]
fn alerts_and_board_name_metrics_that_exist() {
    let exists = |name: &str| {
        METRICS.iter().any(|metric| match metric.kind {
            Kind::Counter | Kind::Gauge => name == metric.name,
            Kind::Histogram => ["_bucket", "_sum", "_count"].iter().any(|end| name == format!("{}{end}", metric.name)),
        })
    };
    for path in ["alerts.yml", "alerts_test.yml"].map(|name| format!("watch/prometheus/{name}")) {
        let named = words(&read(&path), "batchgate_");
        assert!(named.len() > 10, "{path}: {named:?}");
        let unknown: Vec<_> = named.iter().filter(|name| !exists(name)).collect();
        assert!(unknown.is_empty(), "{path}: no such metrics: {unknown:?}");
    }
    let named = words(&read("watch/grafana/boards/batchgate.json"), "batchgate_");
    let unknown: Vec<_> = named.iter().filter(|name| !exists(name)).collect();
    assert!(unknown.is_empty(), "the board: no such metrics: {unknown:?}");
}
