//! Result files with lines missing, twice, foreign, broken: each line costs only itself.

use crate::support::{
    Batch, Kind, World, check,
    check::{answered, check_once, paid},
    claude,
    client::{count, id},
    for_both, gpt, mixed,
};
use serde_json::{Value, json};

for_both!(
    spoiled_lines_cost_only_themselves,
    failures_among_the_answers_are_failures,
    a_missing_line_is_looked_for_and_asked_once_more,
    a_line_missing_twice_is_missing,
);

/// Spoils the next `times` provider batches.
async fn spoil(world: &World, results: Value, times: u64) {
    world.sim.clear_faults().await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"results": results}, "times": times})).await;
}

async fn spoiled_lines_cost_only_themselves(kind: Kind) {
    let world = World::new(kind).await;
    let spoils = [
        json!({"duplicate": 5}),
        json!({"conflict": 5}),
        json!({"unknown_id": 3}),
        json!({"garbage": 2}),
        json!({"blank": 3}),
        json!({"crlf": true}),
        json!({"bom": true}),
        json!({"no_final_newline": true}),
        json!({"pad": 3_000_000}),
        json!({"crlf": true, "bom": true, "blank": 2, "garbage": 1, "unknown_id": 2, "duplicate": 3, "conflict": 2, "no_final_newline": true}),
    ];
    for results in spoils {
        spoil(&world, results.clone(), 0).await;
        check(&world, &Batch::of(mixed(&format!("{results}"), 4))).await;
    }
}

async fn failures_among_the_answers_are_failures(kind: Kind) {
    let world = World::new(kind).await;
    for misfile in [false, true] {
        spoil(&world, json!({"fail": 3, "fail_kind": "invalid_request", "misfile": misfile}), 2).await;
        let batch = Batch::of(mixed(&format!("misfiled {misfile}"), 5));
        let object = batch.post(world.client()).await.accepted();
        let ended = world.client().ended(id(&object)).await;
        assert_eq!((count(&ended, "succeeded"), count(&ended, "failed")), (4, 6), "{ended}");
        for (prompt, result) in batch.prompts.iter().zip(world.client().results(id(&object)).await) {
            match result["status"].as_str() {
                Some("succeeded") => assert_eq!(result["completion"], prompt.echo(), "{result}"),
                _ => assert_eq!(result["error"]["code"], "invalid_request", "{result}"),
            }
        }
        let later = check(&world, &batch).await;
        assert_eq!(count(&later.object, "cached"), 4, "failures are asked again");
    }
    // Those that are worth it are asked again within the batch.
    spoil(&world, json!({"fail": 3, "fail_kind": "overloaded", "misfile": true}), 2).await;
    check(&world, &Batch::of(mixed("overloaded", 5))).await;
}

async fn a_missing_line_is_looked_for_and_asked_once_more(kind: Kind) {
    let world = World::new(kind).await;
    spoil(&world, json!({"drop": 2}), 2).await;
    let batch = Batch::of(mixed("dropped", 5));
    let object = batch.post(world.client()).await.accepted();
    let first = answered(&world, &batch, id(&object)).await;
    assert_eq!(count(&first.object, "succeeded"), 10);
    let bought: u64 = paid(&world).await.values().sum();
    assert_eq!(bought, 14, "two of each provider's were paid and lost, and had to be paid again");
    check(&world, &batch).await;
    let metrics = world.client().get("/metrics").await;
    let rebought = metrics.text.lines().find(|line| line.starts_with("batchgate_rebought_total"));
    assert_eq!(rebought, Some("batchgate_rebought_total 4"), "{}", metrics.text);
}

async fn a_line_missing_twice_is_missing(kind: Kind) {
    let world = World::new(kind).await;
    spoil(&world, json!({"drop": 1}), 0).await;
    let batch = Batch::of([claude("a"), gpt("b")].map(|prompt| prompt.fails_billed("missing")));
    let object = batch.post(world.client()).await.accepted();
    let first = answered(&world, &batch, id(&object)).await;
    assert!(first.results.iter().all(|result| result["error"]["retryable"] == true), "{:?}", first.results);
    assert_eq!(world.sim.calls("batches.create").await.len(), 4, "asked once more, and no more");
    world.sim.clear_faults().await;
    let fine = check_once(&world, &Batch::of([claude("a"), gpt("b")])).await;
    assert_eq!(count(&fine.object, "cached"), 0, "what was missing is not cached");
    check(&world, &Batch::of([claude("a"), gpt("b")])).await;
}
