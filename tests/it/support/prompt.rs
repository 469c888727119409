//! A prompt that knows its answer. The body the provider must be asked, and the text it then says, are worked out here
//! from the product page and the simulators' manual alone: an independent second opinion.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

pub(crate) const CLAUDE: &str = "claude-haiku-4-5";
pub(crate) const GPT: &str = "gpt-5-mini";
/// What every batch of the suite says unless it says something else.
pub(crate) const MAX_TOKENS: u64 = 100;

#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    /// As it stands in the batch.
    pub(crate) sent: Value,
    /// As the provider must get it.
    pub(crate) body: Value,
    pub(crate) custom_id: Option<String>,
    pub(crate) expected: Expected,
}

#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// The echo of the body and its last user text.
    Echo,
    /// A success that says something else.
    Answer { completion: Value, finish: &'static str },
    /// A failure of this code; `billed` if the provider charges for it all the same.
    Failure { code: &'static str, billed: bool },
}

/// A string for the batch's default model.
pub(crate) fn claude(text: &str) -> Prompt {
    let messages = json!([{"role": "user", "content": text}]);
    let body = json!({"model": CLAUDE, "max_tokens": MAX_TOKENS, "messages": messages});
    Prompt { sent: text.into(), body, custom_id: None, expected: Expected::Echo }
}

/// Messages for OpenAI.
pub(crate) fn gpt(text: &str) -> Prompt {
    let messages = json!([{"role": "user", "content": text}]);
    let body = json!({"model": GPT, "max_completion_tokens": MAX_TOKENS, "messages": messages});
    let sent = json!({"model": GPT, "messages": messages});
    Prompt { sent, body, custom_id: None, expected: Expected::Echo }
}

/// So many prompts for each of the two providers, by turns.
pub(crate) fn mixed(name: &str, count: usize) -> Vec<Prompt> {
    (0..count).flat_map(|n| [claude(&format!("{name} {n}")), gpt(&format!("{name} {n}"))]).collect()
}

impl Prompt {
    /// Any form of prompt, and the body it means.
    pub(crate) fn new(sent: Value, body: Value) -> Prompt {
        let custom_id = sent["custom_id"].as_str().map(str::to_owned);
        Prompt { sent, body, custom_id, expected: Expected::Echo }
    }

    /// The same prompt under a name of the client's. A bare string becomes messages.
    pub(crate) fn named(mut self, name: &str) -> Prompt {
        if self.sent.is_string() {
            self.sent = json!({"messages": self.body["messages"]});
        }
        self.sent["custom_id"] = name.into();
        self.custom_id = Some(name.to_owned());
        self
    }

    pub(crate) fn fails(self, code: &'static str) -> Prompt {
        Prompt { expected: Expected::Failure { code, billed: false }, ..self }
    }

    pub(crate) fn fails_billed(self, code: &'static str) -> Prompt {
        Prompt { expected: Expected::Failure { code, billed: true }, ..self }
    }

    pub(crate) fn answers(self, completion: impl Into<Value>, finish: &'static str) -> Prompt {
        Prompt { expected: Expected::Answer { completion: completion.into(), finish }, ..self }
    }

    pub(crate) fn provider(&self) -> &'static str {
        if self.body["model"].as_str().is_some_and(|model| model.starts_with("claude")) {
            "anthropic"
        } else {
            "openai"
        }
    }

    /// What the simulated model says to this body when nothing steers it.
    pub(crate) fn echo(&self) -> String {
        format!("echo {} | {}", &self.sha()[..16], self.last_user_text())
    }

    /// Does the provider charge for it?
    pub(crate) fn is_billed(&self) -> bool {
        !matches!(self.expected, Expected::Failure { billed: false, .. })
    }

    pub(crate) fn succeeds(&self) -> bool {
        !matches!(self.expected, Expected::Failure { .. })
    }

    /// SHA-256 of the canonical body, in hex.
    pub(crate) fn sha(&self) -> String {
        let digest = Sha256::digest(canonical(&self.body));
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Tokens the simulated model counts in this body, cached ones included.
    pub(crate) fn input_tokens(&self) -> u64 {
        canonical(&self.body).len() as u64 / 4 + 1
    }

    pub(crate) fn last_user_text(&self) -> String {
        if let Some(text) = ["input", "prompt"].iter().find_map(|name| self.body[name].as_str()) {
            return text.to_owned();
        }
        let messages = self.body["messages"].as_array().expect("a body has messages");
        let user = messages.iter().rev().find(|message| message["role"] == "user").expect("somebody asks something");
        match &user["content"] {
            Value::String(text) => text.clone(),
            Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            other => panic!("content is neither text nor parts: {other}"),
        }
    }
}

/// Members that do not change what a model says.
const IRRELEVANT: [&str; 9] = [
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "user",
];

/// Compact JSON with sorted members, raw UTF-8, without the irrelevant members. Numbers must need no exponent.
fn canonical(body: &Value) -> String {
    let members = body.as_object().expect("a body is an object");
    let kept: Map<String, Value> = members
        .iter()
        .filter(|(name, _)| !IRRELEVANT.contains(&name.as_str()))
        .map(|(n, v)| (n.clone(), v.clone()))
        .collect();
    sorted(&Value::Object(kept))
}

fn sorted(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut pairs: Vec<(&String, &Value)> = members.iter().collect();
            pairs.sort_by_key(|(name, _)| name.as_str());
            let pairs: Vec<String> = pairs
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.clone()), sorted(value)))
                .collect();
            format!("{{{}}}", pairs.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(sorted).collect::<Vec<_>>().join(",")),
        scalar => scalar.to_string(),
    }
}
