//! Cancels and deadlines that meet a chunk while it is submitted or in doubt: the doubt is settled first, what was bought is
//! stopped and kept, and a doubt that cannot be settled ends with the deadline.

use super::deadlines::pass_deadline;
use crate::support::{
    Batch, Kind, World, check,
    check::paid,
    claude,
    client::{count, id, waiting},
    for_both, gpt, nothing_is_left_behind, until,
};
use serde_json::{Value, json};

for_both!(
    cancelled_while_its_create_is_lost,
    cancelled_in_doubt_and_never_created,
    a_doubt_that_cannot_be_settled_ends_after_the_deadline,
    several_that_may_be_it_do_not_hold_a_batch_beyond_the_deadline,
);

fn batch() -> Batch {
    Batch::of((0..4).flat_map(|n| [claude(&format!("a {n}")), gpt(&format!("b {n}"))]))
}

async fn doubtful(world: &World, batch: &Batch, how: Value, list_works: bool) -> String {
    for provider in ["anthropic", "openai"] {
        let rule = json!({"match": {"route": "batches.create", "provider": provider}, "fault": how, "times": 1});
        world.sim.fault(rule).await;
    }
    if !list_works {
        let lists = json!([
            {"match": {"route": "batches.list", "provider": "openai"}, "fault": {"status": 500}, "times": 0},
            {"match": {"route": "batches.list", "provider": "anthropic", "nth": 2}, "fault": {"status": 500}, "times": 0},
        ]);
        world.sim.fault(lists).await;
    }
    let object = batch.post(world.client()).await.accepted();
    id(&object).to_owned()
}

async fn in_doubt(world: &World, id: &str, prompts: u64) {
    until("all chunks to be in doubt", async || {
        let object = world.client().batch(id).await;
        if waiting(&object) == [("in_doubt".to_owned(), prompts)] { Ok(()) } else { Err(object) }
    })
    .await;
}

async fn cancelled_while_its_create_is_lost(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    let id = doubtful(&world, &batch(), json!({"delay_after": 4, "reset": "after"}), true).await;
    until("the creates to be on their way", async || {
        let object = world.client().batch(&id).await;
        let calls = world.sim.calls("batches.create").await;
        if object["chunks"]["submitting"] == 2 { Ok(()) } else { Err((object, calls)) }
    })
    .await;
    world.client().cancel(&id).await.ok();
    until("OpenAI's to be stopped", async || {
        let calls = world.sim.calls("batches.cancel").await;
        if calls.len() == 1 { Ok(()) } else { Err(calls) }
    })
    .await;
    // Whose Anthropic's is, is known when it ends: it runs on, and what it brings is kept.
    world.sim.advance(1_000.0).await;
    let ended = world.client().ended(&id).await;
    let bought = paid(&world).await.values().sum::<u64>();
    assert_eq!((count(&ended, "succeeded"), count(&ended, "canceled")), (bought, 8 - bought), "{ended}");
    assert!(bought >= 4, "{ended}");
    assert_eq!(world.sim.calls("batches.create").await.len(), 2, "found, not sent again");
    world.sim.clear_faults().await;
    world.sim.take(0.2).await;
    let later = check(&world, &batch()).await;
    assert_eq!(count(&later.object, "cached"), bought, "what was paid is in the cache");
    nothing_is_left_behind(&world).await;
}

async fn cancelled_in_doubt_and_never_created(kind: Kind) {
    let world = World::new(kind).await;
    let id = doubtful(&world, &batch(), json!({"reset": "before"}), false).await;
    in_doubt(&world, &id, 8).await;
    world.client().cancel(&id).await.ok();
    world.sim.clear_faults().await;
    let ended = world.client().ended(&id).await;
    assert_eq!(count(&ended, "canceled"), 8, "{ended}");
    assert!(paid(&world).await.is_empty());
    check(&world, &batch()).await;
    nothing_is_left_behind(&world).await;
}

async fn a_doubt_that_cannot_be_settled_ends_after_the_deadline(kind: Kind) {
    let world = World::new(kind).await;
    let id = doubtful(&world, &batch(), json!({"reset": "before"}), false).await;
    in_doubt(&world, &id, 8).await;
    pass_deadline(&world, 31).await;
    let ended = world.client().ended(&id).await;
    assert_eq!(count(&ended, "expired"), 8, "{ended}");
    world.sim.clear_faults().await;
    check(&world, &batch()).await;
    nothing_is_left_behind(&world).await;
}

async fn several_that_may_be_it_do_not_hold_a_batch_beyond_the_deadline(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    let batch = Batch::of((0..4).map(|n| claude(&format!("a {n}"))));
    let id = doubtful(&world, &batch, json!({"reset": "before"}), false).await;
    in_doubt(&world, &id, 4).await;
    for _ in 0..2 {
        world.sim.strangers_batch("sim-key", 4).await;
    }
    world.sim.clear_faults().await;
    until("several to be possible", async || {
        let object = world.client().batch(&id).await;
        let told = object["waiting"].to_string();
        if told.contains("may be it") { Ok(()) } else { Err(object) }
    })
    .await;
    pass_deadline(&world, 31).await;
    let ended = world.client().ended(&id).await;
    assert_eq!(count(&ended, "expired"), 4, "{ended}");
    world.sim.take(0.2).await;
    world.sim.advance(1_000.0).await;
    check(&world, &batch).await;
    nothing_is_left_behind(&world).await;
}
