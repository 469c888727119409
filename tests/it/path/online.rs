//! Servers without a batch API: asked one by one, answered, cached and settled as everybody else is.

use crate::support::{
    Batch, Kind, Prompt, World, again, check,
    check::{answered, check_once, paid},
    claude,
    client::{count, id},
    for_both,
    local::{LOCAL, local, locals, world},
    settles, until,
};
use serde_json::{Value, json};

for_both!(
    prompts_and_their_samples_are_asked_one_by_one,
    every_endpoint_of_a_server,
    no_more_are_in_the_air_than_the_server_takes,
    an_adaptive_limit_finds_its_way,
    a_slow_server_holds_up_nobody_else,
    answers_show_before_the_end,
);

async fn prompts_and_their_samples_are_asked_one_by_one(kind: Kind) {
    let world = world(kind, "", &[]).await;
    let mut prompts = locals("one by one", 30);
    prompts.extend([local("one by one 3").named("again"), claude("beside it")]);
    let batch = Batch::of(prompts).field("samples", 2).field("chunk", 7);
    let first = check(&world, &batch).await;
    assert_eq!(count(&first.object, "succeeded"), 64, "{}", first.object);
    let batch = Batch::of([local("[[unicode]] [[len:3000]]")]);
    let (object, results) = submit(&world, &batch).await;
    assert_eq!(count(&object, "succeeded"), 1, "{object}");
    assert!(results[0]["completion"].as_str().is_some_and(|text| text.contains('\u{2028}')), "{}", results[0]);
    let chunks = world.client().get(&format!("/batches/{}/chunks", id(&first.object))).await.ok();
    for chunk in chunks["chunks"].as_array().expect("a list") {
        let online = chunk["provider"] == "local";
        assert_eq!(chunk["status"], "settled", "{chunk}");
        assert_eq!(online, chunk["provider_batch_id"].is_null(), "{chunk}");
        assert!(chunk["submitted_at"].is_string() && chunk["attempt"] == 1, "{chunk}");
    }
    assert_eq!(world.sim.calls("batches.create").await.len(), 1, "only the other provider has batches");
}

async fn submit(world: &World, batch: &Batch) -> (Value, Vec<Value>) {
    let object = batch.post(world.client()).await.accepted();
    let object = world.client().ended(id(&object)).await;
    let results = world.client().results(id(&object)).await;
    (object, results)
}

fn native(endpoint: &str, sent: &Value, body: Value) -> Prompt {
    Prompt::new(json!({"endpoint": endpoint, "body": sent}), body)
}

fn with(mut body: Value, name: &str, value: u64) -> Value {
    body[name] = value.into();
    body
}

async fn every_endpoint_of_a_server(kind: Kind) {
    let world = world(kind, "", &[]).await;
    let response = json!({"model": LOCAL, "input": "a response"});
    let completion = json!({"model": LOCAL, "prompt": "a completion"});
    let vectors = json!({"model": "small-embed", "input": ["one", "two"]});
    let moderation = json!({"model": LOCAL, "input": "bad [[flag]]"});
    let batch = Batch::of([
        native("/v1/responses", &response, with(response.clone(), "max_output_tokens", 100)),
        native("/v1/completions", &completion, with(completion.clone(), "max_tokens", 100)),
        native("/v1/embeddings", &vectors, vectors.clone()),
        native("/v1/moderations", &moderation, moderation.clone()),
        local("chat"),
        native("/v1/embeddings", &vectors, vectors.clone()),
    ]);
    let (object, first) = submit(&world, &batch).await;
    assert_eq!(count(&object, "succeeded"), 6, "{first:?}");
    for n in [0, 1, 4] {
        assert_eq!(first[n]["completion"], batch.prompts[n].echo(), "{}", first[n]);
        assert_eq!(first[n]["finish"], "stop", "{}", first[n]);
    }
    assert_eq!(first[2]["response"]["data"].as_array().map(Vec::len), Some(2), "{}", first[2]);
    assert_eq!(first[2]["response"], first[5]["response"], "one question, one answer");
    assert_eq!(first[3]["response"]["results"][0]["flagged"], true, "{}", first[3]);
    let bill = paid(&world).await;
    assert_eq!(bill.values().sum::<u64>(), 5);
    let (object, second) = submit(&world, &batch).await;
    assert_eq!((count(&object, "cached"), paid(&world).await), (6, bill), "{object}");
    for (first, second) in first.iter().zip(&second) {
        for member in ["completion", "response", "usage", "model", "index"] {
            assert_eq!(first[member], second[member], "{member}");
        }
    }
}

async fn no_more_are_in_the_air_than_the_server_takes(kind: Kind) {
    let world = world(kind, "concurrency = 3", &[]).await;
    world.sim.settings(json!({"common": {"online_latency": 0.05}})).await;
    let batch = Batch::of(locals("bounded", 40)).field("chunk", 5);
    check(&world, &batch).await;
    assert_eq!(world.sim.most_at_once("openai:chat.completions").await, 3, "all of it is used, and no more");
}

async fn an_adaptive_limit_finds_its_way(kind: Kind) {
    let world = world(kind, "concurrency = 16\nadaptive = true", &[]).await;
    world.sim.settings(json!({"common": {"online_latency": 0.05}})).await;
    check(&world, &Batch::of(locals("adaptive", 300))).await;
    let most = world.sim.most_at_once("openai:chat.completions").await;
    assert!((5..=16).contains(&most), "it began with 4 and grew: {most}");
}

async fn a_slow_server_holds_up_nobody_else(kind: Kind) {
    let world = world(kind, "concurrency = 4", &[("BATCHGATE_WORKERS", "2")]).await;
    world.sim.fault(json!({"match": {"route": "chat.completions"}, "fault": {"delay": 1.0}, "times": 0})).await;
    let slow = Batch::of(locals("slow", 40)).field("chunk", 1);
    let object = slow.post(world.client()).await.accepted();
    until("the server to be busy", async || {
        let calls = world.sim.calls("chat.completions").await;
        if calls.len() >= 4 { Ok(()) } else { Err(calls) }
    })
    .await;
    let quick = Batch::of((0..6).map(|n| claude(&format!("quick {n}")))).field("chunk", 1);
    check_once(&world, &quick).await;
    let waiting = world.client().batch(id(&object)).await;
    assert!(count(&waiting, "pending") > 0, "the others did not wait for it: {waiting}");
    world.sim.clear_faults().await;
    let first = answered(&world, &slow, id(&object)).await;
    again(&world, &slow, &first).await;
}

async fn answers_show_before_the_end(kind: Kind) {
    let world = world(kind, "concurrency = 2", &[]).await;
    world.sim.settings(json!({"common": {"online_latency": 0.1}})).await;
    let batch = Batch::of(locals("showing", 60));
    let object = batch.post(world.client()).await.accepted();
    until("some to be reported while others are pending", async || {
        let object = world.client().batch(id(&object)).await;
        let reported = object["reported_prompts"].as_u64().unwrap_or(0);
        let running = object["chunks"]["running"] == 1;
        if running && (5..60).contains(&reported) { Ok(()) } else { Err(object) }
    })
    .await;
    let ended = settles(&world, &batch, id(&object)).await.object;
    assert_eq!(ended["reported_prompts"], 60, "{ended}");
}
