//! `batchgate check`: what it says of an installation that is well, and of each thing that is not.

use crate::support::{Kind, World, for_both};
use serde_json::Value;
use std::collections::BTreeMap;

for_both!(providers_are_asked_with_each_key);

/// Level and detail by what was looked at; a provider's keys in their order.
type Found = BTreeMap<String, Vec<(String, String)>>;

async fn check(world: &World, words: &[&str], env: &[(&str, &str)]) -> (i32, Found) {
    let mut command = world.configured(env);
    command.arg("check").arg("--json").args(words);
    let output = tokio::process::Command::from(command).output().await.expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {output:?}"));
    let code = output.status.code().unwrap_or(-1);
    assert_eq!(told["ok"], code == 0, "{told}");
    assert!(!text.contains("sim-key") && !text.contains("hunter2"), "no secret is told: {text}");
    let mut found = Found::new();
    for finding in told["checks"].as_array().expect("a list") {
        let member = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
        found.entry(member("what")).or_default().push((member("level"), member("detail")));
    }
    (code, found)
}

fn is(found: &Found, what: &str, level: &str, piece: &str) {
    let told = found.get(what).unwrap_or_else(|| panic!("{what} is not among {found:?}"));
    assert!(
        told.iter().any(|(word, detail)| word == level && detail.contains(piece)),
        "{what} {level} {piece}: {told:?}"
    );
}

async fn providers_are_asked_with_each_key(kind: Kind) {
    let mut world = World::empty(kind, &[]).await;
    let (code, found) = check(&world, &["--online"], &[]).await;
    assert_eq!(code, 0, "{found:?}");
    for provider in ["provider anthropic", "provider openai"] {
        is(&found, provider, "ok", "key 1 of 1 is let in");
    }
    let (code, found) = check(&world, &["--online"], &[("OPENAI_API_KEY", "nobodys")]).await;
    assert_eq!(code, 1, "{found:?}");
    is(&found, "provider openai", "wrong", "key 1 of 1 is refused");
    is(&found, "provider anthropic", "ok", "is let in");
    // A bad key behind a good one, which the gateway itself would not notice.
    world.set_keys(&["sim-key", "nobodys"]);
    let (code, found) = check(&world, &["--online"], &[]).await;
    assert_eq!(code, 1, "{found:?}");
    for provider in ["provider anthropic", "provider openai"] {
        is(&found, provider, "ok", "key 1 of 2 is let in");
        is(&found, provider, "wrong", "key 2 of 2 is refused");
    }
    let nobody = [("ANTHROPIC_BASE_URL", "http://127.0.0.1:1"), ("BATCHGATE_CONFIG", "")];
    let (code, found) = check(&world, &["--online"], &nobody).await;
    assert_eq!(code, 3, "{found:?}");
    is(&found, "provider anthropic", "unreachable", "no answer");
    let (code, found) = check(&world, &[], &nobody).await;
    assert_eq!(code, 0, "nobody is asked without --online: {found:?}");
    assert!(
        world.sim.calls("batches.create").await.is_empty() && world.sim.billed().await.is_empty(),
        "nothing is bought"
    );
}

#[tokio::test]
async fn redis_is_looked_at() {
    let world = World::empty(Kind::Ours, &[]).await;
    let set = async |name: &str, value: &str| {
        world.redis.command::<String>(&["CONFIG", "SET", name, value]).await;
    };
    let (code, found) = check(&world, &[], &[]).await;
    assert_eq!(code, 0, "{found:?}");
    is(&found, "redis", "ok", "Redis 7");
    is(&found, "durability", "ok", "append-only file is on");
    is(&found, "home", "ok", "nobody works here yet");
    is(&found, "clock", "ok", "ms apart");
    is(&found, "policy", "warning", "no maxmemory");
    set("maxmemory", "100mb").await;
    is(&check(&world, &[], &[]).await.1, "policy", "ok", "noeviction");
    set("maxmemory-policy", "volatile-lru").await;
    let (code, found) = check(&world, &[], &[]).await;
    is(&found, "policy", "warning", "volatile-lru");
    assert_eq!(code, 0);
    set("maxmemory-policy", "allkeys-lru").await;
    let (code, found) = check(&world, &[], &[]).await;
    is(&found, "policy", "wrong", "evicts jobs");
    assert_eq!(code, 1);
    set("maxmemory-policy", "noeviction").await;
    set("appendonly", "no").await;
    let (code, found) = check(&world, &[], &[]).await;
    is(&found, "durability", "warning", "no append-only file and no replica");
    assert_eq!(code, 0, "{found:?}");
    world.redis.command::<u64>(&["HSET", "{sys}:home", "deployment", "another", "place:local", "x"]).await;
    let (code, found) = check(&world, &[], &[]).await;
    is(&found, "home", "wrong", "\"another\"");
    assert_eq!(code, 1);
    let before = world.redis.keys().await;
    check(&world, &[], &[]).await;
    assert_eq!(world.redis.keys().await, before, "it writes nothing");
}

#[tokio::test]
async fn all_mistakes_are_told_and_a_redis_that_is_not_there() {
    let world = World::new(Kind::Ours).await;
    let (code, found) =
        check(&world, &[], &[("BATCHGATE_CHUNK", "0"), ("BATCHGATE_PUBLIC_URL", "here"), ("BATCHGATE_LEASE", "1s")])
            .await;
    assert_eq!((code, found["configuration"].len()), (1, 3), "{found:?}");
    let away = [("BATCHGATE_REDIS_URL", "redis://:hunter2@127.0.0.1:1")];
    let (code, found) = check(&world, &[], &away).await;
    assert_eq!(code, 3, "{found:?}");
    is(&found, "redis", "unreachable", "is it up");
    let url = format!("http://{}", world.gateways[0].address);
    let (code, found) = check(&world, &["--online"], &[("BATCHGATE_PUBLIC_URL", &url)]).await;
    assert_eq!(code, 0, "{found:?}");
    is(&found, "public_url", "ok", "a gateway answers at");
    is(&found, "home", "ok", "at home in the deployment");
    let (code, found) = check(&world, &["--online"], &[("BATCHGATE_PUBLIC_URL", "http://127.0.0.1:1")]).await;
    assert_eq!(code, 3, "{found:?}");
    is(&found, "public_url", "unreachable", "no gateway answers");
}

#[tokio::test]
async fn a_person_reads_lines() {
    let world = World::empty(Kind::Ours, &[]).await;
    let mut command = world.configured(&[]);
    command.arg("check");
    let output = tokio::process::Command::from(command).output().await.expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let first: Vec<&str> = text.lines().next().expect("a line").split_whitespace().take(2).collect();
    assert_eq!(first, ["ok", "configuration"], "{text}");
    assert!(text.lines().any(|line| line.starts_with("warning") && line.contains("maxmemory")), "{text}");
}
