//! Forecasts: what a real POST right after reports, and nothing left of having asked.

use crate::support::{
    Batch, Kind, Prompt, World,
    check::{answered, check_once, paid},
    claude,
    client::{JSON, NDJSON, Reply, count, id},
    for_both, gpt,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

for_both!(a_forecast_is_what_a_post_then_reports, estimates_are_of_the_right_size);

async fn dry(world: &World, batch: &Batch) -> Value {
    let (kind, body) = batch.body();
    post(world, kind, body).await.ok()
}

async fn post(world: &World, kind: &str, body: impl Into<reqwest::Body>) -> Reply {
    world.client().post("/batches?dry_run=true", kind, body).await
}

/// Names of all keys, and the sweeper's chores.
async fn everything(world: &World) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = world.redis.keys().await.into_keys().collect();
    all.extend(world.redis.command::<Vec<String>>(&["ZRANGE", "{default}:chores", "0", "-1"]).await);
    all
}

/// Forecasts, creates, and compares; then the oracle and the ledger.
async fn compare(world: &World, batch: &Batch) {
    let before = (everything(world).await, paid(world).await);
    let told = dry(world, batch).await;
    let after = (everything(world).await, paid(world).await);
    // The sweeper may still be at work on the batches before.
    let earlier: Vec<&str> = before.0.iter().filter_map(|name| name.strip_prefix("{default}:b:")).collect();
    let of_earlier = |name: &&String| earlier.iter().any(|batch| batch.len() == 32 && name.contains(batch));
    let left: Vec<&String> = after.0.difference(&before.0).filter(|name| !of_earlier(name)).collect();
    assert!(left.is_empty(), "a forecast leaves nothing: {left:?}");
    assert_eq!(after.1, before.1, "a forecast buys nothing");
    let object = batch.post(world.client()).await.accepted();
    let named = [("total", "total"), ("cached", "cached"), ("joined", "joined"), ("repeats", "repeats")];
    for (forecast, real) in named {
        assert_eq!(told[forecast], object["counts"][real], "{forecast}: {told} {object}");
    }
    let chunks = world.client().get(&format!("/batches/{}/chunks?limit=1000", id(&object))).await.ok();
    let chunks = chunks["chunks"].as_array().expect("a page of chunks").clone();
    let prompts: u64 = chunks.iter().filter_map(|chunk| chunk["prompts"].as_u64()).sum();
    assert_eq!(told["to_buy"], prompts, "{told}");
    let mut by_account = serde_json::Map::new();
    for chunk in &chunks {
        let account = chunk["provider"].as_str().expect("a provider").to_owned();
        let so_far = by_account.get(&account).and_then(Value::as_u64).unwrap_or(0);
        by_account.insert(account, (so_far + 1).into());
    }
    assert_eq!(told["chunks"], Value::Object(by_account), "{told}");
    assert_eq!((&told["object"], &told["cost_usd"]), (&json!("batch.forecast"), &Value::Null));
    assert_eq!(told["input_tokens"].as_u64() > Some(0), prompts > 0, "{told}");
    assert!(told["storage_bytes"].as_u64() > Some(0), "{told}");
    answered(world, batch, id(&object)).await;
}

async fn a_forecast_is_what_a_post_then_reports(kind: Kind) {
    let world = World::new(kind).await;
    let mixed = Batch::of([claude("a"), gpt("b"), claude("c"), claude("a"), gpt("d")]).field("chunk", 2);
    compare(&world, &mixed).await;
    compare(&world, &mixed.clone().ndjson()).await; // all cached now
    compare(&world, &mixed.clone().field("samples", 3).field("chunk", 4).ndjson()).await;
    for mode in ["refresh", "bypass", "off", "use"] {
        compare(&world, &mixed.clone().field("cache", mode)).await;
    }
    compare(&world, &mixed.clone().field("max_age", "1h")).await;
    // Shared repeats, over more than a page.
    let shared = (0..1_100).map(|n| claude(&format!("shared {}", n % 7)));
    compare(&world, &Batch::of(shared).field("repeats", "share").field("chunk", 3)).await;
    let long = (0..1_100).map(|n| claude(&format!("long {}", n / 2)));
    compare(&world, &Batch::of(long.clone()).ndjson()).await;
    compare(&world, &Batch::of(long)).await;
    let only = [claude("a"), claude("never asked").fails("not_cached")];
    compare(&world, &Batch::of(only).field("cache", "only")).await;
    let bad = Prompt::new(json!(5), json!({})).fails("invalid_request");
    let batch = Batch::of([bad.clone(), claude("good"), bad]).field("on_invalid", "fail");
    compare(&world, &batch).await;
    let told = dry(&world, &batch).await;
    assert_eq!((&told["problem_count"], &told["problems"][1]["pointer"]), (&json!(2), &json!("/prompts/2")), "{told}");
}

