//! For operators: alive, ready, metrics, and the contract itself.

use super::{
    App,
    batches::fit,
    error::{ApiError, Code},
};
use crate::{
    domain::home::Standing,
    lifecycle::LoopAge,
    pipeline::{account, spaces::Spaces},
    store::{StoreError, gauges::Queue},
};
use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use std::collections::BTreeMap;

pub(super) async fn healthz() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], "{\"status\":\"ok\"}").into_response()
}

/// What a gateway says that is ready for what it may do.
#[derive(Serialize)]
struct Ready {
    /// `ready`, or `copy`: ready to read.
    status: &'static str,
    /// What a copy is a copy of.
    detail: Option<String>,
    /// Seconds since each loop last went round.
    loops: BTreeMap<&'static str, f64>,
}

/// Redis answers, the loops go round, and nobody has told us to stop.
pub(super) async fn readyz(State(app): State<App>) -> Result<Response, ApiError> {
    if app.tasks.stopping() {
        return Err(ApiError::new(Code::Draining, "shutting down"));
    }
    for gateway in app.spaces.one_per_node() {
        gateway.store.ping().await?;
        fit(&gateway)?;
    }
    let ages = app.beats.ages();
    let late: Vec<String> = ages.iter().filter(|age| age.is_late()).map(told).collect();
    if !late.is_empty() {
        return Err(ApiError::new(Code::Unavailable, format!("worker loops are stuck: {}", late.join(", "))));
    }
    let (status, detail) = match &*app.standing.borrow() {
        Standing::Original => ("ready", None),
        Standing::Copy(sign) => ("copy", Some(format!("only reads are answered until `batchgate adopt`: {sign}"))),
    };
    let loops = ages.iter().map(|age| (age.name, (age.age.as_secs_f64() * 1_000.0).round() / 1_000.0)).collect();
    Ok(Json(Ready { status, detail, loops }).into_response())
}

fn told(late: &LoopAge) -> String {
    let LoopAge { name, age, limit } = late;
    format!("{name} went round {} s ago, and should every {} s", age.as_secs(), limit.as_secs())
}

pub(super) async fn metrics(State(app): State<App>) -> Response {
    metrics::gauge!("batchgate_uploads_open").set(app.seats.taken() as f64);
    for LoopAge { name, age, limit } in app.beats.ages() {
        metrics::gauge!("batchgate_loop_last_tick_seconds", "loop" => name).set(age.as_secs_f64());
        metrics::gauge!("batchgate_loop_limit_seconds", "loop" => name).set(limit.as_secs_f64());
    }
    // A page without Redis's figures says more of a Redis that is away than no page.
    let up = redis_figures(&app.spaces).await.is_ok();
    metrics::gauge!("batchgate_redis_up").set(f64::from(u8::from(up)));
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.render()).into_response()
}

/// Of all namespaces, and in a cluster of all nodes that hold any, together.
async fn redis_figures(spaces: &Spaces) -> Result<(), StoreError> {
    let (mut used, mut max, mut promised) = (0, 0, 0);
    for gateway in spaces.one_per_node() {
        gateway.store.ping().await?;
        let room = gateway.store.room().await?;
        (used, max, promised) = (used + room.used, max + room.max, promised + room.reserved + room.elsewhere);
    }
    metrics::gauge!("batchgate_redis_memory_bytes").set(used as f64);
    metrics::gauge!("batchgate_redis_memory_max_bytes").set(max as f64);
    metrics::gauge!("batchgate_redis_reserved_bytes").set(promised as f64);
    let mut queues = Vec::new();
    for gateway in spaces.all() {
        queues.extend(gateway.store.queues().await?);
    }
    for queue in Queue::sum(queues) {
        metrics::gauge!("batchgate_queue_depth", "queue" => queue.name).set(queue.depth as f64);
        if let Some(overdue) = queue.oldest {
            metrics::gauge!("batchgate_queue_oldest_seconds", "queue" => queue.name).set(overdue.as_secs_f64());
        }
    }
    metrics::gauge!("batchgate_pauses").set(spaces.common().store.pauses().await?.len() as f64);
    for (account, paused) in account::paused(spaces.common()).await? {
        metrics::gauge!("batchgate_account_paused", "account" => account).set(f64::from(u8::from(paused)));
    }
    Ok(())
}

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/yaml")], include_str!("../../openapi.yaml")).into_response()
}
