//! The control surface under `/_sim`: clock, settings, faults, ledger, oracle, reset. No key is asked for.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::{Query, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    anthropic,
    ledger::Question,
    openai::{self, endpoint::Endpoint},
    oracle::{Reply, hex},
    problem::{Problem, Provider},
    world::Sim,
};

pub(crate) fn routes() -> Router<Arc<Sim>> {
    Router::new()
        .route("/_sim/clock", get(show_clock).post(advance))
        .route("/_sim/settings", get(show_settings).post(change_settings))
        .route("/_sim/faults", get(show_faults).post(add_faults).delete(clear_faults))
        .route("/_sim/ledger", get(ledger))
        .route("/_sim/oracle", post(oracle))
        .route("/_sim/reset", post(reset))
}

async fn show_clock(State(sim): State<Arc<Sim>>) -> Response {
    shown(&json!({"now": sim.clock.now(), "offset_s": sim.clock.offset()}))
}

async fn advance(State(sim): State<Arc<Sim>>, body: Bytes) -> Result<Response, Refusal> {
    let Advance { advance_s } = parse(&body)?;
    // Before, so that what is being read now is not read in a later age; after, so that what is over is over.
    sim.settle().await;
    sim.clock.advance(advance_s);
    sim.settle().await;
    Ok(show_clock(State(sim)).await)
}

#[derive(Deserialize)]
struct Advance {
    advance_s: f64,
}

async fn show_settings(State(sim): State<Arc<Sim>>) -> Response {
    shown(&json!(sim.world().settings))
}

async fn change_settings(State(sim): State<Arc<Sim>>, body: Bytes) -> Result<Response, Refusal> {
    let patch: Value = parse(&body)?;
    {
        let mut world = sim.world();
        world.settings = world.settings.patched(&patch).map_err(|error| Refusal(format!("settings: {error}")))?;
    }
    Ok(show_settings(State(sim)).await)
}

async fn show_faults(State(sim): State<Arc<Sim>>) -> Response {
    shown(&json!(sim.world().faults.rules()))
}

async fn add_faults(State(sim): State<Arc<Sim>>, body: Bytes) -> Result<Response, Refusal> {
    let rules: Value = parse(&body)?;
    sim.world().faults.add(&rules).map_err(Refusal)?;
    Ok(show_faults(State(sim)).await)
}

async fn clear_faults(State(sim): State<Arc<Sim>>) -> Response {
    sim.world().faults.clear();
    show_faults(State(sim)).await
}

async fn ledger(State(sim): State<Arc<Sim>>, Query(mut query): Query<HashMap<String, String>>) -> Response {
    sim.settle().await;
    let parts = query.remove("parts").unwrap_or_else(|| "totals,billed,http".into());
    let question = Question {
        batch: query.remove("batch"),
        account: query.remove("account"),
        parts: parts.split(',').map(str::to_owned).collect(),
    };
    let report = sim.world().report(&question);
    let text = sim.blocking(move || report.answer(&question)).await;
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// `provider`, `body`, and `endpoint` or `version`.
#[derive(Deserialize)]
struct Asked {
    provider: Provider,
    body: Value,
    endpoint: Option<String>,
    version: Option<String>,
}

/// What the answer to a body is.
async fn oracle(State(sim): State<Arc<Sim>>, body: Bytes) -> Result<Response, Refusal> {
    let asked: Asked = parse(&body)?;
    let answers = sim.world().settings.common.answers;
    let reply = match asked.provider {
        Provider::OpenAi => {
            let path = asked.endpoint.as_deref().unwrap_or("/v1/chat/completions");
            let endpoint = Endpoint::of_path(path).ok_or_else(|| Refusal(format!("unknown endpoint: {path}")))?;
            Reply::to(asked.provider, &asked.body, openai::endpoint::check_body(endpoint, &asked.body), answers)
        }
        Provider::Anthropic => {
            let version = asked.version.as_deref().unwrap_or("2023-06-01");
            let problem = anthropic::check::params(&asked.body, anthropic::check::Where::Batch)
                .or_else(|| anthropic::check::version(&asked.body, version))
                .map(Problem::invalid);
            Reply::to(asked.provider, &asked.body, problem, answers)
        }
    };
    let error = reply.problem.as_ref().map(|problem| json!({"type": problem.kind, "message": problem.message}));
    Ok(shown(&json!({
        "sha": hex(&reply.sha), "text": reply.text, "outcome": reply.outcome().word(), "error": error,
        "input_tokens": reply.tokens.input, "output_tokens": reply.tokens.output,
    })))
}

async fn reset(State(sim): State<Arc<Sim>>) -> Result<Response, Refusal> {
    sim.reset().await.map_err(|error| Refusal(error.to_string()))?;
    Ok(shown(&json!({"reset": true})))
}

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal(error.to_string()))
}

fn shown(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], super::json::encode(value)).into_response()
}

/// What is wrong with a control call.
struct Refusal(String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (StatusCode::BAD_REQUEST, shown(&json!({"error": self.0}))).into_response()
    }
}
