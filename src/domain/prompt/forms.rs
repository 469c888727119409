//! The five ways to write a prompt, each read into one [`Draft`]. Nothing of the batch is laid in here.

use super::{Endpoint, OTHER_ENDPOINTS};
use crate::domain::{
    problem::quote,
    reader::{Fields, Reader},
};
use serde_json::{Map, Value, json};

/// A prompt as its author wrote it, whatever the form.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) custom_id: Option<String>,
    /// None: the first endpoint of whoever answers the model.
    pub(super) endpoint: Option<Endpoint>,
    /// Members of the body in the provider's own words: a native or facade body, or the `params` beside `messages`.
    pub(super) own: Map<String, Value>,
    /// Where `own` stands, relative to the prompt.
    pub(super) own_at: &'static str,
    /// The prompt's own fields; the `params` among them only of a native body, as they come after it.
    pub(super) fields: Fields,
    pub(super) messages: Option<Value>,
    pub(super) system: Option<Value>,
    /// A line of a provider's own file: gets nothing laid in.
    pub(super) facade: bool,
}

/// Reads any form; none if it is not even clear which one is meant.
pub(super) fn draft(reader: &mut Reader, value: Value) -> Option<Draft> {
    let members = match value {
        Value::String(text) => {
            let messages = json!([{"role": "user", "content": text}]);
            return Some(Draft { messages: Some(messages), ..Draft::default() });
        }
        Value::Object(members) => members,
        _ => {
            reader.note("", "must be a string or an object");
            return None;
        }
    };
    let has = |name: &str| members.contains_key(name);
    if has("batch") {
        reader.note(
            "/batch",
            "the header of an NDJSON body is its first line, and `batch`, an object, is all there is in it",
        );
        None
    } else if has("url") || has("method") {
        openai_line(reader, members)
    } else if has("endpoint") || has("body") {
        native(reader, members)
    } else if !has("messages") && members.get("params").is_some_and(is_request) {
        anthropic_line(reader, members)
    } else {
        Some(messages(reader, members))
    }
}

/// `params` that are a whole request: how an Anthropic batch line is told from a prompt that lacks its `messages`.
fn is_request(params: &Value) -> bool {
    params.get("messages").is_some() || params.get("model").is_some()
}

/// `{messages, system?, model?, max_tokens?, params?, headers?, custom_id?}`
fn messages(reader: &mut Reader, members: Map<String, Value>) -> Draft {
    let mut draft = Draft { own_at: "/params", ..Draft::default() };
    for (name, value) in members {
        match name.as_str() {
            _ if value.is_null() && KNOWN.contains(&name.as_str()) => {}
            "messages" => draft.messages = Some(value),
            "system" if value.is_string() || value.is_array() => draft.system = Some(value),
            "system" => reader.note("/system", "must be a string or an array of text blocks"),
            "custom_id" => draft.custom_id = custom_id(reader, value),
            _ if reader.shared(&mut draft.fields, &name, value) => {}
            _ => reader.unknown("", &name),
        }
    }
    draft.own = std::mem::take(&mut draft.fields.params);
    if draft.messages.is_none() {
        reader.note("/messages", "is missing: a prompt is a string, or has `messages`, or `endpoint` and `body`");
    } else if draft.own.contains_key("messages") {
        reader.note("/params/messages", "stands beside `messages` too: keep one of them");
    }
    draft
}

/// `{endpoint, body, custom_id?, model?, max_tokens?, params?, headers?}`
fn native(reader: &mut Reader, members: Map<String, Value>) -> Option<Draft> {
    let mut draft = Draft { own_at: "/body", ..Draft::default() };
    let mut body = None;
    let mut path = None;
    for (name, value) in members {
        match name.as_str() {
            "endpoint" => path = Some(value),
            "body" => body = Some(value),
            _ if value.is_null() && KNOWN.contains(&name.as_str()) => {}
            "custom_id" => draft.custom_id = custom_id(reader, value),
            "messages" | "system" => reader.note(&format!("/{name}"), format!("put `{name}` into `body`")),
            _ if reader.shared(&mut draft.fields, &name, value) => {}
            _ => reader.unknown("", &name),
        }
    }
    draft.endpoint = endpoint(reader, "/endpoint", path.as_ref());
    draft.own = whole(reader, "/body", body)?;
    draft.endpoint.is_some().then_some(draft)
}

/// `{custom_id, method, url, body}`, a line of an OpenAI batch file.
fn openai_line(reader: &mut Reader, members: Map<String, Value>) -> Option<Draft> {
    let mut draft = Draft { own_at: "/body", facade: true, ..Draft::default() };
    let mut body = None;
    let mut url = None;
    for (name, value) in members {
        match name.as_str() {
            "url" => url = Some(value),
            "body" => body = Some(value),
            "custom_id" if value.is_null() => {}
            "custom_id" => draft.custom_id = custom_id(reader, value),
            "method" if value == "POST" => {}
            "method" => reader.note("/method", "must be `POST`"),
            _ => unknown_in_line(reader, &name, "body"),
        }
    }
    draft.endpoint = endpoint(reader, "/url", url.as_ref());
    draft.own = whole(reader, "/body", body)?;
    draft.endpoint.is_some().then_some(draft)
}

/// `{custom_id, params}`, a line of an Anthropic batch.
fn anthropic_line(reader: &mut Reader, members: Map<String, Value>) -> Option<Draft> {
    let mut draft = Draft { own_at: "/params", facade: true, endpoint: Some(Endpoint::Messages), ..Draft::default() };
    let mut params = None;
    for (name, value) in members {
        match name.as_str() {
            "params" => params = Some(value),
            "custom_id" if value.is_null() => {}
            "custom_id" => draft.custom_id = custom_id(reader, value),
            _ => unknown_in_line(reader, &name, "params"),
        }
    }
    draft.own = whole(reader, "/params", params)?;
    Some(draft)
}

/// Members of ours for which null means not given.
const KNOWN: [&str; 7] = ["messages", "system", "model", "max_tokens", "params", "headers", "custom_id"];

fn unknown_in_line(reader: &mut Reader, name: &str, home: &str) {
    let message = format!("unknown field {}: put it into `{home}` if it is meant for the provider", quote(name));
    reader.note(&crate::domain::problem::join("", name), message);
}

/// 1 to 256 characters of any kind: it comes back in results and never travels to a provider, so no alphabet is asked
/// for; the bound keeps result lines small.
pub(super) fn custom_id(reader: &mut Reader, value: Value) -> Option<String> {
    reader.text("/custom_id", value, 256)
}

fn whole(reader: &mut Reader, pointer: &str, body: Option<Value>) -> Option<Map<String, Value>> {
    match body {
        Some(body) => reader.object(pointer, body),
        None => {
            reader.note(pointer, "is missing: put the whole request here, an object");
            None
        }
    }
}

fn endpoint(reader: &mut Reader, pointer: &str, path: Option<&Value>) -> Option<Endpoint> {
    let supported = || Endpoint::ALL.map(|endpoint| format!("`{}`", endpoint.path())).join(", ");
    let Some(path) = path.and_then(Value::as_str) else {
        reader.note(pointer, format!("must name the provider's endpoint: one of {}", supported()));
        return None;
    };
    let found = Endpoint::from_path(path);
    if found.is_none() {
        let why = if OTHER_ENDPOINTS.contains(&path) { "is not supported" } else { "is no endpoint of a batch" };
        reader.note(pointer, format!("{} {why}: use one of {}", quote(path), supported()));
    }
    found
}
