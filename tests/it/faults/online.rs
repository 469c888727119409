//! A server that is asked one by one, in trouble; and a gateway that is killed, stopped or told to stop while it asks.

use super::deadlines::pass_deadline;
use crate::support::{
    Batch, Kind, World, again, check,
    check::{answered, paid},
    client::{count, id},
    for_both,
    local::{behind_a_door, local, locals, world},
    nothing_is_left_behind, settles, until,
    wait::within,
};
use serde_json::{Value, json};
use std::time::Duration;

for_both!(
    a_bad_prompt_fails_alone,
    what_fails_for_a_moment_is_asked_again,
    a_busy_server_is_left_alone_and_no_prompt_fails,
    a_server_that_is_away_is_waited_for,
    a_refused_key_pauses_the_server,
    a_lost_answer_is_asked_for_once_more,
);

const ROUTE: &str = "chat.completions";

async fn fault(world: &World, fault: Value, times: u64) {
    world.sim.fault(json!({"match": {"route": ROUTE}, "fault": fault, "times": times})).await;
}

/// Waits until so many answers are billed.
async fn billed(world: &World, so_many: u64) {
    until(&format!("{so_many} answers to be billed"), async || {
        let billed = paid(world).await.values().sum::<u64>();
        if billed >= so_many { Ok(()) } else { Err(billed) }
    })
    .await;
}

/// What was billed beyond once per question.
async fn twice(world: &World, batch: &Batch) -> u64 {
    let (paid, bill) = (paid(world).await, batch.bill());
    assert!(paid.keys().eq(bill.keys()), "every question was asked, and no other");
    assert!(paid.values().all(|times| *times <= 2), "{paid:?}");
    paid.values().sum::<u64>() - bill.values().sum::<u64>()
}

async fn a_bad_prompt_fails_alone(kind: Kind) {
    let world = world(kind, "", &[]).await;
    let mut prompts = locals("good", 10);
    let bad = [
        ("invalid_request", "invalid_request"),
        ("context_length", "invalid_request"),
        ("not_found", "not_found"),
        ("too_large", "too_large"),
        ("server", "server_error"),
        ("timeout", "timeout"),
        ("conflict", "server_error"),
    ];
    prompts.extend(bad.map(|(word, code)| local(&format!("[[error:{word}]]")).fails(code)));
    prompts.push(local("[[nochoices]]").fails_billed("empty_answer"));
    let batch = Batch::of(prompts);
    let first = check(&world, &batch).await;
    for (result, (word, _)) in first.results[10..].iter().zip(bad) {
        let retryable = ["server", "timeout", "conflict"].contains(&word);
        assert_eq!(result["error"]["retryable"], retryable, "{word}: {result}");
    }
    let tries = world.sim.calls(ROUTE).await.len();
    assert_eq!(tries, 2 * (4 + 3 * 3 + 1) + 10, "three tries for what may be cured, one for the rest");
}

async fn what_fails_for_a_moment_is_asked_again(kind: Kind) {
    let world = world(kind, "", &[]).await;
    let mut prompts = locals("steady", 6);
    prompts.extend([local("[[flaky:1]] a"), local("[[flaky:2]] b")]);
    let first = check(&world, &Batch::of(prompts)).await;
    assert_eq!(count(&first.object, "succeeded"), 8, "{}", first.object);
}

async fn a_busy_server_is_left_alone_and_no_prompt_fails(kind: Kind) {
    let world = world(kind, "concurrency = 4", &[]).await;
    for (n, status) in [429, 503, 502].into_iter().enumerate() {
        let before = world.sim.calls(ROUTE).await.len();
        fault(&world, json!({"status": status, "retry_after": 1}), 0).await;
        let batch = Batch::of(locals(&format!("busy {n}"), 20)).field("chunk", 5);
        let object = batch.post(world.client()).await.accepted();
        until("the server to be tried a second time", async || {
            let calls = world.sim.calls(ROUTE).await.len() - before;
            if calls > 4 { Ok(()) } else { Err(calls) }
        })
        .await;
        let waiting = world.client().batch(id(&object)).await;
        assert_eq!(count(&waiting, "pending"), 20, "{waiting}");
        let calls = world.sim.calls(ROUTE).await.len() - before;
        assert!(calls <= 8, "{calls} calls in little more than a second: it asked to be left alone");
        world.sim.clear_faults().await;
        let first = answered(&world, &batch, id(&object)).await;
        assert_eq!(count(&first.object, "succeeded"), 20, "{}", first.object);
        again(&world, &batch, &first).await;
    }
}

