//! Anthropic's JSON and ours, both ways. Pure; members that we do not need are never looked at.

use super::DIALECT;
use crate::{
    clock::{self, Millis},
    domain::{
        limits::BatchLimits,
        outcome::{Answer, Outcome},
        prompt::{ApiHeaders, Endpoint},
    },
    provider::{
        Candidate, Doubt, Ended, Evidence, Label, Line, LineOutcome, Listed, Newest, OutLine, Parcel, RemoteId,
        RemoteStatus,
        faults::Envelope,
        json::Members,
        listing::Sheet,
        parcel::{Bounds, CUSTOM_ID_CHARS, Frame},
        transport::segment,
        verdict,
    },
};
use bytes::{Bytes, BytesMut};
use jiff::Timestamp;

pub use super::answer::read_answer;

const BOUNDS: Bounds = Bounds { prompts: 100_000, bytes: 250_000_000, mixes_models: true };

const BEFORE_ID: &[u8] = br#"{"custom_id":""#;
const BEFORE_BODY: &[u8] = br#"","params":"#;
const AFTER_BODY: &[u8] = b"}";

/// One JSON document with all prompts.
pub(super) fn frame() -> Frame {
    Frame { head: br#"{"requests":["#, between: b",", tail: b"]}", line: write_line }
}

fn write_line(_: &Parcel, line: &OutLine, out: &mut BytesMut) {
    for part in [BEFORE_ID, line.custom_id.as_bytes(), BEFORE_BODY, &line.body, AFTER_BODY] {
        out.extend_from_slice(part);
    }
}

pub(super) fn limits() -> BatchLimits {
    frame().limits(CUSTOM_ID_CHARS + BEFORE_ID.len() + BEFORE_BODY.len() + AFTER_BODY.len(), &BOUNDS)
}

/// The headers of a create; what is not said here the dialect says.
pub(super) fn headers(given: &ApiHeaders) -> Vec<(&'static str, String)> {
    let version = given.version.clone().map(|version| ("anthropic-version", version));
    let betas = (!given.betas.is_empty()).then(|| ("anthropic-beta", given.betas.join(",")));
    version.into_iter().chain(betas).collect()
}

/// A batch object, as far as we need it.
pub(super) struct Batch {
    pub remote: RemoteId,
    pub word: String,
    /// Known from the start, while the single counters stay zero until the end.
    pub total: u64,
    pub done: u64,
    pub created_at: Option<String>,
    pub ended_at: Option<String>,
}

impl Batch {
    pub(super) fn read(reply: &[u8]) -> Option<Batch> {
        Batch::of(&Members::read_bytes(reply)?)
    }

    fn of(batch: &Members<'_>) -> Option<Batch> {
        let counts = batch.object("request_counts");
        let count = |name| counts.as_ref().and_then(|counts| counts.count(name)).unwrap_or(0);
        let done = ["succeeded", "errored", "canceled", "expired"].into_iter().map(count).fold(0, u64::saturating_add);
        Some(Batch {
            remote: RemoteId(batch.word("id")?),
            word: batch.word("processing_status").unwrap_or_default(),
            total: done.saturating_add(count("processing")),
            done,
            created_at: batch.word("created_at"),
            ended_at: batch.word("ended_at"),
        })
    }

    /// In our words; none for a status word that was not known when this was written.
    pub(super) fn status(&self) -> Option<RemoteStatus> {
        match self.word.to_ascii_lowercase().as_str() {
            "in_progress" | "canceling" | "cancelling" => Some(self.running()),
            "ended" => Some(RemoteStatus::Ended(Ended {
                remote: self.remote.clone(),
                sources: vec![results_path(&self.remote)],
            })),
            _ => None,
        }
    }

    pub(super) fn running(&self) -> RemoteStatus {
        RemoteStatus::Running { reported: self.done }
    }

    /// Nothing labels a batch; only Messages can be asked.
    fn listed(self) -> Listed {
        let status = self.status().unwrap_or_else(|| self.running());
        let (label, endpoint, ended_at) = (Label::Unkept, Some(Endpoint::Messages), time(&self.ended_at));
        Listed { remote: self.remote, label, status, endpoint, ended_at }
    }

    pub(super) fn newest(self) -> Newest {
        Newest { remote: self.remote, created_at: self.created_at }
    }

    /// Whether this is, or is older than, the newest batch that was there before the create; where that is not known,
    /// whether it is too old.
    pub(super) fn was_before(&self, doubt: &Doubt) -> bool {
        let time = |text: &Option<String>| text.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
        let made = time(&self.created_at);
        let Some(newest) = &doubt.newest_before else {
            return made.is_some_and(|made| u64::try_from(made.as_second()).is_ok_and(|made| doubt.is_older(made)));
        };
        self.remote == newest.remote || made.zip(time(&newest.created_at)).is_some_and(|(this, newest)| this < newest)
    }

    pub(super) fn may_be(&self, doubt: &Doubt) -> Option<Candidate> {
        (self.total == doubt.prompts as u64)
            .then(|| Candidate { remote: self.remote.clone(), evidence: Evidence::Size })
    }
}

/// Made from the id, and so below our own base URL: the `results_url` of the reply may point anywhere.
fn results_path(remote: &RemoteId) -> String {
    format!("/v1/messages/batches/{}/results", segment(&remote.0))
}

/// A page of the list of batches, newest first, and whether there are more.
pub(super) fn read_page(reply: &[u8]) -> Option<(Vec<Batch>, bool)> {
    let page = Members::read_bytes(reply)?;
    let batches = page.list("data")?.iter().filter_map(|batch| Batch::of(&Members::read(batch.get())?)).collect();
    Some((batches, page.get("has_more").is_none_or(|more| more.get() != "false")))
}

/// A page of the list, for whoever looks for what gateways made.
pub(super) fn read_list(reply: &[u8]) -> Option<Sheet> {
    let (batches, more) = read_page(reply)?;
    let made = |batch: Option<&Batch>| time(&batch?.created_at);
    Some(Sheet {
        last: batches.last().map(|batch| batch.remote.clone()),
        newest: made(batches.first()),
        oldest: made(batches.last()),
        more,
        batches: batches.into_iter().map(Batch::listed).collect(),
    })
}

fn time(text: &Option<String>) -> Option<Millis> {
    text.as_deref().and_then(clock::parse_rfc3339)
}

/// A result line: `result.type` decides.
pub fn read_line(line: &str) -> Option<Line> {
    let line = Members::read(line)?;
    let custom_id = line.word("custom_id")?;
    let result = line.object("result");
    let kind = result.as_ref().and_then(|result| result.word("type"));
    let outcome = match (result, kind.as_deref()) {
        (Some(result), Some("succeeded")) => LineOutcome::Final(read_success(&result)),
        (Some(result), Some("errored")) => LineOutcome::Final(read_error(&result)),
        (Some(_), Some("canceled" | "cancelled")) => LineOutcome::Canceled,
        (Some(_), Some("expired")) => LineOutcome::Expired,
        _ => LineOutcome::Final(Outcome::Failed(verdict::unreadable(kind))),
    };
    Some(Line { custom_id, outcome })
}

fn read_success(result: &Members<'_>) -> Outcome {
    let body = result.get("message").map_or("", |message| message.get());
    match read_answer(body) {
        // Copied: a slice would keep the whole of the download's buffer alive.
        Some(reading) => {
            Outcome::Answered(Answer { reading, body: Bytes::copy_from_slice(body.as_bytes()), request_id: None })
        }
        None => Outcome::Failed(verdict::empty("the provider's answer is no message")),
    }
}

/// `result.error.error.type` says what it was; `result.error.type` is always "error".
fn read_error(result: &Members<'_>) -> Outcome {
    let outer = result.object("error");
    let inner = outer.as_ref().and_then(|outer| outer.object("error")).or(outer);
    let envelope = inner.map(|inner| Envelope::of(&inner)).unwrap_or_default();
    let status = match envelope.kind.as_deref() {
        Some("invalid_request_error") => 400,
        Some("authentication_error") => 401,
        Some("billing_error") => 402,
        Some("permission_error") => 403,
        Some("not_found_error") => 404,
        Some("conflict_error") => 409,
        Some("request_too_large") => 413,
        Some("rate_limit_error") => 429,
        Some("timeout_error") => 504,
        Some("overloaded_error") => 529,
        _ => 500, // api_error, and what we do not know: the provider says it failed, so it was not billed
    };
    Outcome::Failed(verdict::failure(status, &envelope, &DIALECT.pause))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
