//! A create at Anthropic whose answer was lost, and batches that might be its: what their first lines say decides.

use crate::support::{
    Batch, Kind, World,
    check::{again, answered, paid},
    claude,
    client::id,
    for_both, until,
};
use serde_json::{Value, json};

for_both!(
    of_several_that_may_be_it_the_tag_tells,
    if_none_of_several_is_it_the_chunk_is_sent_again,
    one_that_turns_out_to_be_a_strangers_is_put_back,
);

fn batch(name: &str) -> Batch {
    Batch::of((0..3).map(|n| claude(&format!("{name} {n}"))))
}

/// The next create fails like this, and the list is not to be had until [`list`].
async fn lose(world: &World, how: &str) {
    world
        .sim
        .fault(json!([
            {"match": {"route": "batches.create"}, "fault": {"reset": how}},
            {"match": {"route": "batches.list", "nth": 2}, "fault": {"status": 500}, "times": 0},
        ]))
        .await;
}

async fn in_doubt(world: &World, id: &str, word: &str) -> Value {
    until(&format!("the batch to say: {word}"), async || {
        let object = world.client().batch(id).await;
        let detail = object["waiting"][0]["detail"].as_str().unwrap_or_default();
        if detail.contains(word) { Ok(object) } else { Err(object) }
    })
    .await
}

/// Right answers, each bought once, and nobody's batch was stopped.
async fn ends_well(world: &World, batch: &Batch, id: &str, made: usize) {
    let first = answered(world, batch, id).await;
    let bought = paid(world).await;
    for (sha, times) in batch.bill() {
        assert_eq!(bought.get(&sha), Some(&times), "every question once");
    }
    let creates = world.sim.calls("batches.create").await;
    assert_eq!(creates.iter().filter(|call| call["made"].is_string()).count(), made, "{creates:?}");
    assert!(world.sim.calls("batches.cancel").await.is_empty(), "what was not read is not cancelled");
    again(world, batch, &first).await;
}

async fn of_several_that_may_be_it_the_tag_tells(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    lose(&world, "after").await;
    let batch = batch("several");
    let object = batch.post(world.client()).await.accepted();
    in_doubt(&world, id(&object), "looked for").await;
    world.sim.strangers_batch("sim-key", 3).await;
    world.sim.clear_faults().await;
    in_doubt(&world, id(&object), "2 provider batches may be it").await;
    // The turn is free: others are created meanwhile, and are none of the candidates.
    world.sim.take(0.2).await;
    crate::support::check(&world, &self::batch("meanwhile")).await;
    in_doubt(&world, id(&object), "2 provider batches may be it").await;
    world.sim.advance(1_000.0).await;
    ends_well(&world, &batch, id(&object), 3).await;
}

async fn if_none_of_several_is_it_the_chunk_is_sent_again(kind: Kind) {
    let world = World::new(kind).await;
    lose(&world, "before").await;
    let batch = batch("none");
    let object = batch.post(world.client()).await.accepted();
    in_doubt(&world, id(&object), "looked for").await;
    for _ in 0..2 {
        world.sim.strangers_batch("sim-key", 3).await;
    }
    world.sim.clear_faults().await;
    ends_well(&world, &batch, id(&object), 3).await;
}

async fn one_that_turns_out_to_be_a_strangers_is_put_back(kind: Kind) {
    let world = World::new(kind).await;
    lose(&world, "before").await;
    let batch = batch("one");
    let object = batch.post(world.client()).await.accepted();
    in_doubt(&world, id(&object), "looked for").await;
    world.sim.strangers_batch("sim-key", 3).await;
    world.sim.clear_faults().await;
    ends_well(&world, &batch, id(&object), 2).await;
}
