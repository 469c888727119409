//! Fields of the batch that are of the wrong type, out of range, or unknown.

use super::{Case, check, json, ndjson};

/// The same fault in a JSON body and in the header of an NDJSON body.
fn both(fields: &str, place: &'static str, line_place: &'static str) -> [Case; 2] {
    let usual: Vec<&str> = [("\"model\"", "\"model\": \"claude-haiku-4-5\""), ("\"max_tokens\"", "\"max_tokens\": 5")]
        .into_iter()
        .filter(|(name, _)| !fields.contains(&format!("{name}:")))
        .map(|(_, usual)| usual)
        .chain([fields])
        .collect();
    let fields = usual.join(", ");
    [
        json(format!("{{{fields}, \"prompts\": [\"a\", \"b\"]}}"), 422, place),
        ndjson(format!("{{\"batch\": {{{fields}}}}}\n\"a\"\n\"b\"\n"), 422, line_place),
    ]
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let mut cases = Vec::new();
    let huge = format!("1{}", "0".repeat(400));
    for bad in ["0", "-1", "1.5", "\"100\"", "true", "[]", "{}", "1e400", "1e9999999999999999999", "10000000000", &huge]
    {
        cases.extend(both(&format!("\"max_tokens\": {bad}"), "/max_tokens", "1 /max_tokens"));
        cases.extend(both(&format!("\"chunk\": {bad}"), "/chunk", "1 /chunk"));
        cases.extend(both(&format!("\"samples\": {bad}"), "/samples", "1 /samples"));
    }
    for bad in ["5", "true", "[]", "{}", "\"\"", "\"a\\nb\""] {
        cases.extend(both(&format!("\"model\": {bad}"), "/model", "1 /model"));
    }
    for bad in ["\"sometimes\"", "1", "true", "[]", "\"Share\"", "\"\""] {
        cases.extend(both(&format!("\"repeats\": {bad}"), "/repeats", "1 /repeats"));
        cases.extend(both(&format!("\"cache\": {bad}"), "/cache", "1 /cache"));
        cases.extend(both(&format!("\"on_invalid\": {bad}"), "/on_invalid", "1 /on_invalid"));
    }
    for bad in [
        "0",
        "60",
        "\"0s\"",
        "\"999ms\"",
        "\"soon\"",
        "\"\"",
        "\"-1h\"",
        "\"1.5h\"",
        "\"99999999999999999999d\"",
        "true",
        "[]",
        "{}",
    ] {
        cases.extend(both(&format!("\"max_age\": {bad}"), "/max_age", "1 /max_age"));
    }
    let long = format!("\"{}\"", "x".repeat(129));
    for bad in [
        "5",
        "true",
        "[]",
        "{}",
        "\"\"",
        "\"~\"",
        "\"a~\"",
        "\"~1\"",
        "\"a~1~2\"",
        "\"a b\"",
        "\"a/b\"",
        "\"é\"",
        &long,
    ] {
        cases.extend(both(&format!("\"run\": {bad}"), "/run", "1 /run"));
    }
    for bad in ["true", "[]", "{}", "[1]"] {
        cases.extend(both(&format!("\"salt\": {bad}"), "/salt", "1 /salt"));
    }
    for bad in ["5", "[]", "\"x\"", "true"] {
        cases.extend(both(&format!("\"params\": {bad}"), "/params", "1 /params"));
        cases.extend(both(&format!("\"headers\": {bad}"), "/headers", "1 /headers"));
        cases.extend(both(&format!("\"metadata\": {bad}"), "/metadata", "1 /metadata"));
    }
    cases.extend(both("\"samples\": 1001", "/samples", "1 /samples"));
    cases.extend(both("\"params\": {\"stream\": true}", "/params/stream", "1 /params/stream"));
    cases.extend(both("\"headers\": {\"authorization\": \"x\"}", "/headers/authorization", "1 /headers/authorization"));
    cases.extend(both(
        "\"headers\": {\"anthropic-version\": \"x\"}",
        "/headers/anthropic-version",
        "1 /headers/anthropic-version",
    ));
    cases.extend(both("\"headers\": {\"anthropic-beta\": 5}", "/headers/anthropic-beta", "1 /headers/anthropic-beta"));
    cases.extend(both("\"metadata\": {\"a\": 5}", "/metadata/a", "1 /metadata/a"));
    cases.extend(both("\"metadata\": {\"\": \"x\"}", "/metadata/", "1 /metadata/"));
    cases.extend(both("\"metadata\": {\"a/b~c\": null}", "/metadata/a~1b~0c", "1 /metadata/a~1b~0c"));
    let long = format!("\"metadata\": {{\"a\": \"{}\"}}", "x".repeat(513));
    cases.extend(both(&long, "/metadata/a", "1 /metadata/a"));
    let many: Vec<String> = (0..17).map(|n| format!("\"k{n}\": \"v\"")).collect();
    cases.extend(both(&format!("\"metadata\": {{{}}}", many.join(", ")), "/metadata", "1 /metadata"));
    check(cases).await;
}

