//! How a story ends: does position i hold the answer to prompt i, of this batch, and then of the same batch again from
//! the cache (the question the origin's test forgot); and was anything bought twice?

use super::{
    batch::Batch,
    client::{count, id},
    prompt::{Expected, Prompt},
    world::World,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What a batch became.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) object: Value,
    pub(crate) results: Vec<Value>,
}

/// Asks twice, and the ledger once.
pub(crate) async fn check(world: &World, batch: &Batch) -> Answered {
    let before = paid(world).await;
    let first = check_once(world, batch).await;
    let mut expected = before;
    for (sha, times) in batch.bill() {
        let paid = expected.entry(sha).or_default();
        *paid = times.max(*paid);
    }
    assert_eq!(paid(world).await, expected, "what was paid, by body: every question once");
    again(world, batch, &first).await;
    first
}

/// The same batch again: all from the cache, all equal, nothing bought.
pub(crate) async fn again(world: &World, batch: &Batch, first: &Answered) {
    let mut expected = paid(world).await;
    for prompt in batch.prompts.iter().filter(|prompt| prompt.is_billed() && !prompt.succeeds()) {
        *expected.entry(prompt.sha()).or_default() += batch.samples(); // failures are not cached, though these are billed
    }
    let second = check_once(world, batch).await;
    assert_eq!(paid(world).await, expected, "the second time no answer is bought");
    assert_eq!(count(&second.object, "cached"), count(&second.object, "succeeded"), "{}", second.object);
    assert_eq!(second.object["usage"]["output_tokens"], 0, "nothing was bought for it: {}", second.object);
    let told = |results: &[Value]| -> Vec<Value> {
        let bare = |mut result: Value| {
            result["source"] = Value::Null;
            if result["error"].is_object() {
                result["error"]["message"] = Value::Null; // it may be told in other words
            }
            result
        };
        results.iter().cloned().map(bare).collect()
    };
    assert_eq!(told(&first.results), told(&second.results), "the same answers in the same order");
    for result in second.results.iter().filter(|result| result["status"] == "succeeded") {
        assert_eq!(result["source"], "cache", "{result}");
    }
}

/// Submits, waits for the end, and asks the oracle about every position.
pub(crate) async fn check_once(world: &World, batch: &Batch) -> Answered {
    let object = batch.post(world.client()).await.accepted();
    answered(world, batch, id(&object)).await
}

/// Waits for the end of a submitted batch, and asks the oracle about every position.
pub(crate) async fn answered(world: &World, batch: &Batch, id: &str) -> Answered {
    let object = world.client().ended(id).await;
    let results = world.client().results(id).await;
    right(batch, &results);
    let has = |status: &str| results.iter().filter(|result| result["status"] == status).count() as u64;
    for name in ["succeeded", "failed", "canceled", "expired"] {
        assert_eq!(count(&object, name), has(name), "{name}: {object}");
    }
    assert_eq!(count(&object, "total"), batch.total(), "{object}");
    if object["results"].is_array() {
        assert_eq!(object["results"], json!(results), "the results in the batch object are the results");
    }
    let chunks = &object["chunks"];
    assert!(
        ["planned", "submitting", "running"].iter().all(|state| chunks[state] == 0),
        "an ended batch has no chunks under way: {object}"
    );
    bought(batch, &object, &results);
    Answered { object, results }
}

/// The batch's usage is the sum of what was bought for it, a shared answer once.
fn bought(batch: &Batch, object: &Value, results: &[Value]) {
    let mut once = BTreeMap::new();
    for (n, result) in results.iter().enumerate().filter(|(_, result)| result["source"] == "provider") {
        let prompt = &batch.prompts[n / usize::try_from(batch.samples()).expect("few")];
        let which =
            if batch.shares() { (prompt.sha(), result["sample"].as_u64(), 0) } else { (String::new(), None, n) };
        once.insert(which, &result["usage"]);
    }
    for member in ["input_tokens", "cached_input_tokens", "output_tokens"] {
        let sum: u64 = once.values().filter_map(|usage| usage[member].as_u64()).sum();
        assert_eq!(object["usage"][member], sum, "{member} of what was bought: {object}");
    }
}

/// Every position holds what its prompt must become.
pub(crate) fn right(batch: &Batch, results: &[Value]) {
    assert_eq!(results.len() as u64, batch.total(), "one result per prompt and sample");
    let samples = usize::try_from(batch.samples()).expect("few");
    for (n, result) in results.iter().enumerate() {
        let (index, sample) = (n / samples, n % samples);
        let prompt = &batch.prompts[index];
        assert_eq!((&result["index"], &result["sample"]), (&json!(index), &json!(sample)), "{result}");
        assert_eq!(result["custom_id"], json!(prompt.custom_id), "{result}");
        fits(prompt, result);
    }
}

/// Is this the outcome of this prompt?
pub(crate) fn fits(prompt: &Prompt, result: &Value) {
    match &prompt.expected {
        Expected::Echo => {
            assert_eq!(result["completion"], prompt.echo(), "another prompt's answer? {result}\nbody: {}", prompt.body);
            succeeded(prompt, result, "stop");
        }
        Expected::Answer { completion, finish } => {
            assert_eq!(result["completion"], *completion, "{result}");
            succeeded(prompt, result, finish);
        }
        Expected::Failure { code, .. } => {
            let status = if ["canceled", "expired"].contains(code) { code } else { "failed" };
            assert_eq!(result["status"], status, "{result}");
            assert_eq!(result["error"]["code"], *code, "{result}");
            assert!(result["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{result}");
            for member in ["completion", "source", "model", "finish", "stop_reason", "usage"] {
                assert_eq!(result[member], Value::Null, "{member}: {result}");
            }
        }
    }
}

fn succeeded(prompt: &Prompt, result: &Value, finish: &str) {
    assert_eq!(result["status"], "succeeded", "{result}");
    assert_eq!((&result["finish"], &result["error"]), (&json!(finish), &Value::Null), "{result}");
    assert!(["provider", "cache", "joined"].iter().any(|source| result["source"] == *source), "{result}");
    let asked = prompt.body["model"].as_str().expect("a body names its model");
    assert!(result["model"].as_str().is_some_and(|model| model.starts_with(asked)), "{result}");
    assert_eq!(result["usage"]["input_tokens"], prompt.input_tokens(), "{result}");
    assert!(result["usage"]["output_tokens"].as_u64() > Some(0), "{result}");
    assert!(result["stop_reason"].is_string(), "{result}");
}

/// Answers billed so far, by the digest of the body that was asked.
pub(crate) async fn paid(world: &World) -> BTreeMap<String, u64> {
    let mut paid = BTreeMap::new();
    for row in world.sim.billed().await {
        let sha = row["sha"].as_str().unwrap_or_else(|| panic!("no sha: {row}")).to_owned();
        *paid.entry(sha).or_insert(0) += 1;
    }
    paid
}

/// Waits for the end of a submitted batch in a world of its own, asks the oracle about every position, the ledger once,
/// and all of it again.
pub(crate) async fn settles(world: &World, batch: &Batch, id: &str) -> Answered {
    let first = answered(world, batch, id).await;
    assert_eq!(paid(world).await, batch.bill(), "what was paid, by body: every question once");
    again(world, batch, &first).await;
    first
}
