//! Lays what a prompt lacks into its body. Who says more closely wins:
//!
//! ```text
//! prompt's body or params  >  prompt's fields  >  batch's params  >  batch's fields
//! ```
//!
//! The cap on tokens counts as one thing, however it is spelled: a spelling further down never joins one further up.
//! Where an endpoint writes no tokens, our `max_tokens` has nothing to cap and goes nowhere.
//! Facade lines get nothing. What the values are is looked at in `validate.rs`, once everything is in place.

use super::{Endpoint, forms::Draft};
use crate::domain::{batch::Options, reader::Reader, route::Route};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// A body on its way, and where its members came from, to say where they can be mended.
pub(super) struct Laid {
    pub(super) body: Map<String, Value>,
    /// Members from outside the prompt's own body, and the pointer to what held them.
    added: Vec<(String, &'static str)>,
    cap: &'static [&'static str],
}

type Member<'a> = (Cow<'a, str>, Cow<'a, Value>);

impl Laid {
    /// Pointer to a member as the prompt's author wrote it, or could have written it.
    pub(super) fn source(&self, own_at: &str, name: &str) -> String {
        let home = self.added.iter().find(|(added, _)| added == name).map_or(own_at, |(_, home)| home);
        format!("{home}/{name}")
    }

    /// Adds what is not there yet.
    fn layer<'a>(&mut self, home: &'static str, members: impl Iterator<Item = Member<'a>>) {
        let capped = self.cap.iter().any(|spelling| self.body.contains_key(*spelling));
        for (name, value) in members {
            let taken = self.body.contains_key(&*name) || (capped && self.cap.contains(&&*name));
            if !taken {
                self.added.push((name.clone().into_owned(), home));
                self.body.insert(name.into_owned(), value.into_owned());
            }
        }
    }
}

/// The finished body of a draft.
pub(super) fn lay(
    reader: &mut Reader,
    draft: &mut Draft,
    options: &Options,
    route: &Route,
    endpoint: Endpoint,
) -> Laid {
    let mut laid = Laid { body: std::mem::take(&mut draft.own), added: Vec::new(), cap: cap_spellings(endpoint) };
    if draft.facade {
        return laid;
    }
    let cap_name = cap_name(endpoint, &route.who);
    let (own, batch) = (&mut draft.fields, &options.fields);

    laid.layer("/params", std::mem::take(&mut own.params).into_iter().map(owned));
    let mut own_fields = Map::new();
    if let Some(messages) = draft.messages.take() {
        converse(reader, endpoint, messages, draft.system.take(), &mut own_fields);
    }
    own_fields.extend(own.model.take().map(|model| ("model".into(), model.into())));
    own_fields.extend(cap_name.zip(own.max_tokens).map(|(name, tokens)| (name.into(), tokens.into())));
    laid.layer("", own_fields.into_iter().map(owned));

    // Borrowed: the batch's tools and schemas are cloned only into prompts that do not bring their own.
    laid.layer("", batch.params.iter().map(|(name, value)| (Cow::from(name), Cow::Borrowed(value))));
    let model = batch.model.as_deref().map(|model| ("model".into(), Cow::Owned(model.into())));
    let max_tokens = cap_name.zip(batch.max_tokens).map(|(name, tokens)| (name.into(), Cow::Owned(tokens.into())));
    laid.layer("", model.into_iter().chain(max_tokens));
    laid
}

fn owned((name, value): (String, Value)) -> Member<'static> {
    (Cow::Owned(name), Cow::Owned(value))
}

/// Every name under which a body may already cap its answer; then none is laid in.
fn cap_spellings(endpoint: Endpoint) -> &'static [&'static str] {
    match endpoint {
        Endpoint::Messages => &["max_tokens"],
        Endpoint::ChatCompletions | Endpoint::Responses | Endpoint::Completions => {
            &["max_completion_tokens", "max_tokens", "max_output_tokens"]
        }
        Endpoint::Embeddings | Endpoint::Moderations => &[],
    }
}

/// The name under which our `max_tokens` travels; none where no tokens are written. OpenAI's newer chat models refuse
/// the old name, and the servers that speak its protocol often know no other.
fn cap_name(endpoint: Endpoint, who: &str) -> Option<&'static str> {
    match endpoint {
        Endpoint::ChatCompletions if who == "openai" => Some("max_completion_tokens"),
        Endpoint::Messages | Endpoint::ChatCompletions | Endpoint::Completions => Some("max_tokens"),
        Endpoint::Responses => Some("max_output_tokens"),
        Endpoint::Embeddings | Endpoint::Moderations => None,
    }
}

/// Puts `messages` and `system` where this provider has them: Anthropic's `system` is a member of the body, OpenAI's the
/// first message. Leading system messages are the same thing in other words.
fn converse(
    reader: &mut Reader,
    endpoint: Endpoint,
    messages: Value,
    system: Option<Value>,
    body: &mut Map<String, Value>,
) {
    let Value::Array(mut messages) = messages else {
        body.insert("messages".into(), messages);
        return;
    };
    let leading =
        messages.iter().take_while(|message| message.get("role").is_some_and(|role| role == "system")).count();
    if system.is_some() && leading > 0 {
        reader.note("/system", "the messages begin with a system message too: keep one of them");
    }
    match endpoint {
        Endpoint::Messages => {
            let lifted: Vec<Value> = messages.drain(..leading).collect();
            if messages.is_empty() && leading > 0 {
                reader.note("/messages", "hold nothing but system messages: add what the user says");
            }
            let system = system.or_else(|| join_system(reader, lifted));
            body.extend(system.map(|system| ("system".into(), system)));
        }
        // Of OpenAI's, conversations only ever go to chat.
        Endpoint::ChatCompletions
        | Endpoint::Responses
        | Endpoint::Embeddings
        | Endpoint::Moderations
        | Endpoint::Completions => {
            if let Some(system) = system {
                messages.insert(0, json!({"role": "system", "content": system}));
            }
        }
    }
    body.insert("messages".into(), messages.into());
}

/// One system message keeps its content as it is; several become the blocks of one.
fn join_system(reader: &mut Reader, messages: Vec<Value>) -> Option<Value> {
    let several = messages.len() > 1;
    let mut blocks = Vec::new();
    for (n, message) in messages.into_iter().enumerate() {
        let Value::Object(mut members) = message else { continue };
        if members.keys().any(|name| name != "role" && name != "content") {
            reader.note(&format!("/messages/{n}"), "anthropic takes only the content of a system message: put blocks with what else you need into `system`");
        }
        match members.remove("content") {
            Some(content) if !several => return Some(content),
            Some(Value::String(text)) => blocks.push(json!({"type": "text", "text": text})),
            Some(Value::Array(own)) => blocks.extend(own),
            // Found by the check of the messages.
            _ => {}
        }
    }
    (!blocks.is_empty()).then_some(Value::Array(blocks))
}
