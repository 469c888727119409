//! DOOR: the network. The router, what every request passes through, and nothing of a batch's logic.

mod auth;
mod batches;
mod body;
mod chunks;
mod dashboard;
mod docs;
mod encode;
mod error;
mod forecast;
mod keys;
pub mod listen;
mod listing;
mod object;
mod ops;
mod pause;
mod query;
mod results;
mod retry;
mod seats;

pub use auth::Auth;
pub use seats::Seats;

use crate::{
    domain::home::Standing,
    lifecycle::{Heartbeats, Tasks},
    pipeline::spaces::Spaces,
    telemetry::MetricsPage,
};
use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderValue, Method, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use error::{ApiError, Code};
use std::{sync::Arc, time::Instant};
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;

/// What the handlers work with.
#[derive(Clone)]
pub struct App {
    pub spaces: Arc<Spaces>,
    pub tasks: Tasks,
    pub beats: Heartbeats,
    pub auth: Arc<Auth>,
    pub metrics: MetricsPage,
    /// For those who create a batch.
    pub seats: Arc<Seats>,
    /// Most bytes of one body.
    pub max_body: u64,
    /// Most bytes of one prompt in it.
    pub max_prompt: usize,
    /// What our Redis is, as it was last looked at: on a copy nothing is accepted.
    pub standing: watch::Receiver<Standing>,
}

/// The id a request is known by in its answer and in the logs.
#[derive(Clone)]
struct RequestId(String);

/// All routes, in the order of `openapi.yaml`.
pub fn router(app: App) -> Router {
    let admins = Router::new()
        .route("/keys", get(keys::keys))
        .route("/pauses", get(pause::list))
        .route("/pauses/{pause}", put(pause::pause).delete(pause::resume))
        .route("/metrics", get(ops::metrics))
        .route_layer(middleware::from_fn(auth::require_admin));
    let teams = Router::new()
        .route("/batches", post(batches::submit).get(listing::list))
        .route("/batches/{id}", get(batches::show).delete(batches::delete))
        .route("/batches/{id}/chunks", get(chunks::chunks))
        .route("/batches/{id}/results", get(results::results))
        .route("/batches/{id}/cancel", post(batches::cancel))
        .route("/batches/{id}/retry", post(retry::retry))
        .merge(admins)
        .route_layer(middleware::from_fn_with_state(app.clone(), only_reads_of_a_copy))
        .route_layer(middleware::from_fn_with_state(app.clone(), auth::require_team));
    Router::new()
        .merge(teams)
        .merge(docs::routes())
        .merge(dashboard::routes())
        .route("/healthz", get(ops::healthz))
        .route("/readyz", get(ops::readyz))
        .route("/openapi.yaml", get(ops::openapi))
        .fallback(|body: Body| async {
            body::drain(body).await;
            ApiError::new(Code::NotFound, "there is no such path; see /openapi.yaml")
        })
        .method_not_allowed_fallback(|method: Method, body: Body| async move {
            body::drain(body).await;
            ApiError::wrong_method(format!("{method} is not a method of this path; see /openapi.yaml"))
        })
        .layer(DefaultBodyLimit::disable())
        .layer(encode::layer())
        .layer(middleware::map_request(encode::last_resort))
        .layer(CatchPanicLayer::custom(|_| {
            ApiError::new(Code::Unavailable, "this request hit a fault of ours").into_response()
        }))
        .layer(middleware::from_fn_with_state(app.clone(), own_origin))
        .layer(middleware::from_fn(around))
        .with_state(app)
}

/// `/metrics` alone, for a listener of its own: without keys, for whoever can reach it. On a loopback address (`loopback`)
/// that is not a web page through its visitor's browser.
pub fn metrics_router(app: App, loopback: bool) -> Router {
    Router::new()
        .route("/metrics", get(ops::metrics))
        .fallback(|| async { ApiError::new(Code::NotFound, "here is only /metrics") })
        .layer(middleware::from_fn(move |request: Request, next: Next| async move {
            match auth::foreign(&request).filter(|_| loopback) {
                Some(refusal) => refusal.into_response(),
                None => next.run(request).await,
            }
        }))
        .layer(middleware::from_fn(around))
        .with_state(app)
}

/// What a batch is on the original must not be changed on a copy: there it is only read.
async fn only_reads_of_a_copy(State(app): State<App>, request: Request, next: Next) -> Response {
    let sign = match &*app.standing.borrow() {
        Standing::Copy(sign) if !request.method().is_safe() => Some(sign.to_string()),
        Standing::Copy(_) | Standing::Original => None,
    };
    let Some(sign) = sign else { return next.run(request).await };
    body::drain(request.into_body()).await;
    let detail = format!(
        "this gateway runs on a copy of a Redis ({sign}) and only answers reads; \
         where the copy is to take over, its operator runs `batchgate adopt`"
    );
    ApiError::new(Code::Unavailable, detail).into_response()
}

/// Without keys, a web page must not reach us through its visitor's browser.
async fn own_origin(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.auth.refuses_origin(&request) {
        Some(refusal) => {
            body::drain(request.into_body()).await;
            refusal.into_response()
        }
        None => next.run(request).await,
    }
}

/// Gives every request an id, renders errors once, logs and counts.
async fn around(mut request: Request, next: Next) -> Response {
    let id = RequestId(format!("req_{}", uuid::Uuid::now_v7().simple()));
    let began = Instant::now();
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<axum::extract::MatchedPath>()
        .map_or_else(|| "unknown".to_owned(), |path| path.as_str().to_owned());
    request.extensions_mut().insert(id.clone());
    let span = tracing::info_span!("http", %method, route, request_id = id.0);
    let mut response = next.run(request).instrument(span.clone()).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let _in_span = span.enter();
        response = error.render(&id.0);
    }
    let name = HeaderValue::from_str(&id.0).expect("hex digits are a header value");
    let headers = response.headers_mut();
    headers.insert("x-request-id", name);
    // Answers hold strangers' text, and one caller's answer is nobody else's.
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));

    let status = response.status().as_u16().to_string();
    metrics::counter!("batchgate_http_requests_total", "route" => route.clone(), "status" => status).increment(1);
    metrics::histogram!("batchgate_http_request_seconds", "route" => route).record(began.elapsed().as_secs_f64());
    response
}
