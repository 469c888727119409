//! Cancelling: before anything is sent, while it runs, and when it is too late.

use crate::support::{
    Batch, Kind, World, check,
    check::{check_once, paid},
    claude,
    client::{count, id},
    for_both, gpt, until,
};
use serde_json::json;

for_both!(
    a_running_batch_is_cancelled_and_what_was_done_is_kept,
    what_finishes_anyway_is_kept,
    chunks_not_yet_sent_are_never_sent,
    an_ended_batch_cannot_be_cancelled,
    a_cancelled_batch_may_be_asked_again,
);

async fn a_running_batch_is_cancelled_and_what_was_done_is_kept(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    let prompts: Vec<_> = (0..10).flat_map(|n| [claude(&format!("a {n}")), gpt(&format!("b {n}"))]).collect();
    let batch = Batch::of(prompts);
    let object = batch.post(world.client()).await.accepted();
    let id = id(&object).to_owned();
    world.running(&id, 2).await;
    world.sim.advance(500.0).await; // half of the work is done
    let canceling = world.client().cancel(&id).await.ok();
    assert!(canceling["status"] == "canceling" || canceling["status"] == "ended", "{canceling}");
    let ended = world.client().ended(&id).await;
    world.client().cancel(&id).await.ok(); // however often
    let results = world.client().results(&id).await;
    let (done, left) = (count(&ended, "succeeded"), count(&ended, "canceled"));
    assert!(done + left == 20 && (8..=12).contains(&done), "{ended}");
    for (prompt, result) in batch.prompts.iter().zip(&results) {
        if result["status"] == "succeeded" {
            assert_eq!(result["completion"], prompt.echo(), "{result}");
        } else {
            assert_eq!(
                (&result["status"], &result["error"]["code"]),
                (&json!("canceled"), &json!("canceled")),
                "{result}"
            );
            assert_eq!(result["error"]["retryable"], true, "{result}");
        }
    }
    assert_eq!(paid(&world).await.values().sum::<u64>(), done);
    world.sim.take(0.1).await;
    let first = check(&world, &batch).await;
    assert_eq!(count(&first.object, "cached"), done, "what was paid is in the cache");
}

async fn what_finishes_anyway_is_kept(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    world.sim.settings(json!({"common": {"cancel_completes": 1.0}})).await;
    let batch = Batch::of([claude("a"), gpt("b"), claude("c")]);
    let object = batch.post(world.client()).await.accepted();
    let id = id(&object).to_owned();
    world.running(&id, 2).await;
    world.sim.advance(1.0).await; // a batch that is still being validated would finish nothing
    world.client().cancel(&id).await.ok();
    let ended = world.client().ended(&id).await;
    assert_eq!(count(&ended, "succeeded"), 3, "{ended}");
    world.client().cancel(&id).await.ok();
    check(&world, &batch).await;
}

async fn chunks_not_yet_sent_are_never_sent(kind: Kind) {
    let world = World::new(kind).await;
    // Creates are refused for as long as the fault stands: the chunks stay planned.
    let refuse = json!({"match": {"route": "batches.create"}, "fault": {"status": 429, "retry_after": 1}, "times": 0});
    world.sim.fault(refuse).await;
    let batch = Batch::of([claude("a"), gpt("b"), claude("c")]).field("chunk", 1);
    let object = batch.post(world.client()).await.accepted();
    let id = id(&object);
    until("a create to be refused", async || {
        let calls = world.sim.calls("batches.create").await;
        if calls.is_empty() { Err(calls) } else { Ok(()) }
    })
    .await;
    world.client().cancel(id).await.ok();
    let ended = world.client().ended(id).await;
    assert_eq!((count(&ended, "canceled"), &ended["chunks"]["planned"]), (3, &json!(0)), "{ended}");
    world.sim.clear_faults().await;
    assert!(paid(&world).await.is_empty());
    check(&world, &batch).await;
}

async fn an_ended_batch_cannot_be_cancelled(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("a"), gpt("b")]);
    let first = check(&world, &batch).await;
    for _ in 0..2 {
        world.client().cancel(id(&first.object)).await.refused(409, "batch_ended");
    }
    assert_eq!(world.client().batch(id(&first.object)).await, first.object, "ended means ended");
}

/// A cancel in the moment of the create: the submitter sees it after storing the id.
async fn a_cancelled_batch_may_be_asked_again(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"delay_after": 4}, "times": 0})).await;
    let batch = Batch::of([claude("a"), gpt("b")]);
    let object = batch.post(world.client()).await.accepted();
    let id = id(&object).to_owned();
    until("the creates to be on their way", async || {
        let object = world.client().batch(&id).await;
        if object["chunks"]["submitting"] == 2 { Ok(()) } else { Err(object) }
    })
    .await;
    world.client().cancel(&id).await.ok();
    let ended = world.client().ended(&id).await;
    assert_eq!(count(&ended, "canceled"), 2, "{ended}");
    assert_eq!(world.sim.calls("batches.cancel").await.len(), 2, "the provider was told to stop");
    world.sim.clear_faults().await;
    world.sim.take(0.1).await;
    check_once(&world, &batch).await;
    check(&world, &batch).await;
}
