//! One result as its client reads it: a line of JSON. Pure. U+2028, U+2029 and U+0085 leave escaped, for there are
//! line splitters out there that cut at them.

use super::foreign::without_its_sender;
use super::online::NO_BATCH;
use crate::{
    clock,
    domain::outcome::{Ending, Failure, FailureCode, Finish, Usage},
    store::record::{Entry, Known, StoredAnswer},
};
use bytes::{BufMut, Bytes};
use serde::{Deserialize, Serialize};

/// Where the answer of a result came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Provider,
    Cache,
    /// Another batch's call.
    Joined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Pending,
    Succeeded,
    Failed,
    Canceled,
    Expired,
}

#[derive(Serialize)]
struct Line<'a> {
    index: u32,
    sample: u32,
    custom_id: Option<&'a str>,
    status: Status,
    source: Option<Source>,
    model: Option<&'a str>,
    completion: Option<&'a str>,
    finish: Option<Finish>,
    stop_reason: Option<&'a str>,
    usage: Option<Usage>,
    /// Null until there is a price table.
    cost_usd: Option<&'a str>,
    error: Option<ErrorBody<'a>>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: FailureCode,
    message: &'a str,
    provider_code: Option<&'a str>,
    retryable: bool,
}

/// Where an answer came from, as clients read it and as sealed pages keep it.
#[derive(Serialize, Deserialize)]
struct Origin {
    provider: Option<String>,
    model: Option<String>,
    at: String,
    key_version: String,
    provider_batch_id: Option<String>,
    request_id: Option<String>,
    chunk: Option<String>,
    team: Option<String>,
}

impl Origin {
    fn of(answer: &StoredAnswer) -> Origin {
        let from = answer.from.clone();
        let there = |text: String| (!text.is_empty()).then_some(text);
        Origin {
            provider: from.provider,
            model: answer.reading.model.clone(),
            at: clock::rfc3339(from.at),
            key_version: from.key_version,
            provider_batch_id: there(from.provider_batch).filter(|id| id != NO_BATCH),
            request_id: from.request_id,
            chunk: there(from.chunk).map(|chunk| format!("chunk_{chunk}")),
            team: there(from.team),
        }
    }

    /// What another team may know: nothing that names the one that paid, or leads to it.
    fn for_others(self) -> Origin {
        Origin { provider_batch_id: None, request_id: None, chunk: None, team: None, ..self }
    }
}

/// Who reads results in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Viewer {
    pub team: String,
    pub is_admin: bool,
}

/// A rendered result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultLine {
    /// The JSON object, without `response` and `provenance`.
    pub text: Bytes,
    /// The provider's body, value for value, but for what it tells of another call's sender; empty where there is none.
    pub body: Bytes,
    /// The body belongs into the line unasked: an answer without text.
    pub body_unasked: bool,
    /// The JSON of an [`Origin`], all of it; empty where there is no answer, or none was kept.
    origin: Bytes,
}

impl ResultLine {
    /// A result whose outcome is known.
    pub fn known(entry: &Entry, known: &Known, source: Source) -> ResultLine {
        match known {
            Known::Answered(answer) => {
                let reading = &answer.reading;
                let line = Line {
                    status: Status::Succeeded,
                    source: Some(source),
                    model: reading.model.as_deref(),
                    completion: reading.completion.as_deref(),
                    finish: reading.finish,
                    stop_reason: reading.stop_reason.as_deref(),
                    usage: reading.usage,
                    ..blank(entry)
                };
                let body_unasked = reading.completion.is_none();
                let origin = serde_json::to_vec(&Origin::of(answer)).expect("strings serialize");
                let body = match source {
                    Source::Provider => answer.body.clone(),
                    Source::Cache | Source::Joined => without_its_sender(answer.body.clone()),
                };
                let body = escape(body);
                ResultLine { text: render(&line), body, body_unasked, origin: escape(origin.into()) }
            }
            Known::Failed(failure) => ResultLine::bare(&Line {
                status: status(failure),
                error: Some(ErrorBody {
                    code: failure.code,
                    message: &failure.message,
                    provider_code: failure.provider_code.as_deref(),
                    retryable: failure.retryable,
                }),
                ..blank(entry)
            }),
        }
    }

