//! Providers that send a byte now and then: never silent for a stall, and never done. They are given up, and nothing is
//! bought twice.

use crate::support::{Batch, Kind, World, claude, client::id, for_both, gpt, settles, until};
use serde_json::{Value, json};

for_both!(a_create_whose_reply_trickles_is_in_doubt_and_found, a_download_that_trickles_is_begun_anew);

async fn world(kind: Kind) -> World {
    World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await
}

/// Under the stall, so that only the whole can be too slow.
fn trickle() -> Value {
    json!({"trickle": {"bytes": 1, "every": 0.3}})
}

/// Waits until the gateway has said this in its log, and ends the faults.
async fn given_up(world: &World, piece: &str, times: usize) {
    until("the trickle to be given up", async || {
        let found = world.gateways[0].process.said().matches(piece).count();
        if found >= times { Ok(()) } else { Err(found) }
    })
    .await;
    world.sim.clear_faults().await;
}

async fn a_create_whose_reply_trickles_is_in_doubt_and_found(kind: Kind) {
    let world = world(kind).await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": trickle(), "times": 0})).await;
    let batch = Batch::of([claude("a"), gpt("b")]);
    let object = batch.post(world.client()).await.accepted();
    given_up(&world, "the create's answer was lost", 2).await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 2, "looked for, and found");
}

async fn a_download_that_trickles_is_begun_anew(kind: Kind) {
    let world = world(kind).await;
    for route in ["batches.results", "files.content"] {
        world.sim.fault(json!({"match": {"route": route}, "fault": trickle(), "times": 0})).await;
    }
    let batch = Batch::of((0..4).flat_map(|n| [claude(&format!("{n}")), gpt(&format!("{n}"))]));
    let object = batch.post(world.client()).await.accepted();
    given_up(&world, " came in ", 2).await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 2);
}
