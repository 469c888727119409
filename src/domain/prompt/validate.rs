//! Light checks of a body: what would certainly fail a day later is said now. Providers add fields faster than we
//! release, so nothing is refused for being unknown.

use super::Endpoint;
use crate::domain::reader::Reader;
use serde_json::Value;

/// `messages` as the prompt's author wrote them.
pub(super) fn messages(reader: &mut Reader, pointer: &str, messages: &Value) {
    let messages = match messages {
        Value::Array(messages) if !messages.is_empty() => messages,
        _ => return reader.note(pointer, "must be an array of at least one message"),
    };
    for (n, message) in messages.iter().enumerate() {
        let Some(members) = message.as_object() else {
            reader.note(&format!("{pointer}/{n}"), "must be an object with `role` and `content`");
            continue;
        };
        let role = members.get("role").and_then(Value::as_str).unwrap_or_default();
        if role.is_empty() {
            reader.note(
                &format!("{pointer}/{n}/role"),
                "must be a string: `user`, `assistant` or another role the provider knows",
            );
        }
        match members.get("content") {
            Some(Value::String(_) | Value::Array(_)) => {}
            // An assistant's turn may be tool calls, a refusal or audio alone.
            None | Some(Value::Null) if role == "assistant" => {}
            _ => reader.note(&format!("{pointer}/{n}/content"), "must be a string or an array of content blocks"),
        }
    }
}

/// The cap Anthropic asks for. `None` where it is there.
pub(super) fn missing_cap(endpoint: Endpoint, cap: Option<&Value>) -> Option<&'static str> {
    match (endpoint, cap) {
        (Endpoint::ChatCompletions, _) => None,
        (Endpoint::Messages, None | Some(Value::Null)) => Some("is missing: anthropic requires it"),
        (Endpoint::Messages, Some(Value::Number(number))) if crate::domain::reader::integer(number) > Some(0) => None,
        (Endpoint::Messages, Some(_)) => Some("must be a whole number of at least 1"),
    }
}
