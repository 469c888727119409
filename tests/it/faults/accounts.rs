//! Keys that are refused, money that has run out: the account waits, no prompt fails.

use crate::support::{
    Batch, Kind, World, check,
    check::answered,
    claude,
    client::{count, id, waiting},
    for_both, gpt, mixed, settles, until,
};
use serde_json::{Value, json};

for_both!(
    an_account_that_is_refused_waits_and_no_prompt_fails,
    one_provider_in_trouble_does_not_hold_up_the_other,
    a_pause_is_told_probed_by_one_and_over_at_once,
    a_spent_account_still_reads_what_it_bought,
    what_runs_under_a_refused_key_is_cancelled_and_read_once_it_is_healed,
    a_batch_that_fails_for_its_quota_pauses_the_account,
    a_gateway_that_starts_probes_at_once,
);

async fn an_account_that_is_refused_waits_and_no_prompt_fails(kind: Kind) {
    let world = World::new(kind).await;
    let refusals = [
        json!({"status": 401}),
        json!({"status": 403}),
        json!({"status": 402}),
        json!({"status": 429, "body": {"type": "error", "error": {"type": "insufficient_quota", "code": "insufficient_quota",
               "message": "You exceeded your current quota, please check your plan and billing details."}}}),
        json!({"status": 400, "body": {"type": "error", "error": {"type": "invalid_request_error",
               "message": "Your credit balance is too low to access the Anthropic API."}}}),
    ];
    for (n, fault) in refusals.iter().enumerate() {
        let provider = if n == 4 { "anthropic" } else { "*" };
        world.sim.clear_faults().await;
        world.sim.fault(json!({"match": {"provider": provider}, "fault": fault, "times": 0})).await;
        let batch = Batch::of(mixed(&format!("refused {n}"), 2));
        let object = batch.post(world.client()).await.accepted();
        until("the provider to have been tried", async || {
            let hits = world.sim.faults().await;
            if hits[0]["hits"].as_u64() >= Some(4) { Ok(()) } else { Err(hits) }
        })
        .await;
        let waiting = world.client().batch(id(&object)).await;
        assert_eq!(count(&waiting, "failed"), 0, "{fault}: {waiting}");
        world.sim.clear_faults().await;
        answered(&world, &batch, id(&object)).await;
        check(&world, &batch).await;
    }
}

async fn one_provider_in_trouble_does_not_hold_up_the_other(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_WORKERS", "2")]).await;
    world.sim.fault(json!({"match": {"provider": "openai"}, "fault": {"status": 401}, "times": 0})).await;
    let batch = Batch::of(mixed("half", 10)).field("chunk", 1);
    let object = batch.post(world.client()).await.accepted();
    until("the healthy provider's answers", async || {
        let object = world.client().batch(id(&object)).await;
        if count(&object, "succeeded") == 10 { Ok(()) } else { Err(object) }
    })
    .await;
    world.sim.clear_faults().await;
    settles(&world, &batch, id(&object)).await;
}

/// Waits until the batch says that so many of its prompts wait for this, and gives the object.
async fn waits(world: &World, id: &str, reason: &str, prompts: u64) -> Value {
    until(reason, async || {
        let object = world.client().batch(id).await;
        if waiting(&object) == [(reason.to_owned(), prompts)] { Ok(object) } else { Err(object) }
    })
    .await
}

async fn metric(world: &World, line: &str) -> bool {
    world.client().get("/metrics").await.text.lines().any(|said| said == line)
}

async fn a_pause_is_told_probed_by_one_and_over_at_once(kind: Kind) {
    let mut world = World::new(kind).await;
    world.start_gateway().await;
    let refusal = json!({"match": {"provider": "openai"}, "fault": {"status": 401}, "times": 0});
    world.sim.fault(refusal).await;
    let batch = Batch::of((0..8).map(|n| gpt(&format!("paused {n}")))).field("chunk", 1);
    let object = batch.post(world.client()).await.accepted();
    let told = waits(&world, id(&object), "auth_failed", 8).await;
    let detail = told["waiting"][0]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("openai answered 401") && detail.contains("api_key_env"), "{detail}");
    assert_eq!(told["counts"]["pending"], 8, "{told}");
    assert!(metric(&world, "batchgate_account_paused{account=\"openai\"} 1").await);
    assert!(metric(&world, "batchgate_account_paused{account=\"anthropic\"} 0").await);
    // From now on only probes arrive, one at a time and ever more slowly.
    let known = world.sim.calls("files.create").await.len();
    let calls = until("three probes", async || {
        let calls = world.sim.calls("files.create").await;
        if calls.len() >= known + 3 { Ok(calls) } else { Err(calls.len()) }
    })
    .await;
    let times: Vec<f64> = calls[known..].iter().filter_map(|call| call["time"].as_f64()).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] > 0.04), "one probe at a time: {times:?}");
    assert_eq!(told["waiting"][0]["since"], waits(&world, id(&object), "auth_failed", 8).await["waiting"][0]["since"]);
    world.sim.clear_faults().await;
    settles(&world, &batch, id(&object)).await;
    assert!(metric(&world, "batchgate_account_paused{account=\"openai\"} 0").await);
    let said: String = world.gateways.iter().map(|gateway| gateway.process.said()).collect();
    assert_eq!(said.matches("provider account paused").count(), 1, "one line a pause, whoever met it");
}

