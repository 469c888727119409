//! Downloads that end early, stand still or come late: an error to retry, never an end of file.

use crate::support::{Batch, Kind, World, check, for_both, mixed};
use serde_json::{Value, json};

for_both!(
    a_short_download_is_read_again_in_every_framing,
    a_stalled_download_is_read_again,
    results_may_be_late,
    a_slow_download_is_not_a_dead_one,
);

/// The next `times` downloads of each provider meet this fault.
async fn fault(world: &World, fault: &Value, times: u64) {
    world.sim.clear_faults().await;
    for route in ["batches.results", "files.content"] {
        world.sim.fault(json!({"match": {"route": route}, "fault": fault, "times": times})).await;
    }
}

async fn creates(world: &World) -> usize {
    world.sim.calls("batches.create").await.len()
}

async fn a_short_download_is_read_again_in_every_framing(kind: Kind) {
    let world = World::new(kind).await;
    let mut stories = 0;
    for framing in ["length", "chunked", "close"] {
        for (fraction, at_line_end) in [(0.0, false), (0.5, false), (0.5, true), (0.95, true)] {
            // Anthropic's results have neither length nor size: cut at a line's end and closed, they look whole. Then
            // the lines are missing, and are looked for once more after a poll interval.
            let what = json!({"truncate": {"fraction": fraction, "framing": framing, "at_line_end": at_line_end}});
            fault(&world, &what, 1).await;
            check(&world, &Batch::of(mixed(&format!("{what}"), 4))).await;
            stories += 1;
            assert_eq!(creates(&world).await, 2 * stories, "{what}: read again, not asked again");
        }
    }
}

async fn a_stalled_download_is_read_again(kind: Kind) {
    let world = World::new(kind).await;
    for (n, what) in [json!({"trickle": {"bytes": 100, "every": 5}}), json!({"delay": 8}), json!({"delay_after": 8})]
        .iter()
        .enumerate()
    {
        fault(&world, what, 1).await;
        check(&world, &Batch::of(mixed(&format!("stalled {n}"), 3))).await;
        assert_eq!(creates(&world).await, 2 * (n + 1), "{what}");
    }
}

async fn results_may_be_late(kind: Kind) {
    let world = World::new(kind).await;
    world
        .sim
        .fault(json!({"match": {"route": "batches.create"}, "fault": {"results_hidden_s": 1.5}, "times": 0}))
        .await;
    check(&world, &Batch::of(mixed("late", 3))).await;
    assert_eq!(creates(&world).await, 2);
}

async fn a_slow_download_is_not_a_dead_one(kind: Kind) {
    let world = World::new(kind).await;
    // Slower than the lease: the claim must be renewed while it lasts.
    fault(&world, &json!({"trickle": {"bytes": 400, "every": 0.4}}), 0).await;
    check(&world, &Batch::of(mixed("slow", 6))).await;
    let downloads = world.sim.calls("batches.results").await.len() + world.sim.calls("files.content").await.len();
    assert_eq!((downloads, creates(&world).await), (2, 2), "each is read once");
}
