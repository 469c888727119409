//! What a call's failure means: from status, headers and error envelope to a [`CallError`]. Pure; knows both envelopes
//! (`{"error": {...}}`, with Anthropic's `"type": "error"` around it or not) and bodies that are no JSON at all.
//!
//! ```text
//! 401 402 403 407, quota and spend      Paused     an operator must act
//! the enqueued-token limit              Refused    as token_limit_exceeded, whatever the status: back-pressure
//! 3xx                                   Paused     the base URL is not where the provider is
//! 404, 400 about `input_file_id`        NotFound   patience: what was just made may not be visible yet
//! 408 409 429 5xx 529                   Again
//! anything else                         Refused    400 413 422: repeating will not cure it
//! ```

use super::{CallError, PROVIDER_SAYS, json, json::Members};
use jiff::{Timestamp, fmt::rfc2822};
use reqwest::{
    StatusCode,
    header::{DATE, HeaderMap, RETRY_AFTER},
};
use std::time::Duration;

/// The code of the limit on enqueued tokens.
pub(super) const TOKEN_LIMIT: &str = "token_limit_exceeded";

/// Characters of a provider's message that may enter an error text: enough to act on, too few for a prompt.
const MAX_MESSAGE: usize = 300;

/// What a provider says when it is the account, not the call, that it has had enough of.
pub(super) struct PauseSigns {
    /// Words of `type`, `code` or `details.error_code`, with any status.
    pub codes: &'static [&'static str],
    /// Pieces of a 400's message, in lower case: Anthropic has no code for its spend and credit limits.
    pub phrases: &'static [&'static str],
}

/// An error envelope, as far as it could be read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Envelope {
    pub kind: Option<String>,
    pub code: Option<String>,
    pub param: Option<String>,
    pub message: Option<String>,
    pub detail_code: Option<String>,
}

impl Envelope {
    pub(super) fn read(body: &[u8]) -> Envelope {
        let Some(outer) = Members::read_bytes(body) else { return Envelope::default() };
        match outer.object("error") {
            Some(error) => Envelope::of(&error),
            // Compatible servers: {"error": "text"}, {"message": "text"}.
            None => Envelope { message: outer.word("error").or_else(|| outer.word("message")), ..Envelope::default() },
        }
    }

    /// The innermost object, the one with the message.
    pub(super) fn of(error: &Members<'_>) -> Envelope {
        Envelope {
            kind: error.word("type"),
            code: error.code("code"),
            param: error.word("param"),
            message: error.text("message"),
            detail_code: error.object("details").and_then(|details| details.code("error_code")),
        }
    }

    /// The most telling of the codes.
    pub(super) fn word(&self) -> Option<&str> {
        [&self.detail_code, &self.code, &self.kind].into_iter().flatten().next().map(String::as_str)
    }

    fn has_code_of(&self, signs: &PauseSigns) -> bool {
        [&self.detail_code, &self.code, &self.kind]
            .into_iter()
            .flatten()
            .any(|word| signs.codes.contains(&word.as_str()))
    }

    /// The limit on enqueued tokens: by its code, or by the sentence that goes with it.
    pub(super) fn limits_tokens(&self) -> bool {
        let says = |message: &str| message.to_lowercase().starts_with("enqueued token limit");
        [&self.detail_code, &self.code, &self.kind].into_iter().flatten().any(|word| word == TOKEN_LIMIT)
            || self.message.as_deref().is_some_and(says)
    }

    pub(super) fn pauses(&self, status: u16, signs: &PauseSigns) -> bool {
        let says = |message: &str| {
            let message = message.to_lowercase();
            // Validation errors begin with the path of a field, and may quote a client's words after it.
            !message.starts_with("requests") && signs.phrases.iter().any(|phrase| message.contains(phrase))
        };
        matches!(status, 401..=403)
            || self.has_code_of(signs)
            || (status == 400 && self.message.as_deref().is_some_and(says))
    }
}

/// The number in "Limit: 90,000 enqueued tokens": all of a provider's sentence that is of use, and it quotes nobody.
pub(super) fn stated_limit(message: &str) -> Option<u64> {
    let (_, after) = message.split_once("Limit: ")?;
    let digits: String = after.chars().take_while(|c| c.is_ascii_digit() || *c == ',').filter(|c| *c != ',').collect();
    digits.parse().ok()
}

