//! What bad input gets: a clear refusal that names place and remedy, nothing half-created, never a 5xx. A new case is one
//! line in a table.

mod bodies;
mod fields;
mod prompts;
mod requests;
mod wire;

use crate::support::{
    Kind, World,
    client::{JSON, NDJSON, Reply},
};
use serde_json::Value;

/// A body, and what it gets.
struct Case {
    kind: &'static str,
    body: Vec<u8>,
    status: u16,
    code: &'static str,
    /// A JSON pointer, and for NDJSON the line before it: `3 /prompts/1/model`. Empty: no place is named.
    place: &'static str,
}

fn json(body: impl Into<Vec<u8>>, status: u16, place: &'static str) -> Case {
    Case { kind: JSON, body: body.into(), status, code: code(status), place }
}

fn ndjson(body: impl Into<Vec<u8>>, status: u16, place: &'static str) -> Case {
    Case { kind: NDJSON, body: body.into(), status, code: code(status), place }
}

fn code(status: u16) -> &'static str {
    match status {
        400 => "malformed_body",
        413 => "body_too_large",
        _ => "invalid_request",
    }
}

/// Sends every body; tells of all that went wrong at once.
async fn check(cases: Vec<Case>) {
    let world = World::new(Kind::Ours).await;
    let mut wrong = Vec::new();
    for case in cases {
        let shown = String::from_utf8_lossy(&case.body[..case.body.len().min(160)]).into_owned();
        let reply = world.client().post("/batches", case.kind, case.body.clone()).await;
        if let Err(why) = fits(&case, &reply) {
            wrong.push(format!(
                "{shown}\n    {why}\n    got {} {}",
                reply.status,
                &reply.text[..reply.text.len().min(600)]
            ));
        }
        let left = world.redis.keys().await;
        if !left.is_empty() {
            wrong.push(format!("{shown}\n    left in Redis: {:?}", left.keys()));
            world.redis.command::<String>(&["FLUSHALL"]).await;
        }
    }
    assert!(wrong.is_empty(), "{} cases went wrong:\n{}", wrong.len(), wrong.join("\n"));
    let list = world.client().get("/batches").await.ok();
    assert_eq!(list["data"], serde_json::json!([]), "nothing was created");
}

fn fits(case: &Case, reply: &Reply) -> Result<(), String> {
    let problem = if reply.status >= 400 { reply.json() } else { Value::Null };
    if reply.status != case.status || problem["code"] != case.code {
        return Err(format!("want {} {}", case.status, case.code));
    }
    if case.place.is_empty() {
        return Ok(());
    }
    let errors = problem["errors"].as_array().cloned().unwrap_or_default();
    let places: Vec<String> = errors.iter().map(place).collect();
    if !places.iter().any(|place| place == case.place) {
        return Err(format!("want a problem at `{}`, they are at {places:?}", case.place));
    }
    let count = problem["error_count"].as_u64();
    if count != Some(errors.len() as u64) {
        return Err(format!("want error_count {}", errors.len()));
    }
    if errors.iter().any(|error| error["message"].as_str().is_none_or(str::is_empty)) {
        return Err("want a message with every problem".into());
    }
    Ok(())
}

fn place(error: &Value) -> String {
    let pointer = error["pointer"].as_str().unwrap_or("no pointer");
    match error["line"].as_u64() {
        Some(line) => format!("{line} {pointer}").trim_end().to_owned(),
        None if pointer.is_empty() => "whole".to_owned(),
        None => pointer.to_owned(),
    }
}
