//! `GET /batches`: a team's batches, newest first, those that fit a filter.

use super::{
    App,
    batches::find,
    error::{ApiError, Code},
    object,
    query::Query,
};
use crate::{
    clock,
    domain::{filter::Filter, progress::BatchStatus, team::Team},
    store::listing::Listed,
};
use axum::{
    Extension,
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderValue, header},
    response::Response,
};
use std::sync::Arc;

const STATUSES: [(&str, BatchStatus); 3] =
    [("running", BatchStatus::Running), ("canceling", BatchStatus::Canceling), ("ended", BatchStatus::Ended)];
/// What the parameters of a label begin with.
const METADATA: &str = "metadata.";

pub(super) async fn list(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = Query::parse(query.as_deref(), &["status", "run", METADATA, "since", "limit", "after", "team"])?;
    let filter = filter(&query)?;
    let of = whose(&team, query.text("team"))?;
    let limit = query.number("limit", 1..=100)?.unwrap_or(20);
    let after = match query.text("after") {
        None => None,
        Some(id) => match find(&app, &team, id).await {
            Ok(found) => Some(found.batch),
            Err(error) if error.is_not_found() => return Err(ApiError::invalid("`after` names no batch of yours")),
            Err(error) => return Err(error),
        },
    };
    let limit = usize::try_from(limit).expect("at most a hundred");
    // A team may have written elsewhere before.
    let mut pages = Vec::new();
    for gateway in app.spaces.all() {
        pages.push(gateway.store.list(of, &filter, after, limit).await?);
    }
    let listed = Listed::merge(pages, limit);
    let data: Vec<String> = listed.batches.iter().map(|(id, progress)| object::bare(*id, progress)).collect();
    let last = listed.last.map_or_else(|| "null".to_owned(), |id| format!("\"{id}\""));
    let text = format!("{{\"data\":[{}],\"has_more\":{},\"last_id\":{last}}}", data.join(","), listed.has_more);
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The team whose batches are listed: one's own, or the one an admin names.
fn whose<'a>(team: &'a Team, asked: Option<&'a str>) -> Result<&'a str, ApiError> {
    match asked {
        None => Ok(&team.name),
        Some(name) if !Team::is_name(name) => Err(ApiError::invalid("`team` must be the name of a team")),
        Some(name) if name == team.name || team.is_admin() => Ok(name),
        Some(_) => Err(ApiError::new(Code::Forbidden, "only an admin may list the batches of another team")),
    }
}

fn filter(query: &Query) -> Result<Filter, ApiError> {
    let status = query.text("status").map(|word| {
        let found = STATUSES.iter().find(|(known, _)| *known == word);
        found
            .map(|(_, status)| *status)
            .ok_or_else(|| ApiError::invalid("`status` must be `running`, `canceling` or `ended`"))
    });
    let since = query.text("since").map(|text| {
        clock::parse_rfc3339(text).ok_or_else(|| {
            ApiError::invalid("`since` must be a time like 2026-11-30T09:00:00Z; in a query, write + as %2B")
        })
    });
    let run = query.text("run").map(|run| {
        if run.is_empty() {
            Err(ApiError::invalid("`run` must name a run: name or name~attempt"))
        } else {
            Ok(run.to_owned())
        }
    });
    Ok(Filter {
        status: status.transpose()?,
        run: run.transpose()?,
        metadata: query.below(METADATA),
        since: since.transpose()?,
    })
}
