//! kill -9 of the gateway wherever a batch may be, and a restart: right answers, paid once, nothing left behind.

use crate::support::{
    Batch, Kind, Prompt, World, check, claude, client::id, for_both, gpt, nothing_is_left_behind, settles, until,
};
use serde_json::{Value, json};
use std::time::Duration;

for_both!(
    killed_while_chunks_are_planned,
    killed_while_chunks_are_submitted,
    killed_while_chunks_run,
    killed_while_results_are_read,
    killed_again_and_again,
    killed_and_the_other_gateway_goes_on,
);

/// A short lease, so that what a dead gateway held is free soon, and what it left is swept soon.
async fn world(kind: Kind) -> World {
    World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await
}

fn batch(name: &str) -> Batch {
    let both = |n: usize| [claude(&format!("{name} {n}")), gpt(&format!("{name} {n}"))];
    let prompts: Vec<Prompt> = (0..12).flat_map(both).collect();
    Batch::of(prompts).field("chunk", 4)
}

async fn fault(world: &World, routes: &[&str], fault: &Value) {
    for route in routes {
        world.sim.fault(json!({"match": {"route": route}, "fault": fault, "times": 0})).await;
    }
}

/// Kills and restarts; then all must be as if nothing had happened.
async fn killed(world: &mut World, batch: &Batch, id: &str) {
    world.kill_gateway();
    world.sim.clear_faults().await;
    world.start_gateway().await;
    settles(world, batch, id).await;
    nothing_is_left_behind(world).await;
}

/// Waits until the batch's chunks are so far.
async fn chunks(world: &World, id: &str, state: &str, count: u64) {
    until(&format!("{count} chunks to be {state}"), async || {
        let object = world.client().batch(id).await;
        if object["chunks"][state].as_u64() >= Some(count) { Ok(()) } else { Err(object) }
    })
    .await;
}

async fn killed_while_chunks_are_planned(kind: Kind) {
    let mut world = world(kind).await;
    fault(&world, &["batches.create", "files.create"], &json!({"status": 429, "retry_after": 1})).await;
    let batch = batch("planned");
    let object = batch.post(world.client()).await.accepted();
    chunks(&world, id(&object), "planned", 6).await;
    killed(&mut world, &batch, id(&object)).await;
}

async fn killed_while_chunks_are_submitted(kind: Kind) {
    let mut world = world(kind).await;
    fault(&world, &["batches.create"], &json!({"delay_after": 2})).await;
    let batch = batch("submitted");
    let object = batch.post(world.client()).await.accepted();
    until("creates that are made and not yet answered", async || {
        let calls = world.sim.calls("batches.create").await;
        let made = calls.iter().filter(|call| call["made"].is_string()).count();
        if made >= 3 { Ok(()) } else { Err(calls) }
    })
    .await;
    killed(&mut world, &batch, id(&object)).await;
}

async fn killed_while_chunks_run(kind: Kind) {
    let mut world = world(kind).await;
    fault(&world, &["batches.create"], &json!({"settings": {"in_progress_s": 1000}})).await;
    let batch = batch("running");
    let object = batch.post(world.client()).await.accepted();
    chunks(&world, id(&object), "running", 6).await;
    world.sim.advance(1_100.0).await;
    killed(&mut world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 6, "found by their stored ids");
}

async fn killed_while_results_are_read(kind: Kind) {
    let mut world = world(kind).await;
    fault(&world, &["batches.results", "files.content"], &json!({"trickle": {"bytes": 300, "every": 0.2}})).await;
    let batch = batch("read");
    let object = batch.post(world.client()).await.accepted();
    until("answers to be staged", async || {
        let keys = world.redis.keys().await;
        let reading = world.sim.calls("files.content").await.len() + world.sim.calls("batches.results").await.len();
        if reading >= 4 { Ok(()) } else { Err((keys, reading)) }
    })
    .await;
    killed(&mut world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 6);
}

async fn killed_again_and_again(kind: Kind) {
    let mut world = world(kind).await;
    let batch = batch("again").field("chunk", 1);
    let mut object = Value::Null;
    for turn in 0..6 {
        if turn == 0 {
            object = batch.post(world.client()).await.accepted();
        }
        // Not a wait for anything: the moment of death is what varies.
        tokio::time::sleep(Duration::from_millis(60 * turn * turn)).await;
        world.kill_gateway();
        world.start_gateway().await;
    }
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
}

async fn killed_and_the_other_gateway_goes_on(kind: Kind) {
    let mut world = world(kind).await;
    world.start_gateway().await;
    fault(&world, &["batches.create"], &json!({"settings": {"in_progress_s": 1000}})).await;
    let batch = batch("other").field("chunk", 2);
    let object = batch.post(world.client()).await.accepted();
    chunks(&world, id(&object), "running", 3).await;
    world.kill_gateway();
    world.sim.clear_faults().await;
    world.sim.advance(1_100.0).await;
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
    check(&world, &batch).await;
}

for_both!(killed_while_a_body_is_read, killed_while_a_body_draws_numbers);

async fn killed_while_a_body_is_read(kind: Kind) {
    let mut world = world(kind).await;
    let batch = batch("body").ndjson();
    let (_, body) = batch.body();
    let _socket = world.send_part(body.as_bytes(), body.len() / 2).await;
    until("the upload to have begun", async || {
        let keys = world.redis.keys().await;
        if keys.contains_key("{default}:uploads") { Ok(()) } else { Err(keys) }
    })
    .await;
    world.kill_gateway();
    world.start_gateway().await;
    let list = world.client().get("/batches").await.ok();
    assert_eq!(list["data"], json!([]), "half a body is no batch");
    check(&world, &batch).await;
}

/// What a dead gateway had drawn from a run is given back when its upload is swept.
async fn killed_while_a_body_draws_numbers(kind: Kind) {
    let mut world = World::new(kind).await;
    let lines: Vec<Prompt> = (0..260).map(|n| gpt(&format!("line {}", n % 130)).named(&format!("n{n}"))).collect();
    let batch = Batch::of(lines).field("run", "crash~1").field("samples", 2).ndjson();
    let (_, body) = batch.body();
    let _socket = world.send_part(body.as_bytes(), body.len() - 10).await;
    until("numbers to be drawn", async || {
        let keys = world.redis.keys().await;
        if keys.keys().any(|key| key.starts_with("{default}:n:")) { Ok(()) } else { Err(keys) }
    })
    .await;
    world.kill_gateway();
    // Ten minutes later: the upload is idle, and its chore due.
    for upload in world.redis.command::<Vec<String>>(&["ZRANGE", "{default}:uploads", "0", "-1"]).await {
        world.redis.command::<()>(&["ZADD", "{default}:uploads", "0", &upload]).await;
        world.redis.command::<()>(&["ZADD", "{default}:chores", "0", &format!("upload:{upload}")]).await;
    }
    world.start_gateway().await;
    until("the upload to be swept", async || {
        let keys = world.redis.keys().await;
        if keys.is_empty() { Ok(()) } else { Err(keys) }
    })
    .await;
    let first = check(&world, &batch).await;
    assert_eq!(first.object["counts"]["repeats"], 130, "nothing came before: {}", first.object["counts"]);
    nothing_is_left_behind(&world).await;
}
