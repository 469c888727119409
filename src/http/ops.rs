//! For operators: alive, ready, metrics, and the contract itself.

use super::{
    App,
    error::{ApiError, Code},
};
use crate::pipeline::account;
use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use std::time::Duration;

/// A loop that has not gone round for so long is stuck.
const LATE: Duration = Duration::from_secs(60);

pub(super) async fn healthz() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], "{\"status\":\"ok\"}").into_response()
}

/// Redis answers, the worker's loops go round, and nobody has told us to stop.
pub(super) async fn readyz(State(app): State<App>) -> Result<Response, ApiError> {
    if app.tasks.stopping() {
        return Err(ApiError::new(Code::Draining, "shutting down"));
    }
    app.gateway.store.ping().await?;
    let late = app.beats.late(LATE);
    if app.has_worker && !late.is_empty() {
        return Err(ApiError::new(Code::Unavailable, format!("worker loops are stuck: {}", late.join(", "))));
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], "{\"status\":\"ready\"}").into_response())
}

pub(super) async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    for (queue, depth) in app.gateway.store.depths().await? {
        metrics::gauge!("batchgate_queue_depth", "queue" => queue).set(depth as f64);
    }
    for (account, paused) in account::paused(&app.gateway).await? {
        metrics::gauge!("batchgate_account_paused", "account" => account).set(if paused { 1.0 } else { 0.0 });
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], app.metrics.render()).into_response())
}

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/yaml")], include_str!("../../openapi.yaml")).into_response()
}
