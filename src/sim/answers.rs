//! The shapes of a success: a `Reply` as each endpoint words it (contract 2.6 and 3.5).
//!
//! The call number, which differs between two paid answers to one body, is in the id and in `usage.sim_call`.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    clock::unix,
    json::is_integer,
    oracle::{Reply, canonical, choices},
};

/// What a success knows besides its content.
#[derive(Clone, Copy)]
pub(crate) struct Paid<'a> {
    pub(crate) call: u64,
    /// The model's name as the answer gives it.
    pub(crate) model: &'a str,
    pub(crate) created: f64,
    pub(crate) sim_call_in_usage: bool,
}

impl Paid<'_> {
    fn id(&self, prefix: &str) -> String {
        format!("{prefix}{:012}", self.call)
    }

    /// Put the call number where replayed answers are told from newly paid ones.
    fn sign(&self, mut answer: Value) -> Value {
        if self.sim_call_in_usage
            && let Some(usage) = answer.get_mut("usage").and_then(Value::as_object_mut)
        {
            usage.insert("sim_call".into(), self.call.into());
        }
        answer
    }
}

pub(crate) fn chat_completion(body: &Value, reply: &Reply, paid: Paid<'_>) -> Value {
    let count = if reply.marks.has("nochoices") { 0 } else { choices(body) };
    let choices: Vec<_> = (0..count).map(|index| chat_choice(body, reply, index)).collect();
    let tokens = reply.tokens;
    paid.sign(json!({
        "id": paid.id("chatcmpl-"), "object": "chat.completion", "created": unix(paid.created), "model": paid.model,
        "choices": choices, "service_tier": "default", "system_fingerprint": paid.id("fp_"),
        "usage": {
            "prompt_tokens": tokens.input, "completion_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
            "prompt_tokens_details": {"cached_tokens": tokens.cached, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": tokens.reasoning, "audio_tokens": 0,
                "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
            },
        },
    }))
}

fn chat_choice(body: &Value, reply: &Reply, index: usize) -> Value {
    let mut message = json!({
        "role": "assistant", "content": numbered(reply, index), "refusal": null, "annotations": [],
    });
    let mut reason = if reply.marks.has("truncate") { "length" } else { "stop" };
    if reply.marks.has("refuse") {
        message["content"] = Value::Null;
        message["refusal"] = reply.text.clone().into();
    } else if reply.marks.has("tool") {
        message["content"] = Value::Null;
        message["tool_calls"] = json!([{
            "id": format!("call_{}", reply.tag()), "type": "function",
            "function": {"name": tool_name(body), "arguments": tool_arguments(reply).to_string()},
        }]);
        reason = "tool_calls";
    }
    json!({"index": index, "message": message, "logprobs": null, "finish_reason": reason})
}

