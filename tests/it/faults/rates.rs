//! Too many requests: what one chunk is told holds for the whole account.

use crate::support::{
    Batch, Kind, Prompt, World, claude,
    client::{id, waiting},
    for_both, gpt, settles, until,
};
use serde_json::json;

for_both!(one_refusal_holds_back_the_whole_account, a_spent_minute_is_waited_for_and_nobody_is_asked_in_vain);

type Ask = fn(&str) -> Prompt;
const PROVIDERS: [(&str, Ask); 2] = [("anthropic", claude), ("openai", gpt)];

async fn says_rate_limited(world: &World, id: &str) {
    until("the batch to be rate limited", async || {
        let object = world.client().batch(id).await;
        if waiting(&object).iter().any(|(reason, _)| reason == "rate_limited") { Ok(()) } else { Err(object) }
    })
    .await;
}

async fn one_refusal_holds_back_the_whole_account(kind: Kind) {
    // One worker: nothing is in the air when the refusal comes.
    let world = World::with(kind, &[("BATCHGATE_WORKERS", "1")]).await;
    for (provider, prompt) in PROVIDERS {
        let fault = json!({"status": 429, "retry_after": 2});
        world.sim.fault(json!({"match": {"route": "batches.create", "provider": provider}, "fault": fault})).await;
        let batch = Batch::of((0..4).map(|n| prompt(&format!("held {n}")))).field("chunk", 1);
        let object = batch.post(world.client()).await.accepted();
        says_rate_limited(&world, id(&object)).await;
        crate::support::check::answered(&world, &batch, id(&object)).await;
        let calls = world.sim.calls("batches.create").await;
        let times: Vec<f64> =
            calls.iter().filter(|call| call["provider"] == provider).filter_map(|call| call["time"].as_f64()).collect();
        assert!(times.len() == 5 && times[1] - times[0] >= 1.9, "{provider}: {times:?}");
        crate::support::check(&world, &batch).await;
    }
}

async fn a_spent_minute_is_waited_for_and_nobody_is_asked_in_vain(kind: Kind) {
    for (provider, prompt) in PROVIDERS {
        let world = World::with(kind, &[("BATCHGATE_WORKERS", "1")]).await;
        world.sim.settings(json!({"common": {"requests_per_minute": 2}})).await;
        let batch = Batch::of((0..4).map(|n| prompt(&format!("minute {n}")))).field("chunk", 1);
        let object = batch.post(world.client()).await.accepted();
        says_rate_limited(&world, id(&object)).await;
        world.sim.advance(61.0).await;
        settles(&world, &batch, id(&object)).await;
        let calls = world.sim.calls("batches.create").await;
        assert!(calls.iter().all(|call| call["status"] == 200), "{provider}: asked in vain: {calls:?}");
    }
}