/// The meaning of an answer that is no success. `what` says what was tried, on which id.
pub(super) fn classify(
    what: &str,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    signs: &PauseSigns,
) -> CallError {
    let envelope = Envelope::read(body);
    let detail = describe(what, status, &envelope, body);
    let status = status.as_u16();
    if matches!(status, 400..=499) && envelope.limits_tokens() {
        return CallError::Refused { status, code: Some(TOKEN_LIMIT.to_owned()), detail };
    }
    if envelope.pauses(status, signs) {
        let auth = matches!(status, 401 | 403) && !envelope.has_code_of(signs);
        return CallError::Paused { auth, detail };
    }
    match status {
        300..=399 => CallError::Paused { auth: false, detail },
        407 => CallError::Paused { auth: true, detail },
        404 => CallError::NotFound { detail },
        400 if envelope.param.as_deref() == Some("input_file_id") => CallError::NotFound { detail },
        408 | 409 | 429 | 500..=599 => CallError::Again { after: retry_after(headers), detail },
        _ => CallError::Refused { status, code: envelope.word().map(str::to_owned), detail },
    }
}

fn describe(what: &str, status: StatusCode, envelope: &Envelope, body: &[u8]) -> String {
    let mut detail = format!("{what}: {}", status.as_u16());
    if let Some(word) = envelope.word() {
        detail = format!("{detail} {}", json::shortened(word, 64));
    }
    match &envelope.message {
        // The provider quotes the key it was given, masked but for its ends: not for our logs.
        _ if status == StatusCode::UNAUTHORIZED => detail,
        Some(message) => format!("{detail}{PROVIDER_SAYS}{}", json::shortened(message, MAX_MESSAGE)),
        None => format!("{detail} (no error envelope in {} bytes)", body.len()),
    }
}

/// How long the provider wants to be left alone: `retry-after-ms`, or `Retry-After` in seconds or as an HTTP date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok();
    if let Some(wait) = text("retry-after-ms").and_then(number) {
        return Duration::try_from_secs_f64(wait / 1000.0).ok();
    }
    let given = text(RETRY_AFTER.as_str())?;
    if let Some(wait) = number(given) {
        return Duration::try_from_secs_f64(wait).ok();
    }
    let until = http_date(given)?;
    Some(Duration::try_from(until.duration_since(replied_at(headers))).unwrap_or(Duration::ZERO))
}

