//! Creates at Anthropic follow each other, for nothing on a batch says whose it is: the turn is a chunk's until everybody
//! knows what became of its create.

use crate::support::{
    Batch, Kind, Prompt, World, check,
    check::answered,
    claude,
    client::{id, waiting},
    for_both, gpt, mixed, settles, teams, until,
};
use serde_json::json;

for_both!(
    creates_of_all_gateways_and_namespaces_follow_each_other,
    the_turn_of_a_chunk_that_is_idle_is_taken_over,
    while_one_is_in_doubt_nothing_else_is_created,
);

fn alone(name: &str, count: usize) -> Batch {
    Batch::of((0..count).map(|n| claude(&format!("{name} {n}")))).field("chunk", 1)
}

async fn creates_of_all_gateways_and_namespaces_follow_each_other(kind: Kind) {
    let mut world = World::new(kind).await;
    world.start_gateway().await;
    world.configure(&teams::team("default", "bg_default_other", "namespace = \"other\""));
    let other = world.start_gateway().await.client.with_key("bg_default_other");
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"delay_after": 0.2}, "times": 0})).await;
    let elsewhere = alone("elsewhere", 5);
    let strange = elsewhere.post(&other).await.accepted();
    let batch = Batch::of(mixed("here", 5)).field("chunk", 1);
    let object = batch.post(world.client()).await.accepted();
    let there = other.ended(id(&strange)).await;
    assert_eq!(there["counts"]["succeeded"], 5, "{there}");
    let first = answered(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.most_at_once("anthropic:batches.create").await, 1);
    assert!(world.sim.most_at_once("openai:batches.create").await > 1, "a label needs no turns");
    assert_eq!(world.sim.calls("batches.create").await.len(), 15, "each chunk once");
    crate::support::again(&world, &batch, &first).await;
}

async fn the_turn_of_a_chunk_that_is_idle_is_taken_over(kind: Kind) {
    let world = World::new(kind).await;
    let done = check(&world, &alone("done", 1)).await;
    let settled = format!("{}.0", id(&done.object).trim_start_matches("batch_"));
    let gone = "00000000000070008000000000000000.0";
    for (n, chunk) in [format!("{{default}}:{settled}"), format!("{{default}}:{gone}"), format!("{{no:more}}:{gone}")]
        .iter()
        .enumerate()
    {
        let turn = format!("1{}", json!({"turn": {"chunk": chunk, "dispatch": "dead"}}));
        world.redis.command::<()>(&["SET", "{acct:anthropic}:creates", &turn]).await;
        check(&world, &alone(&format!("after {n}"), 2)).await;
    }
}

async fn while_one_is_in_doubt_nothing_else_is_created(kind: Kind) {
    let world = World::new(kind).await;
    world
        .sim
        .fault(json!([
            {"match": {"route": "batches.create", "provider": "anthropic"}, "fault": {"reset": "after"}},
            {"match": {"route": "batches.list", "provider": "anthropic", "nth": 2}, "fault": {"status": 500}, "times": 0},
        ]))
        .await;
    let first = alone("first", 1);
    let doubtful = first.post(world.client()).await.accepted();
    waits_in_doubt(&world, id(&doubtful), 1).await;
    let others: Vec<Prompt> = vec![claude("second 1"), claude("second 2"), gpt("second")];
    let second = Batch::of(others);
    let object = second.post(world.client()).await.accepted();
    waits_in_doubt(&world, id(&object), 2).await;
    let creates = world.sim.calls("batches.create").await;
    assert_eq!(creates.iter().filter(|call| call["provider"] == "anthropic").count(), 1, "{creates:?}");
    world.sim.clear_faults().await;
    let both = Batch::of(first.prompts.iter().chain(&second.prompts).cloned());
    answered(&world, &first, id(&doubtful)).await;
    answered(&world, &second, id(&object)).await;
    let all = both.post(world.client()).await.accepted();
    settles(&world, &both, id(&all)).await;
}

async fn waits_in_doubt(world: &World, id: &str, prompts: u64) {
    until("the batch to wait for a doubt", async || {
        let object = world.client().batch(id).await;
        if waiting(&object) == [("in_doubt".to_owned(), prompts)] { Ok(()) } else { Err(object) }
    })
    .await;
}
