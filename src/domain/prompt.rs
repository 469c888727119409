//! What one asks: an endpoint and a body, ready to be keyed and sent.

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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `anthropic-beta`, split at commas, sorted, without repeats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub betas: Vec<String>,
}

/// A prompt as it will be sent: routed, with every default laid in.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The configured provider name that will answer.
    pub account: String,
    pub endpoint: Endpoint,
    pub model: String,
    pub headers: ApiHeaders,
    /// The client's own id; it never travels to a provider.
    pub custom_id: Option<String>,
    /// The whole request body, an object; numbers keep their digits.
    pub body: Value,
}
