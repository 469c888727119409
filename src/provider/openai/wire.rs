//! OpenAI's JSON and ours, both ways. Pure; members that we do not need are never looked at.

use super::DIALECT;
use crate::{
    clock::Millis,
    domain::{
        limits::BatchLimits,
        outcome::{Answer, Outcome},
        prompt::Endpoint,
    },
    provider::{
        Candidate, Doubt, Ended, Evidence, Label, Line, LineFault, LineOutcome, Listed, OutLine, Parcel, Pressure,
        Refusal, RemoteId, RemoteStatus, TokenLimit,
        faults::{self, Envelope},
        json::{self, Members},
        listing::Sheet,
        parcel::{Bounds, CUSTOM_ID_CHARS, Frame},
        verdict,
    },
};
use bytes::{Bytes, BytesMut};
use serde_json::json;

pub use super::answer::read_answer;

const BOUNDS: Bounds = Bounds { prompts: 50_000, bytes: 200_000_000, mixes_models: false };

const BEFORE_ID: &[u8] = br#"{"custom_id":""#;
const BEFORE_URL: &[u8] = br#"","method":"POST","url":""#;
const BEFORE_BODY: &[u8] = br#"","body":"#;
const AFTER_BODY: &[u8] = b"}\n";

/// Most inputs of all embeddings in a batch together.
const MAX_EMBEDDING_INPUTS: u64 = 50_000;

/// The input file: one line a prompt, nothing around them.
pub(super) fn frame() -> Frame {
    Frame { head: b"", between: b"", tail: b"", line: write_line }
}

fn write_line(parcel: &Parcel, line: &OutLine, out: &mut BytesMut) {
    for part in [
        BEFORE_ID,
        line.custom_id.as_bytes(),
        BEFORE_URL,
        parcel.endpoint.path().as_bytes(),
        BEFORE_BODY,
        &line.body,
        AFTER_BODY,
    ] {
        out.extend_from_slice(part);
    }
}

pub(super) fn limits(endpoint: Endpoint) -> BatchLimits {
    let around = BEFORE_ID.len() + BEFORE_URL.len() + endpoint.path().len() + BEFORE_BODY.len() + AFTER_BODY.len();
    let max_inputs = (endpoint == Endpoint::Embeddings).then_some(MAX_EMBEDDING_INPUTS);
    BatchLimits { max_inputs, ..frame().limits(CUSTOM_ID_CHARS + around, &BOUNDS) }
}

/// The body of a create. Its metadata is how a create whose answer was lost is found again.
pub(super) fn create_body(parcel: &Parcel, input: &str) -> Vec<u8> {
    let metadata = json!({
        "batchgate_deployment": parcel.deployment, "batchgate_chunk": parcel.chunk, "batchgate_attempt": parcel.attempt.to_string(),
    });
    json!({"input_file_id": input, "endpoint": parcel.endpoint.path(), "completion_window": "24h", "metadata": metadata}).to_string().into_bytes()
}

/// The id of a file or batch that a call has made.
pub(super) fn read_id(reply: &[u8]) -> Option<String> {
    Members::read_bytes(reply)?.word("id")
}

/// A file's size, to compare with what a download brought.
pub(super) fn read_size(reply: &[u8]) -> Option<u64> {
    Members::read_bytes(reply)?.count("bytes")
}

/// A batch object: in our three words, or the status word we do not know.
pub(super) fn read_status(remote: &RemoteId, reply: &[u8]) -> Option<Result<RemoteStatus, Unknown>> {
    status(remote, &Members::read_bytes(reply)?)
}

fn status(remote: &RemoteId, batch: &Members<'_>) -> Option<Result<RemoteStatus, Unknown>> {
    let word = batch.word("status")?;
    let counts = batch.object("request_counts");
    let count = |name| counts.as_ref().and_then(|counts| counts.count(name)).unwrap_or(0);
    let running = RemoteStatus::Running { reported: count("completed") + count("failed") };
    Some(Ok(match word.to_ascii_lowercase().as_str() {
        "validating" | "in_progress" | "finalizing" | "cancelling" | "canceling" => running,
        "completed" | "expired" | "cancelled" | "canceled" => {
            RemoteStatus::Ended(Ended { remote: remote.clone(), sources: sources(batch) })
        }
        "failed" => RemoteStatus::Refused(read_refusal(batch)),
        _ => return Some(Err(Unknown { word, running })),
    }))
}

/// A status word that was not known when this was written: still running, says the caller, and tells somebody.
#[derive(Debug, PartialEq)]
pub(super) struct Unknown {
    pub word: String,
    pub running: RemoteStatus,
}

