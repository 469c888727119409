//! One result as its client reads it: a line of JSON. Pure. U+2028, U+2029 and U+0085 leave escaped, for there are
//! line splitters out there that cut at them.

use crate::{
    domain::outcome::{Ending, Failure, FailureCode, Finish, Usage},
    store::record::{Entry, Known},
};
use bytes::Bytes;
use serde::Serialize;

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

/// A rendered result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultLine {
    /// The JSON object, without `response`.
    pub text: Bytes,
    /// The provider's body, value for value; empty where there is none.
    pub body: Bytes,
    /// The body belongs into the line unasked: an answer without text.
    pub body_unasked: bool,
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
                ResultLine { text: render(&line), body: escape(answer.body.clone()), body_unasked }
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
        ResultLine { text: render(line), body: Bytes::new(), body_unasked: false }
    }

    /// The line for the client; `full` adds the provider's body.
    pub fn to_json(&self, full: bool) -> Bytes {
        if self.body.is_empty() || !(full || self.body_unasked) {
            return self.text.clone();
        }
        let open = &self.text[..self.text.len() - 1];
        [open, b",\"response\":", &self.body[..], b"}"].concat().into()
    }

    /// As a sealed page holds it: the head is one flag byte and the text.
    pub fn to_record(&self) -> (Vec<u8>, &Bytes) {
        let flag = if self.body_unasked { b'+' } else { b'-' };
        ([&[flag], &self.text[..]].concat(), &self.body)
    }

    pub fn from_record(head: &Bytes, body: Bytes) -> ResultLine {
        ResultLine { text: head.slice(1.min(head.len())..), body, body_unasked: head.first() == Some(&b'+') }
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

    #[test]
    fn the_body_is_spliced_in_only_when_asked_or_when_there_is_no_text() {
        let line = |body_unasked| ResultLine { text: "{\"index\":0}".into(), body: "{\"x\":1.0}".into(), body_unasked };
        assert_eq!(line(false).to_json(false), "{\"index\":0}");
        assert_eq!(line(false).to_json(true), "{\"index\":0,\"response\":{\"x\":1.0}}");
        assert_eq!(line(true).to_json(false), "{\"index\":0,\"response\":{\"x\":1.0}}");
        let (head, body) = (line(true).to_record().0, line(true).body);
        assert_eq!(ResultLine::from_record(&head.into(), body), line(true));
    }
}
