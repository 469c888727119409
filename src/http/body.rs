//! A request body as a stream: bounded in bytes and in silence, hashed as it passes.

use super::error::{ApiError, Code};
use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// A body on which nothing arrives for so long is broken off.
const STALL: Duration = Duration::from_secs(60);
/// After an error the rest of a body is read up to this bound, so that the client gets to see the answer.
const DRAIN_BYTES: u64 = 8 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);

pub(super) struct Incoming {
    stream: BodyDataStream,
    left: u64,
    max: u64,
    digest: Sha256,
}

impl Incoming {
    /// `kind` goes into the digest: the same bytes as another media type are another request.
    pub(super) fn new(body: Body, max: u64, kind: &str) -> Incoming {
        let digest = Sha256::new_with_prefix(format!("{kind}\n"));
        Incoming { stream: body.into_data_stream(), left: max, max, digest }
    }

    /// The next piece; `None` at the proper end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let piece = match tokio::time::timeout(STALL, self.stream.next()).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(_))) => return Err(ApiError::new(Code::MalformedBody, "the body broke off; send it again")),
            Err(_) => {
                let detail = format!("nothing of the body arrived for {} s; send it again", STALL.as_secs());
                return Err(ApiError::new(Code::MalformedBody, detail));
            }
        };
        self.left = self.left.checked_sub(piece.len() as u64).ok_or_else(|| too_large(self.max))?;
        self.digest.update(&piece);
        metrics::counter!("batchgate_http_received_bytes_total").increment(piece.len() as u64);

        Ok(Some(piece))
    }

    /// Reads the rest for the sake of its digest.
    pub(super) async fn skip(&mut self) -> Result<(), ApiError> {
        while self.next().await?.is_some() {}
        Ok(())
    }

    /// Digest of everything read.
    pub(super) fn digest(&self) -> String {
        self.digest.clone().finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    /// See [`drain`].
    pub(super) async fn drain(self) {
        drain_stream(self.stream).await;
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
