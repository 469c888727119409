//! `GET /pauses`, `PUT` and `DELETE /pauses/{pause}`: what is paused by hand. For admins.

use super::{
    App,
    error::{ApiError, Code},
    query::Query,
};
use crate::{
    clock,
    domain::{
        pause::{Paused, Scope},
        team::Team,
    },
    pipeline,
};
use axum::{
    Extension, Json,
    extract::{Path, RawQuery, State, rejection::PathRejection},
};
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
pub(super) struct Pauses {
    data: Vec<Pause>,
}

#[derive(Serialize)]
pub(super) struct Pause {
    id: String,
    /// The team whose key told it.
    by: String,
    since: String,
}

#[derive(Serialize)]
pub(super) struct Resumed {
    id: String,
    /// False if nothing was paused.
    resumed: bool,
}

type Id = Result<Path<String>, PathRejection>;

pub(super) async fn list(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Json<Pauses>, ApiError> {
    Query::parse(query.as_deref(), &[])?;
    let pauses = app.spaces.common().store.pauses().await?;
    Ok(Json(Pauses { data: pauses.into_iter().map(told).collect() }))
}

pub(super) async fn pause(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    id: Id,
    RawQuery(query): RawQuery,
) -> Result<Json<Pause>, ApiError> {
    Query::parse(query.as_deref(), &[])?;
    let scope = scope(id)?;
    known(&app, &scope)?;
    Ok(Json(told(pipeline::pause::pause(app.spaces.common(), &scope, &team.name).await?)))
}

pub(super) async fn resume(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    id: Id,
    RawQuery(query): RawQuery,
) -> Result<Json<Resumed>, ApiError> {
    Query::parse(query.as_deref(), &[])?;
    let scope = scope(id)?;
    let resumed = pipeline::pause::resume(app.spaces.common(), &scope, &team.name).await?;
    for gateway in app.spaces.all() {
        pipeline::pause::wake(&gateway, &scope).await?;
    }
    Ok(Json(Resumed { id: scope.to_string(), resumed }))
}

fn told(paused: Paused) -> Pause {
    Pause { id: paused.scope.to_string(), by: paused.told.by, since: clock::rfc3339(paused.told.since) }
}

fn scope(id: Id) -> Result<Scope, ApiError> {
    let wrong =
        || ApiError::new(Code::NotFound, "a pause is `all`, `provider:NAME` or `team:NAME`; there can be no other");
    Scope::parse(&id.map_err(|_| wrong())?.0).ok_or_else(wrong)
}

/// A slip of the pen must not look like a pause.
fn known(app: &App, scope: &Scope) -> Result<(), ApiError> {
    let refuse = |what: &str, name: &str, there: Vec<String>| {
        Err(ApiError::invalid(format!("no {what} is called {name:?}; there are: {}", there.join(", "))))
    };
    match scope {
        Scope::All => Ok(()),
        Scope::Provider(name) if app.spaces.common().providers.contains_key(name) => Ok(()),
        Scope::Provider(name) => refuse("provider", name, app.spaces.common().providers.keys().cloned().collect()),
        Scope::Team(name) => {
            let names = app.auth.team_names();
            if names.contains(name) { Ok(()) } else { refuse("team", name, names) }
        }
    }
}