async fn a_spent_account_still_reads_what_it_bought(kind: Kind) {
    let world = World::new(kind).await;
    let long = json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}});
    world.sim.settings(long).await;
    let first = Batch::of(mixed("bought", 2));
    let bought = first.post(world.client()).await.accepted();
    until("both chunks to run", async || {
        let object = world.client().batch(id(&bought)).await;
        if object["chunks"]["running"] == 2 { Ok(()) } else { Err(object) }
    })
    .await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"status": 402}, "times": 0})).await;
    let second = Batch::of(mixed("not yet", 2));
    let waits_for_money = second.post(world.client()).await.accepted();
    waits(&world, id(&waits_for_money), "account_paused", 4).await;
    world.sim.advance(1000.0).await;
    answered(&world, &first, id(&bought)).await;
    waits(&world, id(&waits_for_money), "account_paused", 4).await;
    let short = json!({"anthropic": {"in_progress_s": 0.2}, "openai": {"in_progress_s": 0.2}});
    world.sim.settings(short).await;
    world.sim.clear_faults().await;
    answered(&world, &second, id(&waits_for_money)).await;
    check(&world, &first).await;
    check(&world, &second).await;
}

async fn what_runs_under_a_refused_key_is_cancelled_and_read_once_it_is_healed(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    let batch = Batch::of(mixed("running", 2));
    let object = batch.post(world.client()).await.accepted();
    until("both chunks to run", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["running"] == 2 { Ok(()) } else { Err(object) }
    })
    .await;
    world.sim.fault(json!({"match": {}, "fault": {"status": 403}, "times": 0})).await;
    waits(&world, id(&object), "auth_failed", 4).await;
    world.client().cancel(id(&object)).await.ok();
    let asked = world.client().batch(id(&object)).await;
    assert_eq!(asked["status"], "canceling", "{asked}");
    world.sim.clear_faults().await;
    let ended = world.client().ended(id(&object)).await;
    assert_eq!(count(&ended, "canceled"), 4, "{ended}");
    assert!(world.sim.billed().await.is_empty());
    let cancels = world.sim.calls("batches.cancel").await;
    assert_eq!(cancels.iter().filter(|call| call["status"] == 200).count(), 2, "each batch was cancelled: {cancels:?}");
}

async fn a_batch_that_fails_for_its_quota_pauses_the_account(kind: Kind) {
    let world = World::new(kind).await;
    let errors = json!([{"code": "billing_hard_limit_reached", "message": "m", "param": null, "line": null}]);
    let fault = json!({"match": {"route": "batches.create"}, "fault": {"validation_errors": errors}, "times": 0});
    world.sim.fault(fault).await;
    let batch = Batch::of((0..3).map(|n| gpt(&format!("quota {n}"))));
    let object = batch.post(world.client()).await.accepted();
    waits(&world, id(&object), "account_paused", 3).await;
    world.sim.clear_faults().await;
    settles(&world, &batch, id(&object)).await;
}

async fn a_gateway_that_starts_probes_at_once(kind: Kind) {
    // With these the second probe would come after more than a minute.
    let mut world = World::with(kind, &[("BATCHGATE_POLL_MIN", "40s"), ("BATCHGATE_POLL_MAX", "60s")]).await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"status": 401}, "times": 0})).await;
    let batch = Batch::of([claude("a new key")]);
    let object = batch.post(world.client()).await.accepted();
    waits(&world, id(&object), "auth_failed", 1).await;
    world.sim.clear_faults().await;
    world.kill_gateway();
    world.start_gateway().await;
    until("the batch to be created", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["running"] == 1 && waiting(&object).is_empty() { Ok(()) } else { Err(object) }
    })
    .await;
}
