//! What one gets for a prompt: an [`Outcome`]. Knows no provider's wire format and no order of results.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Tokens as the provider counted them, the same meaning for every provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Everything read, cached and cache-write tokens included (Anthropic reports them apart; they are added here).
    pub input_tokens: u64,
    pub cached_input_tokens: u64,
    pub output_tokens: u64,
}

/// Why the model stopped, in five words that hold for every provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    Stop,
    Length,
    Refusal,
    ToolUse,
    Other,
}

/// What we read out of a provider's body for the result line; the body itself is kept beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The model as the provider resolved it.
    pub model: Option<String>,
    /// The text of the first choice; none where an answer has no text (embeddings, tool calls, refusals).
    pub completion: Option<String>,
    pub finish: Option<Finish>,
    /// The provider's own word for `finish`.
    pub stop_reason: Option<String>,
    pub usage: Option<Usage>,
}

/// A provider's successful answer: its body as it came, byte for byte, and what we read in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub reading: Reading,
    /// One JSON value on one line (result files carry one line per answer).
    pub body: Bytes,
    /// The provider's id of this one request, where it gives one.
    pub request_id: Option<String>,
}

/// The per-prompt error codes of the public API, a closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    InvalidRequest,
    TooLarge,
    NotFound,
    RateLimited,
    Overloaded,
    ServerError,
    Timeout,
    EmptyAnswer,
    Missing,
    NotCached,
    Quarantined,
    Canceled,
    Expired,
}

impl FailureCode {
    /// Set where the prompt has no answer because its batch wanted no more.
    pub fn ending(self) -> Option<Ending> {
        match self {
            FailureCode::Canceled => Some(Ending::Canceled),
            FailureCode::Expired => Some(Ending::Expired),
            FailureCode::InvalidRequest
            | FailureCode::TooLarge
            | FailureCode::NotFound
            | FailureCode::RateLimited
            | FailureCode::Overloaded
            | FailureCode::ServerError
            | FailureCode::Timeout
            | FailureCode::EmptyAnswer
            | FailureCode::Missing
            | FailureCode::NotCached
            | FailureCode::Quarantined => None,
        }
    }
}

/// Why a batch wants no more answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Canceled,
    Expired,
}

impl Ending {
    pub fn failure(self) -> Failure {
        match self {
            Ending::Canceled => {
                Failure::ours(FailureCode::Canceled, "the batch was cancelled before this prompt was answered")
            }
            Ending::Expired => {
                Failure::ours(FailureCode::Expired, "the batch's deadline passed before this prompt was answered")
            }
        }
    }
}

/// Why one prompt has no answer. Data, not an `Err`: the batch goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: FailureCode,
    pub message: String,
    /// The provider's own code or error type, where it gave one.
    pub provider_code: Option<String>,
    /// Would asking again, unchanged, be worth it? The worker's retry and the client's advice in one.
    pub retryable: bool,
}

impl Failure {
    /// A failure of our own making: no provider's word stands behind it.
    pub fn ours(code: FailureCode, message: impl Into<String>) -> Failure {
        let retryable = matches!(code, FailureCode::Missing | FailureCode::Canceled | FailureCode::Expired);
        Failure { code, message: message.into(), provider_code: None, retryable }
    }

    /// An answer of a kind, and billed: whoever asks the same gets the same. A refusal is none: its cause may lie in what the
    /// question's key leaves out (the API version, who asks, how a number is written), and asking again costs nothing.
    pub fn is_final_word(&self) -> bool {
        self.code == FailureCode::EmptyAnswer
    }
}

/// What became of one prompt at the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answered(Answer),
    Failed(Failure),
}