#[tokio::test]
async fn unknown_fields_are_named_and_pointed_to_params() {
    let mut cases = Vec::new();
    for (field, place, line_place) in [
        ("\"temperature\": 1", "/temperature", "1 /temperature"),
        ("\"stream\": true", "/stream", "1 /stream"),
        ("\"promts\": []", "/promts", "1 /promts"),
        ("\"Model\": \"x\"", "/Model", "1 /Model"),
        ("\"\": 1", "/", "1 /"),
        ("\"endpoint\": \"/v1/messages\"", "/endpoint", "1 /endpoint"),
        ("\"custom_id\": \"x\"", "/custom_id", "1 /custom_id"),
        ("\"$serde_json::private::Number\": \"1\"", "/$serde_json::private::Number", "1 /$serde_json::private::Number"),
    ] {
        cases.extend(both(field, place, line_place));
    }
    check(cases).await;
}

#[tokio::test]
async fn lone_surrogates_are_named_wherever_they_stand() {
    let surrogate = "\\ud800";
    let mut cases = Vec::new();
    cases.extend(both(&format!("\"metadata\": {{\"a\": \"{surrogate}\"}}"), "/metadata/a", "1 /metadata/a"));
    cases.extend(both(
        &format!("\"params\": {{\"stop\": [\"x\", \"{surrogate}\"]}}"),
        "/params/stop/1",
        "1 /params/stop/1",
    ));
    cases.extend(both(&format!("\"salt\": \"{surrogate}\""), "/salt", "1 /salt"));
    cases.extend(both(&format!("\"model\": \"{surrogate}\""), "/model", "1 /model"));
    cases.push(json(format!("{{\"{surrogate}\": 1, \"prompts\": [\"a\"]}}"), 422, ""));
    for text in ["\\ud800", "\\udc00", "\\ud800x", "\\ud800\\ud800", "\\udc00\\ud800", "a\\uDBFF"] {
        cases.push(json(
            format!("{{\"model\": \"claude-haiku-4-5\", \"max_tokens\": 5, \"prompts\": [\"a\", \"{text}\"]}}"),
            422,
            "/prompts/1",
        ));
        let line =
            format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{text}\"}}], \"model\": \"gpt-5-mini\"}}\n");
        cases.push(ndjson(format!("\"a\"\n{line}"), 422, "2 /prompts/1/messages/0/content"));
    }
    check(cases).await;
}

/// The first prompt is bad, so that nothing of the rest has to be stored before the fault is found.
#[tokio::test]
async fn too_many_results_are_refused() {
    let prompts = vec!["\"a\""; 1_000].join(", ");
    let lines = "\"a\"\n".repeat(1_000);
    check(vec![
        json(format!("{{\"model\": \"gpt-5-mini\", \"samples\": 1000, \"prompts\": [5, {prompts}]}}"), 422, "/prompts"),
        ndjson(
            format!("{{\"batch\": {{\"model\": \"gpt-5-mini\", \"samples\": 1000}}}}\n5\n{lines}"),
            422,
            "1002 /prompts/1000",
        ),
        // Cut into far more provider batches than anybody wants.
        ndjson(
            "{\"batch\": {\"model\": \"gpt-5-mini\", \"samples\": 1000, \"chunk\": 1}}\n".to_owned() + &lines[..44],
            422,
            "/chunk",
        ),
    ])
    .await;
}
