//! Creates that are refused, fail, or whose answer is lost: sent again only if nothing was made, billed once.

use crate::support::{Batch, Kind, World, check, check::paid, client::id, for_both, gpt, mixed, settles, until};
use serde_json::{Value, json};

for_both!(
    a_throttled_create_waits_as_long_as_it_was_told,
    a_failed_create_is_sent_again,
    a_create_whose_answer_is_lost_is_found,
    lost_creates_of_many_chunks_are_told_apart,
    a_batch_not_yet_listed_is_looked_for_twice,
    an_upload_that_fails_is_sent_again,
    a_file_that_is_not_there_yet_is_waited_for,
    polls_that_fail_are_repeated,
);

/// Each provider's next `times` calls of a route meet this fault.
async fn fault(world: &World, route: &str, fault: &Value, times: u64) {
    world.sim.clear_faults().await;
    for provider in ["anthropic", "openai"] {
        let rule = json!({"match": {"route": route, "provider": provider}, "fault": fault, "times": times});
        world.sim.fault(rule).await;
    }
}

/// How many provider batches were really made.
async fn made(world: &World) -> usize {
    world.sim.calls("batches.create").await.iter().filter(|call| call["made"].is_string()).count()
}

async fn a_throttled_create_waits_as_long_as_it_was_told(kind: Kind) {
    let world = World::new(kind).await;
    fault(&world, "batches.create", &json!({"status": 429, "retry_after": 2}), 1).await;
    check(&world, &Batch::of(mixed("throttled", 2))).await;
    for provider in ["anthropic", "openai"] {
        let calls = world.sim.calls("batches.create").await;
        let times: Vec<f64> =
            calls.iter().filter(|call| call["provider"] == provider).filter_map(|call| call["time"].as_f64()).collect();
        assert!(times.len() == 2 && times[1] - times[0] >= 1.9, "{provider}: {times:?}");
    }
}

async fn a_failed_create_is_sent_again(kind: Kind) {
    let world = World::new(kind).await;
    let faults = [
        json!({"status": 500, "html": true}),
        json!({"status": 503}),
        json!({"status": 529}),
        json!({"status": 408}),
        json!({"status": 404}),
        json!({"status": 200, "body": "<html>not what you think</html>"}),
        json!({"status": 502, "body": ""}),
        json!({"reset": "before"}),
    ];
    for (n, what) in faults.iter().enumerate() {
        fault(&world, "batches.create", what, 1).await;
        check(&world, &Batch::of(mixed(&format!("failed {n}"), 2))).await;
        assert_eq!(made(&world).await, 2 * (n + 1), "{what}: one provider batch per chunk");
    }
}

async fn a_create_whose_answer_is_lost_is_found(kind: Kind) {
    let world = World::new(kind).await;
    let faults = [
        json!({"reset": "after"}),
        json!({"status": 500, "html": true, "after": true}),
        json!({"status": 504, "after": true}),
        json!({"status": 200, "body": "{\"id\": 7}", "after": true}),
        json!({"truncate": {"bytes": 10, "framing": "length"}}),
        json!({"truncate": {"bytes": 0, "framing": "close"}}),
    ];
    for (n, what) in faults.iter().enumerate() {
        fault(&world, "batches.create", what, 1).await;
        check(&world, &Batch::of(mixed(&format!("lost {n}"), 2))).await;
        assert_eq!(made(&world).await, 2 * (n + 1), "{what}: found, not sent again");
    }
}

async fn lost_creates_of_many_chunks_are_told_apart(kind: Kind) {
    let world = World::new(kind).await;
    fault(&world, "batches.create", &json!({"reset": "after"}), 4).await;
    let batch = Batch::of(mixed("many lost", 8)).field("chunk", 2);
    check(&world, &batch).await;
    assert_eq!(made(&world).await, 8, "each found, none sent again");
}

async fn a_batch_not_yet_listed_is_looked_for_twice(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_POLL_MAX", "2s")]).await;
    fault(&world, "batches.create", &json!({"reset": "after", "list_hidden_s": 1.0}), 1).await;
    check(&world, &Batch::of(mixed("hidden", 2))).await;
    assert_eq!(made(&world).await, 2, "found at the second look");
}

async fn an_upload_that_fails_is_sent_again(kind: Kind) {
    let world = World::new(kind).await;
    let faults = [
        json!({"status": 500, "html": true}),
        json!({"reset": "before"}),
        json!({"reset": "after"}),
        json!({"status": 429}),
    ];
    for (n, what) in faults.iter().enumerate() {
        fault(&world, "files.create", what, 2).await;
        check(&world, &Batch::of((0..3).map(|k| gpt(&format!("upload {n} {k}"))))).await;
        assert_eq!(made(&world).await, n + 1);
    }
}

async fn a_file_that_is_not_there_yet_is_waited_for(kind: Kind) {
    let world = World::new(kind).await;
    fault(&world, "files.create", &json!({"hidden_s": 1.0}), 1).await;
    world.sim.settings(json!({"openai": {"missing_file": "reject"}})).await;
    check(&world, &Batch::of((0..3).map(|n| gpt(&format!("late file {n}"))))).await;
    assert_eq!(paid(&world).await.len(), 3);
}

async fn polls_that_fail_are_repeated(kind: Kind) {
    let world = World::new(kind).await;
    let faults = [
        json!({"status": 500, "html": true}),
        json!({"status": 404}),
        json!({"status": 200, "body": "[]"}),
        json!({"reset": "before"}),
        json!({"delay": 2}),
        json!({"truncate": {"fraction": 0.5, "framing": "length"}}),
    ];
    for (n, what) in faults.iter().enumerate() {
        fault(&world, "batches.get", what, 3).await;
        let batch = Batch::of(mixed(&format!("poll {n}"), 1));
        check(&world, &batch).await;
    }
    assert_eq!(made(&world).await, 2 * faults.len(), "nothing is ever sent again because of a failed read");
    // A batch the provider forgets for a while is waited for.
    fault(&world, "batches.create", &json!({"hidden_s": 2.0}), 1).await;
    let batch = Batch::of(mixed("forgotten", 1));
    let object = batch.post(world.client()).await.accepted();
    until("the batch to end", async || {
        let object = world.client().batch(id(&object)).await;
        if object["status"] == "ended" { Ok(()) } else { Err(object) }
    })
    .await;
    assert_eq!(made(&world).await, 2 * faults.len() + 2);
    check(&world, &batch).await;
}

for_both!(what_is_lost_in_doubt_keeps_the_bill);

/// The whole of one provider's life in trouble at once.
async fn what_is_lost_in_doubt_keeps_the_bill(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.fault(json!([
        {"match": {"route": "*"}, "fault": {"status": 503}, "times": 0, "chance": 0.2},
        {"match": {"route": "batches.create"}, "fault": {"reset": "after"}, "times": 3, "chance": 0.5},
        {"match": {"route": "files.content"}, "fault": {"truncate": {"fraction": 0.5, "framing": "chunked"}}, "times": 2},
        {"match": {"route": "batches.results"}, "fault": {"truncate": {"fraction": 0.5, "framing": "chunked"}}, "times": 2},
    ])).await;
    let batch = Batch::of(mixed("all at once", 12)).field("chunk", 4);
    let object = batch.post(world.client()).await.accepted();
    settles(&world, &batch, id(&object)).await;
}
