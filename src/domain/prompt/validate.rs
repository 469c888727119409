//! Light checks of a body: what would certainly fail a day later is said now. Providers add fields faster than we
//! release, so nothing is refused for being unknown.

use super::Endpoint;
use crate::domain::reader::Reader;
use serde_json::{Map, Value};

/// The member that says what is asked; every endpoint has one.
pub(super) struct Subject {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    /// Members that may say it instead.
    instead: &'static [&'static str],
    check: fn(&mut Reader, &str, &Value),
}

impl Subject {
    pub(super) fn of(endpoint: Endpoint) -> Subject {
        match endpoint {
            Endpoint::Messages | Endpoint::ChatCompletions => Subject {
                name: "messages",
                description: "the conversation, an array of messages",
                instead: &[],
                check: messages,
            },
            Endpoint::Responses => Subject {
                name: "input",
                description: "what to answer, a string or an array of items",
                instead: &["prompt", "previous_response_id", "conversation"],
                check: text_or_items,
            },
            Endpoint::Embeddings => Subject {
                name: "input",
                description: "what to embed, a string, an array of tokens, or an array of such",
                instead: &[],
                check: text_or_items,
            },
            Endpoint::Moderations => Subject {
                name: "input",
                description: "what to judge, a string, or an array of texts or of parts",
                instead: &[],
                check: text_or_items,
            },
            Endpoint::Completions => Subject {
                name: "prompt",
                description: "what to go on from, a string, an array of tokens, or an array of such",
                instead: &[],
                check: text_or_items,
            },
        }
    }

    pub(super) fn is_elsewhere(&self, body: &Map<String, Value>) -> bool {
        self.instead.iter().any(|name| body.get(*name).is_some_and(|value| !value.is_null()))
    }

    /// Looks at the member itself, at `pointer`.
    pub(super) fn check(&self, reader: &mut Reader, pointer: &str, value: &Value) {
        (self.check)(reader, pointer, value);
    }
}

fn text_or_items(reader: &mut Reader, pointer: &str, value: &Value) {
    match value {
        Value::String(_) => {}
        Value::Array(items) if !items.is_empty() => {}
        _ => reader.note(pointer, "must be a string or an array that is not empty"),
    }
}

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
        (
            Endpoint::ChatCompletions
            | Endpoint::Responses
            | Endpoint::Embeddings
            | Endpoint::Moderations
            | Endpoint::Completions,
            _,
        ) => None,
        (Endpoint::Messages, None | Some(Value::Null)) => Some("is missing: anthropic requires it"),
        (Endpoint::Messages, Some(Value::Number(number))) if crate::domain::reader::integer(number) > Some(0) => None,
        (Endpoint::Messages, Some(_)) => Some("must be a whole number of at least 1"),
    }
}