    /// A result nobody knows yet.
    pub fn pending(entry: &Entry) -> ResultLine {
        ResultLine::bare(&blank(entry))
    }

    fn bare(line: &Line<'_>) -> ResultLine {
        ResultLine { text: render(line), body: Bytes::new(), body_unasked: false, origin: Bytes::new() }
    }

    /// The line for the client; in full, for this reader, with the provider's body and where the answer came from.
    pub fn to_json(&self, full: Option<&Viewer>) -> Bytes {
        let with_body = !self.body.is_empty() && (full.is_some() || self.body_unasked);
        if full.is_none() && !with_body {
            return self.text.clone();
        }
        let mut out = self.text[..self.text.len() - 1].to_vec();
        if with_body {
            out.extend_from_slice(b",\"response\":");
            out.extend_from_slice(&self.body);
        }
        if let Some(viewer) = full {
            out.extend_from_slice(b",\"provenance\":");
            out.extend_from_slice(&self.origin_for(viewer));
        }
        out.push(b'}');
        out.into()
    }

    /// The team that paid and admins see all of it.
    fn origin_for(&self, viewer: &Viewer) -> Bytes {
        match serde_json::from_slice::<Origin>(&self.origin) {
            Ok(origin) if viewer.is_admin || origin.team.as_ref() == Some(&viewer.team) => self.origin.clone(),
            Ok(origin) => escape(serde_json::to_vec(&origin.for_others()).expect("strings serialize").into()),
            Err(_) => Bytes::from_static(b"null"), // there is none
        }
    }

    /// As a sealed page holds it. The head is a flag byte and the text; with an origin, which version 1 had not: a flag
    /// byte, the text's length (u32, big endian), the text, and the origin.
    pub fn to_record(&self) -> (Vec<u8>, &Bytes) {
        let (bare, whole) = if self.body_unasked { (b'+', b'P') } else { (b'-', b'p') };
        if self.origin.is_empty() {
            return ([&[bare], &self.text[..]].concat(), &self.body);
        }
        let mut head = vec![whole];
        head.put_u32(u32::try_from(self.text.len()).expect("a record is far below 4 GiB"));
        head.extend_from_slice(&self.text);
        head.extend_from_slice(&self.origin);
        (head, &self.body)
    }

    pub fn from_record(head: &Bytes, body: Bytes) -> ResultLine {
        let flag = head.first().copied();
        let (mut text, mut origin) = (head.slice(1.min(head.len())..), Bytes::new());
        if matches!(flag, Some(b'p' | b'P'))
            && let Some(length) = text.first_chunk::<4>()
        {
            let end = (4 + u32::from_be_bytes(*length) as usize).min(text.len());
            (text, origin) = (text.slice(4..end), text.slice(end..));
        }
        ResultLine { text, body, body_unasked: matches!(flag, Some(b'+' | b'P')), origin }
    }
}

fn status(failure: &Failure) -> Status {
    match failure.code.ending() {
        Some(Ending::Canceled) => Status::Canceled,
        Some(Ending::Expired) => Status::Expired,
        None => Status::Failed,
    }
}

fn blank(entry: &Entry) -> Line<'_> {
    Line {
        index: entry.index,
        sample: entry.sample,
        custom_id: entry.custom_id.as_deref(),
        status: Status::Pending,
        source: None,
        model: None,
        completion: None,
        finish: None,
        stop_reason: None,
        usage: None,
        cost_usd: None,
        error: None,
    }
}

fn render(line: &Line<'_>) -> Bytes {
    escape(serde_json::to_vec(line).expect("strings and numbers serialize").into())
}