pub(crate) fn response(body: &Value, reply: &Reply, paid: Paid<'_>) -> Value {
    let tokens = reply.tokens;
    let cut_off = reply.marks.has("truncate");
    let status = if cut_off { "incomplete" } else { "completed" };
    let mut output = Vec::new();
    if tokens.reasoning > 0 {
        output.push(json!({"type": "reasoning", "id": paid.id("rs_"), "summary": []}));
    }
    if reply.marks.has("tool") {
        output.push(json!({
            "type": "function_call", "id": paid.id("fc_"), "call_id": format!("call_{}", reply.tag()),
            "name": tool_name(body), "arguments": tool_arguments(reply).to_string(), "status": "completed",
        }));
    } else if !reply.marks.has("nochoices") {
        let part = if reply.marks.has("refuse") {
            json!({"type": "refusal", "refusal": reply.text})
        } else {
            json!({"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []})
        };
        output.push(json!({
            "type": "message", "id": paid.id("msg_"), "role": "assistant", "content": [part], "status": status,
        }));
    }
    let given =
        |name: &str, default: Value| body.get(name).filter(|given| !given.is_null()).cloned().unwrap_or(default);
    paid.sign(json!({
        "id": paid.id("resp_"), "object": "response", "created_at": unix(paid.created), "status": status,
        "background": false, "error": null, "model": paid.model, "output": output,
        "incomplete_details": cut_off.then(|| json!({"reason": "max_output_tokens"})),
        "instructions": body["instructions"], "max_output_tokens": body["max_output_tokens"],
        "parallel_tool_calls": true, "previous_response_id": null, "truncation": "disabled",
        "reasoning": {"effort": (tokens.reasoning > 0).then_some("medium"), "summary": null},
        "temperature": given("temperature", json!(1.0)), "top_p": given("top_p", json!(1.0)),
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": given("tools", json!([])),
        "user": body["user"], "metadata": given("metadata", json!({})),
        "usage": {
            "input_tokens": tokens.input, "output_tokens": tokens.output, "total_tokens": tokens.input + tokens.output,
            "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        },
    }))
}

/// A vector depends on the model, the dimensions and its own input; every value is exact in 32 bits.
pub(crate) fn embeddings(body: &Value, reply: &Reply, paid: Paid<'_>) -> Value {
    let dimensions = body["dimensions"].as_u64().and_then(|size| usize::try_from(size).ok()).unwrap_or(8);
    let as_base64 = body["encoding_format"] == "base64";
    let data: Vec<_> = input_items(body)
        .into_iter()
        .enumerate()
        .map(|(index, item)| {
            let vector = embedding(&body["model"], dimensions, item);
            let shown = if as_base64 {
                let bytes: Vec<_> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Value::from(STANDARD.encode(bytes))
            } else {
                vector.into_iter().map(f64::from).collect()
            };
            json!({"object": "embedding", "index": index, "embedding": shown})
        })
        .collect();
    paid.sign(json!({
        "object": "list", "data": data, "model": body["model"],
        "usage": {"prompt_tokens": reply.tokens.input, "total_tokens": reply.tokens.input},
    }))
}

fn embedding(model: &Value, dimensions: usize, item: &Value) -> Vec<f32> {
    let seed = Sha256::digest(canonical(&json!({"model": model, "dimensions": dimensions, "input": item})));
    seed.iter().cycle().take(dimensions).map(|byte| (f32::from(*byte) - 128.0) / 128.0).collect()
}

pub(crate) fn completion(body: &Value, reply: &Reply, paid: Paid<'_>) -> Value {
    let reason = if reply.marks.has("truncate") { "length" } else { "stop" };
    let choices: Vec<_> = (0..choices(body))
        .map(|index| json!({"text": numbered(reply, index), "index": index, "logprobs": null, "finish_reason": reason}))
        .collect();
    let tokens = reply.tokens;
    paid.sign(json!({
        "id": paid.id("cmpl-"), "object": "text_completion", "created": unix(paid.created), "model": body["model"],
        "choices": choices,
        "usage": {
            "prompt_tokens": tokens.input, "completion_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
        },
    }))
}

const CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

/// Moderations have no usage.
pub(crate) fn moderation(body: &Value, paid: Paid<'_>) -> Value {
    let each = |value: Value| -> Map<String, Value> {
        CATEGORIES.into_iter().map(|category| (category.to_owned(), value.clone())).collect()
    };
    let results: Vec<_> = input_items(body)
        .into_iter()
        .map(|item| {
            let flagged = item.to_string().contains("[[flag]]");
            json!({
                "flagged": flagged, "categories": each(flagged.into()),
                "category_scores": each(json!(if flagged { 0.9 } else { 0.1 })),
                "category_applied_input_types": each(json!(["text"])),
            })
        })
        .collect();
    json!({"id": paid.id("modr-"), "model": body["model"], "results": results})
}

pub(crate) fn message(body: &Value, reply: &Reply, paid: Paid<'_>, tier: &str) -> Value {
    let marks = &reply.marks;
    let mut content = json!([{"type": "text", "text": reply.text, "citations": null}]);
    let mut details = Value::Null;
    let mut reason = "end_turn";
    if marks.has("refuse") {
        reason = "refusal";
        details = json!({"type": "refusal", "category": null, "explanation": reply.text});
    } else if marks.has("tool") {
        reason = "tool_use";
        content = json!([{
            "type": "tool_use", "id": format!("toolu_{}", reply.tag()), "name": tool_name(body),
            "input": tool_arguments(reply),
        }]);
    } else if marks.has("truncate") {
        reason = "max_tokens";
    }
    if marks.has("empty") || marks.has("nochoices") {
        content = json!([]);
    }
    let tokens = reply.tokens;
    let written = tokens.cached / 2;
    paid.sign(json!({
        "id": paid.id("msg_"), "type": "message", "role": "assistant", "model": paid.model, "content": content,
        "stop_reason": reason, "stop_sequence": null, "stop_details": details, "container": null,
        "usage": {
            // Anthropic counts what came from or went into its cache apart from the input.
            "input_tokens": tokens.input - tokens.cached, "output_tokens": tokens.output,
            "cache_creation_input_tokens": written, "cache_read_input_tokens": tokens.cached - written,
            "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
            "output_tokens_details": {"thinking_tokens": tokens.reasoning},
            "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
            "service_tier": tier, "inference_geo": null, "speed": null,
        },
    }))
}

/// The inputs of an embeddings or moderations body: a text, texts, one token list, or several of those.
pub(crate) fn input_items(body: &Value) -> Vec<&Value> {
    match body["input"].as_array() {
        Some(items) if items.first().is_some_and(|first| !is_integer(first)) => items.iter().collect(),
        _ => vec![&body["input"]],
    }
}

fn numbered(reply: &Reply, index: usize) -> String {
    if index == 0 { reply.text.clone() } else { format!("{} #{index}", reply.text) }
}

fn tool_name(body: &Value) -> &str {
    let tool = &body["tools"][0];
    tool["name"].as_str().or_else(|| tool["function"]["name"].as_str()).unwrap_or("lookup")
}

fn tool_arguments(reply: &Reply) -> Value {
    json!({"echo": reply.tag()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{problem::Provider, settings::Answers};

    const PAID: Paid<'_> = Paid { call: 7, model: "m", created: 10.0, sim_call_in_usage: true };

    fn reply(body: &Value) -> Reply {
        Reply::to(Provider::OpenAi, body, None, Answers::Tagged)
    }

    #[test]
    fn the_call_number_is_in_id_and_usage() {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 2});
        let answer = chat_completion(&body, &reply(&body), PAID);
        assert_eq!((&answer["id"], &answer["usage"]["sim_call"]), (&json!("chatcmpl-000000000007"), &json!(7)));
        assert_eq!(answer["choices"].as_array().map(Vec::len), Some(2));
        assert!(moderation(&json!({"input": "x"}), PAID).get("usage").is_none());
    }

    #[test]
    fn vectors_depend_on_the_one_input_only() {
        let together = json!({"model": "e", "input": ["a", "b"], "dimensions": 40});
        let alone = json!({"model": "e", "input": "b", "dimensions": 40});
        let vector =
            |body: &Value, index: usize| embeddings(body, &reply(body), PAID)["data"][index]["embedding"].clone();
        assert_eq!(vector(&together, 1), vector(&alone, 0));
        assert_ne!(vector(&together, 0), vector(&together, 1));
        assert_eq!(vector(&alone, 0).as_array().map(Vec::len), Some(40));
    }

    #[test]
    fn token_lists_are_one_input() {
        assert_eq!(input_items(&json!({"input": [1, 2, 3]})).len(), 1);
        assert_eq!(input_items(&json!({"input": [[1], [2]]})).len(), 2);
        assert_eq!(input_items(&json!({"input": "x"})).len(), 1);
    }
}
