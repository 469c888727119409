//! What models may answer: refusals, tool calls, empty and cut texts, every character there is; and the body behind it.

use crate::support::{Batch, Kind, World, check, check::check_once, claude, client::id, for_both, gpt, prompt::Prompt};
use serde_json::{Value, json};

for_both!(
    every_kind_of_answer_reads_as_documented,
    the_providers_body_comes_value_for_value,
    separators_of_unicode_leave_escaped_at_every_door,
    long_answers_come_whole,
    cached_tokens_are_counted_among_the_input,
);

/// What `[[unicode]]` adds to an answer, from the simulators' manual.
const UNICODE: &str =
    "\u{2028}line\u{2029}para\u{85}nel\u{b}vt\u{1}\u{1f} é e\u{301} 漢字 😀 \\ud83d \"quoted\" \r\n\ttail";

fn both(text: &str) -> [Prompt; 2] {
    [claude(text), gpt(text)]
}

async fn every_kind_of_answer_reads_as_documented(kind: Kind) {
    let world = World::new(kind).await;
    let mut prompts = Vec::new();
    prompts.extend(both("[[refuse]]").map(|prompt| prompt.answers(Value::Null, "refusal")));
    prompts.extend(both("[[tool]]").map(|prompt| prompt.answers(Value::Null, "tool_use")));
    prompts.extend(both("[[empty]]").map(|prompt| prompt.answers("", "stop")));
    prompts.push(claude("[[nochoices]]").answers("", "stop"));
    prompts.push(gpt("[[nochoices]]").fails_billed("empty_answer"));
    prompts.extend(both("[[truncate]] of some length").map(|prompt| {
        let whole: Vec<char> = prompt.echo().chars().collect();
        let half: String = whole[..whole.len() / 2].iter().collect();
        prompt.answers(half, "length")
    }));
    prompts.extend(both("[[unicode]]").map(|prompt| {
        let text = prompt.echo() + UNICODE;
        prompt.answers(text, "stop")
    }));
    prompts.extend(both("[[surrogate]]").map(|prompt| {
        let text = prompt.echo() + "\u{fffd}";
        prompt.answers(text, "stop")
    }));
    let batch = Batch::of(prompts).field("chunk", 3);
    let first = check(&world, &batch).await;
    for result in &first.results[2..4] {
        assert!(result["response"].is_object(), "an answer without text brings the body unasked: {result}");
    }
    let plain = &first.results[8];
    assert!(plain.get("response").is_none(), "an answer with text does not: {plain}");
}

async fn the_providers_body_comes_value_for_value(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("a"), gpt("b"), claude("[[unicode]]"), gpt("[[tool]]")].map(|prompt| {
        let text = prompt.echo() + UNICODE;
        match prompt.last_user_text().as_str() {
            "[[unicode]]" => prompt.answers(text, "stop"),
            "[[tool]]" => prompt.answers(Value::Null, "tool_use"),
            _ => prompt,
        }
    }));
    let first = check(&world, &batch).await;
    let full = world.client().lines(&format!("/batches/{}/results?response=full", id(&first.object))).await;
    let paths =
        ["/content/0/text", "/choices/0/message/content", "/content/0/text", "/choices/0/message/tool_calls/0/type"];
    for ((full, bare), path) in full.iter().zip(&first.results).zip(paths) {
        let mut without = full.clone();
        let response = without.as_object_mut().expect("an object").remove("response").expect("asked for");
        without.as_object_mut().expect("an object").remove("provenance").expect("with it");
        let mut bare = bare.clone();
        bare.as_object_mut().expect("an object").remove("response");
        assert_eq!(without, bare, "only `response` and `provenance` are added");
        let told = response.pointer(path).unwrap_or_else(|| panic!("{path}: {response}"));
        if full["completion"].is_string() {
            assert_eq!(*told, full["completion"]);
        }
        assert_eq!(response["model"], full["model"]);
        assert!(response["usage"]["sim_call"].as_u64() > Some(0), "members nobody knows stay: {response}");
    }
    // The page and the batch object agree with the stream.
    let page = world.client().get(&format!("/batches/{}/results?response=full&limit=10", id(&first.object))).await.ok();
    assert_eq!(page["results"], json!(full));
    let later = check_once(&world, &batch).await;
    let again = world.client().lines(&format!("/batches/{}/results?response=full", id(&later.object))).await;
    let body = |results: &[Value]| results.iter().map(|result| result["response"].clone()).collect::<Vec<_>>();
    assert_eq!(body(&again), body(&full), "the cache keeps the body as it came");
}

async fn separators_of_unicode_leave_escaped_at_every_door(kind: Kind) {
    let world = World::new(kind).await;
    let name = "id \u{2028}\u{2029}\u{85}";
    let prompts = both("[[unicode]]").map(|prompt| {
        let text = prompt.echo() + UNICODE;
        let name = format!("{name} {}", prompt.provider());
        prompt.answers(text, "stop").named(&name)
    });
    let batch = Batch::of(prompts).field("metadata", json!({"k\u{2028}": "v\u{2029}\u{85}"}));
    let first = check(&world, &batch).await;
    let id = id(&first.object);
    let doors = [
        format!("/batches/{id}"),
        format!("/batches/{id}/results"),
        format!("/batches/{id}/results?response=full"),
        format!("/batches/{id}/results?limit=10"),
        format!("/batches/{id}/results?follow=true"),
        "/batches".to_owned(),
    ];
    for door in doors {
        let text = world.client().get(&door).await.text;
        for separator in ['\u{2028}', '\u{2029}', '\u{85}'] {
            assert!(!text.contains(separator), "{door} lets {separator:?} through");
        }
    }
    assert_eq!(first.object["metadata"], json!({"k\u{2028}": "v\u{2029}\u{85}"}));
}

async fn long_answers_come_whole(kind: Kind) {
    let world = World::new(kind).await;
    let long = |prompt: Prompt, length: usize| {
        let text = prompt.echo();
        let padded = format!("{text}{}", ".".repeat(length - text.chars().count()));
        prompt.answers(padded, "stop")
    };
    let lengths = [5_000, 100_000, 1_000_000, 3_000_000];
    let prompts =
        lengths.iter().flat_map(|length| both(&format!("[[len:{length}]]")).map(|prompt| long(prompt, *length)));
    check(&world, &Batch::of(prompts)).await;
}

async fn cached_tokens_are_counted_among_the_input(kind: Kind) {
    let world = World::new(kind).await;
    let first = check(&world, &Batch::of(both("[[cached]] half of this was read before"))).await;
    for (result, prompt) in first.results.iter().zip(both("[[cached]] half of this was read before")) {
        let half = prompt.input_tokens() / 2;
        // Anthropic counts half of what was cached as written, not read.
        let read = if prompt.provider() == "anthropic" { half - half / 2 } else { half };
        assert_eq!(result["usage"]["cached_input_tokens"], read, "{result}");
    }
}
