//! Keys that change while batches run: the first creates, all are tried for reading, and what no key sees is waited for.

use crate::support::{
    Batch, Kind, Prompt, World, claude,
    client::{id, waiting},
    for_both, gpt, settles, until,
};
use serde_json::{Value, json};

for_both!(
    keys_of_one_account_change_without_notice,
    a_batch_made_with_the_old_key_is_read_with_it,
    without_its_key_a_batch_waits_and_is_not_bought_again,
    a_doubt_is_settled_only_by_the_key_that_created,
    a_revoked_first_key_stops_creates_but_not_reads,
);

fn mixed(name: &str) -> Vec<Prompt> {
    (0..2).flat_map(|n| [claude(&format!("{name} {n}")), gpt(&format!("{name} {n}"))]).collect()
}

/// A world whose gateway has this one key, and whose batches run until the clock is moved.
async fn with_key(kind: Kind, key: &str) -> World {
    let mut world = World::empty(kind, &[]).await;
    world.set_keys(&[key]);
    world.start_gateway().await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    world
}

async fn restart(world: &mut World, keys: &[&str]) {
    world.kill_gateway();
    world.set_keys(keys);
    world.start_gateway().await;
}

async fn running(world: &World, id: &str) {
    until("both chunks to run", async || {
        let object = world.client().batch(id).await;
        if object["chunks"]["running"] == 2 { Ok(()) } else { Err(object) }
    })
    .await;
}

async fn says_auth_failed(world: &World, id: &str, prompts: u64) -> Value {
    until("the batch to wait for its key", async || {
        let object = world.client().batch(id).await;
        if waiting(&object) == [("auth_failed".to_owned(), prompts)] { Ok(object) } else { Err(object) }
    })
    .await
}

async fn short(world: &World) {
    world.sim.settings(json!({"anthropic": {"in_progress_s": 0.2}, "openai": {"in_progress_s": 0.2}})).await;
    world.sim.advance(1000.0).await;
}

async fn made(world: &World) -> usize {
    world.sim.calls("batches.create").await.iter().filter(|call| call["made"].is_string()).count()
}

async fn keys_of_one_account_change_without_notice(kind: Kind) {
    let mut world = with_key(kind, "sim-key").await;
    let batch = Batch::of(mixed("rotated"));
    let object = batch.post(world.client()).await.accepted();
    running(&world, id(&object)).await;
    restart(&mut world, &["new-key"]).await;
    short(&world).await;
    settles(&world, &batch, id(&object)).await;
}

async fn a_batch_made_with_the_old_key_is_read_with_it(kind: Kind) {
    let mut world = with_key(kind, "other-key").await;
    let batch = Batch::of(mixed("old"));
    let object = batch.post(world.client()).await.accepted();
    running(&world, id(&object)).await;
    restart(&mut world, &["sim-key", "other-key"]).await;
    short(&world).await;
    settles(&world, &batch, id(&object)).await;
    let next = Batch::of(mixed("new"));
    crate::support::check(&world, &next).await;
    let calls = world.sim.calls("batches.create").await;
    let accounts: Vec<&str> = calls.iter().filter_map(|call| call["account"].as_str()).collect();
    assert_eq!(accounts, ["other", "other", "default", "default"], "the first key creates");
}

async fn without_its_key_a_batch_waits_and_is_not_bought_again(kind: Kind) {
    let mut world = with_key(kind, "other-key").await;
    let batch = Batch::of(mixed("invisible"));
    let object = batch.post(world.client()).await.accepted();
    running(&world, id(&object)).await;
    restart(&mut world, &["sim-key"]).await;
    let told = says_auth_failed(&world, id(&object), 4).await;
    assert!(told["waiting"][0]["detail"].as_str().unwrap_or_default().contains("api_key_env"), "{told}");
    short(&world).await;
    // The account itself works.
    crate::support::check::check_once(&world, &Batch::of(mixed("others"))).await;
    says_auth_failed(&world, id(&object), 4).await;
    assert_eq!(made(&world).await, 4, "nothing is bought again");
    restart(&mut world, &["sim-key", "other-key"]).await;
    crate::support::check::answered(&world, &batch, id(&object)).await;
    assert_eq!(made(&world).await, 4);
    crate::support::check(&world, &batch).await;
}

async fn a_doubt_is_settled_only_by_the_key_that_created(kind: Kind) {
    let mut world = with_key(kind, "other-key").await;
    world
        .sim
        .fault(json!([
            {"match": {"route": "batches.create"}, "fault": {"reset": "after"}, "times": 2},
            {"match": {"route": "batches.list", "provider": "openai"}, "fault": {"status": 500}, "times": 0},
            {"match": {"route": "batches.list", "provider": "anthropic", "nth": 2}, "fault": {"status": 500}, "times": 0},
        ]))
        .await;
    let batch = Batch::of(mixed("doubt"));
    let object = batch.post(world.client()).await.accepted();
    until("both chunks to be in doubt", async || {
        let object = world.client().batch(id(&object)).await;
        if waiting(&object) == [("in_doubt".to_owned(), 4)] { Ok(()) } else { Err(object) }
    })
    .await;
    restart(&mut world, &["sim-key"]).await;
    world.sim.clear_faults().await;
    let told = says_auth_failed(&world, id(&object), 4).await;
    assert!(told["waiting"][0]["detail"].as_str().unwrap_or_default().contains("api_key_env"), "{told}");
    assert_eq!(made(&world).await, 2, "not found under another key is no reason to send it again");
    restart(&mut world, &["sim-key", "other-key"]).await;
    short(&world).await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(made(&world).await, 2);
}

async fn a_revoked_first_key_stops_creates_but_not_reads(kind: Kind) {
    let mut world = with_key(kind, "sim-key").await;
    let batch = Batch::of(mixed("before"));
    let object = batch.post(world.client()).await.accepted();
    running(&world, id(&object)).await;
    restart(&mut world, &["revoked-key", "sim-key"]).await;
    let next = Batch::of(mixed("after"));
    let waits = next.post(world.client()).await.accepted();
    says_auth_failed(&world, id(&waits), 4).await;
    short(&world).await;
    crate::support::check::answered(&world, &batch, id(&object)).await;
    says_auth_failed(&world, id(&waits), 4).await;
    // In order: a create in hand is finished. One that is cut off would be in doubt under the revoked key, and rightly wait
    // for it.
    world.gateways[0].process.signal("TERM");
    let process = &mut world.gateways[0].process;
    until("the gateway to end", async || process.ended().ok_or("it runs")).await;
    restart(&mut world, &["sim-key"]).await;
    crate::support::check::answered(&world, &next, id(&waits)).await;
    crate::support::check(&world, &batch).await;
    crate::support::check(&world, &next).await;
}
