//! `GET /batches/{id}/chunks`: where a batch's prompts are at the providers, a page at a time.

use super::{
    App,
    batches::{BatchPath, find},
    error::ApiError,
    query::Query,
};
use crate::{
    clock,
    domain::{chunk::ChunkState, team::Team},
    store::chunks::ToldChunk,
};
use axum::{
    Extension, Json,
    extract::{RawQuery, State},
};
use serde::Serialize;
use std::sync::Arc;

const PAGE: u64 = 100;
/// Far above the numbers chunks get, follow-ups included.
const MAX_OFFSET: u64 = 1_000_000_000;

#[derive(Serialize)]
pub(super) struct ChunksPage {
    chunks: Vec<ChunkObject>,
    next: Option<String>,
}

#[derive(Serialize)]
struct ChunkObject {
    id: String,
    status: &'static str,
    provider: String,
    /// Null where the provider's batch may mix models.
    model: Option<String>,
    endpoint: &'static str,
    provider_batch_id: Option<String>,
    prompts: usize,
    succeeded: u64,
    failed: u64,
    attempt: u32,
    submitted_at: Option<String>,
    settled_at: Option<String>,
}

pub(super) async fn chunks(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    BatchPath(id): BatchPath,
    RawQuery(query): RawQuery,
) -> Result<Json<ChunksPage>, ApiError> {
    let query = Query::parse(query.as_deref(), &["offset", "limit"])?;
    let offset = u32::try_from(query.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0)).unwrap_or(u32::MAX);
    let limit = u32::try_from(query.number("limit", 1..=1_000)?.unwrap_or(PAGE)).unwrap_or(u32::MAX);
    let (batch, _) = find(&app, &team, &id).await?;
    let (told, end) = app.gateway.store.told_chunks(batch, offset, limit).await?;
    let after = offset + limit;
    let next = (after < end).then(|| format!("/batches/{batch}/chunks?offset={after}&limit={limit}"));
    Ok(Json(ChunksPage { chunks: told.into_iter().map(object).collect(), next }))
}

fn object(told: ToldChunk) -> ChunkObject {
    let chunk = told.chunk;
    ChunkObject {
        id: format!("chunk_{}", chunk.id),
        status: status(&chunk.state),
        provider: chunk.lane.account,
        model: chunk.lane.model,
        endpoint: chunk.lane.endpoint.path(),
        provider_batch_id: told.remote,
        prompts: chunk.prompts,
        succeeded: told.succeeded,
        failed: told.failed,
        attempt: chunk.attempt,
        submitted_at: told.submitted_at.map(clock::rfc3339),
        settled_at: told.settled_at.map(clock::rfc3339),
    }
}

/// The words of the batch object's `chunks`: `submitting` includes in doubt, `running` includes asking and harvested.
fn status(state: &ChunkState) -> &'static str {
    match state {
        // Those that join are not listed; one that does so since is about to be planned.
        ChunkState::Joining { .. } | ChunkState::Planned => "planned",
        ChunkState::Submitting { .. } | ChunkState::InDoubt(_) => "submitting",
        ChunkState::Asking | ChunkState::Running { .. } | ChunkState::Harvested { .. } => "running",
        ChunkState::Settled => "settled",
    }
}
