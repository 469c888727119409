//! The model endpoints that batches and online calls share: one table of what differs between them.

use serde_json::Value;

use super::wire::{bad_value, missing, wrong_type};
use crate::sim::{
    answers::{self, Paid},
    json::truthy,
    oracle::{Reply, Tokens, dated},
    problem::{Problem, Provider},
    settings::Common,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Responses,
    ChatCompletions,
    Embeddings,
    Completions,
    Moderations,
}

impl Endpoint {
    pub(crate) const ALL: [Self; 5] =
        [Self::Responses, Self::ChatCompletions, Self::Embeddings, Self::Completions, Self::Moderations];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Responses => "/v1/responses",
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Completions => "/v1/completions",
            Self::Moderations => "/v1/moderations",
        }
    }

    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }

    /// As fault rules and the ledger call it.
    pub(crate) fn route_name(self) -> &'static str {
        match self {
            Self::Responses => "responses",
            Self::ChatCompletions => "chat.completions",
            Self::Embeddings => "embeddings",
            Self::Completions => "completions",
            Self::Moderations => "moderations",
        }
    }

    /// The member that a body needs besides `model`.
    pub(crate) fn member(self) -> &'static str {
        match self {
            Self::ChatCompletions => "messages",
            Self::Completions => "prompt",
            Self::Responses | Self::Embeddings | Self::Moderations => "input",
        }
    }

    /// What messages call it.
    pub(crate) fn product(self) -> &'static str {
        match self {
            Self::Responses => "Responses",
            Self::ChatCompletions => "Chat Completions",
            Self::Embeddings => "Embeddings",
            Self::Completions => "Completions",
            Self::Moderations => "Moderations",
        }
    }

    /// What the models answer to a body that has a model.
    pub(crate) fn reply(self, body: &Value, common: &Common) -> Reply {
        let mut reply = Reply::to(Provider::OpenAi, body, check_body(self, body), common.answers);
        match self {
            Self::Embeddings => reply.tokens = Tokens { input: reply.tokens.input, ..Tokens::default() },
            Self::Moderations => reply.tokens = Tokens::default(), // they are free
            Self::Responses | Self::ChatCompletions | Self::Completions => {}
        }
        reply
    }

    /// A success in this endpoint's shape.
    pub(crate) fn answer(self, body: &Value, reply: &Reply, call: u64, created: f64, common: &Common) -> Value {
        let model = shown_model(&reply.model, common);
        let paid = Paid { call, model: &model, created, sim_call_in_usage: common.sim_call_in_usage };
        match self {
            Self::Responses => answers::response(body, reply, paid),
            Self::ChatCompletions => answers::chat_completion(body, reply, paid),
            Self::Embeddings => answers::embeddings(body, reply, paid),
            Self::Completions => answers::completion(body, reply, paid),
            Self::Moderations => answers::moderation(body, paid),
        }
    }
}

/// The name that an answer gives for a model.
pub(crate) fn shown_model(model: &str, common: &Common) -> String {
    if common.dated_models { dated(model, "-2025-08-07") } else { model.to_owned() }
}

const ROLES: [&str; 6] = ["developer", "system", "user", "assistant", "tool", "function"];

/// What the endpoint itself refuses; of a batch's line this shows only when it is worked on.
pub(crate) fn check_body(endpoint: Endpoint, body: &Value) -> Option<Problem> {
    match endpoint {
        Endpoint::ChatCompletions => check_messages(&body["messages"]).err(),
        Endpoint::Embeddings if !truthy(&body["input"]) => {
            Some(Problem::invalid("'$.input' is invalid.").param("input"))
        }
        Endpoint::Embeddings | Endpoint::Responses | Endpoint::Completions | Endpoint::Moderations => None,
    }
}

fn check_messages(messages: &Value) -> Result<(), Problem> {
    let turns = messages.as_array().ok_or_else(|| wrong_type("messages", "an array of objects", messages))?;
    if turns.is_empty() {
        let message = "Invalid 'messages': empty array. Expected an array with minimum length 1.";
        return Err(Problem::invalid(message).param("messages").code("empty_array"));
    }
    for (number, turn) in turns.iter().enumerate() {
        let at = |member: &str| format!("messages[{number}].{member}");
        let role = turn.get("role").ok_or_else(|| missing(&at("role")))?;
        if !ROLES.iter().any(|known| role == known) {
            let given = role.as_str().map_or_else(|| role.to_string(), str::to_owned);
            return Err(bad_value(&at("role"), &given, ROLES));
        }
        if role == "user" && turn.get("content").is_none() {
            return Err(missing(&at("content")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bodies_are_checked_as_by_the_endpoint() {
        let check = |endpoint, body: Value, param: Option<&str>| {
            let problem = check_body(endpoint, &body);
            assert_eq!(problem.and_then(|problem| problem.param).as_deref(), param, "{body}");
        };
        check(Endpoint::ChatCompletions, json!({"messages": [{"role": "user", "content": "hi"}]}), None);
        check(
            Endpoint::ChatCompletions,
            json!({"messages": [{"role": "king", "content": "hi"}]}),
            Some("messages[0].role"),
        );
        check(Endpoint::ChatCompletions, json!({"messages": [{"role": "user"}]}), Some("messages[0].content"));
        check(Endpoint::ChatCompletions, json!({"messages": []}), Some("messages"));
        check(Endpoint::ChatCompletions, json!({"messages": "hi"}), Some("messages"));
        check(Endpoint::Embeddings, json!({"input": ""}), Some("input"));
        check(Endpoint::Responses, json!({"input": ""}), None);
    }

    #[test]
    fn paths_name_endpoints() {
        for endpoint in Endpoint::ALL {
            assert_eq!(Endpoint::of_path(endpoint.path()), Some(endpoint));
        }
        assert_eq!(Endpoint::of_path("/v1/images/edits"), None);
    }
}
