//! A Redis that comes back without its last writes: chunks it calls planned may have been sent. They are looked for, once,
//! before they are sent, and nothing is bought twice.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{id, waiting},
    for_both, gpt, nothing_is_left_behind, settles, until,
};
use serde_json::json;

for_both!(
    chunks_that_redis_forgot_to_have_been_sent_are_found,
    a_restart_that_lost_nothing_buys_nothing_twice,
    without_a_restart_nothing_is_looked_for,
);

/// A short lease, so that what the lost claims held is free soon.
async fn world(kind: Kind) -> World {
    World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await
}

async fn made(world: &World) -> usize {
    world.sim.calls("batches.create").await.iter().filter(|call| call["made"].is_string()).count()
}

/// Three chunks of one size at each provider; what is sent of them, Redis forgets.
async fn chunks_that_redis_forgot_to_have_been_sent_are_found(kind: Kind) {
    let mut world = world(kind).await;
    // Nothing is sent before Redis's file was laid aside.
    world
        .sim
        .fault(json!([
            {"match": {"route": "files.create"}, "fault": {"status": 429}, "times": 0},
            {"match": {"route": "batches.list"}, "fault": {"status": 429}, "times": 0},
        ]))
        .await;
    let prompts: Vec<_> = (0..6).flat_map(|n| [claude(&format!("lost {n}")), gpt(&format!("lost {n}"))]).collect();
    let batch = Batch::of(prompts).field("chunk", 2);
    let object = batch.post(world.client()).await.accepted();
    until("creates to be held up at both", async || {
        let (files, lists) = (world.sim.calls("files.create").await, world.sim.calls("batches.list").await);
        if files.is_empty() || lists.is_empty() { Err((files, lists)) } else { Ok(()) }
    })
    .await;
    world.redis.keep();
    // One create at each, then no more; and they run for long.
    world.sim.clear_faults().await;
    world.sim.take(1_000.0).await;
    let refused = |provider: &str, nth: u64| json!({"match": {"route": "batches.create", "provider": provider, "nth": nth}, "fault": {"status": 429}, "times": 0});
    world.sim.fault(json!([refused("anthropic", 2), refused("openai", 3)])).await;
    until("three to run", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["running"] == 3 { Ok(()) } else { Err(object) }
    })
    .await;
    world.redis.restart_with_what_was_kept().await;
    world.sim.clear_faults().await;
    // OpenAI's are told by their labels; at Anthropic all three wait for the one that may be any of theirs.
    until("what was lost to be found", async || {
        let reply = world.client().get(&format!("/batches/{}", id(&object))).await;
        let object = reply.json();
        let told = object["waiting"][0]["detail"].as_str().unwrap_or_default();
        let found = object["chunks"]["running"] == 3 && waiting(&object) == [("in_doubt".to_owned(), 6)];
        if found && told.contains("may be it") { Ok(()) } else { Err(object) }
    })
    .await;
    assert_eq!(made(&world).await, 4, "three before, and OpenAI's third now");
    world.sim.take(0.2).await;
    world.sim.advance(1_000.0).await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(made(&world).await, 6);
    nothing_is_left_behind(&world).await;
}

async fn a_restart_that_lost_nothing_buys_nothing_twice(kind: Kind) {
    let mut world = world(kind).await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"status": 429}, "times": 0})).await;
    let prompts: Vec<_> = (0..4).flat_map(|n| [claude(&format!("kept {n}")), gpt(&format!("kept {n}"))]).collect();
    let batch = Batch::of(prompts).field("chunk", 2);
    let object = batch.post(world.client()).await.accepted();
    until("creates to be refused at both", async || {
        let calls = world.sim.calls("batches.create").await;
        let at = |provider: &str| calls.iter().any(|call| call["provider"] == provider);
        if at("anthropic") && at("openai") { Ok(()) } else { Err(calls) }
    })
    .await;
    world.redis.restart().await;
    let looks = world.sim.calls("batches.list").await.len();
    until("all four to be looked for", async || {
        let looked = world.sim.calls("batches.list").await.len() - looks;
        if looked >= 8 { Ok(()) } else { Err(looked) }
    })
    .await;
    world.sim.clear_faults().await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(made(&world).await, 4);
    nothing_is_left_behind(&world).await;
}

async fn without_a_restart_nothing_is_looked_for(kind: Kind) {
    let mut world = world(kind).await;
    check(&world, &Batch::of([claude("a"), gpt("a")])).await;
    world.kill_gateway();
    world.start_gateway().await;
    check(&world, &Batch::of([claude("b"), gpt("b"), claude("c"), gpt("c")]).field("chunk", 1)).await;
    let lists = world.sim.calls("batches.list").await;
    assert!(lists.iter().all(|call| call["provider"] == "anthropic"), "{lists:?}");
    assert_eq!(lists.len(), 3, "before each of Anthropic's creates, one look at what is there");
}