/// Escapes U+2028, U+2029 and U+0085. In valid JSON they stand only inside strings, where their escape means the same.
pub fn escape(json: Bytes) -> Bytes {
    const ESCAPES: [(&[u8], &[u8]); 3] =
        [(b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085")];
    let starts = |at: usize| ESCAPES.iter().find(|(raw, _)| json[at..].starts_with(raw));
    let hit = |at: &usize| matches!(json[*at], 0xe2 | 0xc2) && starts(*at).is_some();
    if !(0..json.len()).any(|at| hit(&at)) {
        return json;
    }
    let mut out = Vec::with_capacity(json.len() + 64);
    let mut at = 0;
    while at < json.len() {
        match starts(at) {
            Some((raw, escaped)) => {
                out.extend_from_slice(escaped);
                at += raw.len();
            }
            None => {
                out.push(json[at]);
                at += 1;
            }
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaking_characters_leave_escaped_and_others_stay() {
        let given = "{\"a\":\"\u{2028}x\u{2029}\u{85}é\u{2027}\u{c5}\"}";
        assert_eq!(escape(given.into()), Bytes::from("{\"a\":\"\\u2028x\\u2029\\u0085é\u{2027}\u{c5}\"}"));
    }

    fn line(body_unasked: bool, origin: &'static str) -> ResultLine {
        ResultLine { text: "{\"index\":0}".into(), body: "{\"x\":1.0}".into(), body_unasked, origin: origin.into() }
    }

    fn viewer(team: &str, is_admin: bool) -> Viewer {
        Viewer { team: team.to_owned(), is_admin }
    }

    #[test]
    fn the_body_is_spliced_in_only_when_asked_or_when_there_is_no_text() {
        let us = viewer("a", false);
        assert_eq!(line(false, "").to_json(None), "{\"index\":0}");
        assert_eq!(line(false, "").to_json(Some(&us)), "{\"index\":0,\"response\":{\"x\":1.0},\"provenance\":null}");
        assert_eq!(line(true, "").to_json(None), "{\"index\":0,\"response\":{\"x\":1.0}}");
    }

    const ORIGIN: &str = r#"{"provider":"anthropic","model":"m","at":"2026-11-30T09:00:00.000Z","key_version":"batchgate/1","provider_batch_id":"msgbatch_1","request_id":"r","chunk":"chunk_0.1","team":"a"}"#;

    #[test]
    fn who_paid_and_an_admin_see_where_an_answer_came_from_and_others_less() {
        let seen = |viewer: &Viewer| {
            let json: serde_json::Value =
                serde_json::from_slice(&line(false, ORIGIN).to_json(Some(viewer))).expect("JSON");
            json["provenance"].clone()
        };
        let all: serde_json::Value = serde_json::from_str(ORIGIN).expect("JSON");
        assert_eq!((seen(&viewer("a", false)), seen(&viewer("ops", true))), (all.clone(), all.clone()));
        let theirs = seen(&viewer("b", false));
        for member in ["provider_batch_id", "request_id", "chunk", "team"] {
            assert!(theirs[member].is_null(), "{member}: {theirs}");
        }
        for member in ["provider", "model", "at", "key_version"] {
            assert_eq!(theirs[member], all[member], "{member}");
        }
    }

    #[test]
    fn records_come_back_and_those_without_an_origin_stay_readable() {
        for (unasked, origin) in [(true, ""), (false, ""), (true, ORIGIN), (false, ORIGIN)] {
            let (head, body) = (line(unasked, origin).to_record().0, line(unasked, origin).body);
            assert_eq!(ResultLine::from_record(&head.into(), body), line(unasked, origin));
        }
        let old = ResultLine::from_record(&"+{\"index\":0}".into(), "{\"x\":1.0}".into());
        assert_eq!(old, line(true, ""));
        for torn in ["", "p", "p\0\0", "P\0\0\u{1}\0{}"] {
            ResultLine::from_record(&torn.into(), Bytes::new());
        }
    }
}