/// The reply's own Date where there is one: a provider's clock may differ from ours.
pub(super) fn replied_at(headers: &HeaderMap) -> Timestamp {
    let date = headers.get(DATE).and_then(|date| date.to_str().ok()).map(str::trim);
    date.and_then(http_date).unwrap_or_else(Timestamp::now)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`; the two forms that were obsolete in 1997 are not read.
fn http_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// An error with all its causes, bounded: "send request: connection closed before message completed".
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    json::shortened(&text, MAX_MESSAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::TokenLimit;
    use reqwest::header::HeaderValue;

    const SIGNS: PauseSigns = PauseSigns {
        codes: &["insufficient_quota", "enforced_spend_limit_reached"],
        phrases: &["credit balance is too low"],
    };

    fn class(status: u16, body: &str) -> CallError {
        classify("create batch", StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body.as_bytes(), &SIGNS)
    }

    fn envelope(kind: &str, message: &str, code: &str) -> String {
        format!(
            r#"{{"type":"error","error":{{"type":"{kind}","message":"{message}","code":{code}}},"request_id":"r"}}"#
        )
    }

    #[test]
    fn the_table_holds_whatever_the_body_is() {
        for body in ["", "<html>Bad Gateway</html>", &envelope("t", "m", "null")] {
            for status in [301, 307, 401, 402, 403, 407] {
                assert!(matches!(class(status, body), CallError::Paused { .. }), "{status} {body}");
            }
            for status in [408, 409, 429, 500, 502, 503, 504, 529] {
                assert!(matches!(class(status, body), CallError::Again { after: None, .. }), "{status} {body}");
            }
            assert!(matches!(class(404, body), CallError::NotFound { .. }));
            for status in [400, 413, 422] {
                assert!(
                    matches!(class(status, body), CallError::Refused { status: got, .. } if got == status),
                    "{status} {body}"
                );
            }
        }
    }

    #[test]
    fn the_contracts_own_envelopes_are_read() {
        macro_rules! told {
            ($status:literal, $name:literal) => {
                class($status, include_str!(concat!("../../tests/fixtures/provider/", $name, ".json"))).to_string()
            };
        }
        assert_eq!(told!(401, "openai_error_key"), "create batch: 401 invalid_api_key");
        assert_eq!(told!(401, "anthropic_error_key"), "create batch: 401 authentication_error");
        assert!(
            told!(429, "openai_error_rate")
                .starts_with("create batch: 429 rate_limit_exceeded: the provider says: Rate limit reached")
        );
        assert!(
            told!(429, "anthropic_error_rate")
                .starts_with("create batch: 429 rate_limit_error: the provider says: This request")
        );
        assert!(
            told!(500, "openai_error_server")
                .starts_with("create batch: 500 server_error: the provider says: The server had")
        );
        assert_eq!(
            told!(529, "anthropic_error_overloaded"),
            "create batch: 529 overloaded_error: the provider says: Overloaded"
        );
        assert_eq!(
            told!(404, "anthropic_error_not_found"),
            "create batch: 404 not_found_error: the provider says: Not found"
        );
        assert!(told!(404, "openai_error_no_batch").ends_with("No batch found with id 'batch_x'."));
        assert!(told!(400, "anthropic_error_invalid").ends_with("String should have at most 64 characters"));
    }

    #[test]
    fn quota_and_spend_limits_pause_whatever_the_status() {
        let paused = |status, body: String| matches!(class(status, &body), CallError::Paused { .. });
        assert!(paused(429, envelope("insufficient_quota", "m", r#""insufficient_quota""#)));
        assert!(!paused(429, envelope("requests", "m", r#""rate_limit_exceeded""#)));
        assert!(paused(
            400,
            envelope("invalid_request_error", "Your credit balance is too low to use the API.", "null")
        ));
        assert!(!paused(400, envelope("invalid_request_error", "requests.0.x: 'credit balance is too low'", "null")));
        let details = r#"{"error":{"type":"rate_limit_error","message":"m","details":{"error_code":"enforced_spend_limit_reached"}}}"#;
        assert!(paused(429, details.to_owned()));
    }

    #[test]
    fn keys_are_told_from_money() {
        let auth = |status, body: String| match class(status, &body) {
            CallError::Paused { auth, .. } => auth,
            other => panic!("{other:?}"),
        };
        assert!(auth(401, String::new()) && auth(403, envelope("permission_error", "m", "null")));
        assert!(!auth(402, String::new()) && !auth(403, envelope("t", "m", r#""insufficient_quota""#)));
        assert!(!auth(429, envelope("insufficient_quota", "m", "null")) && !auth(307, String::new()));
    }

    #[test]
    fn the_token_limit_is_no_fault_of_the_prompts_whatever_the_status() {
        let message = "Enqueued token limit reached for m in organization o. Limit: 1,350,000 enqueued tokens.";
        for (status, body) in [
            (400, envelope("invalid_request_error", "m", r#""token_limit_exceeded""#)),
            (429, envelope("tokens", "m", r#""token_limit_exceeded""#)),
            (400, envelope("invalid_request_error", message, "null")),
        ] {
            let error = class(status, &body);
            assert!(error.token_limit().is_some(), "{error:?}");
        }
        let error = class(400, &envelope("t", message, "null"));
        assert_eq!(error.token_limit(), Some(TokenLimit { stated: Some(1_350_000) }));
        assert!(class(500, &envelope("t", message, "null")).token_limit().is_none());
        assert!(class(400, &envelope("t", "requests.0: enqueued token limit", "null")).token_limit().is_none());
        assert_eq!(stated_limit("Limit: x"), None);
    }

    #[test]
    fn a_file_not_there_yet_is_patience_not_a_refusal() {
        let body = r#"{"error":{"message":"Cannot find file file-1","type":"invalid_request_error","param":"input_file_id","code":null}}"#;
        assert!(matches!(class(400, body), CallError::NotFound { .. }));
    }

    #[test]
    fn details_are_short_and_name_no_key() {
        let CallError::Paused { detail, .. } =
            class(401, &envelope("e", "Incorrect API key provided: sk-abc***xyz.", r#""invalid_api_key""#))
        else {
            panic!("401 pauses")
        };
        assert_eq!(detail, "create batch: 401 invalid_api_key");
        let CallError::Refused { detail, code, .. } = class(400, &envelope("e", &"x".repeat(5000), "null")) else {
            panic!("400 refuses")
        };
        assert!(detail.chars().count() < MAX_MESSAGE + 50);
        assert_eq!(code.as_deref(), Some("e"));
        let CallError::Again { detail, .. } = class(500, "<html>secret</html>") else { panic!("500 is tried again") };
        assert_eq!(detail, "create batch: 500 (no error envelope in 19 bytes)");
    }

    #[test]
    fn retry_after_in_every_form() {
        let wait = |pairs: &[(&'static str, &'static str)]| {
            retry_after(
                &pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect(),
            )
        };
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(&[("retry-after", "1.5")]), Some(Duration::from_millis(1500)));
        assert_eq!(wait(&[("retry-after", "60"), ("retry-after-ms", "120.5")]), Some(Duration::from_micros(120_500)));
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(wait(&[date, ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")]), Some(Duration::from_secs(30)));
        assert_eq!(wait(&[date, ("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")]), Some(Duration::ZERO));
        assert_eq!(wait(&[("retry-after", "-1")]), None);
        assert_eq!(wait(&[("retry-after", "soon")]), None);
        assert_eq!(wait(&[]), None);
    }
}
