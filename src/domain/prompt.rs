//! What one asks: an endpoint and a body, ready to be keyed and sent. How the bytes of a body become one: [`parse`].

mod forms;
mod lay;
mod parse;
mod validate;

use crate::domain::{batch::Options, json, problem::Problem, reader::Reader, route::Routes};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The provider endpoints a prompt may name. Strings are the providers' own paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Endpoint {
    #[serde(rename = "/v1/messages")]
    Messages,
    #[serde(rename = "/v1/chat/completions")]
    ChatCompletions,
    #[serde(rename = "/v1/responses")]
    Responses,
    #[serde(rename = "/v1/embeddings")]
    Embeddings,
    #[serde(rename = "/v1/moderations")]
    Moderations,
    #[serde(rename = "/v1/completions")]
    Completions,
}

/// What an Anthropic account takes; strings and `messages` go to the first.
pub(super) const ANTHROPIC_ENDPOINTS: &[Endpoint] = &[Endpoint::Messages];
/// What an OpenAI account takes; strings and `messages` go to the first.
pub(super) const OPENAI_ENDPOINTS: &[Endpoint] = &[
    Endpoint::ChatCompletions,
    Endpoint::Responses,
    Endpoint::Embeddings,
    Endpoint::Moderations,
    Endpoint::Completions,
];
/// Endpoints of the providers' batch APIs that we do not take: what they make is files, not answers.
const OTHER_ENDPOINTS: &[&str] = &["/v1/images/generations", "/v1/images/edits", "/v1/videos"];

impl Endpoint {
    pub const ALL: [Endpoint; 6] = [
        Endpoint::Messages,
        Endpoint::ChatCompletions,
        Endpoint::Responses,
        Endpoint::Embeddings,
        Endpoint::Moderations,
        Endpoint::Completions,
    ];

    pub fn path(self) -> &'static str {
        match self {
            Endpoint::Messages => "/v1/messages",
            Endpoint::ChatCompletions => "/v1/chat/completions",
            Endpoint::Responses => "/v1/responses",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Moderations => "/v1/moderations",
            Endpoint::Completions => "/v1/completions",
        }
    }

    /// False where asking again brings the same answer: then there are no samples, and identical prompts always share
    /// one answer, whatever the batch says of `repeats`.
    pub fn has_samples(self) -> bool {
        match self {
            Endpoint::Messages | Endpoint::ChatCompletions | Endpoint::Responses | Endpoint::Completions => true,
            Endpoint::Embeddings | Endpoint::Moderations => false,
        }
    }

    pub fn from_path(path: &str) -> Option<Endpoint> {
        Endpoint::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }
}

/// The two request headers a batch or prompt may set; both belong to Anthropic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ApiHeaders {
    /// `anthropic-version`; none for other providers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `anthropic-beta`, split at commas, sorted, without repeats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub betas: Vec<String>,
}

/// One prompt as it stands in the body, cut out and not yet read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptText {
    /// Its place among the prompts, from 0: the `index` of its results.
    pub position: u64,
    /// Its line in an NDJSON body, from 1, header and blank lines counted.
    pub line: Option<u64>,
    /// One JSON value.
    pub bytes: Bytes,
}

impl PromptText {
    /// Pointer to the prompt.
    pub fn pointer(&self) -> String {
        format!("/prompts/{}", self.position)
    }

    /// The client's own id of a prompt that could not be accepted, where at least that can be read.
    pub fn custom_id(&self) -> Option<String> {
        let members = json::members(&self.bytes)?;
        let (_, last) = members.into_iter().rfind(|(name, _)| name == "custom_id")?;
        forms::custom_id(&mut Reader::new("", None), json::parse(&last).ok()?)
    }
}

/// A prompt as it will be sent: routed, with every default laid in.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The configured provider name that will answer.
    pub account: String,
    /// Who answers, as the cache key has it.
    pub who: String,
    pub endpoint: Endpoint,
    pub model: String,
    /// For Anthropic the version is always set.
    pub headers: ApiHeaders,
    /// The client's own id; it never travels to a provider.
    pub custom_id: Option<String>,
    /// The whole request body, an object; numbers keep their digits.
    pub body: Value,
}

impl Prompt {
    /// Reads a prompt of any form and lays in what it lacks of the batch's options.
    ///
    /// Never `Ok` where the batch's own defaults could not be read ([`Options::parse`] told why); the `Err` then holds
    /// what else is wrong with the prompt, often nothing.
    pub fn parse(text: &PromptText, options: &Options, routes: &Routes) -> Result<Prompt, Vec<Problem>> {
        parse::parse(text, options, routes)
    }

    /// What it counts against a provider's limit on inputs, where there is one: an array of texts or of token lists has
    /// as many as it has items; a text, one token list and all else are one.
    pub fn inputs(&self) -> u64 {
        match self.body.get("input") {
            Some(Value::Array(items)) if !items.iter().all(Value::is_number) => items.len() as u64,
            _ => 1,
        }
    }

    /// The body as it is sent: compact JSON on one line, members as given (the last of duplicates), numbers as written.
    pub fn body_text(&self) -> Bytes {
        serde_json::to_vec(&self.body).expect("a value with text keys is always JSON").into()
    }
}

#[cfg(test)]
mod tests;
