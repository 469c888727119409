//! One request out and one answer back, with a bound on every wait. Knows no key, no address and no meaning of a status.

use super::{faults, lines::MAX_LINE, parcel::Progress};
use bytes::Bytes;
use reqwest::{RequestBuilder, Response, StatusCode, header::HeaderMap};
use std::{future::Future, pin::pin, time::Duration};
use tokio::time::timeout;

/// A reply that is one JSON document; a page of a hundred batches is far below it.
const MAX_REPLY: usize = 32 * 1024 * 1024;

/// How many times the limit between two bytes a whole reply may take: one that trickles is given up.
const WHOLE: u32 = 20;

/// How long to wait for what.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// For the next byte, of the request or of the answer's body.
    pub moving: Duration,
    /// For the head of the answer, once the last byte of the request is on its way.
    pub answer: Duration,
}

/// A request body: its bytes, their number, and how far they are.
pub(super) struct Outgoing {
    pub body: reqwest::Body,
    pub length: u64,
    pub progress: Progress,
}

/// A whole answer, whatever its status.
pub(super) struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// No whole answer.
pub(super) struct Unanswered {
    /// Certain: the provider never had the whole request.
    pub unsent: bool,
    /// It had, as far as one can tell, and said nothing in time.
    pub silent: bool,
    pub detail: String,
}

/// Sends and reads all of the answer.
pub(super) async fn whole(
    request: RequestBuilder,
    progress: &Progress,
    patience: Patience,
) -> Result<Reply, Unanswered> {
    let response = head(request, progress, patience).await?;
    let (status, headers) = (response.status(), response.headers().clone());
    match body(response, patience.moving).await {
        Ok(body) => Ok(Reply { status, headers, body }),
        // An error is known by its status alone.
        Err(_) if !status.is_success() => Ok(Reply { status, headers, body: Bytes::new() }),
        Err(detail) => Err(Unanswered { unsent: false, silent: false, detail }),
    }
}

/// Sends, until the head of the answer is there. A wait is judged at its end, so that a stall while sending is noticed
/// after one to two of them.
pub(super) async fn head(
    request: RequestBuilder,
    progress: &Progress,
    patience: Patience,
) -> Result<Response, Unanswered> {
    let mut sending = pin!(request.send());
    loop {
        let before = (progress.taken(), progress.complete());
        let limit = if before.1 { patience.answer } else { patience.moving };
        match timeout(limit, &mut sending).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => {
                let unsent = error.is_connect() || error.is_builder() || !progress.complete();
                return Err(Unanswered { unsent, silent: false, detail: faults::chain(&error.without_url()) });
            }
            Err(_) if before != (progress.taken(), progress.complete()) => {}
            Err(_) => {
                let waited = if before.1 { "no answer" } else { "no byte taken" };
                let detail = format!("{waited} for {limit:?}");
                return Err(Unanswered { unsent: !before.1, silent: before.1, detail });
            }
        }
    }
}

/// All of an answer's body; the error says what happened, in words.
pub(super) async fn body(mut response: Response, stall: Duration) -> Result<Bytes, String> {
    let reading = async {
        let mut body = Vec::new();
        while let Some(bytes) = moving(stall, response.chunk()).await? {
            if body.len() + bytes.len() > MAX_REPLY {
                return Err(format!("reply of more than {MAX_REPLY} bytes"));
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body.into())
    };
    let limit = stall * WHOLE;
    timeout(limit, reading).await.unwrap_or_else(|_| Err(format!("the reply was not whole after {limit:?}")))
}

/// All of an answer that may take long to begin: some servers send the head and then think. `Ok(None)`: longer than a
/// line of results may be.
pub(super) async fn long_body(mut response: Response, patience: Patience) -> Result<Option<Bytes>, String> {
    let reading = async {
        let mut body = Vec::new();
        let mut wait = patience.answer;
        while let Some(bytes) = moving(wait, response.chunk()).await? {
            if body.len() + bytes.len() > MAX_LINE {
                return Ok(None);
            }
            body.extend_from_slice(&bytes);
            wait = patience.moving;
        }
        Ok(Some(body.into()))
    };
    let limit = patience.answer;
    timeout(limit, reading).await.unwrap_or_else(|_| Err(format!("the answer was not whole after {limit:?}")))
}

/// A read with its stall limit; the error says what happened, in words.
pub(super) async fn moving<T>(stall: Duration, read: impl Future<Output = reqwest::Result<T>>) -> Result<T, String> {
    match timeout(stall, read).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(faults::chain(&error.without_url())),
        Err(_) => Err(format!("no byte came for {stall:?}")),
    }
}
