//! What is wrong with a Messages body. In a batch this errs the one request, and only at the end.

use serde_json::Value;

use crate::sim::json::{is_integer, truthy};

/// Batches refuse some members that online calls take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Online,
    Batch,
}

const NOT_IN_BATCH: [&str; 5] = ["speed", "store", "previous_thread_event_id", "cache_hint", "context_hint"];
const ROLES: [&str; 3] = ["user", "assistant", "system"];

/// The first thing that is wrong, in the provider's words.
pub(crate) fn params(params: &Value, place: Where) -> Option<String> {
    if !params.is_object() {
        return Some("Input should be a valid dictionary".into());
    }
    if let Some(name) = ["model", "max_tokens", "messages"].into_iter().find(|name| params.get(name).is_none()) {
        return Some(format!("{name}: Field required"));
    }
    if params["model"].as_str().is_none_or(str::is_empty) {
        return Some("model: String should have at least 1 character".into());
    }
    if !is_integer(&params["max_tokens"]) {
        return Some("max_tokens: Input should be a valid integer".into());
    }
    if params["max_tokens"].as_f64().is_none_or(|most| most < 1.0) {
        return Some("max_tokens: Input should be greater than or equal to 1".into());
    }
    messages(&params["messages"]).or_else(|| if place == Where::Batch { not_in_batch(params) } else { None })
}

fn messages(messages: &Value) -> Option<String> {
    let Some(turns) = messages.as_array().filter(|turns| !turns.is_empty()) else {
        return Some("messages: at least one message is required".into());
    };
    turns.iter().enumerate().find_map(|(number, turn)| {
        if !ROLES.iter().any(|role| turn["role"] == *role) {
            return Some(format!("messages.{number}.role: Input should be 'user' or 'assistant'"));
        }
        turn.get("content").is_none().then(|| format!("messages.{number}.content: Field required"))
    })
}

fn not_in_batch(params: &Value) -> Option<String> {
    if truthy(&params["stream"]) {
        return Some("stream: streaming is not supported in batches".into());
    }
    if params["research_preview_2026_02"] == "active" {
        return Some("research_preview_2026_02: not supported in batches".into());
    }
    let name = NOT_IN_BATCH.into_iter().find(|name| params.get(name).is_some())?;
    Some(format!("{name}: not supported in batches"))
}

/// What version 2026-10-21 no longer takes, in a body that is otherwise right.
pub(crate) fn version(params: &Value, version: &str) -> Option<String> {
    if version < "2026-10-21" {
        return None;
    }
    if let Some(name) = ["temperature", "top_p", "top_k"].into_iter().find(|name| params.get(name).is_some()) {
        return Some(format!("{name}: Extra inputs are not permitted"));
    }
    let turns = params["messages"].as_array().into_iter().flatten().enumerate();
    let mut blocks = turns.flat_map(|(number, turn)| {
        turn["content"].as_array().into_iter().flatten().map(move |block| (number, &turn["role"], block))
    });
    blocks.find_map(|(number, role, block)| {
        if role == "assistant" && block["type"] == "document" {
            return Some(format!("messages.{number}.content: document blocks are not permitted in assistant messages"));
        }
        let cites = role == "user" && block["type"] == "text" && truthy(&block["citations"]);
        cites.then(|| format!("messages.{number}.content: citations are not permitted on user text blocks"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(name: &str, value: Value) -> Value {
        let mut body = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
        body[name] = value;
        body
    }

    #[test]
    fn bodies_are_checked_as_by_the_provider() {
        let check = |body: Value, start: Option<&str>| {
            let problem = params(&body, Where::Batch);
            let same = match (&problem, start) {
                (Some(problem), Some(start)) => problem.starts_with(start),
                (problem, start) => problem.is_none() && start.is_none(),
            };
            assert!(same, "{body}: {problem:?}");
        };
        check(with("system", json!("s")), None);
        check(json!([]), Some("Input"));
        check(with("model", json!("")), Some("model:"));
        check(with("max_tokens", json!(0)), Some("max_tokens: Input should be greater"));
        check(with("max_tokens", json!("1")), Some("max_tokens: Input should be a valid"));
        check(with("messages", json!([])), Some("messages: at least"));
        check(with("messages", json!([{"role": "king", "content": ""}])), Some("messages.0.role"));
        check(with("messages", json!([{"role": "user"}])), Some("messages.0.content"));
        check(with("stream", json!(true)), Some("stream:"));
        check(with("speed", json!("fast")), Some("speed:"));
        assert_eq!(params(&with("stream", json!(true)), Where::Online), None);
    }

    #[test]
    fn the_new_version_refuses_sampling_parameters() {
        let body = with("temperature", json!(1.0));
        assert!(version(&body, "2026-10-21").is_some() && version(&body, "2023-06-01").is_none());
        let cited = json!([{"role": "user", "content": [{"type": "text", "text": "x", "citations": [1]}]}]);
        assert!(version(&with("messages", cited), "2026-10-21").is_some());
    }
}
