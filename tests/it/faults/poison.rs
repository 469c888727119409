//! One prompt that spoils its whole provider batch: it is found by halving and fails alone.

use crate::support::{
    Batch, Kind, Prompt, World, check, check::answered, claude, client::id, for_both, gpt, prompt::GPT,
};
use serde_json::json;

for_both!(
    a_poison_prompt_is_found_by_halving,
    a_faulty_line_named_by_the_provider_fails_alone,
    a_batch_too_large_for_the_provider_is_cut_in_two,
    a_prompt_larger_than_a_chunk_fails_alone,
    chunks_are_cut_by_bytes,
);

async fn a_poison_prompt_is_found_by_halving(kind: Kind) {
    let world = World::new(kind).await;
    // The rule looks at the first model in the body: the poison stands first wherever it is.
    let fault = json!({"status": 400, "body": {"type": "error", "error": {"type": "invalid_request_error", "message": "requests.0: no"}}});
    world
        .sim
        .fault(json!({"match": {"route": "batches.create", "model": "claude-poison"}, "fault": fault, "times": 0}))
        .await;
    let mut poison = claude("poison").fails("invalid_request");
    poison.sent = json!({"model": "claude-poison", "messages": poison.body["messages"]});
    let prompts = std::iter::once(poison).chain((0..15).map(|n| claude(&format!("healthy {n}"))));
    let batch = Batch::of(prompts);
    let first = check(&world, &batch).await;
    let message = first.results[0]["error"]["message"].as_str().expect("a message");
    let chunk = id(&first.object).trim_start_matches("batch_");
    assert!(
        message.contains("requests.0: no") && !message.contains(chunk),
        "the provider's words, no id of ours: {message}"
    );
    // 16, 8, 4, 2, 1 with the poison, 8, 4, 2, 1 without; and alone the second time.
    assert_eq!(world.sim.calls("batches.create").await.len(), 9 + 1);
}

async fn a_faulty_line_named_by_the_provider_fails_alone(kind: Kind) {
    let world = World::new(kind).await;
    let errors = json!([
        {"code": "invalid_json_line", "message": "This line is not parseable.", "param": null, "line": 2},
        {"code": "model_not_found", "message": "The model does not exist.", "param": "body.model", "line": 4},
    ]);
    let fault = json!({"validation_errors": errors});
    world.sim.fault(json!({"match": {"route": "batches.create", "provider": "openai"}, "fault": fault})).await;
    let batch = Batch::of((0..6).map(|n| {
        let prompt = gpt(&format!("line {n}"));
        match n {
            1 => prompt.fails("invalid_request"),
            3 => prompt.fails("not_found"),
            _ => prompt,
        }
    }));
    let object = batch.post(world.client()).await.accepted();
    let first = answered(&world, &batch, id(&object)).await;
    assert_eq!(first.results[1]["error"]["provider_code"], "invalid_json_line");
    assert_eq!(world.sim.calls("batches.create").await.len(), 2, "no halving");
    check(&world, &Batch::of((0..6).map(|n| gpt(&format!("line {n}"))))).await;
}

async fn a_batch_too_large_for_the_provider_is_cut_in_two(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.settings(json!({"anthropic": {"max_body_bytes": 40_000}})).await;
    let text = |n: usize| format!("{n} {}", "x".repeat(10_000));
    check(&world, &Batch::of((0..7).map(|n| claude(&text(n))))).await;
    let alone = claude(&"y".repeat(50_000)).fails("too_large");
    let first = check(&world, &Batch::of([claude("small"), alone, claude("smaller")])).await;
    assert_eq!(first.results[1]["error"]["retryable"], false);
}

async fn a_prompt_larger_than_a_chunk_fails_alone(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_CHUNK_BYTES", "20KiB")]).await;
    let large = || "x".repeat(25_000);
    let prompts =
        [claude("small"), claude(&large()).fails("too_large"), gpt(&large()).fails("too_large"), gpt("small")];
    let first = check(&world, &Batch::of(prompts.clone())).await;
    let message = first.results[1]["error"]["message"].as_str().expect("a message");
    assert!(message.contains("BATCHGATE_CHUNK_BYTES") && message.contains("bytes"), "names size and remedy: {message}");
    check(&world, &Batch::of(prompts.map(|prompt| prompt.named("x")).into_iter().take(1))).await;
    // A batch of nothing else ends at once.
    let alone = Batch::of([gpt(&large()).fails("too_large")]);
    assert_eq!(alone.post(world.client()).await.accepted()["status"], "ended");
}

async fn chunks_are_cut_by_bytes(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_CHUNK_BYTES", "20KiB")]).await;
    let both = |n: usize| {
        let text = format!("{n} {}", "é".repeat(3_000));
        [claude(&text), gpt(&text)]
    };
    check(&world, &Batch::of((0..9).flat_map(both))).await;
    for call in world.sim.calls("batches.create").await.iter().chain(&world.sim.calls("files.create").await) {
        // The multipart form around a file is a few hundred bytes more.
        assert!(call["request_bytes"].as_u64() < Some(20 * 1024 + 600), "{call}");
    }
    let limit = 20 * 1024;
    let fixed = json!({"model": GPT, "max_completion_tokens": 100, "messages": [{"role": "user", "content": ""}]})
        .to_string()
        .len();
    // Around the limit to the byte: it either fails for us, or fits and is answered; nothing in between.
    let near = Batch::of((limit - fixed - 300..limit - fixed).step_by(25).map(|length| gpt(&"z".repeat(length))));
    let object = near.post(world.client()).await.accepted();
    world.client().ended(id(&object)).await;
    let results = world.client().results(id(&object)).await;
    let fits = results.iter().take_while(|result| result["status"] == "succeeded").count();
    let verdict = |prompt: Prompt, n: usize| if n < fits { prompt } else { prompt.fails("too_large") };
    let near = Batch::of(near.prompts.into_iter().enumerate().map(|(n, prompt)| verdict(prompt, n)));
    assert!((1..12).contains(&fits), "some fit and some do not: {fits}");
    check(&world, &near).await;
}
