//! Prompts that cannot be sent, each named by its position.

use super::{Case, check, json, ndjson};
use crate::support::{
    Kind, World,
    client::{JSON, NDJSON},
};
use serde_json::{Value, json as value};

/// One bad prompt among good ones, in both bodies. `at` is the place below the prompt.
fn among_good_ones(prompt: &str, at: &'static str) -> [Case; 2] {
    let pointer = |prefix: &str| -> &'static str { format!("{prefix}/prompts/1{at}").leak() };
    [
        json(
            format!("{{\"prompts\": [\"a\", {prompt}, \"b\"], \"model\": \"claude-haiku-4-5\", \"max_tokens\": 5}}"),
            422,
            pointer(""),
        ),
        ndjson(
            format!(
                "{{\"batch\": {{\"model\": \"claude-haiku-4-5\", \"max_tokens\": 5}}}}\n\"a\"\n\n{prompt}\n\"b\"\n"
            ),
            422,
            pointer("4 "),
        ),
    ]
}

#[tokio::test]
async fn bad_prompts_are_named_by_their_position() {
    let user = "[{\"role\": \"user\", \"content\": \"x\"}]";
    let mut cases = Vec::new();
    for (prompt, at) in [
        ("5", ""),
        ("null", ""),
        ("true", ""),
        ("[]", ""),
        ("{}", "/messages"),
        ("{\"messages\": []}", "/messages"),
        ("{\"messages\": \"x\"}", "/messages"),
        ("{\"messages\": {}}", "/messages"),
        ("{\"messages\": [5]}", "/messages/0"),
        ("{\"messages\": [{\"content\": \"x\"}]}", "/messages/0/role"),
        ("{\"messages\": [{\"role\": 5, \"content\": \"x\"}]}", "/messages/0/role"),
        ("{\"messages\": [{\"role\": \"user\"}]}", "/messages/0/content"),
        ("{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", "/messages/0/content"),
        ("{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "/messages/0/content"),
        ("{\"messages\": [{\"role\": \"system\", \"content\": \"x\"}]}", "/messages"),
        ("{\"messages\": USER, \"temperature\": 1}", "/temperature"),
        ("{\"messages\": USER, \"stream\": true}", "/stream"),
        ("{\"messages\": USER, \"params\": {\"stream\": true}}", "/params/stream"),
        ("{\"messages\": USER, \"params\": []}", "/params"),
        ("{\"messages\": USER, \"params\": {\"messages\": []}}", "/params/messages"),
        ("{\"messages\": USER, \"max_tokens\": 0}", "/max_tokens"),
        ("{\"messages\": USER, \"max_tokens\": \"5\"}", "/max_tokens"),
        ("{\"messages\": USER, \"max_tokens\": 1e400}", "/max_tokens"),
        ("{\"messages\": USER, \"params\": {\"max_tokens\": \"many\"}}", "/params/max_tokens"),
        ("{\"messages\": USER, \"model\": 5}", "/model"),
        ("{\"messages\": USER, \"model\": \"\"}", "/model"),
        ("{\"messages\": USER, \"model\": \"llama-3\"}", "/model"),
        ("{\"messages\": USER, \"system\": 5}", "/system"),
        ("{\"messages\": USER, \"custom_id\": 5}", "/custom_id"),
        ("{\"messages\": USER, \"custom_id\": \"\"}", "/custom_id"),
        ("{\"messages\": USER, \"headers\": {\"x\": \"y\"}}", "/headers/x"),
        ("{\"messages\": USER, \"params\": {\"seed\": 1e99999999999999999999}}", "/params/seed"),
        ("{\"endpoint\": \"/v1/messages\"}", "/body"),
        ("{\"endpoint\": \"/v1/messages\", \"body\": []}", "/body"),
        ("{\"endpoint\": \"/v1/messages\", \"body\": {}}", "/body/messages"),
        ("{\"body\": {\"messages\": USER}}", "/endpoint"),
        ("{\"endpoint\": 5, \"body\": {\"messages\": USER}}", "/endpoint"),
        ("{\"endpoint\": \"/v1/nowhere\", \"body\": {\"messages\": USER}}", "/endpoint"),
        ("{\"endpoint\": \"/v1/chat/completions\", \"body\": {\"messages\": USER}}", "/endpoint"),
        ("{\"endpoint\": \"/v1/messages\", \"body\": {\"messages\": USER, \"stream\": true}}", "/body/stream"),
        ("{\"endpoint\": \"/v1/messages\", \"body\": {\"messages\": USER, \"model\": \"gpt-5-mini\"}}", "/endpoint"),
        ("{\"endpoint\": \"/v1/messages\", \"messages\": USER, \"body\": {\"messages\": USER}}", "/messages"),
        (
            "{\"custom_id\": \"x\", \"method\": \"GET\", \"url\": \"/v1/chat/completions\", \"body\": {\"model\": \"gpt-5-mini\", \"messages\": USER}}",
            "/method",
        ),
        (
            "{\"custom_id\": \"x\", \"method\": \"POST\", \"url\": \"/v1/nowhere\", \"body\": {\"model\": \"gpt-5-mini\", \"messages\": USER}}",
            "/url",
        ),
        (
            "{\"custom_id\": \"x\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {\"messages\": USER}}",
            "/body/model",
        ),
        (
            "{\"custom_id\": \"x\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {\"model\": \"gpt-5-mini\", \"messages\": USER, \"stream\": true}}",
            "/body/stream",
        ),
        (
            "{\"custom_id\": \"x\", \"params\": {\"model\": \"claude-haiku-4-5\", \"messages\": USER}}",
            "/params/max_tokens",
        ),
        ("{\"custom_id\": \"x\", \"params\": {\"max_tokens\": 5, \"messages\": USER}}", "/params/model"),
        (
            "{\"custom_id\": \"x\", \"params\": {\"model\": \"claude-haiku-4-5\", \"max_tokens\": 5, \"messages\": USER, \"stream\": true}}",
            "/params/stream",
        ),
    ] {
        cases.extend(among_good_ones(&prompt.replace("USER", user), at));
    }
    let long = format!("{{\"messages\": {user}, \"custom_id\": \"{}\"}}", "x".repeat(257));
    cases.extend(among_good_ones(&long, "/custom_id"));
    check(cases).await;
}

#[tokio::test]
async fn anthropics_missing_max_tokens_names_the_prompts() {
    let world = World::new(Kind::Ours).await;
    let body = value!({"prompts": ["a", {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "b"}]}, "c"], "model": "claude-haiku-4-5"});
    let problem = world.client().post("/batches", JSON, body.to_string()).await.refused(422, "invalid_request");
    let pointers: Vec<&Value> =
        problem["errors"].as_array().expect("errors").iter().map(|error| &error["pointer"]).collect();
    assert_eq!(pointers, ["/prompts/0/max_tokens", "/prompts/2/max_tokens"], "{problem}");
}

