//! The single map from what went wrong to status, code and body: RFC 9457 `application/problem+json`.

use crate::{
    domain::{
        problem::{Problem, Problems},
        quota::{Bounded, Exceeded},
        room::Full,
    },
    pipeline::{frames::FrameError, line::escape, retry::RetryError, submit::SubmitError},
    store::StoreError,
};
use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

/// The codes of the public API for whole requests, a closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Code {
    MalformedBody,
    Unauthorized,
    Forbidden,
    NotFound,
    BatchRunning,
    BatchEnded,
    NothingToRetry,
    IdempotencyInProgress,
    BodyTooLarge,
    UnsupportedMediaType,
    InvalidRequest,
    IdempotencyMismatch,
    QuotaExceeded,
    StorageFull,
    Unavailable,
    Draining,
    UploadLost,
}

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Code::MalformedBody => StatusCode::BAD_REQUEST,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::BatchRunning | Code::BatchEnded | Code::NothingToRetry | Code::IdempotencyInProgress => {
                StatusCode::CONFLICT
            }
            Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidRequest | Code::IdempotencyMismatch => StatusCode::UNPROCESSABLE_ENTITY,
            Code::QuotaExceeded | Code::StorageFull => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable | Code::Draining | Code::UploadLost => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// An error on its way to the client. Rendered, with the request's id, by the outermost layer.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    code: Code,
    status: StatusCode,
    detail: String,
    problems: Problems,
    storage: Option<Full>,
    quota: Option<Exceeded>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// For the log only.
    cause: Option<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    code: Code,
    detail: &'a str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "<[Problem]>::is_empty")]
    errors: &'a [Problem],
    #[serde(skip_serializing_if = "Option::is_none")]
    error_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<Full>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<Exceeded>,
}