async fn a_server_that_is_away_is_waited_for(kind: Kind) {
    let (world, mut door) = behind_a_door(kind, "").await;
    let batch = Batch::of(locals("away", 12)).field("chunk", 4);
    let object = batch.post(world.client()).await.accepted();
    until("the gateway to have knocked several times", async || {
        let metrics = world.client().get("/metrics").await.text;
        let failures = "batchgate_provider_call_failures_total{account=\"local\"}";
        let told = metrics.lines().find_map(|line| line.strip_prefix(failures)?.trim().parse::<u64>().ok());
        if told >= Some(20) { Ok(()) } else { Err(told) }
    })
    .await;
    let waiting = world.client().batch(id(&object)).await;
    assert_eq!(count(&waiting, "pending"), 12, "{waiting}");
    door.open().await;
    let first = settles(&world, &batch, id(&object)).await;
    assert_eq!(count(&first.object, "succeeded"), 12, "{}", first.object);
}

async fn a_refused_key_pauses_the_server(kind: Kind) {
    let world = world(kind, "concurrency = 2", &[]).await;
    for status in [401, 403] {
        fault(&world, json!({"status": status}), 0).await;
        let batch = Batch::of(locals(&format!("refused {status}"), 6)).field("chunk", 2);
        let object = batch.post(world.client()).await.accepted();
        until("the server to have been tried", async || {
            let hits = world.sim.faults().await;
            if hits[0]["hits"].as_u64() >= Some(4) { Ok(()) } else { Err(hits) }
        })
        .await;
        let waiting = until("the batch to say why it waits", async || {
            let object = world.client().batch(id(&object)).await;
            if object["waiting"][0]["reason"] == "auth_failed" { Ok(object) } else { Err(object) }
        })
        .await;
        assert_eq!(count(&waiting, "failed"), 0, "{waiting}");
        world.sim.clear_faults().await;
        let first = answered(&world, &batch, id(&object)).await;
        again(&world, &batch, &first).await;
    }
}

async fn a_lost_answer_is_asked_for_once_more(kind: Kind) {
    let world = world(kind, "", &[]).await;
    fault(&world, json!({"reset": "before"}), 2).await;
    fault(&world, json!({"truncate": {"fraction": 0.5, "framing": "close"}}), 1).await;
    let batch = Batch::of(locals("lost", 20));
    let object = batch.post(world.client()).await.accepted();
    let first = answered(&world, &batch, id(&object)).await;
    let before = twice(&world, &batch).await;
    assert!(before <= 1, "a broken answer may be billed twice: {before}");
    world.sim.clear_faults().await;
    fault(&world, json!({"reset": "after"}), 2).await;
    let other = Batch::of(locals("lost after", 20));
    let object = other.post(world.client()).await.accepted();
    let second = answered(&world, &other, id(&object)).await;
    let all = Batch::of([batch.prompts.clone(), other.prompts.clone()].concat());
    assert_eq!(twice(&world, &all).await, before + 2, "the server worked on two that nobody heard");
    for (batch, first) in [(&batch, &first), (&other, &second)] {
        again(&world, batch, first).await;
    }
    let metrics = world.client().get("/metrics").await.text;
    let lost = metrics.lines().find_map(|line| line.strip_prefix("batchgate_online_reasked_total "));
    assert!(lost.is_some_and(|lost| ["4", "5"].contains(&lost)), "{lost:?}");
}

for_both!(
    killed_while_it_asks,
    stopped_while_it_asks_and_another_goes_on,
    told_to_stop_while_it_asks,
    cancelled_while_it_asks,
    the_deadline_passes_while_the_server_is_busy,
);

/// Long enough that a busy machine loses no claim, short enough that what a dead gateway held is free soon.
const SHORT: [(&str, &str); 2] = [("BATCHGATE_LEASE", "4s"), ("BATCHGATE_STALL", "1s")];

