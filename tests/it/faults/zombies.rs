//! A gateway that stands still for longer than its lease and then goes on: it may change no state and no answer.

use crate::support::{
    Batch, Kind, World, check,
    check::{again, answered, paid},
    claude,
    client::id,
    for_both, gpt, nothing_is_left_behind, until,
};
use serde_json::json;

for_both!(
    a_sleeper_in_a_download_wakes_too_late,
    a_sleeper_in_a_create_wakes_too_late,
    a_sleeper_wakes_after_a_refresh,
    a_sleeper_gives_no_number_back,
);

/// One gateway that will sleep. A short lease, so that nobody waits long for it.
async fn world(kind: Kind) -> World {
    World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await
}

fn batch(name: &str) -> Batch {
    Batch::of((0..8).flat_map(|n| [claude(&format!("{name} {n}")), gpt(&format!("{name} {n}"))])).field("chunk", 4)
}

async fn calls(world: &World, route: &str, count: usize) {
    until(&format!("{count} calls of {route}"), async || {
        let calls = world.sim.calls(route).await;
        if calls.len() >= count { Ok(()) } else { Err(calls) }
    })
    .await;
}

/// Wakes the sleeper and sees it do something.
async fn wake(world: &World) {
    world.gateways[0].process.signal("CONT");
    until("the sleeper to be awake", async || {
        let ready = world.gateways[0].client.get("/readyz").await;
        if ready.status == 200 { Ok(()) } else { Err(ready.text) }
    })
    .await;
}

async fn a_sleeper_in_a_download_wakes_too_late(kind: Kind) {
    let mut world = world(kind).await;
    let slow = json!({"trickle": {"bytes": 300, "every": 0.2}});
    world.sim.fault(json!({"match": {"route": "files.content"}, "fault": slow, "times": 0})).await;
    world.sim.fault(json!({"match": {"route": "batches.results"}, "fault": slow, "times": 0})).await;
    let batch = batch("download");
    let object = batch.post(world.client()).await.accepted();
    calls(&world, "files.content", 1).await;
    calls(&world, "batches.results", 1).await;
    world.gateways[0].process.signal("STOP");
    world.sim.clear_faults().await;
    let awake = world.start_gateway().await.client.clone();
    let ended = awake.ended(id(&object)).await;
    let results = awake.results(id(&object)).await;
    nothing_is_left_behind(&world).await; // all is swept before the sleeper wakes
    wake(&world).await;
    let told = answered(&world, &batch, id(&object)).await;
    assert_eq!((&told.object, &told.results), (&ended, &results), "ended means ended");
    assert_eq!(paid(&world).await, batch.bill());
    nothing_is_left_behind(&world).await;
    again(&world, &batch, &told).await;
}

async fn a_sleeper_in_a_create_wakes_too_late(kind: Kind) {
    let mut world = world(kind).await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"delay_after": 1.5}, "times": 0})).await;
    let batch = batch("create");
    let object = batch.post(world.client()).await.accepted();
    calls(&world, "batches.create", 3).await;
    world.gateways[0].process.signal("STOP");
    world.sim.clear_faults().await;
    let awake = world.start_gateway().await.client.clone();
    awake.ended(id(&object)).await;
    wake(&world).await;
    let told = answered(&world, &batch, id(&object)).await;
    assert_eq!(paid(&world).await, batch.bill(), "what the sleeper had made was found");
    nothing_is_left_behind(&world).await;
    again(&world, &batch, &told).await;
}

/// The origin of the fence: a zombie's answer must not replace a newer refresh.
async fn a_sleeper_wakes_after_a_refresh(kind: Kind) {
    let mut world = world(kind).await;
    check(&world, &batch("refresh")).await;
    let slow = json!({"trickle": {"bytes": 300, "every": 0.2}});
    world.sim.fault(json!({"match": {"route": "files.content"}, "fault": slow, "times": 0})).await;
    world.sim.fault(json!({"match": {"route": "batches.results"}, "fault": slow, "times": 0})).await;
    let refresh = batch("refresh").field("cache", "refresh");
    let object = refresh.post(world.client()).await.accepted();
    calls(&world, "files.content", 3).await;
    world.gateways[0].process.signal("STOP");
    world.sim.clear_faults().await;
    let awake = world.start_gateway().await.client.clone();
    awake.ended(id(&object)).await;
    // A newer refresh, while the sleeper still holds answers of the older one.
    let newer = refresh.post(&awake).await.accepted();
    awake.ended(id(&newer)).await;
    let full = |id: &str| format!("/batches/{id}/results?response=full");
    let fresh = awake.lines(&full(id(&newer))).await;
    wake(&world).await;
    nothing_is_left_behind(&world).await;
    let later = batch("refresh").post(&awake).await.accepted();
    let read = awake.lines(&full(id(&later))).await;
    let bodies =
        |results: &[serde_json::Value]| results.iter().map(|result| result["response"].clone()).collect::<Vec<_>>();
    assert_eq!(bodies(&read), bodies(&fresh), "the newest answers stay");
}

/// The chunk was settled by another, its failed number drawn anew and answered: it is not the sleeper's to free.
async fn a_sleeper_gives_no_number_back(kind: Kind) {
    let env = [("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms"), ("BATCHGATE_ATTEMPTS", "1")];
    let mut world = World::with(kind, &env).await;
    let slow = json!({"trickle": {"bytes": 300, "every": 0.2}});
    world.sim.fault(json!({"match": {"route": "files.content"}, "fault": slow, "times": 0})).await;
    let name = |n: usize| gpt("[[flaky:1]] once").named(&format!("n{n}"));
    let other = |n: usize| gpt(&format!("other {n}"));
    let object = Batch::of([name(0)].into_iter().chain((0..8).map(other))).field("run", "z~1");
    let object = object.post(world.client()).await.accepted();
    calls(&world, "files.content", 1).await;
    world.gateways[0].process.signal("STOP");
    world.sim.clear_faults().await;
    let awake = world.start_gateway().await.client.clone();
    assert_eq!(awake.ended(id(&object)).await["counts"]["failed"], 1, "it settled with a failure");
    let drawn = Batch::of([name(1)]).field("run", "z~1");
    let object = drawn.post(&awake).await.accepted();
    awake.ended(id(&object)).await;
    let first: u64 = paid(&world).await.values().sum();
    nothing_is_left_behind(&world).await;
    wake(&world).await;
    nothing_is_left_behind(&world).await;
    // Number 0 is held: what comes next is number 1, and bought. And number 0 is read by the next attempt.
    for (run, bought) in [("z~1", 1), ("z~2", 1)] {
        let object = Batch::of([name(2)]).field("run", run).post(&awake).await.accepted();
        awake.ended(id(&object)).await;
        assert_eq!(paid(&world).await.values().sum::<u64>(), first + bought, "{run}");
    }
}
