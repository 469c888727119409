//! How an answer leaves: in one piece, streamed from disk, slowed down, or cut off before its end.
//!
//! Knows nothing of what is in it.

use std::{io::SeekFrom, ops::Range, path::PathBuf, sync::Arc, time::Instant};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use serde_json::Value;
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use super::{
    clock::real,
    faults::{Fault, Trickle, Truncate},
    json::encode,
    ledger::Entry,
    settings::Framing,
    wire::Wire,
    world::Sim,
};

/// Bytes read from disk and sent at a time.
const PIECE: usize = 1 << 18;

/// An answer on its way out.
pub(crate) struct Outgoing {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    content_type: &'static str,
    content: Content,
    framing: Framing,
    /// May the caller ask for a part?
    ranges: bool,
}

#[derive(Clone)]
enum Content {
    Bytes(Bytes),
    File(PathBuf, u64),
}

impl Outgoing {
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::text(status, "application/json", encode(body))
    }

    pub(crate) fn text(status: u16, content_type: &'static str, text: String) -> Self {
        let content = Content::Bytes(text.into());
        Self { status, headers: Vec::new(), content_type, content, framing: Framing::Length, ranges: false }
    }

    /// The page that a proxy in front of a provider answers with.
    pub(crate) fn html(status: u16, title: &str) -> Self {
        let page =
            format!("<html>\r\n<head><title>{title}</title></head>\r\n<body><h1>{title}</h1></body>\r\n</html>\r\n");
        Self::text(status, "text/html", page)
    }

    pub(crate) async fn file(
        path: PathBuf,
        content_type: &'static str,
        framing: Framing,
        ranges: bool,
    ) -> std::io::Result<Self> {
        let size = tokio::fs::metadata(&path).await?.len();
        let content = Content::File(path, size);
        Ok(Self { status: 200, headers: Vec::new(), content_type, content, framing, ranges })
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    fn size(&self) -> u64 {
        match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File(_, size) => *size,
        }
    }
}

/// A call that is still going on; when this is dropped, it no longer is.
pub(crate) struct Flight {
    pub(crate) sim: Arc<Sim>,
    pub(crate) entry: Entry,
    pub(crate) name: String,
    pub(crate) began: Instant,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.sim.world().ledger.leave(&self.name);
        self.entry.write().seconds = Some((self.began.elapsed().as_secs_f64() * 1e4).round() / 1e4);
    }
}

/// What the caller and the fault have to say about the delivery.
pub(crate) struct Terms<'a> {
    pub(crate) fault: &'a Fault,
    /// The caller's `Range` header.
    pub(crate) range: Option<&'a str>,
    pub(crate) wire: Wire,
    pub(crate) flight: Flight,
}

pub(crate) async fn deliver(mut out: Outgoing, terms: Terms<'_>) -> Response {
    let whole = out.size();
    let range = terms.range.filter(|_| out.ranges && out.status == 200).and_then(|given| wanted_range(given, whole));
    if let Some(range) = &range {
        out.status = 206;
        out.headers.push(("content-range".into(), format!("bytes {}-{}/{whole}", range.start, range.end - 1)));
    }
    let range = range.unwrap_or(0..whole);
    let mut head = Response::new(Body::empty());
    *head.status_mut() = StatusCode::from_u16(out.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *head.headers_mut() = headers(&out);
    terms.flight.entry.write().status = Some(out.status);
    let cut = terms.fault.truncate.as_ref();
    let trickle = terms.fault.trickle.as_ref();
    if let (Content::Bytes(bytes), None, None) = (&out.content, cut, trickle) {
        terms.flight.entry.write().response_bytes = whole;
        return head.map(|_| Body::from(bytes.clone()));
    }
    match cut.and_then(|cut| cut.framing).unwrap_or(out.framing) {
        Framing::Length => {
            head.headers_mut().insert(header::CONTENT_LENGTH, (range.end - range.start).into());
        }
        Framing::Chunked => {}
        // A body of HTTP/1.0 without a length ends where the connection does.
        Framing::Close => *head.version_mut() = Version::HTTP_10,
    }
    let sent = match cut {
        Some(cut) => cut_range(cut, range, &out.content).await,
        None => range,
    };
    let sending = Sending {
        content: out.content,
        file: None,
        left: sent,
        trickle: trickle.cloned(),
        cut_wire: cut.map(|_| terms.wire),
        flight: terms.flight,
    };
    head.map(|_| Body::from_stream(stream::unfold(sending, Sending::next)))
}

fn headers(out: &Outgoing) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(out.content_type));
    for (name, value) in &out.headers {
        // A fault may ask for headers that HTTP cannot carry; those are left out.
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(value.as_bytes())) {
            headers.insert(name, value);
        }
    }
    headers
}

