//! Keys that are refused, money that has run out: the account waits, no prompt fails.

use crate::support::{
    Batch, Kind, Prompt, World, check,
    check::answered,
    claude,
    client::{count, id},
    for_both, gpt, settles, until,
};
use serde_json::json;

for_both!(an_account_that_is_refused_waits_and_no_prompt_fails, one_provider_in_trouble_does_not_hold_up_the_other);

fn mixed(name: &str, count: usize) -> Vec<Prompt> {
    (0..count).flat_map(|n| [claude(&format!("{name} {n}")), gpt(&format!("{name} {n}"))]).collect()
}

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