async fn killed_while_it_asks(kind: Kind) {
    let mut world = world(kind, "concurrency = 4", &SHORT).await;
    // Worked on and billed at once, answered after a while.
    fault(&world, json!({"delay_after": 0.4}), 0).await;
    let batch = Batch::of(locals("killed", 48));
    let object = batch.post(world.client()).await.accepted();
    billed(&world, 14).await;
    world.kill_gateway();
    world.sim.clear_faults().await;
    world.start_gateway().await;
    let first = answered(&world, &batch, id(&object)).await;
    let twice = twice(&world, &batch).await;
    assert!(twice <= 4, "{twice} were asked again, and no more than 4 were in the air");
    nothing_is_left_behind(&world).await;
    again(&world, &batch, &first).await;
}

async fn stopped_while_it_asks_and_another_goes_on(kind: Kind) {
    let mut world = world(kind, "concurrency = 4", &SHORT).await;
    fault(&world, json!({"delay_after": 0.4}), 0).await;
    let batch = Batch::of(locals("stopped", 24));
    let object = batch.post(world.client()).await.accepted();
    billed(&world, 10).await;
    world.gateways[0].process.signal("STOP");
    world.sim.clear_faults().await;
    let awake = world.start_gateway().await.client.clone();
    awake.ended(id(&object)).await;
    let results = awake.results(id(&object)).await;
    world.gateways[0].process.signal("CONT");
    let first = answered(&world, &batch, id(&object)).await;
    assert_eq!(first.results, results, "the sleeper changed nothing");
    assert!(twice(&world, &batch).await <= 4);
    nothing_is_left_behind(&world).await;
    again(&world, &batch, &first).await;
}

async fn told_to_stop_while_it_asks(kind: Kind) {
    let mut world = world(kind, "concurrency = 4", &SHORT).await;
    fault(&world, json!({"delay_after": 0.5}), 0).await;
    let batch = Batch::of(locals("told", 40));
    let object = batch.post(world.client()).await.accepted();
    billed(&world, 10).await;
    let process = &mut world.gateways[0].process;
    process.signal("TERM");
    let status = within(Duration::from_secs(15), "the gateway to end", async || process.ended().ok_or("it runs")).await;
    assert_eq!(status.code(), Some(0));
    let asked = paid(&world).await.values().sum::<u64>();
    assert!(asked < 25, "{asked}: nothing new is asked once it is told to stop");
    world.kill_gateway();
    world.sim.clear_faults().await;
    world.start_gateway().await;
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
}

async fn cancelled_while_it_asks(kind: Kind) {
    let world = world(kind, "concurrency = 4", &[]).await;
    fault(&world, json!({"delay_after": 0.5}), 0).await;
    let batch = Batch::of(locals("cancelled", 60)).field("chunk", 20);
    let object = batch.post(world.client()).await.accepted();
    let id = id(&object).to_owned();
    billed(&world, 8).await;
    world.client().cancel(&id).await.ok();
    let ended = world.client().ended(&id).await;
    let (kept, canceled) = (count(&ended, "succeeded"), count(&ended, "canceled"));
    assert!(kept + canceled == 60 && (8..40).contains(&kept), "{ended}");
    assert_eq!(paid(&world).await.values().sum::<u64>(), kept, "what was in the air was waited for: it is paid");
    world.sim.clear_faults().await;
    let later = check(&world, &batch).await;
    assert_eq!(count(&later.object, "cached"), kept, "what was paid is in the cache");
    nothing_is_left_behind(&world).await;
}

async fn the_deadline_passes_while_the_server_is_busy(kind: Kind) {
    let world = world(kind, "concurrency = 4", &[]).await;
    // The first twelve are answered, and then nothing more.
    world.sim.fault(json!({"match": {"route": ROUTE, "nth": 13}, "fault": {"status": 503}, "times": 0})).await;
    let batch = Batch::of(locals("late", 30));
    let object = batch.post(world.client()).await.accepted();
    billed(&world, 12).await;
    until("what was answered to be noted", async || {
        let object = world.client().batch(id(&object)).await;
        if object["reported_prompts"] == 12 { Ok(()) } else { Err(object) }
    })
    .await;
    pass_deadline(&world, 1).await;
    let ended = world.client().ended(id(&object)).await;
    assert_eq!((count(&ended, "succeeded"), count(&ended, "expired")), (12, 18), "{ended}");
    world.sim.clear_faults().await;
    let later = check(&world, &batch).await;
    assert_eq!(count(&later.object, "cached"), 12, "what was paid is in the cache");
    nothing_is_left_behind(&world).await;
}
