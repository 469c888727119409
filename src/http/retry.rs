//! `POST /batches/{id}/retry`: what a batch left unanswered, as a new batch. A create like any other, without a body.

use super::{
    App,
    batches::{
        BatchPath, Found, Taken, abandon, draining, find_own, first_answer, fit, free_key, idempotency_key, replay,
        seat, take_key,
    },
    error::{ApiError, Code},
    object,
    query::Query,
};
use crate::{
    domain::{id::BatchId, progress::Progress, team::Team},
    pipeline::{Gateway, retry::Retry},
    store::idempotency::Lock,
};
use axum::{
    Extension,
    extract::{RawQuery, State},
    http::HeaderMap,
    response::Response,
};
use std::sync::Arc;

pub(super) async fn retry(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    BatchPath(id): BatchPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    Query::parse(query.as_deref(), &[])?;
    if app.tasks.stopping() {
        return Err(draining());
    }
    let gateway = app.spaces.of(&team.namespaces);
    fit(&gateway)?;
    let key = idempotency_key(&headers)?;
    // In a task of its own: a client that goes away must not leave a half-made batch behind.
    let tasks = app.tasks.clone();
    let accepting = tasks.spawn(async move { accept(&app, &gateway, &team, &id, key).await });
    accepting.await.unwrap_or_else(|_| Err(ApiError::new(Code::Unavailable, "this request hit a fault of ours")))
}

async fn accept(
    app: &App,
    gateway: &Arc<Gateway>,
    team: &Team,
    id: &str,
    key: Option<String>,
) -> Result<Response, ApiError> {
    let _seat = seat(app, team).await?;
    // What is remembered of this request beside its key. The first answer comes again even if the old batch is gone.
    let request = format!("retry {id}");
    let lock = match take_key(gateway, team, key.as_deref()).await? {
        Taken::Ours(lock) => lock,
        Taken::Answered(first) => return replay(gateway, &first, &request).await,
    };
    let outcome = create(app, gateway, team, id, lock.clone(), &request).await;
    if outcome.is_err() {
        free_key(gateway, lock.as_ref()).await;
    }
    let (batch, progress) = outcome?;
    first_answer(gateway, batch, &progress).await
}

async fn create(
    app: &App,
    gateway: &Gateway,
    team: &Team,
    id: &str,
    lock: Option<Lock>,
    request: &str,
) -> Result<(BatchId, Progress), ApiError> {
    let Found { gateway: from, batch: of, progress: old } = find_own(app, team, id).await?;
    let mut retry = Retry::begin(gateway, team, (&from.store, of), &old, lock).await?;
    let filled = tokio::select! {
        filled = retry.fill() => filled.map_err(ApiError::from),
        () = app.tasks.stopped() => Err(draining()),
    };
    match filled {
        Ok(()) => Ok(retry.submission.finish(request, object::head).await?),
        Err(error) => {
            abandon(retry.submission).await;
            Err(error)
        }
    }
}
