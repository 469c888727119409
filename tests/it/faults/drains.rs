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
use reqwest::Method;
use serde_json::json;
use std::{
    process::ExitStatus,
    time::{Duration, Instant},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

for_both!(
    an_idle_gateway_ends_at_once,
    running_batches_need_no_drain_and_the_next_gateway_goes_on,
    while_it_drains_posts_are_refused_and_reads_go_on,
    a_create_in_hand_is_finished,
    a_second_signal_ends_it_at_once,
    one_that_still_waits_for_redis_ends_at_once,
    under_load_it_ends_with_the_steps_in_hand_and_frees_its_claims,
    uploads_and_streams_in_hand_do_not_hold_it_up,
    what_outlasts_the_drain_is_left_to_the_next_gateway,
);

/// What the figures of the issue allow beyond the step in hand.
const SOON: Duration = Duration::from_secs(5);

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

async fn under_load_it_ends_with_the_steps_in_hand_and_frees_its_claims(kind: Kind) {
    let mut world = World::with(kind, &[("BATCHGATE_LEASE", "20s"), ("BATCHGATE_STALL", "10s")]).await;
    let step = Duration::from_secs(2);
    let slow = json!({"delay_after": step.as_secs()});
    for route in ["batches.create", "files.create"] {
        world.sim.fault(json!({"match": {"route": route}, "fault": slow, "times": 0})).await;
    }
    let batch = Batch::of((0..40).flat_map(|n| [claude(&format!("a {n}")), gpt(&format!("b {n}"))])).field("chunk", 2);
    let object = batch.post(world.client()).await.accepted();
    until("every worker to be busy", async || {
        let claimed = world.redis.command::<u64>(&["ZCARD", "{default}:claimed"]).await;
        if claimed == 8 { Ok(()) } else { Err(claimed) }
    })
    .await;
    world.gateways[0].process.signal("TERM");
    let began = Instant::now();
    assert_eq!(ends(&mut world, 30).await.code(), Some(0));
    let took = began.elapsed();
    eprintln!("drain: SIGTERM to exit 0 in {took:?} with 8 steps of {step:?} in hand");
    assert!(took < step + SOON, "{took:?}");
    assert_eq!(world.redis.command::<u64>(&["ZCARD", "{default}:claimed"]).await, 0, "claims are free at once");
    for chunk in world.redis.command::<Vec<String>>(&["KEYS", "{default}:k:*"]).await {
        if world.redis.command::<String>(&["TYPE", &chunk]).await == "hash" {
            let reclaims: Option<String> = world.redis.command(&["HGET", &chunk, "reclaims"]).await;
            assert!(reclaims.is_none_or(|count| count == "0"), "{chunk}");
        }
    }
    // The lease is far longer than this: what was free at once is taken at once.
    world.kill_gateway();
    world.sim.clear_faults().await;
    world.start_gateway().await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 40, "nothing was created twice");
    let page = world.client().get("/metrics").await.text;
    assert!(page.contains("\nbatchgate_reclaims_total 0\n"), "no claim of the first gateway ran out");
}

async fn uploads_and_streams_in_hand_do_not_hold_it_up(kind: Kind) {
    let mut world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    let batch = Batch::of([claude("a"), gpt("b")]);
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 2).await;
    let (client, path) = (world.client().clone(), format!("/batches/{}", id(&object)));
    let follow = client.request(Method::GET, &format!("{path}/results?follow=true")).send().await.expect("it begins");
    let waiting = tokio::spawn(async move { client.get(&format!("{path}?wait=60")).await });
    let other = Batch::of((0..200).map(|n| claude(&format!("half of it {n}")))).ndjson();
    let (_, body) = other.body();
    let mut upload = world.send_part(body.as_bytes(), body.len() / 2).await;
    until("the upload to have begun", async || {
        let keys = world.redis.keys().await;
        if keys.contains_key("{default}:uploads") { Ok(()) } else { Err(keys) }
    })
    .await;
    world.gateways[0].process.signal("TERM");
    let began = Instant::now();
    let mut answer = String::new();
    upload.read_to_string(&mut answer).await.expect("an answer, and the end");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"draining\""), "{answer}");
    let _ = upload.shutdown().await;
    assert_eq!(waiting.await.expect("it does not panic").ok()["status"], "running");
    assert!(follow.text().await.is_err(), "a stream that cannot finish is reset");
    assert_eq!(ends(&mut world, 10).await.code(), Some(0));
    let took = began.elapsed();
    eprintln!("drain: SIGTERM to exit 0 in {took:?} with an upload, a follower and a waiter");
    assert!(took < SOON, "{took:?}");
    assert!(!world.redis.keys().await.contains_key("{default}:uploads"), "nothing is left of half a body");
    world.kill_gateway();
    world.sim.advance(1_100.0).await;
    world.start_gateway().await;
    settles(&world, &batch, id(&object)).await;
}

/// A download that takes longer than a drain may: the process ends all the same, and nothing is lost or bought again.
async fn what_outlasts_the_drain_is_left_to_the_next_gateway(kind: Kind) {
    let mut world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    for route in ["batches.results", "files.content"] {
        let trickle = json!({"trickle": {"bytes": 20, "every": 0.3}});
        world.sim.fault(json!({"match": {"route": route}, "fault": trickle, "times": 0})).await;
    }
    let batch = Batch::of((0..20).flat_map(|n| [claude(&format!("long {n}")), gpt(&format!("long {n}"))]));
    let object = batch.post(world.client()).await.accepted();
    until("both downloads to have begun", async || {
        let begun = world.sim.calls("files.content").await.len() + world.sim.calls("batches.results").await.len();
        if begun == 2 { Ok(()) } else { Err(begun) }
    })
    .await;
    world.gateways[0].process.signal("TERM");
    let began = Instant::now();
    let status = ends(&mut world, 60).await;
    let took = began.elapsed();
    assert_eq!(status.code(), Some(1), "it says that something was still running");
    assert!(took > Duration::from_secs(20) && took < Duration::from_secs(35), "{took:?}");
    world.kill_gateway();
    world.sim.clear_faults().await;
    world.start_gateway().await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 2);
    nothing_is_left_behind(&world).await;
}