impl ApiError {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> ApiError {
        let (problems, mut headers) = <(Problems, Vec<_>)>::default();
        if code.status() == StatusCode::SERVICE_UNAVAILABLE {
            headers.push((header::RETRY_AFTER, HeaderValue::from_static("5")));
        }
        if code.status() == StatusCode::TOO_MANY_REQUESTS {
            headers.push((header::RETRY_AFTER, HeaderValue::from_static("60")));
        }
        if code.status() == StatusCode::UNAUTHORIZED {
            headers.push((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        let (status, detail, storage, quota, cause) = (code.status(), detail.into(), None, None, None);
        ApiError { code, status, detail, problems, storage, quota, headers, cause }
    }

    /// 405; the list of codes has no word of its own for it.
    pub(super) fn wrong_method(detail: String) -> ApiError {
        ApiError { status: StatusCode::METHOD_NOT_ALLOWED, ..ApiError::new(Code::NotFound, detail) }
    }

    /// A 422 with one problem, in the query or a header.
    pub(super) fn invalid(detail: impl Into<String>) -> ApiError {
        ApiError::new(Code::InvalidRequest, detail)
    }

    /// With one more header.
    pub(super) fn heading(mut self, name: HeaderName, value: HeaderValue) -> ApiError {
        self.headers.push((name, value));
        self
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    fn with(mut self, problems: impl IntoIterator<Item = Problem>) -> ApiError {
        self.problems.extend(problems);
        self
    }

    fn because(mut self, cause: &impl ToString) -> ApiError {
        self.cause = Some(cause.to_string());
        self
    }

    /// The answer; logs once.
    pub(super) fn render(self, request_id: &str) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(code = ?self.code, detail = self.detail, cause = self.cause, "request failed");
        } else {
            tracing::debug!(code = ?self.code, detail = self.detail, "request refused");
        }
        let document = Document {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or_default(),
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.detail,
            request_id,
            errors: self.problems.first(),
            error_count: (!self.problems.is_empty()).then(|| self.problems.count()),
            storage: self.storage,
            quota: self.quota,
        };
        let body = escape(serde_json::to_vec(&document).expect("strings and numbers serialize").into());
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        for (name, value) in self.headers {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl IntoResponse for ApiError {
    /// Rides in the response's extensions to the layer that knows the request's id.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> ApiError {
        match error {
            StoreError::Away(_) if error.is_full() => storage_full(None),
            StoreError::Away(_) => {
                ApiError::new(Code::Unavailable, "the store does not answer; nothing is lost, try again")
            }
            StoreError::Corrupt { .. } => {
                ApiError::new(Code::Unavailable, "something stored cannot be read; an operator must look at it")
            }
        }
        .because(&error)
    }
}

/// Nothing was created; the client may come again, or an operator may act.
fn storage_full(full: Option<Full>) -> ApiError {
    const REMEDY: &str = "try again when running batches have ended, delete old ones, send fewer prompts at once, \
                          or let an operator raise Redis's maxmemory; nothing was created";
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let detail = match full {
        Some(Full { needed, free, max }) => format!(
            "what was read of this batch and its answers are estimated to need {} MiB in Redis, {} MiB of its {} MiB are \
             neither used nor promised to other batches: {REMEDY}",
            mib(needed),
            free >> 20,
            max >> 20
        ),
        None => format!("Redis is at its maxmemory: {REMEDY}"),
    };
    ApiError { storage: full, ..ApiError::new(Code::StorageFull, detail) }
}

/// The team has enough in work; nothing was created.
fn quota_exceeded(quota: Exceeded) -> ApiError {
    let Exceeded { what, used, needed, max } = quota;
    let detail = match what {
        Bounded::OpenBatches => format!(
            "your team has {used} batches that have not ended, and may have {max}: try again when one of them has ended"
        ),
        Bounded::PendingPrompts if needed > max => format!(
            "this batch has {needed} prompts that are not answered yet, and your team may have {max} in all: send fewer at once"
        ),
        Bounded::PendingPrompts => format!(
            "your team waits for {used} answers and may wait for {max}, and this batch adds {needed}: try again when some \
             have come, or send fewer at once"
        ),
    };
    let detail = format!("{detail}, or let an operator raise the bound of your team; nothing was created");
    ApiError { quota: Some(quota), ..ApiError::new(Code::QuotaExceeded, detail) }
}

impl From<FrameError> for ApiError {
    fn from(error: FrameError) -> ApiError {
        let (code, problem) = match error {
            FrameError::Malformed(problem) => (Code::MalformedBody, problem),
            FrameError::TooLarge(problem) => (Code::BodyTooLarge, problem),
            FrameError::Invalid(problem) => (Code::InvalidRequest, problem),
        };
        let at = problem.line.map_or_else(|| problem.pointer.clone(), |line| format!("line {line}"));
        let detail = if at.is_empty() { problem.message.clone() } else { format!("{at}: {}", problem.message) };
        ApiError::new(code, detail).with([problem])
    }
}

impl From<RetryError> for ApiError {
    fn from(error: RetryError) -> ApiError {
        match error {
            RetryError::Running => {
                ApiError::new(Code::BatchRunning, "the batch is still running: wait for its end, or cancel it first")
            }
            RetryError::Nothing => ApiError::new(
                Code::NothingToRetry,
                "every result has its answer, or can have none: nothing of this batch is worth asking again",
            ),
            RetryError::Gone => ApiError::new(Code::NotFound, "there is no such batch"),
            RetryError::Submit(error) => error.into(),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        match error {
            SubmitError::Invalid(problems) => {
                let count = problems.count();
                let told = problems.first().len();
                let detail = format!(
                    "{count} problem(s) in the body, the first {told} of them in `errors`; nothing was created"
                );
                ApiError { problems: *problems, ..ApiError::invalid(detail) }
            }
            SubmitError::Lost => {
                ApiError::new(Code::UploadLost, "the upload was idle for too long and was removed; send it again")
            }
            SubmitError::Locked => ApiError::new(
                Code::IdempotencyInProgress,
                "another request with this Idempotency-Key began while this one was idle",
            ),
            SubmitError::Exceeded(exceeded) => quota_exceeded(exceeded),
            SubmitError::Full(full) => storage_full(Some(full)),
            SubmitError::Store(error) => error.into(),
        }
    }
}
