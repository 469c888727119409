//! The other endpoints of a provider's batch API, as native prompts and as lines of its own files.

use crate::support::{
    Batch, Kind, Prompt, World,
    check::{check_once, paid},
    claude,
    client::{count, id},
    for_both, gpt,
};
use serde_json::{Value, json};

for_both!(every_endpoint_in_one_batch, vectors_and_moderations_have_no_samples);

/// A native prompt, and the body it becomes.
fn native(endpoint: &str, sent: &Value, body: Value) -> Prompt {
    Prompt::new(json!({"endpoint": endpoint, "body": sent}), body)
}

fn with(mut body: Value, name: &str, value: u64) -> Value {
    body[name] = value.into();
    body
}

/// Submits, and gives the results in order.
async fn results(world: &World, batch: &Batch) -> (Value, Vec<Value>) {
    let object = batch.post(world.client()).await.accepted();
    let object = world.client().ended(id(&object)).await;
    let results = world.client().results(id(&object)).await;
    (object, results)
}

async fn every_endpoint_in_one_batch(kind: Kind) {
    let world = World::new(kind).await;
    let response = json!({"model": "gpt-5-mini", "input": "a response"});
    let completion = json!({"model": "davinci-002", "prompt": "a completion"});
    let vectors = json!({"model": "text-embedding-3-small", "input": ["one", "two"]});
    let moderation = json!({"model": "omni-moderation-latest", "input": "bad [[flag]]"});
    let batch = Batch::of([
        native("/v1/responses", &response, with(response.clone(), "max_output_tokens", 100)),
        native("/v1/completions", &completion, with(completion.clone(), "max_tokens", 100)),
        native("/v1/embeddings", &vectors, vectors.clone()),
        native("/v1/moderations", &moderation, moderation.clone()),
        gpt("chat"),
        claude("messages"),
        Prompt::new(
            json!({"custom_id": "l", "method": "POST", "url": "/v1/responses", "body": with(response.clone(), "max_output_tokens", 7)}),
            with(response, "max_output_tokens", 7),
        ),
    ]);
    let (object, first) = results(&world, &batch).await;
    assert_eq!(count(&object, "succeeded"), 7, "{first:?}");
    for n in [0, 1, 4, 5, 6] {
        assert_eq!(first[n]["completion"], batch.prompts[n].echo(), "{}", first[n]);
        assert_eq!(first[n]["finish"], "stop", "{}", first[n]);
    }
    assert_eq!(first[2]["response"]["data"].as_array().map(Vec::len), Some(2), "{}", first[2]);
    assert_eq!(first[3]["response"]["results"][0]["flagged"], true, "{}", first[3]);
    for n in [2, 3] {
        assert_eq!((&first[n]["completion"], &first[n]["finish"]), (&Value::Null, &Value::Null), "{}", first[n]);
    }
    assert_eq!(first[3]["usage"], Value::Null, "moderations count no tokens: {}", first[3]);
    assert_eq!(paid(&world).await, batch.bill());
    let (object, second) = results(&world, &batch).await;
    assert_eq!((count(&object, "cached"), paid(&world).await), (7, batch.bill()), "{object}");
    for (first, second) in first.iter().zip(&second) {
        for member in ["completion", "response", "usage", "model", "custom_id", "index"] {
            assert_eq!(first[member], second[member], "{member}");
        }
    }
}

async fn vectors_and_moderations_have_no_samples(kind: Kind) {
    let world = World::new(kind).await;
    let vector = |text: &str| {
        let body = json!({"model": "text-embedding-3-small", "input": text});
        native("/v1/embeddings", &body, body.clone())
    };
    let batch = Batch::of([vector("a"), vector("b"), vector("a"), vector("a")]);
    let (object, first) = results(&world, &batch).await;
    assert_eq!((count(&object, "succeeded"), count(&object, "repeats")), (4, 2), "{object}");
    assert_eq!(first[0]["response"], first[2]["response"], "one question, one answer");
    assert_ne!(first[0]["response"]["data"], first[1]["response"]["data"]);
    assert_eq!(paid(&world).await.values().sum::<u64>(), 2, "repeats share");
    // Prompts with samples in the same batch keep them.
    check_once(&world, &Batch::of([gpt("x"), gpt("x")])).await;
    assert_eq!(paid(&world).await.values().sum::<u64>(), 4);
}
