//! SIGTERM: no new work, what is in hand is finished, and the process ends with 0, soon.

use crate::support::{
    Batch, Kind, World, claude,
    client::id,
    dir::Dir,
    for_both,
    gateway::{Env, command},
    gpt, nothing_is_left_behind,
    process::Process,
    settles, until,
    wait::within,
};
use serde_json::json;
use std::{process::ExitStatus, time::Duration};

for_both!(
    an_idle_gateway_ends_at_once,
    running_batches_need_no_drain_and_the_next_gateway_goes_on,
    while_it_drains_posts_are_refused_and_reads_go_on,
    a_create_in_hand_is_finished,
    a_second_signal_ends_it_at_once,
    one_that_still_waits_for_redis_ends_at_once,
);

/// The first gateway's end, which must come within so many seconds.
async fn ends(world: &mut World, seconds: u64) -> ExitStatus {
    let process = &mut world.gateways[0].process;
    within(Duration::from_secs(seconds), "the gateway to end", async || process.ended().ok_or("it runs")).await
}

async fn an_idle_gateway_ends_at_once(kind: Kind) {
    let mut world = World::new(kind).await;
    world.gateways[0].process.signal("TERM");
    assert_eq!(ends(&mut world, 3).await.code(), Some(0));
}

async fn running_batches_need_no_drain_and_the_next_gateway_goes_on(kind: Kind) {
    let mut world = World::new(kind).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    let batch = Batch::of((0..6).flat_map(|n| [claude(&format!("a {n}")), gpt(&format!("b {n}"))])).field("chunk", 3);
    let object = batch.post(world.client()).await.accepted();
    until("all chunks to run", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["running"] == 4 { Ok(()) } else { Err(object) }
    })
    .await;
    world.gateways[0].process.signal("TERM");
    assert_eq!(ends(&mut world, 5).await.code(), Some(0));
    world.kill_gateway();
    world.sim.advance(1_100.0).await;
    world.start_gateway().await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4);
    nothing_is_left_behind(&world).await;
}

async fn while_it_drains_posts_are_refused_and_reads_go_on(kind: Kind) {
    let mut world = World::new(kind).await;
    let done = Batch::of([claude("done")]);
    let first = crate::support::check(&world, &done).await;
    // A create that takes its time keeps the gateway draining.
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"delay_after": 3}, "times": 0})).await;
    let batch = Batch::of([claude("in hand")]);
    let object = batch.post(world.client()).await.accepted();
    until("the create to be on its way", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["submitting"] == 1 { Ok(()) } else { Err(object) }
    })
    .await;
    world.gateways[0].process.signal("TERM");
    until("the gateway to say that it is not ready", async || {
        let ready = world.client().try_send(world.client().request(reqwest::Method::GET, "/readyz")).await;
        match ready {
            Ok(reply) if reply.status == 503 => {
                reply.refused(503, "draining");
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    batch.post(world.client()).await.refused(503, "draining");
    world.client().get("/healthz").await.ok();
    let read = world.client().batch(id(&first.object)).await;
    assert_eq!(read, first.object);
    assert_eq!(world.client().results(id(&first.object)).await, first.results);
    assert_eq!(ends(&mut world, 10).await.code(), Some(0));
    world.sim.clear_faults().await;
    world.kill_gateway();
    world.start_gateway().await;
    crate::support::check::answered(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 2, "the create in hand was finished and noted");
}

async fn a_create_in_hand_is_finished(kind: Kind) {
    let mut world = World::new(kind).await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"delay_after": 2}, "times": 0})).await;
    let batch = Batch::of([claude("a"), gpt("b")]);
    let object = batch.post(world.client()).await.accepted();
    until("the creates to be on their way", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["submitting"] == 2 { Ok(()) } else { Err(object) }
    })
    .await;
    world.gateways[0].process.signal("TERM");
    assert_eq!(ends(&mut world, 10).await.code(), Some(0));
    world.kill_gateway();
    world.sim.clear_faults().await;
    world.start_gateway().await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(
        world.sim.calls("batches.list").await.iter().filter(|call| call["provider"] == "openai").count(),
        0,
        "nothing was in doubt"
    );
    assert_eq!(world.sim.calls("batches.create").await.len(), 2);
}

async fn a_second_signal_ends_it_at_once(kind: Kind) {
    let mut world = World::new(kind).await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"delay_after": 20}, "times": 1})).await;
    let batch = Batch::of([claude("a")]);
    let object = batch.post(world.client()).await.accepted();
    until("the create to be made", async || {
        let calls = world.sim.calls("batches.create").await;
        if calls.iter().any(|call| call["made"].is_string()) { Ok(()) } else { Err(calls) }
    })
    .await;
    let process = &world.gateways[0].process;
    process.signal("TERM");
    until("the first signal to be heard", async || {
        let said = process.said();
        if said.contains("stopping") { Ok(()) } else { Err(said) }
    })
    .await;
    process.signal("TERM");
    let status = ends(&mut world, 3).await;
    assert_ne!(status.code(), None, "it ends by itself, not by the signal: {status}");
    world.kill_gateway();
    world.sim.clear_faults().await;
    world.start_gateway().await;
    settles(&world, &batch, id(&object)).await;
}

/// As process 1 of a container it would else ignore the signal, and be killed after the whole grace period.
async fn one_that_still_waits_for_redis_ends_at_once(kind: Kind) {
    let mut world = World::empty(kind, &[]).await;
    world.redis.kill();
    let dir = Dir::new();
    let mut process = Process::start("early", command(&world.redis, &world.sim, &Env::new()), dir.path());
    until("it to wait for redis", async || {
        let said = process.said();
        if said.contains("redis does not answer yet") { Ok(()) } else { Err(said) }
    })
    .await;
    process.signal("TERM");
    let status = within(Duration::from_secs(3), "it to end", async || process.ended().ok_or("it runs")).await;
    assert_eq!(status.code(), Some(0), "it ended by itself, and not by the signal");
}
