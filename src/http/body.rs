//! A request body as a stream: decoded if it came under gzip or zstd, bounded in bytes and in silence, hashed as it
//! passes. Never stands in memory whole, however far it unpacks.

use super::error::{ApiError, Code};
use async_compression::{
    tokio::bufread::{GzipDecoder, ZstdDecoder},
    zstd::DParameter,
};
use axum::{
    body::{Body, BodyDataStream},
    http::{HeaderMap, HeaderValue, header},
};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use sha2::{Digest, Sha256};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, Sleep},
};
use tokio_util::io::StreamReader;

/// A body is broken off if this much waiting for it brings less than [`LEAST_RATE`] would.
const STALL: Duration = Duration::from_secs(60);
/// Bytes a second that a body brings at least, on the wire: it holds one of the few seats for reading. Far below what the
/// slowest line brings, and what a client brings that makes its prompts while it sends them.
const LEAST_RATE: u64 = 1 << 10;
/// Fewer bytes are no progress.
const PROGRESS: u64 = LEAST_RATE * STALL.as_secs();
/// After an error the rest of a body is read up to this bound, so that the client gets to see the answer.
const DRAIN_BYTES: u64 = 8 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(3);
/// Decoded bytes handed on at once.
const PIECE: usize = 64 << 10;
/// zstd's window in memory, as a power of two: 8 MiB, what every decoder must take and none has to exceed (RFC 9659).
const WINDOW_LOG: u32 = 23;

/// How a body is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Identity,
    Gzip,
    Zstd,
}

impl Coding {
    /// What Content-Encoding says; 415 for any other coding, and for several on top of each other.
    pub(super) fn read(headers: &HeaderMap) -> Result<Coding, ApiError> {
        let values = headers.get_all(header::CONTENT_ENCODING);
        let lines: Option<Vec<&str>> = values.iter().map(|value| value.to_str().ok()).collect();
        let listed = lines.map(|lines| lines.join(",").to_ascii_lowercase());
        let names: Option<Vec<&str>> =
            listed.as_deref().map(|listed| listed.split(',').map(str::trim).filter(|name| !name.is_empty()).collect());
        match names.as_deref() {
            Some([] | ["identity"]) => Ok(Coding::Identity),
            Some(["gzip" | "x-gzip"]) => Ok(Coding::Gzip),
            Some(["zstd"]) => Ok(Coding::Zstd),
            _ => {
                let detail = "Content-Encoding must be `gzip`, `zstd` or `identity`, one of them alone";
                let known = HeaderValue::from_static("gzip, zstd");
                Err(ApiError::new(Code::UnsupportedMediaType, detail).heading(header::ACCEPT_ENCODING, known))
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Coding::Identity => "identity",
            Coding::Gzip => "gzip",
            Coding::Zstd => "zstd",
        }
    }
}

pub(super) struct Incoming {
    source: Source,
    coding: Coding,
    left: u64,
    max: u64,
    digest: Sha256,
    buffer: BytesMut,
}

/// Where decoded bytes come from.
enum Source {
    Plain(Wire),
    Gzip(Box<GzipDecoder<StreamReader<Wire, Bytes>>>),
    Zstd(Box<ZstdDecoder<StreamReader<Wire, Bytes>>>),
}

impl Incoming {
    /// `kind` goes into the digest: the same bytes as another media type are another request. The coding does not: how a
    /// request was packed changes nothing in it. `max` bounds the bytes on the wire, and the decoded ones.
    pub(super) fn new(body: Body, coding: Coding, max: u64, kind: &str) -> Incoming {
        let wire = Wire::new(body, max);
        let source = match coding {
            Coding::Identity => Source::Plain(wire),
            Coding::Gzip => {
                let mut decoder = GzipDecoder::new(StreamReader::new(wire));
                decoder.multiple_members(true);
                Source::Gzip(Box::new(decoder))
            }
            Coding::Zstd => {
                let window = [DParameter::window_log_max(WINDOW_LOG)];
                let mut decoder = ZstdDecoder::with_params(StreamReader::new(wire), &window);
                decoder.multiple_members(true);
                Source::Zstd(Box::new(decoder))
            }
        };
        let digest = Sha256::new_with_prefix(format!("{kind}\n"));
        Incoming { source, coding, left: max, max, digest, buffer: BytesMut::new() }
    }

