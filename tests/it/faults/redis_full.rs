//! Redis at its memory limit: nothing new is taken, nothing is half written, and what was harvested waits.

use crate::support::{
    Batch, Kind, World, check, claude, client::id, for_both, gpt, nothing_is_left_behind, settles, until,
};
use serde_json::json;

for_both!(a_full_redis_takes_nothing_and_loses_nothing, redis_fills_up_while_results_are_read);

fn batch() -> Batch {
    Batch::of((0..8).flat_map(|n| [claude(&format!("a {n}")), gpt(&format!("b {n}"))])).field("chunk", 4)
}

async fn limit(world: &World, memory: &str) {
    world.redis.command::<String>(&["CONFIG", "SET", "maxmemory", memory]).await;
}

/// The gateway says what is the matter, and goes on.
async fn noticed(world: &World) {
    until("the gateway to say that Redis is full", async || {
        let said = world.gateways[0].process.said();
        if said.contains("OOM") || said.contains("maxmemory") { Ok(()) } else { Err("not a word of it") }
    })
    .await;
}

async fn refused(world: &World) {
    let refused = Batch::of([claude("not now")]).post(world.client()).await;
    assert!(["unavailable", "storage_full"].iter().any(|code| refused.json()["code"] == *code), "{}", refused.text);
    assert!(refused.status == 503 || refused.status == 429, "{}", refused.text);
}

async fn a_full_redis_takes_nothing_and_loses_nothing(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    let object = batch().post(world.client()).await.accepted();
    until("all to run", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["running"] == 4 { Ok(()) } else { Err(object) }
    })
    .await;
    limit(&world, "1mb").await;
    world.sim.advance(1_100.0).await;
    noticed(&world).await;
    refused(&world).await;
    assert_eq!(world.client().batch(id(&object)).await["status"], "running", "reads go on");
    limit(&world, "0").await;
    settles(&world, &batch(), id(&object)).await;
    nothing_is_left_behind(&world).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 0.1}})).await;
    check(&world, &Batch::of([claude("not now")])).await;
}

async fn redis_fills_up_while_results_are_read(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    for route in ["files.content", "batches.results"] {
        let slow = json!({"trickle": {"bytes": 400, "every": 0.2}});
        world.sim.fault(json!({"match": {"route": route}, "fault": slow, "times": 0})).await;
    }
    let object = batch().post(world.client()).await.accepted();
    until("all results to be on their way", async || {
        let (files, results) = (world.sim.calls("files.content").await, world.sim.calls("batches.results").await);
        if files.len() >= 2 && results.len() >= 2 { Ok(()) } else { Err((files, results)) }
    })
    .await;
    limit(&world, "1mb").await;
    noticed(&world).await;
    world.sim.clear_faults().await;
    limit(&world, "0").await;
    settles(&world, &batch(), id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4);
    if kind == Kind::Ours {
        nothing_is_left_behind(&world).await; // takes a minute: what failed for lack of memory is leased so long
    }
}
