//! A download of any size, read line by line. Knows no provider and no meaning of a line.
//!
//! A body that ends before its Content-Length, or without the last chunk, is an error of the connection. A body framed
//! by the closing of its connection says nothing of its end: [`Download::proven`] is false, and whoever reads it compares
//! with what else is known, or takes it as cut short.

use super::{
    CallError, exchange,
    lines::{Lines, MAX_LINE, Piece},
    transport,
};
use reqwest::{
    Response, Version,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use std::time::{Duration, Instant};

/// A download is given up if this many times the stall limit, spent waiting, brings less than [`PROGRESS`]: one that
/// trickles would hold its chunk, and a worker, for ever.
const TRICKLE: u32 = 16;
const PROGRESS: u64 = 256;

pub(super) struct Download {
    what: String,
    response: Response,
    stall: Duration,
    lines: Lines,
    ended: bool,
    proven: bool,
    bytes: u64,
    /// Spent waiting since the last progress, and what came since.
    waited: Duration,
    came: u64,
}

impl Download {
    pub(super) fn new(what: String, response: Response, stall: Duration) -> Download {
        let headers = response.headers();
        let chunked = headers.get(TRANSFER_ENCODING).is_some_and(|coding| coding.as_bytes().ends_with(b"chunked"));
        let proven = chunked || headers.contains_key(CONTENT_LENGTH) || response.version() >= Version::HTTP_2;
        let lines = Lines::new(MAX_LINE);
        let waited = Duration::ZERO;
        Download { what, response, stall, lines, ended: false, proven, bytes: 0, waited, came: 0 }
    }

    /// The next line, none at the end of a body.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, CallError> {
        loop {
            if self.ended {
                return Ok(self.lines.finish());
            }
            if let Some(piece) = self.lines.next() {
                return Ok(Some(piece));
            }
            let began = Instant::now();
            match exchange::moving(self.stall, self.response.chunk()).await {
                Ok(Some(bytes)) => {
                    self.progress(bytes.len() as u64, began.elapsed())?;
                    self.lines.push(&bytes);
                }
                Ok(None) => self.ended = true,
                Err(detail) => {
                    return Err(transport::again(&self.what, format!("after {} bytes: {detail}", self.bytes)));
                }
            }
        }
    }

    fn progress(&mut self, bytes: u64, waited: Duration) -> Result<(), CallError> {
        self.bytes += bytes;
        self.came += bytes;
        self.waited += waited;
        if self.came >= PROGRESS {
            (self.came, self.waited) = (0, Duration::ZERO);
        }
        if self.waited <= self.stall * TRICKLE {
            return Ok(());
        }
        let (came, waited) = (self.came, self.waited);
        Err(transport::again(&self.what, format!("after {} bytes: only {came} came in {waited:?}", self.bytes)))
    }

    /// Whether the end of this body can be told from a broken connection.
    pub(super) fn proven(&self) -> bool {
        self.proven
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}
