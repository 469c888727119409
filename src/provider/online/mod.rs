//! OpenAI-compatible servers without a batch API (vLLM, Ollama, llama.cpp): one request, one answer.
//! Knows nothing of how many are asked at once, nor of when one is asked again.
//!
//! ```text
//! 2xx with an answer                        Said      400 404 413 422, other 4xx      Said: that prompt fails
//! 2xx without one                           Said: it was worked on, so it is not asked again
//! 408 409 500 504, other 5xx                Again: costs the prompt an attempt
//! reset, silence, a 2xx that is no JSON     Again, lost: it may have been worked on
//! refused connection, 429 502 503 529       Trouble: the server is away or has enough; costs no attempt
//! 401 402 403 407 3xx, quota                Trouble: an operator must act
//! ```

mod compact;

use super::{
    CallError,
    exchange::Reply,
    faults::Envelope,
    openai::{self, wire::read_answer},
    registry::{Account, AccountError},
    transport::{Dialect, Transport, Unheard},
    verdict,
};
use crate::domain::{
    limits::BatchLimits,
    outcome::{Answer, Failure, FailureCode, Outcome},
    prompt::Endpoint,
};
use bytes::Bytes;
use reqwest::StatusCode;
use std::borrow::Cow;

const DIALECT: Dialect = Dialect { provider: "online", identity: &[], ..openai::DIALECT };

/// No server takes a larger request body.
const MAX_REQUEST: u64 = 200_000_000;

/// One server and its online endpoints.
pub struct Online {
    http: Transport,
}

/// What one request brought: the variants are what the caller does next.
#[derive(Debug)]
pub enum Asked {
    /// The server's last word on this prompt.
    Said(Outcome),
    /// Worth asking again, at the cost of one of the prompt's attempts. `lost`: it may have been worked on, and billed.
    Again { failure: Failure, lost: bool },
    /// The server is at fault, not the prompt: it wants to be left alone for a while, or until an operator acts.
    Trouble(CallError),
}

impl Online {
    /// Makes no call.
    pub(super) fn new(account: &Account) -> Result<Online, AccountError> {
        Ok(Online { http: Transport::online(account, &DIALECT)? })
    }

    /// The configured name, for ever: chunks remember it.
    pub fn account(&self) -> &str {
        &self.http.account
    }

    /// What a group of at most `group` prompts may hold; prompts of different models are kept apart, for many a server
    /// has only one in memory at a time.
    pub fn limits(group: usize) -> BatchLimits {
        BatchLimits {
            max_prompts: group,
            max_inputs: None,
            max_bytes: MAX_REQUEST,
            fixed_bytes: 0,
            line_bytes: 0,
            mixes_models: false,
        }
    }

    /// Whether the server answers and lets us in: asks for its list of models, which costs nothing. One that has no such
    /// list answers all the same.
    pub async fn models(&self) -> Result<(), CallError> {
        match self.http.look(&format!("list models of {}", self.account()), "/models").await {
            Ok(_) | Err(CallError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Asks once. Ends within the create time-out, plus what the answer's body takes to arrive.
    pub async fn ask(&self, endpoint: Endpoint, body: Bytes) -> Asked {
        let path = endpoint.path().strip_prefix("/v1").unwrap_or(endpoint.path());
        let what = format!("ask {}", endpoint.path());
        match self.http.ask(path, body).await {
            Ok(reply) if reply.status.is_success() => success(endpoint, &reply),
            Ok(reply) => self.failure(&what, &reply),
            Err(Unheard::Unsent(detail)) => {
                Asked::Trouble(CallError::Again { after: None, detail: format!("{what}: {detail}") })
            }
            Err(Unheard::Lost(detail)) => lost(FailureCode::ServerError, format!("no whole answer: {detail}")),
            Err(Unheard::Silent(detail)) => lost(FailureCode::Timeout, format!("no whole answer: {detail}")),
            Err(Unheard::TooLong(detail)) => Asked::Said(Outcome::Failed(Failure::ours(FailureCode::TooLarge, detail))),
        }
    }

    fn failure(&self, what: &str, reply: &Reply) -> Asked {
        let status = reply.status.as_u16();
        let of_prompt = || {
            let failure = verdict::failure(status, &Envelope::read(&reply.body), &DIALECT.pause);
            Failure { message: self.http.hide(failure.message), ..failure }
        };
        match self.http.failure(what, reply) {
            error @ CallError::Paused { .. } => Asked::Trouble(error),
            error @ CallError::Again { .. } if is_trouble(reply.status) => Asked::Trouble(error),
            CallError::Again { .. } => Asked::Again { failure: of_prompt(), lost: false },
            CallError::NotFound { .. } | CallError::Refused { .. } => Asked::Said(Outcome::Failed(of_prompt())),
        }
    }
}

/// Statuses that speak of the server and not of the prompt.
fn is_trouble(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 529)
}

fn lost(code: FailureCode, message: String) -> Asked {
    let failure = Failure { code, message, provider_code: None, retryable: true };
    Asked::Again { failure, lost: true }
}

fn success(endpoint: Endpoint, reply: &Reply) -> Asked {
    // Bytes that are no UTF-8 cost themselves, not the answer around them.
    let text = String::from_utf8_lossy(&reply.body);
    let Some(line) = compact::one_line(&text) else {
        return lost(FailureCode::ServerError, "the server's answer is no JSON object".to_owned());
    };
    match read_answer(endpoint, &line) {
        Ok(reading) => {
            let request_id = reply.headers.get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
            let body = match line {
                Cow::Borrowed(same) if same.len() == reply.body.len() => reply.body.clone(),
                other => Bytes::from(other.into_owned()),
            };
            Asked::Said(Outcome::Answered(Answer { reading, body, request_id }))
        }
        Err(failure) => {
            // Some servers tell of their errors with a 200.
            let envelope = Envelope::read(&reply.body);
            let message = envelope.message.clone().unwrap_or(failure.message);
            let provider_code = envelope.word().map(str::to_owned);
            Asked::Said(Outcome::Failed(Failure { message, provider_code, ..failure }))
        }
    }
}