/// The one range of a `Range: bytes=...` header; None if it cannot be had.
fn wanted_range(given: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = given.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", last) => size.saturating_sub(last.parse().ok()?)..size,
        (first, "") => first.parse().ok()?..size,
        (first, last) => first.parse().ok()?..size.min(last.parse::<u64>().ok()?.saturating_add(1)),
    };
    (range.start < range.end).then_some(range)
}

async fn cut_range(cut: &Truncate, range: Range<u64>, content: &Content) -> Range<u64> {
    let size = range.end - range.start;
    let end = range.start + cut.bytes.unwrap_or_else(|| share(size, cut.fraction)).min(size);
    let end = if cut.at_line_end { last_line_end(content, range.start..end).await } else { end };
    range.start..end
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a size"
)]
fn share(size: u64, fraction: f64) -> u64 {
    (size as f64 * fraction.clamp(0.0, 1.0)) as u64
}

/// The place after the last line end in the range, or its start; looked for from the end.
async fn last_line_end(content: &Content, range: Range<u64>) -> u64 {
    let mut file = None;
    let mut end = range.end;
    while end > range.start {
        let start = range.start.max(end.saturating_sub(PIECE as u64));
        let Ok(piece) = read(content, &mut file, start..end).await else { break };
        if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
            return start + at as u64 + 1;
        }
        end = start;
    }
    range.start
}

async fn read(content: &Content, file: &mut Option<File>, range: Range<u64>) -> std::io::Result<Bytes> {
    let path = match content {
        Content::Bytes(bytes) => {
            let place = |at: u64| usize::try_from(at).map_err(std::io::Error::other);
            return Ok(bytes.slice(place(range.start)?..place(range.end)?));
        }
        Content::File(path, _) => path,
    };
    let file = match file {
        Some(file) => file,
        None => file.insert(File::open(path).await?),
    };
    let mut piece = vec![0; usize::try_from(range.end - range.start).map_err(std::io::Error::other)?];
    file.seek(SeekFrom::Start(range.start)).await?;
    file.read_exact(&mut piece).await?;
    Ok(piece.into())
}

/// A body that is being sent.
struct Sending {
    content: Content,
    file: Option<File>,
    left: Range<u64>,
    trickle: Option<Trickle>,
    /// Present if the body is to end before it is due.
    cut_wire: Option<Wire>,
    flight: Flight,
}

impl Sending {
    async fn next(mut self) -> Option<(std::io::Result<Bytes>, Self)> {
        if self.left.is_empty() {
            let wire = self.cut_wire?;
            // Hyper flushes what it has once a body makes it wait, and that flush ends the connection.
            wire.close_once_flushed();
            drop(self.flight);
            return std::future::pending().await;
        }
        let step = match &self.trickle {
            Some(trickle) => {
                tokio::time::sleep(real(trickle.every)).await;
                trickle.bytes.max(1)
            }
            None => PIECE,
        };
        let end = self.left.end.min(self.left.start + step as u64);
        let piece = read(&self.content, &mut self.file, self.left.start..end).await;
        self.flight.entry.write().response_bytes += end - self.left.start;
        self.left.start = end;
        Some((piece, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_in_http() {
        let check = |given, expected| assert_eq!(wanted_range(given, 100), expected, "{given}");
        check("bytes=10-19", Some(10..20));
        check("bytes=90-", Some(90..100));
        check("bytes=-5", Some(95..100));
        check("bytes=90-500", Some(90..100));
        check("bytes=100-", None);
        check("lines=1-2", None);
    }

    #[tokio::test]
    async fn a_cut_can_fall_on_a_line_end() {
        let content = Content::Bytes("one\ntwo\nthree\n".into());
        let cut = |bytes, at_line_end| Truncate { bytes: Some(bytes), at_line_end, ..Truncate::default() };
        assert_eq!(cut_range(&cut(10, true), 0..14, &content).await, 0..8);
        assert_eq!(cut_range(&cut(10, false), 0..14, &content).await, 0..10);
        assert_eq!(cut_range(&cut(2, true), 0..14, &content).await, 0..0);
        assert_eq!(cut_range(&Truncate::default(), 0..14, &content).await, 0..7);
    }
}
