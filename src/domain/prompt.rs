//! What one asks: an endpoint and a body, ready to be keyed and sent. How the bytes of a body become one: [`parse`].

mod forms;
mod lay;
mod parse;
mod validate;

use crate::domain::{batch::Options, problem::Problem, route::Routes};
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
}

/// What an Anthropic account takes; strings and `messages` go to the first.
pub(super) const ANTHROPIC_ENDPOINTS: &[Endpoint] = &[Endpoint::Messages];
/// What an OpenAI account takes; strings and `messages` go to the first.
pub(super) const OPENAI_ENDPOINTS: &[Endpoint] = &[Endpoint::ChatCompletions];
/// Endpoints of the providers' batch APIs that we do not take yet.
const LATER_ENDPOINTS: &[&str] = &["/v1/responses", "/v1/embeddings", "/v1/moderations", "/v1/completions"];

impl Endpoint {
    pub const ALL: [Endpoint; 2] = [Endpoint::Messages, Endpoint::ChatCompletions];

    pub fn path(self) -> &'static str {
        match self {
            Endpoint::Messages => "/v1/messages",
            Endpoint::ChatCompletions => "/v1/chat/completions",
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

    /// The body as it is sent: compact JSON on one line, members as given (the last of duplicates), numbers as written.
    pub fn body_text(&self) -> Bytes {
        serde_json::to_vec(&self.body).expect("a value with text keys is always JSON").into()
    }
}

#[cfg(test)]
mod tests;
