//! Redis killed and restarted on its append-only file, under load.

use crate::support::{
    Batch, Kind, World, check, claude, client::id, for_both, gpt, nothing_is_left_behind, settles, until,
};
use reqwest::Method;
use serde_json::json;

for_both!(redis_is_killed_and_comes_back, without_redis_every_answer_is_a_clear_refusal, redis_dies_again_and_again);

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
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
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
    until("the gateway to be ready again", async || {
        let ready = world.client().get("/readyz").await;
        if ready.status == 200 { Ok(()) } else { Err(ready.text) }
    })
    .await;
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
        tokio::time::sleep(std::time::Duration::from_millis(100 + 150 * turn)).await;
        world.redis.restart().await;
    }
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
}
