//! Two provider batches of one chunk: the older is kept, the other cancelled and counted. What bears another's label, or
//! none of ours, is left alone.

use crate::support::{
    Batch, Kind, World,
    client::{id, waiting},
    for_both, gpt, settles, until,
};
use serde_json::json;

for_both!(of_two_with_our_label_the_older_is_kept);

async fn of_two_with_our_label_the_older_is_kept(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    world
        .sim
        .fault(json!([
            {"match": {"route": "batches.create"}, "fault": {"reset": "after"}},
            {"match": {"route": "batches.list"}, "fault": {"status": 500}, "times": 0},
        ]))
        .await;
    let batch = Batch::of((0..3).map(|n| gpt(&format!("double {n}"))));
    let object = batch.post(world.client()).await.accepted();
    until("the chunk to be in doubt", async || {
        let object = world.client().batch(id(&object)).await;
        if waiting(&object) == [("in_doubt".to_owned(), 3)] { Ok(()) } else { Err(object) }
    })
    .await;
    let made = world.sim.calls("batches.create").await;
    let ours = world.sim.openai_batch("sim-key", made[0]["made"].as_str().expect("it was made")).await;
    let double = world.sim.once_more("sim-key", &ours, json!({})).await;
    let others = [
        world.sim.once_more("sim-key", &ours, json!({"batchgate_deployment": "another"})).await,
        world.sim.once_more("sim-key", &ours, json!({"batchgate_chunk": "another"})).await,
    ];
    world.sim.clear_faults().await;
    world.running(id(&object), 1).await;
    let cancelled = world.sim.calls("batches.cancel").await;
    assert!(
        cancelled.len() == 1 && cancelled[0]["path"].as_str().is_some_and(|path| path.contains(&double)),
        "{cancelled:?}"
    );
    let metrics = world.client().get("/metrics").await.text;
    assert!(metrics.contains(r#"batchgate_duplicates_total{outcome="cancelled"} 1"#), "{metrics}");
    // What strangers made of our file is theirs, and must not run into this ledger.
    for other in others {
        world.sim.stop("sim-key", &other).await;
    }
    world.sim.take(0.2).await;
    world.sim.advance(1_000.0).await;
    settles(&world, &batch, id(&object)).await;
}