/// Both files wherever there are any: expired and cancelled batches have answers too, and `""` means none.
fn sources(batch: &Members<'_>) -> Vec<String> {
    let mut files: Vec<String> =
        ["output_file_id", "error_file_id"].iter().filter_map(|name| batch.word(name)).collect();
    files.dedup();
    files
}

/// "Not now": the same file may be tried again, and no prompt is at fault.
fn pressure(entry: &Envelope) -> Option<Pressure> {
    if entry.limits_tokens() {
        let stated = entry.message.as_deref().and_then(faults::stated_limit);
        return Some(Pressure::Tokens(TokenLimit { stated }));
    }
    match entry.code.as_deref()? {
        code if DIALECT.pause.codes.contains(&code) => Some(Pressure::Spent),
        "rate_limit_exceeded" => Some(Pressure::Requests),
        "server_error" | "internal_error" => Some(Pressure::Trouble),
        _ => None,
    }
}

fn read_refusal(batch: &Members<'_>) -> Refusal {
    let entries = batch.object("errors").and_then(|errors| errors.list("data")).unwrap_or_default();
    let entries: Vec<(Envelope, Option<u64>)> = entries
        .iter()
        .filter_map(|entry| Members::read(entry.get()))
        .map(|entry| (Envelope::of(&entry), entry.count("line").filter(|line| *line > 0)))
        .collect();
    let text = |envelope: &Envelope| json::shortened(envelope.message.as_deref().unwrap_or("no reason given"), 300);
    let first = |wanted: &dyn Fn(&Envelope) -> bool| {
        entries.iter().map(|(envelope, _)| envelope).find(|envelope| wanted(envelope)).map(&text)
    };
    if let Some((pressure, entry)) = entries.iter().find_map(|(entry, _)| Some((pressure(entry)?, entry))) {
        return Refusal::BackPressure { pressure, detail: text(entry) };
    }
    let faults: Vec<LineFault> = entries
        .iter()
        .filter_map(|(envelope, line)| {
            let line = usize::try_from((*line)?).ok()?;
            Some(LineFault {
                line,
                code: envelope.code.clone(),
                message: json::shortened(envelope.message.as_deref().unwrap_or(""), 2000),
            })
        })
        .collect();
    if !faults.is_empty() {
        return Refusal::Lines(faults);
    }
    if let Some(detail) = first(&|entry| entry.param.as_deref().is_some_and(|param| param.ends_with("file_id"))) {
        return Refusal::InputLost { detail };
    }
    let (code, detail) = entries
        .first()
        .map_or((None, "failed without a reason".to_owned()), |(entry, _)| (entry.code.clone(), text(entry)));
    Refusal::Whole { code, detail }
}

/// A page of the list of batches.
pub(super) struct Page {
    pub ours: Vec<Candidate>,
    pub ids: Vec<String>,
    /// Creation times, by the provider's clock, of the first and the last.
    pub newest: Option<u64>,
    pub oldest: Option<u64>,
    /// False only where the provider says so: some leave it out and expect one more call.
    pub more: bool,
}

pub(super) fn read_page(doubt: &Doubt, reply: &[u8]) -> Option<Page> {
    let page = Members::read_bytes(reply)?;
    let batches: Vec<Members<'_>> = page.list("data")?.iter().filter_map(|batch| Members::read(batch.get())).collect();
    let remote = |batch: &Members<'_>| batch.word("id").map(RemoteId);
    Some(Page {
        ours: batches
            .iter()
            .filter_map(|batch| Some(Candidate { evidence: evidence(doubt, batch)?, remote: remote(batch)? }))
            .collect(),
        ids: batches.iter().filter_map(|batch| batch.word("id")).collect(),
        newest: batches.first().and_then(|batch| batch.count("created_at")),
        oldest: batches.last().and_then(|batch| batch.count("created_at")),
        more: page.get("has_more").is_none_or(|more| more.get() != "false"),
    })
}

/// A page of the list, for whoever looks for what gateways made.
pub(super) fn read_list(reply: &[u8]) -> Option<Sheet> {
    let page = Members::read_bytes(reply)?;
    let batches: Vec<Members<'_>> = page.list("data")?.iter().filter_map(|batch| Members::read(batch.get())).collect();
    let made = |batch: Option<&Members<'_>>| batch.and_then(|batch| batch.count("created_at")).map(milliseconds);
    Some(Sheet {
        last: batches.last().and_then(|batch| batch.word("id")).map(RemoteId),
        newest: made(batches.first()),
        oldest: made(batches.last()),
        more: page.get("has_more").is_none_or(|more| more.get() != "false"),
        batches: batches.iter().filter_map(read_listed).collect(),
    })
}

