//! Redis killed and restarted on its append-only file, under load.

use crate::support::{
    Batch, Kind, World, check, claude, client::id, for_both, gpt, nothing_is_left_behind, settles, until,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

for_both!(
    redis_is_killed_and_comes_back,
    without_redis_every_answer_is_a_clear_refusal,
    redis_dies_again_and_again,
    redis_stands_still_for_longer_than_a_lease,
    a_read_only_redis_is_waited_for,
    a_redis_that_would_evict_jobs_gets_no_new_ones,
);

fn batch(name: &str) -> Batch {
    Batch::of((0..20).flat_map(|n| [claude(&format!("{name} {n}")), gpt(&format!("{name} {n}"))])).field("chunk", 2)
}

async fn redis_is_killed_and_comes_back(kind: Kind) {
    let mut world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    let batch = batch("away");
    let object = batch.post(world.client()).await.accepted();
    until("some chunks to be settled", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["settled"].as_u64() >= Some(1) { Ok(()) } else { Err(object) }
    })
    .await;
    world.redis.kill();
    until("the gateway to notice", async || not_ready(&world).await).await;
    world.redis.restart().await;
    ready(&world).await;
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
}

async fn ready(world: &World) {
    until("the gateway to be ready again", async || {
        let ready = world.client().get("/readyz").await;
        if ready.status == 200 { Ok(()) } else { Err(ready.text) }
    })
    .await;
}

async fn not_ready(world: &World) -> Result<(), String> {
    let ready = world.client().get("/readyz").await;
    if ready.status == 503 { Ok(()) } else { Err(ready.text) }
}

async fn without_redis_every_answer_is_a_clear_refusal(kind: Kind) {
    let mut world = World::new(kind).await;
    let first = check(&world, &batch("before")).await;
    let id = id(&first.object);
    world.redis.kill();
    let client = world.client();
    client.get("/healthz").await.ok();
    for path in [
        "/readyz".to_owned(),
        "/batches".to_owned(),
        format!("/batches/{id}"),
        format!("/batches/{id}?wait=1"),
        format!("/batches/{id}/results"),
        format!("/batches/{id}/results?limit=3"),
        format!("/batches/{id}/results?follow=true"),
    ] {
        client.get(&path).await.refused(503, "unavailable");
    }
    client.cancel(id).await.refused(503, "unavailable");
    let (kind, body) = batch("meanwhile").body();
    client.post("/batches", kind, body.clone()).await.refused(503, "unavailable");
    let keyed = client.request(Method::POST, "/batches").header("idempotency-key", "k").header("content-type", kind);
    client.send(keyed.body(body)).await.refused(503, "unavailable");
    world.redis.restart().await;
    ready(&world).await;
    assert_eq!(world.client().results(id).await, first.results);
    check(&world, &batch("meanwhile")).await;
    let list = world.client().get("/batches?limit=100").await.ok();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(4), "what was refused does not exist");
}

async fn redis_dies_again_and_again(kind: Kind) {
    let mut world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 0.5}, "openai": {"in_progress_s": 0.5}})).await;
    let batch = batch("often");
    let object = batch.post(world.client()).await.accepted();
    for turn in 0..4 {
        // Not a wait for anything: the moment of death is what varies.
        tokio::time::sleep(Duration::from_millis(100 + 150 * turn)).await;
        world.redis.restart().await;
    }
    ready(&world).await;
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
}

/// Two gateways, so that each finds the other's claims run out when Redis wakes.
async fn redis_stands_still_for_longer_than_a_lease(kind: Kind) {
    let mut world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    world.start_gateway().await;
    world.sim.take(0.5).await;
    let batch = batch("still");
    let object = batch.post(world.client()).await.accepted();
    for turn in 0..3 {
        // Not a wait for anything: when it stops is what varies, and for how long is what is tried.
        tokio::time::sleep(Duration::from_millis(50 + 200 * turn)).await;
        world.redis.signal("STOP");
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        world.redis.signal("CONT");
    }
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
}

async fn a_read_only_redis_is_waited_for(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    world.sim.take(1_000.0).await;
    let batch = batch("read-only");
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 20).await;
    world.redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    world.sim.advance(1_100.0).await;
    until("the gateway to notice", async || {
        let said = world.gateways[0].process.said();
        if said.contains("READONLY") || said.contains("read only replica") { Ok(()) } else { Err("not a word of it") }
    })
    .await;
    self::batch("refused").post(world.client()).await.refused(503, "unavailable");
    assert_eq!(world.client().batch(id(&object)).await["status"], "running", "reads go on");
    world.redis.command::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    world.sim.take(0.1).await;
    settles(&world, &batch, id(&object)).await;
    let failed: Vec<String> = lines(&world, "loop failed; again shortly");
    assert!(failed.len() <= 8, "a loop says it once: {failed:#?}");
    nothing_is_left_behind(&world).await;
}

/// Lines of the first gateway's log with this message.
fn lines(world: &World, message: &str) -> Vec<String> {
    let said = world.gateways[0].process.said();
    let is = |line: &&str| serde_json::from_str::<Value>(line).is_ok_and(|line| line["fields"]["message"] == message);
    said.lines().filter(is).map(str::to_owned).collect()
}

async fn a_redis_that_would_evict_jobs_gets_no_new_ones(kind: Kind) {
    let world = World::new(kind).await;
    let first = check(&world, &batch("fit")).await;
    world.redis.command::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    until("the gateway to notice", async || not_ready(&world).await).await;
    let ready = world.client().get("/readyz").await;
    assert!(ready.text.contains("noeviction"), "it says what to do: {}", ready.text);
    batch("unfit").post(world.client()).await.refused(503, "unavailable");
    assert_eq!(world.client().results(id(&first.object)).await, first.results, "reads go on");
    world.redis.command::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    self::ready(&world).await;
    check(&world, &batch("unfit")).await;
    assert_eq!(lines(&world, "nothing new is begun on this redis").len(), 1);
}
