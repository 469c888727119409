//! The batch object as clients read it. O(1) however large the batch, but for the results of a small ended one.

use super::error::ApiError;
use crate::store::StoreError;
use crate::{
    clock,
    domain::{
        account::Reason,
        batch::Priority,
        id::BatchId,
        outcome::Usage,
        progress::{BatchStatus, ChunkCounts, Progress},
    },
    pipeline::{
        Gateway,
        line::{ResultLine, Viewer, escape},
        read::{Reader, Unknown},
    },
};
use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use std::{collections::BTreeMap, sync::Arc};

/// An ended batch of at most this many results brings them along.
const INLINE_RESULTS: u64 = 1_000;

#[derive(Serialize)]
struct BatchObject<'a> {
    id: String,
    object: &'static str,
    status: BatchStatus,
    created_at: String,
    ended_at: Option<String>,
    expires_at: String,
    deleted_at: Option<String>,
    team: &'a str,
    run: Option<&'a str>,
    retry_of: Option<String>,
    priority: Priority,
    metadata: &'a BTreeMap<String, String>,
    counts: CountsObject,
    chunks: ChunkCounts,
    reported_prompts: u64,
    waiting: Vec<WaitingObject<'a>>,
    usage: Usage,
    cost: Cost,
}

#[derive(Serialize)]
struct CountsObject {
    total: u64,
    pending: u64,
    succeeded: u64,
    failed: u64,
    canceled: u64,
    expired: u64,
    cached: u64,
    joined: u64,
    repeats: u64,
}

#[derive(Serialize)]
struct WaitingObject<'a> {
    reason: Reason,
    detail: &'a str,
    prompts: u64,
    since: String,
}

/// Null until there is a price table: never 0 where a price is unknown.
#[derive(Serialize)]
struct Cost {
    spent_usd: Option<&'static str>,
    saved_usd: Option<&'static str>,
}

fn waiting(progress: &Progress) -> Vec<WaitingObject<'_>> {
    let told = progress.waiting.iter().filter(|_| progress.ended_at.is_none());
    told.map(|waiting| WaitingObject {
        reason: waiting.reason,
        detail: &waiting.detail,
        prompts: waiting.prompts,
        since: clock::rfc3339(waiting.since),
    })
    .collect()
}

/// The object without its last two members, `results` and `results_url`.
pub(super) fn head(batch: BatchId, progress: &Progress) -> String {
    let counts = progress.counts;
    let object = BatchObject {
        id: batch.to_string(),
        object: "batch",
        status: progress.status(),
        created_at: clock::rfc3339(progress.created_at),
        ended_at: progress.ended_at.map(clock::rfc3339),
        expires_at: clock::rfc3339(progress.deadline),
        deleted_at: progress.deleted_at.map(clock::rfc3339),
        team: &progress.team,
        run: progress.run.as_deref(),
        retry_of: progress.retry_of.map(|batch| batch.to_string()),
        priority: progress.terms.priority,
        metadata: &progress.metadata,
        counts: CountsObject {
            total: counts.total,
            pending: counts.pending(),
            succeeded: counts.succeeded,
            failed: counts.failed,
            canceled: counts.canceled,
            expired: counts.expired,
            cached: counts.cached,
            joined: counts.joined,
            repeats: counts.repeats,
        },
        chunks: progress.chunks,
        reported_prompts: progress.reported_prompts,
        waiting: waiting(progress),
        usage: progress.usage,
        cost: Cost { spent_usd: None, saved_usd: None },
    };
    let json = escape(serde_json::to_vec(&object).expect("strings and numbers serialize").into());
    String::from_utf8(json.into()).expect("JSON is UTF-8")
}

/// The whole object without results.
pub(super) fn bare(batch: BatchId, progress: &Progress) -> String {
    let head = head(batch, progress);
    format!("{},\"results\":null,{}", &head[..head.len() - 1], tail(batch))
}

fn tail(batch: BatchId) -> String {
    format!("\"results_url\":\"/batches/{batch}/results\"}}")
}

/// True if the object brings its results along.
pub(super) fn is_inline(progress: &Progress) -> bool {
    progress.ended_at.is_some() && progress.counts.total <= INLINE_RESULTS
}

/// An answer that is the batch object. `head` may be an older one: an Idempotency-Key's first answer.
pub(super) async fn respond(
    gateway: &Arc<Gateway>,
    status: StatusCode,
    batch: BatchId,
    head: &str,
    inline: Option<&Progress>,
) -> Result<Response, ApiError> {
    let open = &head[..head.len() - 1];
    let body = match inline {
        None => Body::from(format!("{open},\"results\":null,{}", tail(batch))),
        Some(progress) => {
            let reader =
                Reader::open(Arc::clone(gateway), batch, progress, Unknown::Pending, 0, INLINE_RESULTS).await?;
            let (open, close) = (format!("{open},\"results\":["), format!("],{}", tail(batch)));
            Body::from_stream(joined(open, reader, None, close))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Results as the elements of a JSON array, between two texts. A reader that fails breaks the answer off.
pub(super) fn joined(
    open: String,
    reader: Reader,
    full: Option<Viewer>,
    close: String,
) -> impl Stream<Item = Result<Bytes, StoreError>> {
    let groups =
        stream::try_unfold(reader, |mut reader| async move { Ok(reader.next().await?.map(|lines| (lines, reader))) });
    let elements = groups.scan(true, move |first, lines| {
        let joined = lines.map(|lines: Vec<ResultLine>| {
            let mut out = Vec::new();
            for line in lines {
                if !std::mem::take(first) {
                    out.push(b',');
                }
                out.extend_from_slice(&line.to_json(full.as_ref()));
            }
            Bytes::from(out)
        });
        std::future::ready(Some(joined))
    });
    stream::iter([Ok(Bytes::from(open))]).chain(elements).chain(stream::iter([Ok(Bytes::from(close))]))
}