    /// The next piece; `None` at the proper end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let read = match &mut self.source {
            Source::Plain(wire) => wire.next().await.transpose(),
            Source::Gzip(decoder) => piece(decoder, &mut self.buffer).await,
            Source::Zstd(decoder) => piece(decoder, &mut self.buffer).await,
        };
        let Some(piece) = read.map_err(|error| self.refusal(&error))? else { return Ok(None) };
        self.left = self.left.checked_sub(piece.len() as u64).ok_or_else(|| too_large(self.max))?;
        self.digest.update(&piece);
        metrics::counter!("batchgate_http_received_bytes_total").increment(piece.len() as u64);

        Ok(Some(piece))
    }

    fn refusal(&self, error: &io::Error) -> ApiError {
        let malformed = |detail: String| ApiError::new(Code::MalformedBody, detail);
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Fault>()) {
            Some(Fault::BrokenOff) => malformed("the body broke off; send it again".to_owned()),
            Some(Fault::Stalled) => malformed(format!(
                "the body came too slowly: {PROGRESS} bytes are the least in {} s of waiting for it ({LEAST_RATE} a second); \
                 nothing was created, send it again when it is whole",
                STALL.as_secs()
            )),
            Some(Fault::TooLarge) => too_large(self.max),
            None => {
                let hint = match self.coding {
                    Coding::Identity | Coding::Gzip => "",
                    Coding::Zstd => ", or its window exceeds 8 MiB (compress without --ultra and --long)",
                };
                malformed(format!("the body is no whole {} stream{hint}", self.coding.name()))
            }
        }
    }

    /// Reads the rest for the sake of its digest.
    pub(super) async fn skip(&mut self) -> Result<(), ApiError> {
        while self.next().await?.is_some() {}
        Ok(())
    }

    /// Digest of everything read, decoded.
    pub(super) fn digest(&self) -> String {
        self.digest.clone().finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    /// See [`drain`].
    pub(super) async fn drain(self) {
        let wire = match self.source {
            Source::Plain(wire) => wire,
            Source::Gzip(decoder) => decoder.into_inner().into_inner(),
            Source::Zstd(decoder) => decoder.into_inner().into_inner(),
        };
        drain_stream(wire.stream).await;
    }
}

/// Some decoded bytes; `None` at the end of the last member.
async fn piece(decoder: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> io::Result<Option<Bytes>> {
    buffer.reserve(PIECE);
    let count = decoder.read_buf(buffer).await?;
    Ok((count > 0).then(|| buffer.split().freeze()))
}

/// The body as it comes over the wire.
struct Wire {
    stream: BodyDataStream,
    left: u64,
    patience: Patience,
    silence: Pin<Box<Sleep>>,
}

/// How much waiting is left before there has to be progress. Only waiting counts: while we are busy nobody can send.
struct Patience {
    limit: Duration,
    left: Duration,
    /// Came since the last progress.
    came: u64,
    /// Somebody waits since then.
    since: Option<Instant>,
}

impl Patience {
    fn new(limit: Duration) -> Patience {
        Patience { limit, left: limit, came: 0, since: None }
    }

    /// Nothing is there yet: when this ends.
    fn wait(&mut self, now: Instant) -> Instant {
        *self.since.get_or_insert(now) + self.left
    }

    fn came(&mut self, bytes: u64, now: Instant) {
        let waited = self.since.take().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.left = self.left.saturating_sub(waited);
        self.came = self.came.saturating_add(bytes);
        if self.came >= PROGRESS {
            *self = Patience::new(self.limit);
        }
    }
}

/// Why the wire gives no more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Fault {
    #[error("broken off")]
    BrokenOff,
    #[error("stalled")]
    Stalled,
    #[error("too large")]
    TooLarge,
}

impl Wire {
    fn new(body: Body, max: u64) -> Wire {
        let silence = Box::pin(tokio::time::sleep(STALL));
        Wire { stream: body.into_data_stream(), left: max, patience: Patience::new(STALL), silence }
    }
}