/// The rules of thumb against the simulated model's short answers.
async fn estimates_are_of_the_right_size(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of((0..200).map(|n| claude(&format!("Say {n} {}", "words and words ".repeat(20)))));
    let told = dry(&world, &batch).await;
    let done = check_once(&world, &batch).await;
    let near = |name: &str, real: u64| {
        let told = told[name].as_u64().expect("a number");
        assert!(told > real / 5 && told < real * 5, "{name}: told {told}, really {real}");
    };
    near("input_tokens", done.object["usage"]["input_tokens"].as_u64().expect("a number"));
    let mut stored = 0;
    for key in world.redis.keys().await.into_keys() {
        if key.contains(":c:") || key.contains(":p:") {
            stored += world.redis.command::<u64>(&["MEMORY", "USAGE", &key]).await;
        }
    }
    near("storage_bytes", stored);
    assert_eq!(count(&done.object, "succeeded"), 200);
}

/// Bodies, and how many problems they have; a forecast tells them as the refusal would.
#[tokio::test]
async fn problems_are_told_as_a_refusal_would_tell_them() {
    let world = World::new(Kind::Ours).await;
    let head = "{\"batch\": {\"model\": \"claude-haiku-4-5\", \"max_tokens\": 5";
    let many = "5\n".repeat(150);
    for (kind, body, total) in [
        (
            JSON,
            "{\"model\": \"claude-haiku-4-5\", \"max_tokens\": 5, \"prompts\": [\"a\", 5, {\"x\": 1}]}".to_owned(),
            3,
        ),
        (JSON, "{\"prompts\": [\"a\", \"b\"], \"model\": 5, \"chunk\": 0}".to_owned(), 2),
        (JSON, "{\"model\": \"claude-haiku-4-5\"}".to_owned(), 0),
        (JSON, "{\"prompts\": []}".to_owned(), 0),
        (JSON, "[]".to_owned(), 0),
        (JSON, "7".to_owned(), 0),
        (NDJSON, String::new(), 0),
        (NDJSON, format!("{head}}}}}\n\"a\"\n{many}"), 151),
        (NDJSON, format!("{head}, \"strange\": 1}}}}\n\"a\"\n\"b\"\n"), 2),
        (NDJSON, format!("{head}, \"samples\": 1000, \"chunk\": 1}}}}\n{}", "\"a\"\n".repeat(11)), 11_000),
        (JSON, format!("{{\"model\": \"gpt-5-mini\", \"samples\": 1000, \"prompts\": [5{}]}}", ", 5".repeat(1_000)), 0),
    ] {
        let told = post(&world, kind, body.clone()).await.ok();
        assert!(world.redis.keys().await.is_empty(), "nothing is left of {body:.100}");
        let refused = world.client().post("/batches", kind, body.clone()).await.refused(422, "invalid_request");
        assert_eq!(
            (&told["problems"], &told["problem_count"]),
            (&refused["errors"], &refused["error_count"]),
            "{told}"
        );
        assert_eq!(told["total"], total, "{body:.100}: {told}");
    }
    let told = post(&world, JSON, "{\"prompts\": [\"a\", 5, \"c\"], \"model\": \"gpt-5-mini\"}").await.ok();
    assert_eq!((&told["to_buy"], &told["chunks"]), (&json!(2), &json!({"openai": 1})), "the good ones are counted");
    assert!(world.redis.keys().await.is_empty());
    let list = world.client().get("/batches").await.ok();
    assert_eq!(list["data"], json!([]));
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_all_the_same() {
    let world = World::with(Kind::Ours, &[("BATCHGATE_MAX_BODY", "64KiB")]).await;
    post(&world, JSON, "{\"prompts\": [\"a\"").await.refused(400, "malformed_body");
    post(&world, NDJSON, "\"a\"\n{\n").await.refused(400, "malformed_body");
    post(&world, "text/plain", "a").await.refused(415, "unsupported_media_type");
    post(&world, JSON, "x".repeat(70_000)).await.refused(413, "body_too_large");
    let body = Batch::of([claude("a")]).body().1;
    for query in ["dry_run=1", "dry_run=", "dry_run=maybe", "dry_run=true&dry_run=true", "dryrun=true"] {
        let problem = world.client().post(&format!("/batches?{query}"), JSON, body.clone()).await;
        let problem = problem.refused(422, "invalid_request");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains("dry")), "{query}: {problem}");
    }
    assert!(world.redis.keys().await.is_empty());
    world.client().post("/batches?dry_run=false", JSON, body).await.accepted();
}

#[tokio::test]
async fn an_idempotency_key_is_left_alone() {
    let world = World::new(Kind::Ours).await;
    let send = async |path: &str, batch: &Batch| {
        let (kind, body) = batch.body();
        let request = world.client().request(Method::POST, path);
        world.client().send(request.header("content-type", kind).header("idempotency-key", "k").body(body)).await
    };
    let [one, other] = ["one", "other"].map(|text| Batch::of([claude(text)]));
    send("/batches?dry_run=true", &one).await.ok();
    assert!(world.redis.keys().await.is_empty(), "the key is not taken");
    let object = send("/batches", &other).await.accepted();
    let told = send("/batches?dry_run=true", &one).await.ok();
    assert_eq!(told["to_buy"], 1, "a forecast is no repetition: {told}");
    let replayed = send("/batches", &other).await;
    assert_eq!(replayed.header("idempotency-replayed"), "true");
    assert_eq!(id(&replayed.json()), id(&object));
}