#[tokio::test]
async fn a_repeated_custom_id_names_both_positions() {
    let world = World::new(Kind::Ours).await;
    let prompt = |id: &str| value!({"custom_id": id, "messages": [{"role": "user", "content": id}]});
    let prompts = [prompt("a"), prompt("b"), prompt("c"), prompt("b"), prompt("a"), prompt("b")];
    let body = value!({"model": "gpt-5-mini", "prompts": prompts});
    let problem = world.client().post("/batches", JSON, body.to_string()).await.refused(422, "invalid_request");
    let told = |problem: &Value| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        problem["errors"]
            .as_array()
            .expect("errors")
            .iter()
            .map(|error| (text(&error["pointer"]), text(&error["message"])))
            .collect()
    };
    let expected = [("/prompts/3/custom_id", 1), ("/prompts/4/custom_id", 0), ("/prompts/5/custom_id", 1)];
    let errors = told(&problem);
    assert_eq!(errors.len(), 3, "{problem}");
    for ((pointer, message), (place, before)) in errors.iter().zip(expected) {
        assert!(pointer == place && message.contains(&format!("prompt {before} ")), "{pointer}: {message}");
    }
    // Across the pages in which prompts are read.
    let lines: Vec<String> = (0..2_500).map(|n| prompt(&format!("{}", n % 2_400)).to_string() + "\n").collect();
    let body = format!("{{\"batch\": {{\"model\": \"gpt-5-mini\"}}}}\n{}", lines.concat());
    let problem = world.client().post("/batches", NDJSON, body).await.refused(422, "invalid_request");
    assert_eq!((&problem["error_count"], told(&problem).len()), (&value!(100), 100));
    assert_eq!(problem["errors"][0]["pointer"], "/prompts/2400/custom_id");
    assert_eq!(problem["errors"][0]["line"], 2_402);
    assert!(world.redis.keys().await.is_empty());
}

#[tokio::test]
async fn the_first_hundred_problems_are_told_in_order_and_all_are_counted() {
    let world = World::new(Kind::Ours).await;
    let prompts: Vec<Value> = (0..1_500).map(|n| if n % 2 == 0 { value!(n) } else { value!("fine") }).collect();
    let lines: String = prompts.iter().map(|prompt| format!("{prompt}\n")).collect();
    let body = value!({"prompts": prompts, "chunk": 0, "model": "gpt-5-mini"}).to_string();
    for (kind, body) in
        [(JSON, body), (NDJSON, format!("{{\"batch\": {{\"chunk\": 0, \"model\": \"gpt-5-mini\"}}}}\n{lines}"))]
    {
        let problem = world.client().post("/batches", kind, body).await.refused(422, "invalid_request");
        assert_eq!(problem["error_count"], 751, "{kind}");
        let errors = problem["errors"].as_array().expect("errors");
        assert_eq!(errors.len(), 100);
        assert_eq!(errors[0]["pointer"], "/chunk", "{kind}: {problem}");
        for (n, error) in errors[1..].iter().enumerate() {
            assert_eq!(error["pointer"], format!("/prompts/{}", 2 * n), "{kind}: in the order of the body");
            let line = if kind == NDJSON { value!(2 * n + 2) } else { Value::Null };
            assert_eq!(error["line"], line);
        }
        assert!(world.redis.keys().await.is_empty(), "nothing is left of it");
    }
}
