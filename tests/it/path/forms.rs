//! All the ways to write a prompt, mixed: two providers, several models, several chunks.

use crate::support::{
    Batch, Kind, Prompt, World, check, claude, for_both, gpt,
    prompt::{CLAUDE, Expected, GPT},
};
use serde_json::{Value, json};

for_both!(
    every_form_of_prompt_in_one_ndjson_body,
    every_form_of_prompt_in_one_json_body,
    what_is_nearer_to_the_prompt_wins,
    providers_and_models_are_cut_into_their_own_chunks,
    numbers_and_strange_texts_arrive_as_they_were_written,
    numbers_with_exponents_are_what_the_oracle_reads,
);

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// One prompt of each form the product page knows, and what each must become.
fn every_form() -> Vec<Prompt> {
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]}]);
    let turns = json!([
        {"role": "user", "content": "first"}, {"role": "assistant", "content": "then"}, {"role": "user", "content": "last"}
    ]);
    vec![
        claude("a string"),
        claude("with a name").named("mine-1"),
        gpt("another model").named("a name with spaces, ünïcode & \"quotes\""),
        Prompt::new(
            json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a leading system message"}]}),
            json!({"model": CLAUDE, "max_tokens": 100, "system": "Be brief.", "messages": user("a leading system message")}),
        ),
        Prompt::new(
            json!({"system": "Be brief.", "messages": user("a system field")}),
            json!({"model": CLAUDE, "max_tokens": 100, "system": "Be brief.", "messages": user("a system field")}),
        ),
        Prompt::new(
            json!({"model": GPT, "system": "Be brief.", "messages": user("a system field")}),
            json!({"model": GPT, "max_completion_tokens": 100, "messages": [
                {"role": "system", "content": "Be brief."}, {"role": "user", "content": "a system field"}]}),
        ),
        Prompt::new(json!({"messages": parts}), json!({"model": CLAUDE, "max_tokens": 100, "messages": parts})),
        Prompt::new(json!({"messages": turns}), json!({"model": CLAUDE, "max_tokens": 100, "messages": turns})),
        Prompt::new(
            json!({"model": GPT, "max_tokens": 7, "messages": user("own cap"), "params": {"temperature": 0.5}}),
            json!({"model": GPT, "max_completion_tokens": 7, "messages": user("own cap"), "temperature": 0.5}),
        ),
        Prompt::new(
            json!({"endpoint": "/v1/messages", "body": {"model": CLAUDE, "messages": user("native")}, "custom_id": "n-1"}),
            json!({"model": CLAUDE, "max_tokens": 100, "messages": user("native")}),
        ),
        Prompt::new(
            json!({"endpoint": "/v1/chat/completions", "body": {"model": GPT, "max_tokens": 5, "messages": user("native")}}),
            json!({"model": GPT, "max_tokens": 5, "messages": user("native")}),
        ),
        Prompt::new(
            json!({"custom_id": "line-1", "method": "POST", "url": "/v1/chat/completions",
                   "body": {"model": "gpt-4.1", "messages": user("an openai line")}}),
            json!({"model": "gpt-4.1", "messages": user("an openai line")}),
        ),
        Prompt::new(
            json!({"custom_id": "line-2", "params": {"model": CLAUDE, "max_tokens": 9, "messages": user("an anthropic line")}}),
            json!({"model": CLAUDE, "max_tokens": 9, "messages": user("an anthropic line")}),
        ),
    ]
}

async fn every_form_of_prompt_in_one_ndjson_body(kind: Kind) {
    let world = World::new(kind).await;
    check(&world, &Batch::of(every_form()).field("chunk", 3).ndjson()).await;
}

async fn every_form_of_prompt_in_one_json_body(kind: Kind) {
    let world = World::new(kind).await;
    check(&world, &Batch::of(every_form()).field("chunk", 4)).await;
}

/// Prompt's body or params, prompt's fields, batch's params, batch's fields.
async fn what_is_nearer_to_the_prompt_wins(kind: Kind) {
    let world = World::new(kind).await;
    let claude_body = |cap: u64, temperature: Value, text: &str| json!({"model": CLAUDE, "max_tokens": cap, "temperature": temperature, "messages": user(text)});
    let prompts = [
        Prompt::new(
            "the batch's params over its fields".into(),
            claude_body(50, json!(0.25), "the batch's params over its fields"),
        ),
        Prompt::new(
            json!({"max_tokens": 60, "messages": user("the prompt's field over the batch's params")}),
            claude_body(60, json!(0.25), "the prompt's field over the batch's params"),
        ),
        Prompt::new(
            json!({"max_tokens": 60, "params": {"max_tokens": 70, "temperature": 1}, "messages": user("its params over its field")}),
            claude_body(70, json!(1), "its params over its field"),
        ),
        Prompt::new(
            json!({"endpoint": "/v1/messages", "max_tokens": 60,
                   "body": {"model": CLAUDE, "max_tokens": 80, "messages": user("its body over its field")}}),
            claude_body(80, json!(0.25), "its body over its field"),
        ),
        Prompt::new(
            json!({"custom_id": "x", "params": {"model": CLAUDE, "max_tokens": 9, "messages": user("a line gets nothing")}}),
            json!({"model": CLAUDE, "max_tokens": 9, "messages": user("a line gets nothing")}),
        ),
    ];
    let batch =
        Batch::of(prompts).field("max_tokens", 40).field("params", json!({"max_tokens": 50, "temperature": 0.25}));
    check(&world, &batch).await;
}

