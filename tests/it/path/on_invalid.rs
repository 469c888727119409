//! Bad prompts that fail alone, and what still refuses the whole batch.

use crate::support::{
    Batch, Kind, Prompt, World, check, claude,
    client::{JSON, NDJSON, count, id},
    for_both, gpt,
};
use serde_json::{Value, json};

for_both!(
    bad_prompts_fail_and_the_rest_runs,
    a_batch_of_bad_prompts_ends_at_once,
    on_invalid_may_stand_behind_the_prompts,
    every_sample_of_a_bad_prompt_fails,
);

fn bad(sent: Value) -> Prompt {
    Prompt::new(sent, json!({})).fails("invalid_request")
}

fn mixed() -> Batch {
    let twice = json!({"custom_id": "a", "messages": [{"role": "user", "content": "twice"}]});
    Batch::of([
        claude("Say 0").named("a"),
        bad(json!(5)),
        bad(json!({"custom_id": "b", "mesages": [], "temperature": 1})),
        gpt("Say 3"),
        bad(twice),
        bad(json!({"custom_id": "c", "messages": [{"role": "user", "content": "x"}], "model": "nobody-1"})),
        claude("Say 0"),
        bad(json!([])),
    ])
    .field("on_invalid", "fail")
    .field("chunk", 1)
}

async fn bad_prompts_fail_and_the_rest_runs(kind: Kind) {
    let world = World::new(kind).await;
    for batch in [mixed(), mixed().ndjson()] {
        let told = check(&world, &batch).await;
        assert_eq!((count(&told.object, "succeeded"), count(&told.object, "failed")), (3, 5));
        for (index, words) in [
            (1, &["must be a string or an object"][..]),
            (2, &["mesages: unknown field", "temperature: unknown field", "messages: is missing"]),
            (4, &["custom_id: prompt 0 has the same"]),
            (5, &["model: ", "`nobody-1`"]),
            (7, &["must be a string or an object"]),
        ] {
            let error = &told.results[index]["error"];
            let message = error["message"].as_str().unwrap_or_default();
            assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {error}");
            assert!(!message.contains("/prompts"), "its place is where it stands: {error}");
            assert_eq!((&error["provider_code"], &error["retryable"]), (&Value::Null, &json!(false)));
        }
    }
    // Nothing of them entered the cache.
    let cached = world.redis.keys().await.into_keys().filter(|key| key.starts_with("{default}:c:")).count();
    assert_eq!(cached, 3);
}

async fn a_batch_of_bad_prompts_ends_at_once(kind: Kind) {
    let world = World::new(kind).await;
    // More than one page of them.
    let prompts = (0..1_200).map(|n| bad(json!({"custom_id": format!("id {n}"), "messages": n})));
    let batch = Batch::of(prompts).field("on_invalid", "fail");
    for batch in [batch.clone(), batch.ndjson()] {
        let object = batch.post(world.client()).await.accepted();
        assert_eq!((&object["status"], count(&object, "failed")), (&json!("ended"), 1_200), "{object}");
        check(&world, &batch).await;
    }
    assert!(world.sim.calls("batches.create").await.is_empty());
}

async fn on_invalid_may_stand_behind_the_prompts(kind: Kind) {
    let world = World::new(kind).await;
    let body =
        r#"{"prompts": ["Say 0", 5, "Say 2"], "model": "claude-haiku-4-5", "on_invalid": "fail", "max_tokens": 100}"#;
    let object = world.client().post("/batches", JSON, body).await.accepted();
    let object = world.client().ended(id(&object)).await;
    assert_eq!((count(&object, "succeeded"), count(&object, "failed")), (2, 1), "{object}");
    check(&world, &Batch::of([claude("Say 0"), bad(json!(5)), claude("Say 2")]).field("on_invalid", "fail")).await;
}

async fn every_sample_of_a_bad_prompt_fails(kind: Kind) {
    let world = World::new(kind).await;
    let vectors = json!({"endpoint": "/v1/embeddings", "body": {"model": "text-embedding-3-small", "input": "x"}});
    let batch = Batch::of([claude("Say 0"), bad(vectors), bad(json!(null)), gpt("Say 3")])
        .field("on_invalid", "fail")
        .field("samples", 3);
    let told = check(&world, &batch).await;
    assert_eq!((count(&told.object, "total"), count(&told.object, "failed")), (12, 6));
}

/// What is wrong with the batch itself, with its body as such, or with its counts.
#[tokio::test]
async fn what_is_not_a_prompts_fault_refuses_the_whole_all_the_same() {
    let world = World::new(Kind::Ours).await;
    let head = r#"{"batch": {"model": "claude-haiku-4-5", "max_tokens": 5, "on_invalid": "fail""#;
    let lines = |more: &str, lines: &str| format!("{head}{more}}}}}\n{lines}");
    let many = format!(
        "{{\"model\": \"claude-haiku-4-5\", \"max_tokens\": 5, \"on_invalid\": \"fail\", \"samples\": 1000, \"prompts\": [5{}]}}",
        ", 5".repeat(1_000)
    );
    let problem = world.client().post("/batches", JSON, many).await.refused(422, "invalid_request");
    assert_eq!((&problem["error_count"], &problem["errors"][0]["pointer"]), (&json!(1), &json!("/prompts")));
    for (body, status, code) in [
        (lines(", \"chunk\": 0", "5\n\"a\"\n"), 422, "invalid_request"),
        (lines(", \"strange\": 0", "5\n"), 422, "invalid_request"),
        (lines("", ""), 422, "invalid_request"),
        (lines("", "\"a\"\n{\"messages\n"), 400, "malformed_body"),
        (lines("", "5\n\"b"), 400, "malformed_body"),
    ] {
        let problem = world.client().post("/batches", NDJSON, body.clone()).await.refused(status, code);
        assert!(problem["error_count"] == 1, "only that is told: {body:.200}: {problem}");
        assert!(world.redis.keys().await.is_empty(), "nothing is left of {body:.200}");
    }
}
