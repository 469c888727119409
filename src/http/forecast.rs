//! `POST /batches?dry_run=true`: what a batch would be, as clients read it.

use crate::{
    domain::problem::Problem,
    pipeline::{forecast::Forecast, line::escape},
};
use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct ForecastObject<'a> {
    object: &'static str,
    total: u64,
    cached: u64,
    /// Nobody joins anybody yet.
    joined: u64,
    repeats: u64,
    to_buy: u64,
    chunks: &'a BTreeMap<String, u64>,
    input_tokens: u64,
    storage_bytes: u64,
    /// Null until there is a price table.
    cost_usd: Option<&'a str>,
    problems: &'a [Problem],
    problem_count: u64,
}

/// 200, also with problems.
pub(super) fn respond(forecast: &Forecast) -> Response {
    let object = ForecastObject {
        object: "batch.forecast",
        total: forecast.total,
        cached: forecast.cached,
        joined: forecast.joined,
        repeats: forecast.repeats,
        to_buy: forecast.to_buy,
        chunks: &forecast.chunks,
        input_tokens: forecast.input_tokens,
        storage_bytes: forecast.storage_bytes,
        cost_usd: None,
        problems: forecast.problems.first(),
        problem_count: forecast.problems.count(),
    };
    let json = escape(serde_json::to_vec(&object).expect("strings and numbers serialize").into());
    let mut response = Response::new(Body::from(json));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
