//! What goes wrong, in either provider's words: HTTP status, error type, code and message.
//!
//! Knows nothing of HTTP responses; the envelopes around a problem are in `openai` and `anthropic`.

use serde::{Deserialize, Serialize};

/// Whose server is being played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Provider {
    OpenAi,
    Anthropic,
}

impl Provider {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }
}

/// An error answer: of a whole call, or of one request within a batch.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) code: Option<&'static str>,
    pub(crate) param: Option<String>,
    /// Sent with the error, for example `retry-after`.
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Problem {
    pub(crate) fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), code: None, param: None, headers: Vec::new() }
    }

    /// A 400 of the request itself; both providers call it by the same type.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request_error", message)
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    pub(crate) fn of(provider: Provider, trouble: Trouble) -> Self {
        let (status, kind, code, message) = trouble.row(provider);
        Self { code, ..Self::new(status, kind, message) }
    }

    /// The usual error of an HTTP status; an unusual status takes the type of its class.
    pub(crate) fn of_status(provider: Provider, status: u16) -> Self {
        let usual = Trouble::ALL.into_iter().find(|trouble| {
            *trouble != Trouble::Billing && *trouble != Trouble::NotFound && trouble.row(provider).0 == status
        });
        match usual {
            Some(trouble) => Self::of(provider, trouble),
            None if status == 404 => Self { code: None, ..Self::of(provider, Trouble::NotFound).message("Not found") },
            None => {
                let class = if status >= 500 { Trouble::Server } else { Trouble::InvalidRequest };
                Self { status, ..Self::of(provider, class).message(format!("Simulated status {status}.")) }
            }
        }
    }
}

/// The simulator's own trouble with its disk, told as a server error.
impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Self::new(500, "api_error", format!("the simulator failed: {error}"))
    }
}

/// The troubles a prompt may ask for by `[[error:NAME]]`, and a fault by `fail_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Trouble {
    InvalidRequest,
    ContextLength,
    Authentication,
    Billing,
    Permission,
    NotFound,
    Conflict,
    TooLarge,
    RateLimit,
    Server,
    Timeout,
    Overloaded,
}

impl Trouble {
    const ALL: [Self; 12] = [
        Self::InvalidRequest,
        Self::ContextLength,
        Self::Authentication,
        Self::Billing,
        Self::Permission,
        Self::NotFound,
        Self::Conflict,
        Self::TooLarge,
        Self::RateLimit,
        Self::Server,
        Self::Timeout,
        Self::Overloaded,
    ];

    /// A word that is no trouble's name counts as a server error.
    pub(crate) fn named(name: &str) -> Self {
        serde_json::from_value(serde_json::Value::from(name)).unwrap_or(Self::Server)
    }

    /// Status, type, code, message. The texts are those of the contract, sections 2.1 and 3.1, where it has one.
    fn row(self, provider: Provider) -> (u16, &'static str, Option<&'static str>, &'static str) {
        match (provider, self) {
            (Provider::OpenAi, Self::InvalidRequest) => (400, INVALID, None, "The request is not valid."),
            (Provider::OpenAi, Self::ContextLength) => (
                400,
                INVALID,
                Some("context_length_exceeded"),
                "This model's maximum context length is 128000 tokens. However, you requested 1000024 tokens.",
            ),
            (Provider::OpenAi, Self::Authentication) => {
                (401, INVALID, Some("invalid_api_key"), "Incorrect API key provided.")
            }
            (Provider::OpenAi, Self::Billing) => (
                429,
                "insufficient_quota",
                Some("insufficient_quota"),
                "You exceeded your current quota, please check your plan and billing details.",
            ),
            (Provider::OpenAi, Self::Permission) => (403, INVALID, None, "This is not allowed for you."),
            (Provider::OpenAi, Self::NotFound) => {
                (404, INVALID, Some("model_not_found"), "The model does not exist or you do not have access to it.")
            }
            (Provider::OpenAi, Self::Conflict) => (409, INVALID, None, "The request is in conflict with the state."),
            (Provider::OpenAi, Self::TooLarge) => (413, INVALID, None, "The request is too large."),
            (Provider::OpenAi, Self::RateLimit) => (
                429,
                "requests",
                Some("rate_limit_exceeded"),
                "Rate limit reached on requests per min (RPM). Please try again later.",
            ),
            (Provider::OpenAi, Self::Server) => {
                (500, "server_error", None, "The server had an error while processing your request. Sorry about that!")
            }
            (Provider::OpenAi, Self::Timeout) => (504, "server_error", None, "The request took too long."),
            (Provider::OpenAi, Self::Overloaded) => (503, "server_error", None, "The server is overloaded."),
            (Provider::Anthropic, Self::InvalidRequest) => (400, INVALID, None, "The request is not valid."),
            (Provider::Anthropic, Self::ContextLength) => {
                (400, INVALID, None, "prompt is too long: 1000024 tokens > 200000 maximum")
            }
            (Provider::Anthropic, Self::Authentication) => (401, "authentication_error", None, "invalid x-api-key"),
            (Provider::Anthropic, Self::Billing) => {
                (402, "billing_error", None, "There is an issue with your billing.")
            }
            (Provider::Anthropic, Self::Permission) => {
                (403, "permission_error", None, "Your API key does not have permission for this.")
            }
            (Provider::Anthropic, Self::NotFound) => (404, "not_found_error", None, "Not found"),
            (Provider::Anthropic, Self::Conflict) => {
                (409, "conflict_error", None, "The request is in conflict with the state.")
            }
            (Provider::Anthropic, Self::TooLarge) => {
                (413, "request_too_large", None, "Request exceeds the maximum size")
            }
            (Provider::Anthropic, Self::RateLimit) => {
                (429, "rate_limit_error", None, "This request would exceed your organization's rate limit.")
            }
            (Provider::Anthropic, Self::Server) => (500, "api_error", None, "Internal server error"),
            (Provider::Anthropic, Self::Timeout) => (504, "timeout_error", None, "Request timed out"),
            (Provider::Anthropic, Self::Overloaded) => (529, "overloaded_error", None, "Overloaded"),
        }
    }
}

const INVALID: &str = "invalid_request_error";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_finds_its_usual_error() {
        let check = |provider, status, kind: &str, code: Option<&str>| {
            let problem = Problem::of_status(provider, status);
            assert_eq!((problem.status, problem.kind, problem.code), (status, kind, code));
        };
        check(Provider::OpenAi, 429, "requests", Some("rate_limit_exceeded"));
        check(Provider::OpenAi, 404, INVALID, None);
        check(Provider::OpenAi, 502, "server_error", None);
        check(Provider::Anthropic, 529, "overloaded_error", None);
        check(Provider::Anthropic, 404, "not_found_error", None);
        check(Provider::Anthropic, 418, INVALID, None);
    }
}
