//! The arrows of the house, held: nouns at the bottom, devices above them, verbs above those, doors on top; imports only
//! point down. And each outside crate stays where it belongs.

use crate::support::source::{SourceFile, files};
use std::collections::BTreeSet;

/// Who may import whom. `clock` and `telemetry` are leaves for all; nobody imports upwards.
const ARROWS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("store", &["domain", "clock", "telemetry", "failpoint"]),
    ("provider", &["domain", "clock", "telemetry"]),
    ("pipeline", &["domain", "store", "provider", "clock", "telemetry"]),
    ("http", &["pipeline", "store", "provider", "domain", "clock", "telemetry", "lifecycle"]),
    ("worker", &["pipeline", "store", "provider", "domain", "clock", "telemetry", "lifecycle"]),
    ("sim", &[]),
    // The composition root, and the one struct it composes from.
    (
        "cli",
        &[
            "http",
            "worker",
            "sim",
            "pipeline",
            "store",
            "provider",
            "domain",
            "clock",
            "telemetry",
            "lifecycle",
            "config",
            "failpoint",
        ],
    ),
    ("config", &["pipeline", "provider", "domain", "telemetry", "clock", "failpoint"]),
    ("clock", &[]),
    // Only in builds for tests; its macro is nothing in others.
    ("failpoint", &[]),
    ("telemetry", &[]),
    ("lifecycle", &[]),
    ("main", &["cli"]),
    ("lib", &[]),
];

#[test]
fn imports_only_point_down() {
    let mut wrong = Vec::new();
    for file in files() {
        let module = file.module().to_owned();
        let arrow = ARROWS.iter().find(|(from, _)| *from == module);
        let Some((_, allowed)) = arrow else {
            wrong.push(format!("src/{}: no arrow is drawn for `{module}`", file.path));
            continue;
        };
        for import in file.imports() {
            let known = ARROWS.iter().any(|(name, _)| *name == import);
            if known && import != module && !allowed.contains(&import.as_str()) {
                wrong.push(format!("src/{}: {module} must not import {import}", file.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names that may stand in some places only; a place is a module or a file.
const HOMES: &[(&str, &[&str])] = &[
    ("axum", &["http", "sim"]),
    ("rustix", &["cli"]),
    ("hyper::", &["http"]),
    ("hyper_util", &["http"]),
    ("tower", &["http", "sim"]),
    ("tower_http", &["http", "sim"]),
    ("async_compression", &["http"]),
    ("redis::", &["store"]),
    // The command line is a client of the public API.
    ("reqwest", &["provider", "cli", "sim/tests.rs"]),
    ("std::env::var", &["config.rs"]),
    ("env::var", &["config.rs"]),
    ("std::env::set_var", &[]),
    ("tokio::spawn", &["lifecycle", "worker", "cli", "sim"]),
    ("tokio::task::spawn", &["lifecycle", "worker", "cli", "sim"]),
    ("spawn_blocking", &["sim", "store", "pipeline", "lifecycle", "cli"]),
    ("std::thread::sleep", &[]),
    ("std::process::exit", &[]),
];

#[test]
fn outside_crates_stay_where_they_belong() {
    let mut wrong = Vec::new();
    for file in files() {
        for (name, homes) in HOMES {
            let home = homes.iter().any(|home| *home == file.module() || *home == file.path);
            if !home && file.mentions(name) {
                wrong.push(format!("src/{}: `{name}` belongs to {homes:?}", file.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file that no `mod` declares is dead code that readers study in vain.
#[test]
fn every_file_is_declared() {
    let files = files();
    let declared: BTreeSet<String> = files.iter().flat_map(declarations).collect();
    let orphans: Vec<&str> = files
        .iter()
        .map(|file| file.path.as_str())
        .filter(|path| *path != "main.rs" && *path != "lib.rs" && !declared.contains(&file_stem(path)))
        .collect();
    assert!(orphans.is_empty(), "no `mod` declares {orphans:?}");
}

/// `store/keys.rs` is `store/keys`, `store/mod.rs` is `store`.
fn file_stem(path: &str) -> String {
    path.trim_end_matches(".rs").trim_end_matches("/mod").to_owned()
}

/// Modules this file declares, as stems of files; `#[path = "x.rs"]` names the file itself.
fn declarations(file: &SourceFile) -> Vec<String> {
    let stem = file_stem(&file.path);
    let own = if stem == "lib" || stem == "main" { String::new() } else { stem + "/" };
    let beside = file.path.rsplit_once('/').map_or(String::new(), |(dir, _)| format!("{dir}/"));
    let named = file.text.lines().filter_map(|line| line.trim().strip_prefix("#[path = \"")?.strip_suffix(".rs\"]"));
    let plain =
        file.code.lines().filter_map(|line| line.trim().strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| name));
    plain.map(|name| format!("{own}{name}")).chain(named.map(|name| format!("{beside}{name}"))).collect()
}

/// Nouns are pure: no async, no clock, no I/O.
#[test]
fn the_domain_is_pure() {
    for file in files().iter().filter(|file| file.module() == "domain") {
        for impure in [
            "async fn",
            ".await",
            "SystemTime::now",
            "Instant::now",
            "Timestamp::now",
            "rand::",
            "std::fs",
            "std::net",
            "tokio",
        ] {
            assert!(!file.code.contains(impure), "src/{} has `{impure}`", file.path);
        }
    }
}

/// Key strings stand in one file, so that one table tells who writes, who reads, when it dies.
#[test]
fn key_strings_stand_in_one_file() {
    for file in files().iter().filter(|file| file.module() == "store" && file.path != "store/keys.rs") {
        let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        for (line, text) in code.lines().enumerate() {
            let told = text.trim_start().starts_with("//");
            assert!(told || !text.contains("\"{{"), "src/{}:{}: a key is made here: {text}", file.path, line + 1);
        }
    }
}
