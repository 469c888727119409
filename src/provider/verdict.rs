//! What an error on a result line means for its prompt. Pure, and the same for every provider: they all speak in HTTP statuses.
//!
//! ```text
//! 400 422, other 4xx   InvalidRequest                  413  TooLarge         404  NotFound
//! 429                  RateLimited, retryable          503 529  Overloaded, retryable
//! 408 504              Timeout, retryable              500 502, other 5xx    ServerError, retryable
//! 401 402 403 409      ServerError, retryable: the account or the moment is at fault, not the prompt
//! ```

use super::{
    faults::{Envelope, PauseSigns},
    json,
};
use crate::domain::outcome::{Failure, FailureCode};

/// Characters of a provider's message that a prompt's failure keeps.
const MAX_MESSAGE: usize = 2000;

/// The failure of a prompt that was answered with this status and envelope.
pub(super) fn failure(status: u16, envelope: &Envelope, signs: &PauseSigns) -> Failure {
    let (code, retryable) = match status {
        429 => (FailureCode::RateLimited, true),
        _ if envelope.pauses(status, signs) => (FailureCode::ServerError, true),
        409 => (FailureCode::ServerError, true),
        404 => (FailureCode::NotFound, false),
        408 | 504 => (FailureCode::Timeout, true),
        413 => (FailureCode::TooLarge, false),
        503 | 529 => (FailureCode::Overloaded, true),
        500.. => (FailureCode::ServerError, true),
        _ => (FailureCode::InvalidRequest, false),
    };
    let message = match &envelope.message {
        Some(message) => json::shortened(message, MAX_MESSAGE),
        None => format!("the provider answered with status {status} and no message"),
    };
    Failure { code, message, provider_code: envelope.word().map(str::to_owned), retryable }
}

/// A 2xx without an answer in it: it was billed, so it is not asked again.
pub(super) fn empty(message: &str) -> Failure {
    Failure { code: FailureCode::EmptyAnswer, message: message.to_owned(), provider_code: None, retryable: false }
}

/// A line that says neither what the contract lets it say. It may have been billed, so it is not asked again.
pub(super) fn unreadable(word: Option<String>) -> Failure {
    let message = "the provider's result line is neither an answer nor an error".to_owned();
    Failure { code: FailureCode::ServerError, message, provider_code: word, retryable: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: PauseSigns = PauseSigns { codes: &["insufficient_quota"], phrases: &["credit balance"] };

    #[test]
    fn every_status_has_a_meaning() {
        use FailureCode::*;
        let cases = [
            (400, InvalidRequest, false),
            (422, InvalidRequest, false),
            (418, InvalidRequest, false),
            (404, NotFound, false),
            (413, TooLarge, false),
            (429, RateLimited, true),
            (503, Overloaded, true),
            (529, Overloaded, true),
            (500, ServerError, true),
            (502, ServerError, true),
            (599, ServerError, true),
            (504, Timeout, true),
            (408, Timeout, true),
            (401, ServerError, true),
            (402, ServerError, true),
            (403, ServerError, true),
            (409, ServerError, true),
        ];
        for (status, code, retryable) in cases {
            let failure = failure(status, &Envelope::default(), &NONE);
            assert_eq!((failure.code, failure.retryable), (code, retryable), "{status}");
        }
    }

    #[test]
    fn a_spent_account_is_not_the_prompts_fault() {
        let envelope = Envelope { message: Some("Your credit balance is too low".into()), ..Envelope::default() };
        assert!(failure(400, &envelope, &NONE).retryable);
        let envelope = Envelope { code: Some("insufficient_quota".into()), ..Envelope::default() };
        assert_eq!(failure(429, &envelope, &NONE).code, FailureCode::RateLimited);
    }

    #[test]
    fn messages_are_bounded() {
        let envelope = Envelope { message: Some("é".repeat(5000)), ..Envelope::default() };
        assert_eq!(failure(400, &envelope, &NONE).message.chars().count(), MAX_MESSAGE + 1);
    }
}
