//! `GET /batches/{id}/results`: a stream of lines, or a page of them.

use super::{
    App,
    batches::{BatchPath, Found, find},
    error::{ApiError, Code},
    object,
    query::Query,
};
use crate::{
    domain::team::Team,
    lifecycle::Tasks,
    pipeline::{
        line::Viewer,
        read::{Reader, Unknown},
    },
};
use axum::{
    Extension,
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::stream;
use std::sync::Arc;

const PAGE: u64 = 1_000;

pub(super) async fn results(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    BatchPath(id): BatchPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let query = Query::parse(query.as_deref(), &["offset", "limit", "partial", "follow", "response"])?;
    let Found { gateway, batch, progress } = find(&app, &team, &id).await?;
    let asked = Asked::read(&query, &headers, progress.counts.total)?;
    if progress.ended_at.is_none() && asked.unknown.is_none() {
        let detail = "the batch is still running: read with `partial=true` or `follow=true`, or wait for its end";
        return Err(ApiError::new(Code::BatchRunning, detail));
    }
    let unknown = asked.unknown.unwrap_or(Unknown::Pending);
    let limit = asked.page.unwrap_or(u64::MAX);
    let viewer = asked.full.then(|| Viewer { team: team.name.clone(), is_admin: team.is_admin() });
    let reader = Reader::open(gateway, batch, &progress, unknown, asked.offset, limit).await?;
    let (body, kind) = match asked.page {
        None => {
            let waits = (unknown == Unknown::Follow).then(|| app.tasks.clone());
            (ndjson(reader, viewer, waits), "application/x-ndjson")
        }
        Some(limit) => {
            let next = asked.offset + limit;
            let more = if asked.unknown == Some(Unknown::Pending) { "&partial=true" } else { "" };
            let more = format!("{more}{}", if asked.full { "&response=full" } else { "" });
            let next = if next < progress.counts.total {
                format!("\"/batches/{batch}/results?offset={next}&limit={limit}{more}\"")
            } else {
                "null".to_owned()
            };
            let close = format!("],\"next\":{next}}}");
            let elements = object::joined("{\"results\":[".to_owned(), reader, viewer, close);
            (Body::from_stream(elements), "application/json")
        }
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

/// What the client wants to read, and how.
struct Asked {
    offset: u64,
    /// Results of a page; none for a stream of lines.
    page: Option<u64>,
    /// None: only an ended batch will do.
    unknown: Option<Unknown>,
    full: bool,
}

impl Asked {
    fn read(query: &Query, headers: &HeaderMap, total: u64) -> Result<Asked, ApiError> {
        let offset = query.number("offset", 0..=total)?.unwrap_or(0);
        let limit = query.number("limit", 1..=PAGE)?;
        let (partial, follow) = (query.flag("partial")?, query.flag("follow")?);
        let full = match query.text("response") {
            None => false,
            Some("full") => true,
            Some(_) => return Err(ApiError::invalid("`response` must be `full`, or be left out")),
        };
        let page = if limit.is_some() || wants_json(headers) { Some(limit.unwrap_or(PAGE)) } else { None };
        let unknown = match (partial, follow) {
            (true, true) => return Err(ApiError::invalid("`partial` and `follow` exclude each other")),
            (_, true) if page.is_some() => {
                return Err(ApiError::invalid(
                    "`follow` is a stream of lines: leave `limit` and Accept: application/json out",
                ));
            }
            (true, false) => Some(Unknown::Pending),
            (false, true) => Some(Unknown::Follow),
            (false, false) => None,
        };
        Ok(Asked { offset, page, unknown, full })
    }
}

fn wants_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kinds: Vec<&str> = accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim()).collect();
    kinds.contains(&"application/json") && !kinds.contains(&"application/x-ndjson")
}

/// One line a result. A stream that cannot finish, because the store fails or the gateway stops while it waits, is
/// reset and never ended cleanly.
fn ndjson(reader: Reader, full: Option<Viewer>, waits: Option<Tasks>) -> Body {
    let pieces = stream::try_unfold((reader, full, waits), move |(mut reader, full, waits)| async move {
        let stopped = async {
            match &waits {
                Some(tasks) => tasks.stopped().await,
                None => std::future::pending().await,
            }
        };
        let lines = tokio::select! {
            lines = reader.next() => lines.map_err(std::io::Error::other)?,
            () = stopped => return Err(std::io::Error::other("the gateway is shutting down")),
        };
        let Some(lines) = lines else { return Ok(None) };
        let mut out = Vec::new();
        for line in lines {
            out.extend_from_slice(&line.to_json(full.as_ref()));
            out.push(b'\n');
        }
        Ok(Some((Bytes::from(out), (reader, full, waits))))
    });
    Body::from_stream(pieces)
}
