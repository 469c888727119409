//! Prompts that fail, each for itself: codes, retries, and that nobody else is touched.

use crate::support::{
    Batch, Kind, World, check,
    check::{answered, check_once, paid},
    claude,
    client::{count, id},
    for_both, gpt,
};
use serde_json::Value;

for_both!(
    every_kind_of_failure_has_its_code,
    a_flaky_prompt_is_asked_again_and_billed_once,
    a_prompt_that_keeps_failing_fails_after_its_attempts,
    attempts_are_a_setting,
    an_unknown_model_fails_its_prompts,
    failures_are_asked_again_by_the_next_batch,
);

/// Kinds of failure, their code for us, and whether asking again unchanged is worth it.
const KINDS: [(&str, &str, bool); 12] = [
    ("invalid_request", "invalid_request", false),
    ("context_length", "invalid_request", false),
    ("authentication", "server_error", true),
    ("billing", "server_error", true),
    ("permission", "server_error", true),
    ("not_found", "not_found", false),
    ("conflict", "server_error", true),
    ("too_large", "too_large", false),
    ("rate_limit", "rate_limited", true),
    ("server", "server_error", true),
    ("timeout", "timeout", true),
    ("overloaded", "overloaded", true),
];

async fn every_kind_of_failure_has_its_code(kind: Kind) {
    let world = World::new(kind).await;
    let mut prompts = vec![claude("fine before"), gpt("fine before")];
    for (word, code, _) in KINDS {
        // OpenAI reports a spent quota as a 429.
        let openai = if word == "billing" { "rate_limited" } else { code };
        prompts.push(claude(&format!("[[error:{word}]]")).fails(code));
        prompts.push(gpt(&format!("[[error:{word}]]")).fails(openai));
    }
    prompts.extend([claude("fine after"), gpt("fine after")]);
    let batch = Batch::of(prompts).field("chunk", 5);
    let first = check(&world, &batch).await;
    for (result, (word, _, retryable)) in first.results[2..].chunks(2).zip(KINDS) {
        for result in result {
            assert_eq!(result["error"]["retryable"], retryable, "{word}: {result}");
            assert_ne!(result["error"]["provider_code"], Value::Null, "{word}: {result}");
        }
    }
    assert_eq!((count(&first.object, "succeeded"), count(&first.object, "failed")), (4, 24));
}

async fn a_flaky_prompt_is_asked_again_and_billed_once(kind: Kind) {
    let world = World::new(kind).await;
    let prompts = [claude("good"), claude("[[flaky:1]] a"), gpt("[[flaky:2]] b"), gpt("good"), claude("[[flaky:2]] c")];
    let first = check(&world, &Batch::of(prompts)).await;
    let chunks = &first.object["chunks"];
    assert_eq!(count(&first.object, "succeeded"), 5, "{}", first.object);
    assert!(chunks["settled"].as_u64() >= Some(4), "follow-ups count among this batch's chunks: {chunks}");
}

async fn a_prompt_that_keeps_failing_fails_after_its_attempts(kind: Kind) {
    let world = World::new(kind).await;
    let prompts =
        [claude("good"), claude("[[flaky:9]] a").fails("server_error"), gpt("[[flaky:9]] b").fails("server_error")];
    let object = Batch::of(prompts.clone()).post(world.client()).await.accepted();
    answered(&world, &Batch::of(prompts), id(&object)).await;
    // One create for each provider, and two more for what failed: three attempts.
    assert_eq!(world.sim.calls("batches.create").await.len(), 6);
    assert_eq!(paid(&world).await.values().sum::<u64>(), 1, "failures are free");
}

async fn attempts_are_a_setting(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1")]).await;
    check_once(
        &world,
        &Batch::of([claude("[[flaky:1]] a").fails("server_error"), gpt("[[flaky:1]] b").fails("server_error")]),
    )
    .await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 2, "one attempt is one attempt");
    check(&world, &Batch::of([claude("[[flaky:1]] a"), gpt("[[flaky:1]] b")])).await;
}

async fn an_unknown_model_fails_its_prompts(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.settings(serde_json::json!({"common": {"unknown_models": ["gpt-0*", "claude-0*"]}})).await;
    let mut lost = [claude("a"), gpt("b")].map(|prompt| prompt.fails("not_found"));
    for (prompt, model) in lost.iter_mut().zip(["claude-0", "gpt-0"]) {
        prompt.sent = serde_json::json!({"model": model, "messages": prompt.body["messages"]});
        prompt.body["model"] = model.into();
    }
    let [a, b] = lost;
    check(&world, &Batch::of([claude("good"), a, gpt("good"), b])).await;
}

async fn failures_are_asked_again_by_the_next_batch(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "2")]).await;
    let prompts = |fails: bool| {
        let flaky = [claude("[[flaky:3]] a"), gpt("[[flaky:3]] b")];
        flaky.map(|prompt| if fails { prompt.fails("server_error") } else { prompt })
    };
    let failed = check_once(&world, &Batch::of(prompts(true))).await;
    assert_eq!(count(&failed.object, "failed"), 2);
    let fine = check(&world, &Batch::of(prompts(false))).await;
    assert_eq!(count(&fine.object, "cached"), 0, "a failure is never cached");
}
