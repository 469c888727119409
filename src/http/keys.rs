//! `GET /keys`: which keys open this gateway, for an admin. Never a key, and not its digest.

use super::{App, error::ApiError, query::Query};
use crate::{clock, domain::team::Role};
use axum::{
    Json,
    extract::{RawQuery, State},
};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Keys {
    data: Vec<Key>,
}

#[derive(Serialize)]
struct Key {
    team: String,
    name: String,
    role: Role,
    expires_at: Option<String>,
    /// To the minute.
    last_used_at: Option<String>,
}

pub(super) async fn keys(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Json<Keys>, ApiError> {
    Query::parse(query.as_deref(), &[])?;
    let uses = app.spaces.common().store.key_uses().await?;
    let teams = app.auth.teams();
    let told = teams.keys().map(|(team, key)| Key {
        team: team.name.clone(),
        name: key.name.clone(),
        role: team.role,
        expires_at: key.expires.map(clock::rfc3339),
        last_used_at: uses.get(&(team.name.clone(), key.name.clone())).copied().map(clock::rfc3339),
    });
    Ok(Json(Keys { data: told.collect() }))
}