fn read_listed(batch: &Members<'_>) -> Option<Listed> {
    let remote = RemoteId(batch.word("id")?);
    let status = status(&remote, batch)?.unwrap_or_else(|unknown| unknown.running);
    let ended = ["completed_at", "expired_at", "cancelled_at"].iter().find_map(|name| batch.count(name));
    let endpoint = batch.word("endpoint").and_then(|path| Endpoint::from_path(&path));
    Some(Listed { label: read_label(batch), remote, status, endpoint, ended_at: ended.map(milliseconds) })
}

fn read_label(batch: &Members<'_>) -> Label {
    let metadata = batch.object("metadata");
    let says = |name| metadata.as_ref().and_then(|metadata| metadata.code(name));
    match (says("batchgate_deployment"), says("batchgate_chunk")) {
        (Some(deployment), Some(chunk)) => Label::Says { deployment, chunk },
        _ => Label::Missing,
    }
}

fn milliseconds(seconds: u64) -> Millis {
    seconds.saturating_mul(1_000)
}

/// Our label decides where there is one: an earlier attempt may have used the same file. Without it, the file does.
fn evidence(doubt: &Doubt, batch: &Members<'_>) -> Option<Evidence> {
    match batch.object("metadata").filter(|metadata| metadata.get("batchgate_chunk").is_some()) {
        Some(metadata) => {
            let says = |name, value: &str| metadata.code(name).as_deref() == Some(value);
            let attempt = metadata.code("batchgate_attempt").and_then(|attempt| attempt.parse::<u32>().ok());
            let ours = says("batchgate_chunk", &doubt.chunk) && says("batchgate_deployment", &doubt.deployment);
            (ours && attempt.is_some_and(|attempt| attempt >= doubt.attempt)).then_some(Evidence::Label)
        }
        None => {
            let input = doubt.input.as_ref()?;
            (batch.word("input_file_id").as_ref() == Some(&input.0)).then_some(Evidence::InputFile)
        }
    }
}

/// A result line. A success has no `error` and a 2xx, whichever file it stands in.
pub fn read_line(endpoint: Endpoint, line: &str) -> Option<Line> {
    let line = Members::read(line)?;
    let custom_id = line.word("custom_id")?;
    let failed = |failure| LineOutcome::Final(Outcome::Failed(failure));
    let outcome = match (line.object("response"), line.object("error")) {
        (Some(response), error) => {
            let status = response.count("status_code").and_then(|status| u16::try_from(status).ok());
            match (status, error) {
                (Some(200..=299), None) => LineOutcome::Final(read_success(endpoint, &response)),
                (Some(200..=299) | None, Some(error)) => not_executed(&error),
                (Some(status), error) => {
                    let inner = response.object("body").and_then(|body| body.object("error")).or(error);
                    failed(verdict::failure(
                        status,
                        &inner.map(|inner| Envelope::of(&inner)).unwrap_or_default(),
                        &DIALECT.pause,
                    ))
                }
                (None, None) => failed(verdict::unreadable(None)),
            }
        }
        (None, Some(error)) => not_executed(&error),
        (None, None) => failed(verdict::unreadable(None)),
    };
    Some(Line { custom_id, outcome })
}

fn not_executed(error: &Members<'_>) -> LineOutcome {
    let envelope = Envelope::of(error);
    let status = match envelope.code.as_deref() {
        Some("batch_expired") => return LineOutcome::Expired,
        Some("batch_cancelled" | "batch_canceled") => return LineOutcome::Canceled,
        Some("rate_limit_exceeded" | "insufficient_quota") => 429,
        Some("request_timeout" | "timeout") => 504,
        Some("model_not_found") => 404,
        Some(code) if code.starts_with("invalid_") || code == "context_length_exceeded" => 400,
        _ => 500,
    };
    LineOutcome::Final(Outcome::Failed(verdict::failure(status, &envelope, &DIALECT.pause)))
}

fn read_success(endpoint: Endpoint, response: &Members<'_>) -> Outcome {
    let body = response.get("body").map_or("", |body| body.get());
    match read_answer(endpoint, body) {
        // Copied: a slice would keep the whole of the download's buffer alive.
        Ok(reading) => Outcome::Answered(Answer {
            reading,
            body: Bytes::copy_from_slice(body.as_bytes()),
            request_id: response.word("request_id"),
        }),
        Err(failure) => Outcome::Failed(failure),
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