impl Stream for Wire {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let fault = |fault: Fault| Poll::Ready(Some(Err(io::Error::other(fault))));
        let Poll::Ready(next) = self.stream.poll_next_unpin(context) else {
            let end = self.patience.wait(Instant::now());
            if self.silence.deadline() != end {
                self.silence.as_mut().reset(end);
            }
            ready!(self.silence.as_mut().poll(context));
            return fault(Fault::Stalled);
        };
        let length = next.as_ref().and_then(|piece| piece.as_ref().ok()).map_or(0, |piece| piece.len() as u64);
        self.patience.came(length, Instant::now());
        match next {
            None => Poll::Ready(None),
            Some(Err(_)) => fault(Fault::BrokenOff),
            Some(Ok(piece)) => match self.left.checked_sub(piece.len() as u64) {
                None => fault(Fault::TooLarge),
                Some(left) => {
                    self.left = left;
                    Poll::Ready(Some(Ok(piece)))
                }
            },
        }
    }
}

/// Reads what a client is still sending, within bounds, before it is told of an error: closing a connection with
/// unread bytes would reset it, and the answer with it.
pub(super) async fn drain(body: Body) {
    drain_stream(body.into_data_stream()).await;
}

async fn drain_stream(mut stream: BodyDataStream) {
    let reading = async {
        let mut read = 0;
        while let Some(Ok(piece)) = stream.next().await {
            read += piece.len() as u64;
            if read > DRAIN_BYTES {
                return;
            }
        }
    };
    // Running out of time is as good an end as any.
    let _ = tokio::time::timeout(DRAIN_TIME, reading).await;
}

pub(super) fn too_large(max: u64) -> ApiError {
    let detail = format!("the body exceeds {max} bytes: send several batches, or raise BATCHGATE_MAX_BODY");
    ApiError::new(Code::BodyTooLarge, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_is_no_progress_and_our_own_business_no_wait() {
        let (second, mut now) = (Duration::from_secs(1), Instant::now());
        let mut patience = Patience::new(60 * second);
        for left in (1..60).rev() {
            assert_eq!(patience.wait(now), now + (left + 1) * second);
            now += second;
            assert_eq!(patience.wait(now), now + left * second, "asked again while it waits");
            patience.came(1, now);
            now += 1_000 * second; // busy with that byte
        }
        patience.came(PROGRESS, now);
        assert_eq!(patience.wait(now), now + 60 * second);
        patience.came(0, now + 90 * second);
        assert_eq!(patience.wait(now), now, "an end that comes too late finds no patience left");
    }

    /// Whoever sends so many bytes each so many seconds: after which time he is broken off, within an hour.
    fn broken_off(bytes: u64, every: Duration) -> Option<Duration> {
        let begin = Instant::now();
        let (mut now, mut patience) = (begin, Patience::new(STALL));
        while now < begin + Duration::from_secs(3_600) {
            let (end, next) = (patience.wait(now), now + every);
            if end < next {
                return Some(end - begin);
            }
            now = next;
            patience.came(bytes, now);
        }
        None
    }

    #[test]
    fn a_slow_line_lives_and_a_seat_is_not_held_by_trickles() {
        let (tenth, second) = (Duration::from_millis(100), Duration::from_secs(1));
        for (bytes, every) in [(5 << 10, tenth), (50 << 10, second), (2 << 10, second), (3 << 20, 59 * second)] {
            assert_eq!(broken_off(bytes, every), None, "{bytes} bytes each {every:?}");
        }
        for (bytes, every) in [(1, tenth), (1_100, 45 * second), (1_024, 2 * second), (20 << 10, 30 * second)] {
            assert_eq!(broken_off(bytes, every), Some(STALL), "{bytes} bytes each {every:?}");
        }
    }

    #[test]
    fn one_coding_alone_is_known() {
        for (lines, expect) in [
            (&[][..], Some(Coding::Identity)),
            (&[""], Some(Coding::Identity)),
            (&["identity"], Some(Coding::Identity)),
            (&["GZIP"], Some(Coding::Gzip)),
            (&[" x-gzip "], Some(Coding::Gzip)),
            (&["zstd"], Some(Coding::Zstd)),
            (&["br"], None),
            (&["deflate"], None),
            (&["gzip, zstd"], None),
            (&["gzip", "gzip"], None),
            (&["identity, gzip"], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(line));
            }
            assert_eq!(Coding::read(&headers).ok(), expect, "{lines:?}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_bytes(b"\xff").expect("an odd header"));
        assert!(Coding::read(&headers).is_err());
    }
}
