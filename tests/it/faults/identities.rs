//! Another organisation's key under an account's name: what was sent before is left alone, whatever that one answers.

use crate::support::{
    Batch, Kind, World, claude,
    client::{id, waiting},
    for_both, gpt, settles, until,
};
use serde_json::{Value, json};

for_both!(a_doubt_is_not_settled_by_another_organisation, what_runs_is_left_alone_under_another_organisation);

async fn with_key(kind: Kind, key: &str) -> World {
    let mut world = World::empty(kind, &[]).await;
    world.set_keys(&[key]);
    world.start_gateway().await;
    world
}

async fn restart(world: &mut World, keys: &[&str]) {
    world.kill_gateway();
    world.set_keys(keys);
    world.start_gateway().await;
}

async fn waits(world: &World, id: &str, reason: &str, prompts: u64, word: &str) -> Value {
    until(&format!("the batch to wait: {reason}, {word}"), async || {
        let object = world.client().batch(id).await;
        let detail = object["waiting"][0]["detail"].as_str().unwrap_or_default();
        let waits = waiting(&object) == [(reason.to_owned(), prompts)];
        if waits && detail.contains(word) { Ok(object) } else { Err(object) }
    })
    .await
}

async fn is_told_to_the_operator(world: &World, accounts: &[&str]) {
    let metrics = world.client().get("/metrics").await.text;
    for account in accounts {
        let name = format!("batchgate_left_alone_total{{account=\"{account}\"}}");
        assert!(metrics.contains(&name), "{name}: {metrics}");
    }
}

/// The other organisation has a batch of the very size, newer than anything.
async fn a_doubt_is_not_settled_by_another_organisation(kind: Kind) {
    let mut world = with_key(kind, "other-key").await;
    world
        .sim
        .fault(json!([
            {"match": {"route": "batches.create"}, "fault": {"reset": "after"}},
            {"match": {"route": "batches.list", "nth": 2}, "fault": {"status": 500}, "times": 0},
        ]))
        .await;
    let batch = Batch::of((0..2).map(|n| claude(&format!("doubt {n}"))));
    let object = batch.post(world.client()).await.accepted();
    waits(&world, id(&object), "in_doubt", 2, "looked for").await;
    world.kill_gateway();
    world.sim.clear_faults().await;
    world.sim.strangers_batch("sim-key", 2).await;
    world.set_keys(&["sim-key"]);
    world.start_gateway().await;
    waits(&world, id(&object), "auth_failed", 2, "another organisation").await;
    is_told_to_the_operator(&world, &["anthropic"]).await;
    // It stops nobody else.
    let next = Batch::of([claude("next")]);
    let other = next.post(world.client()).await.accepted();
    assert_eq!(world.client().ended(id(&other)).await["counts"]["succeeded"], 1);
    waits(&world, id(&object), "auth_failed", 2, "another organisation").await;
    restart(&mut world, &["sim-key", "other-key"]).await;
    let first = crate::support::check::answered(&world, &batch, id(&object)).await;
    let creates = world.sim.calls("batches.create").await;
    assert_eq!(creates.len(), 3, "ours, the stranger's, the next: {creates:?}");
    crate::support::again(&world, &batch, &first).await;
}

async fn what_runs_is_left_alone_under_another_organisation(kind: Kind) {
    let mut world = with_key(kind, "other-key").await;
    world.sim.take(1_000.0).await;
    let batch = Batch::of([claude("runs"), gpt("runs")]);
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 2).await;
    restart(&mut world, &["sim-key"]).await;
    world.sim.advance(1_000.0).await;
    waits(&world, id(&object), "auth_failed", 2, "another organisation").await;
    is_told_to_the_operator(&world, &["anthropic", "openai"]).await;
    restart(&mut world, &["other-key"]).await;
    world.sim.take(0.2).await;
    settles(&world, &batch, id(&object)).await;
}