async fn providers_and_models_are_cut_into_their_own_chunks(kind: Kind) {
    let world = World::new(kind).await;
    let model = |n: usize| ["gpt-5-mini", "gpt-4.1", "claude-haiku-4-5", "claude-sonnet-4-5"][n % 4];
    let prompts = (0..40).map(|n| {
        let (messages, model) = (user(&format!("mixed {n}")), model(n));
        let cap = if model.starts_with("gpt") { "max_completion_tokens" } else { "max_tokens" };
        Prompt::new(
            json!({"model": model, "messages": messages}),
            json!({"model": model, cap: 100, "messages": messages}),
        )
    });
    let first = check(&world, &Batch::of(prompts).field("chunk", 8)).await;
    // 20 for anthropic, models mixed: 3 chunks of at most 8; 10 for each of openai's models, one model a chunk: 2 each.
    assert_eq!(first.object["chunks"]["settled"], 7, "{}", first.object);
    for row in world.sim.billed().await {
        assert!(row["custom_id"].as_str().is_some_and(|id| id.len() <= 64 && !id.contains("mixed")), "{row}");
    }
}

async fn numbers_and_strange_texts_arrive_as_they_were_written(kind: Kind) {
    let world = World::new(kind).await;
    let texts = [
        "",
        " ",
        "\n",
        "tab\there",
        "quote \" and \\ backslash",
        "\u{2028}\u{2029}\u{85}\u{b}\u{c}",
        "é e\u{301}",
        "漢字",
        "😀",
        "\u{0}nul",
        "\u{1f}",
        "\u{7f}",
        "\u{feff}bom",
        "{\"json\": [1, 2]}",
        "[[",
        "]] [[x]]",
        "a\r\nb",
    ];
    let mut prompts: Vec<Prompt> = texts.iter().filter(|text| !text.is_empty()).map(|text| claude(text)).collect();
    prompts.extend(texts.iter().map(|text| gpt(text)));
    let seeds = ["0", "-1", "9007199254740991", "9007199254740992", "9007199254740993", "18446744073709551616"];
    prompts.extend(seeds.iter().map(|seed| {
        let seed: Value = serde_json::from_str(seed).expect("a number");
        Prompt::new(
            json!({"model": GPT, "messages": user("a seed"), "params": {"seed": seed}}),
            json!({"model": GPT, "max_completion_tokens": 100, "messages": user("a seed"), "seed": seed}),
        )
    }));
    check(&world, &Batch::of(prompts.clone())).await;
    check(&world, &Batch::of(prompts).ndjson()).await;
}

/// Their canonical form is the oracle's affair: it is asked.
async fn numbers_with_exponents_are_what_the_oracle_reads(kind: Kind) {
    let world = World::new(kind).await;
    let mut prompts = Vec::new();
    for (n, spelling) in ["0.1", "1e-7", "5E-1", "0.30000000000000004", "1.0", "-0.0", "2E0"].iter().enumerate() {
        let temperature: Value = serde_json::from_str(spelling).expect("a number");
        let body = json!({"model": GPT, "max_completion_tokens": 100, "messages": user(&format!("number {n}")), "temperature": temperature});
        let sent = json!({"model": GPT, "messages": body["messages"], "params": {"temperature": temperature}});
        let told = world.sim.oracle("openai", &body).await;
        prompts.push(Prompt::new(sent, body).answers(told["text"].clone(), "stop"));
    }
    let batch = Batch::of(prompts);
    let object = batch.post(world.client()).await.accepted();
    world.client().ended(object["id"].as_str().expect("an id")).await;
    let results = world.client().results(object["id"].as_str().expect("an id")).await;
    for (prompt, result) in batch.prompts.iter().zip(&results) {
        let Expected::Answer { completion, .. } = &prompt.expected else { continue };
        assert_eq!(result["completion"], *completion, "{}", prompt.body);
    }
    let again = batch.post(world.client()).await.accepted();
    assert_eq!(again["counts"]["cached"], 7, "{again}");
}
