//! The limit on enqueued tokens: it delays, it shrinks, it cuts; it never fails a prompt.

use crate::support::{
    Batch, Kind, World,
    check::answered,
    client::{count, id, waiting},
    for_both, gpt, nothing_is_left_behind, settles, until,
};
use serde_json::{Value, json};

for_both!(
    more_than_the_limit_goes_in_turns,
    a_chunk_larger_than_the_limit_is_cut_at_no_cost_of_its_prompts,
    a_lone_prompt_beyond_the_limit_waits,
    a_limit_met_at_the_create_is_no_poison,
    a_gateway_that_dies_leaves_no_tokens_behind,
);

/// A prompt of this suite counts about 26 tokens at the simulators.
const PROMPT: u64 = 26;

async fn limit(world: &World, tokens: u64, seconds: f64) {
    world.sim.settings(json!({"openai": {"enqueued_token_limit": tokens, "in_progress_s": seconds}})).await;
}

/// What runs is done, and what comes is done soon; the limit stays.
async fn run_fast(world: &World) {
    limit(world, 5 * PROMPT, 0.2).await;
    world.sim.advance(1000.0).await;
}

async fn says_token_limit(world: &World, id: &str) -> Value {
    until("the batch to wait for the token limit", async || {
        let object = world.client().batch(id).await;
        if waiting(&object).iter().any(|(reason, _)| reason == "token_limit") { Ok(object) } else { Err(object) }
    })
    .await
}

async fn creates(world: &World) -> usize {
    world.sim.calls("batches.create").await.len()
}

async fn more_than_the_limit_goes_in_turns(kind: Kind) {
    let world = World::new(kind).await;
    limit(&world, 5 * PROMPT, 1000.0).await;
    let batch = Batch::of((0..16).map(|n| gpt(&format!("turn {n:03}")))).field("chunk", 2);
    let object = batch.post(world.client()).await.accepted();
    let told = says_token_limit(&world, id(&object)).await;
    assert!(told["waiting"].to_string().contains("enqueued at openai for gpt-5-mini"), "{told}");
    run_fast(&world).await;
    settles(&world, &batch, id(&object)).await;
    // Eight chunks must be created; without a budget each would be tried again and again while others run.
    let made = creates(&world).await;
    assert!(made <= 8 + 16, "{made} creates for 8 chunks");
    nothing_is_left_behind(&world).await;
}

async fn a_chunk_larger_than_the_limit_is_cut_at_no_cost_of_its_prompts(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1")]).await;
    limit(&world, 3 * PROMPT, 0.2).await;
    let batch = Batch::of((0..8).map(|n| gpt(&format!("large {n:03}"))));
    let object = batch.post(world.client()).await.accepted();
    let first = settles(&world, &batch, id(&object)).await;
    assert_eq!(count(&first.object, "succeeded"), 8);
    assert!(first.object["chunks"]["settled"].as_u64() >= Some(7), "one, two halves, four quarters: {}", first.object);
}

async fn a_lone_prompt_beyond_the_limit_waits(kind: Kind) {
    let world = World::new(kind).await;
    limit(&world, 3, 0.2).await;
    let batch = Batch::of((0..2).map(|n| gpt(&format!("alone {n:03}"))));
    let object = batch.post(world.client()).await.accepted();
    says_token_limit(&world, id(&object)).await;
    let tried = creates(&world).await;
    until("it to be tried some more", async || {
        let now = creates(&world).await;
        if now >= tried + 3 { Ok(()) } else { Err(now) }
    })
    .await;
    let still = says_token_limit(&world, id(&object)).await;
    assert_eq!((count(&still, "failed"), count(&still, "pending")), (0, 2), "{still}");
    limit(&world, 1_000, 0.2).await;
    settles(&world, &batch, id(&object)).await;
}

async fn a_limit_met_at_the_create_is_no_poison(kind: Kind) {
    let world = World::new(kind).await;
    let message = "Enqueued token limit reached for gpt-5-mini in organization o. Limit: 90000 enqueued tokens.";
    for (n, (status, code)) in
        [(400, "token_limit_exceeded"), (429, "token_limit_exceeded"), (400, "x")].iter().enumerate()
    {
        let error = json!({"error": {"type": "invalid_request_error", "code": code, "message": message}});
        let fault =
            json!({"match": {"route": "batches.create"}, "fault": {"status": status, "body": error}, "times": 2});
        world.sim.fault(fault).await;
        let batch = Batch::of((0..4).map(|k| gpt(&format!("create {n} {k}"))));
        let object = batch.post(world.client()).await.accepted();
        let done = answered(&world, &batch, id(&object)).await;
        assert_eq!(done.object["chunks"]["settled"], 1, "the same chunk again, whole: {}", done.object);
        crate::support::check(&world, &batch).await;
    }
}

async fn a_gateway_that_dies_leaves_no_tokens_behind(kind: Kind) {
    let mut world = World::new(kind).await;
    limit(&world, 5 * PROMPT, 1000.0).await;
    let batch = Batch::of((0..10).map(|n| gpt(&format!("dies {n:03}")))).field("chunk", 2);
    let object = batch.post(world.client()).await.accepted();
    for _ in 0..2 {
        says_token_limit(&world, id(&object)).await;
        world.kill_gateway();
        world.start_gateway().await;
    }
    run_fast(&world).await;
    settles(&world, &batch, id(&object)).await;
    let left: Vec<String> = world.redis.command(&["KEYS", "{acct:openai}:tokens:*"]).await;
    for key in left {
        let text: String = world.redis.command(&["GET", &key]).await;
        assert!(text.contains("\"in_flight\":{}"), "nothing is in flight any more: {text}");
    }
}
