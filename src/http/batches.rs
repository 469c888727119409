//! The native API's handlers for batches: extract, verb, reply.

use super::{
    App,
    body::{self, Coding, Incoming},
    error::{ApiError, Code},
    forecast, object,
    query::Query,
    seats::Seat,
};
use crate::{
    domain::{id::BatchId, progress::Progress, team::Team},
    pipeline::{
        self, Gateway,
        forecast::Forecast,
        frames::{Bounds, FrameError, Splitter},
        submit::{BodyKind, Submission, SubmitError},
    },
    store::{
        batches::{Canceled, Deleted},
        idempotency::{FirstAnswer, KeyState, Lock},
    },
};
use axum::{
    Extension, Json,
    body::Body,
    extract::{FromRequestParts, Path, RawQuery, State},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::Response,
};
use std::{sync::Arc, time::Duration};

/// How long a request waits for a seat.
const TURN: Duration = Duration::from_secs(30);

/// `POST /batches`
pub(super) async fn submit(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let gateway = app.spaces.of(&team.namespaces);
    let head = match check_head(&app, &gateway, query.as_deref(), &headers) {
        Ok(head) => head,
        Err(error) => {
            body::drain(body).await;
            return Err(error);
        }
    };
    let incoming = Incoming::new(body, head.coding, app.max_body, content_type(&headers));
    // In a task of its own: a client that goes away must not leave a half-read upload behind.
    let tasks = app.tasks.clone();
    let accepting = tasks.spawn(async move { accept(&app, &gateway, &team, head, incoming).await });
    accepting.await.unwrap_or_else(|_| Err(ApiError::new(Code::Unavailable, "this request hit a fault of ours")))
}

pub(super) fn draining() -> ApiError {
    ApiError::new(Code::Draining, "this gateway is shutting down; send it again")
}

/// Nothing is begun on a Redis that would lose it.
pub(super) fn fit(gateway: &Gateway) -> Result<(), ApiError> {
    match gateway.store.unfit() {
        Some(why) => Err(ApiError::new(Code::Unavailable, format!("the store must not be trusted with jobs: {why}"))),
        None => Ok(()),
    }
}

/// What a POST says before its body.
struct Head {
    kind: BodyKind,
    coding: Coding,
    /// The Idempotency-Key.
    key: Option<String>,
    dry_run: bool,
}

/// What can be refused before the body is read.
fn check_head(app: &App, gateway: &Gateway, query: Option<&str>, headers: &HeaderMap) -> Result<Head, ApiError> {
    let dry_run = Query::parse(query, &["dry_run"])?.flag("dry_run")?;
    if app.tasks.stopping() {
        return Err(draining());
    }
    fit(gateway)?;
    let (kind, coding) = (body_kind(headers)?, Coding::read(headers)?);
    check_length(headers, app.max_body)?;
    Ok(Head { kind, coding, key: idempotency_key(headers)?, dry_run })
}

async fn accept(
    app: &App,
    gateway: &Arc<Gateway>,
    team: &Team,
    head: Head,
    mut incoming: Incoming,
) -> Result<Response, ApiError> {
    let Head { kind, key, dry_run, .. } = head;
    let _seat = match seat(app, team).await {
        Ok(seat) => seat,
        Err(error) => {
            incoming.drain().await;
            return Err(error);
        }
    };
    if dry_run {
        // A forecast may be asked for as often as one likes: it leaves the Idempotency-Key alone.
        let told = foretell(app, gateway, team, kind, &mut incoming).await;
        incoming.drain().await;
        return Ok(forecast::respond(&told?));
    }
    let lock = match take_key(gateway, team, key.as_deref()).await {
        Ok(Taken::Ours(lock)) => lock,
        Ok(Taken::Answered(first)) => {
            incoming.skip().await?;
            return replay(gateway, &first, &incoming.digest()).await;
        }
        Err(error) => {
            incoming.drain().await;
            return Err(error);
        }
    };
    let outcome = read_and_create(app, gateway, team, kind, lock.clone(), &mut incoming).await;
    if outcome.is_err() {
        free_key(gateway, lock.as_ref()).await;
        incoming.drain().await;
    }
    let (batch, progress) = outcome?;
    first_answer(gateway, batch, &progress).await
}

/// A place among those who may create a batch now.
pub(super) async fn seat<'a>(app: &'a App, team: &Team) -> Result<Seat<'a>, ApiError> {
    app.seats.take(&team.name, app.auth.knows_one_team(), TURN).await
}

/// What an Idempotency-Key was found to be.
pub(super) enum Taken {
    /// Ours to use; no lock where no key was given.
    Ours(Option<Lock>),
    Answered(FirstAnswer),
}

/// Takes the key of a request that creates; a 409 while another request holds it.
pub(super) async fn take_key(gateway: &Gateway, team: &Team, key: Option<&str>) -> Result<Taken, ApiError> {
    let Some(key) = key else { return Ok(Taken::Ours(None)) };
    match gateway.store.take_key(&team.name, key, &uuid::Uuid::now_v7().to_string()).await? {
        KeyState::Free(lock) => Ok(Taken::Ours(Some(lock))),
        KeyState::Answered(first) => Ok(Taken::Answered(first)),
        KeyState::InWork => {
            let detail = "a request with this Idempotency-Key is still in work; ask again for its answer";
            Err(ApiError::new(Code::IdempotencyInProgress, detail))
        }
    }
}

/// The request got no 2xx: its key may be used again.
pub(super) async fn free_key(gateway: &Gateway, lock: Option<&Lock>) {
    if let Some(lock) = lock
        && let Err(error) = gateway.store.free_key(lock).await
    {
        tracing::warn!(%error, "free the idempotency key; it lapses by itself");
    }
}

/// 202 with the object of a batch that was just created.
pub(super) async fn first_answer(
    gateway: &Arc<Gateway>,
    batch: BatchId,
    progress: &Progress,
) -> Result<Response, ApiError> {
    let inline = object::is_inline(progress).then_some(progress);
    let head = object::head(batch, progress);
    Ok(created(object::respond(gateway, StatusCode::ACCEPTED, batch, &head, inline).await?, batch, false))
}

/// Reads the body to its end and makes the batch exist. On any error nothing of it is left.
async fn read_and_create(
    app: &App,
    gateway: &Gateway,
    team: &Team,
    kind: BodyKind,
    lock: Option<Lock>,
    incoming: &mut Incoming,
) -> Result<(BatchId, Progress), ApiError> {
    let mut submission = Submission::begin(gateway, team, kind, lock).await?;
    let read = tokio::select! {
        read = read(app, kind, incoming, &mut submission) => read,
        () = app.tasks.stopped() => Err(draining().into()),
    };
    match read {
        Ok(()) => Ok(submission.finish(&incoming.digest(), object::head).await?),
        Err(error) => {
            abandon(submission).await;
            Err(error.into())
        }
    }
}

/// Reads the body to its end and says what would become of it. Nothing of it is left.
async fn foretell(
    app: &App,
    gateway: &Gateway,
    team: &Team,
    kind: BodyKind,
    incoming: &mut Incoming,
) -> Result<Forecast, ApiError> {
    let mut submission = Submission::begin_forecast(gateway, team, kind).await?;
    let read = tokio::select! {
        read = read(app, kind, incoming, &mut submission) => read,
        () = app.tasks.stopped() => Err(draining().into()),
    };
    let Err(error) = read else { return Ok(submission.forecast().await?) };
    abandon(submission).await;
    match error {
        // Readable, and no batch: a problem like others.
        Unread::Frame(FrameError::Invalid(problem)) => Ok(Forecast::of_problems(problem.into())),
        error => Err(error.into()),
    }
}

/// What cannot be removed now, the sweeper will remove.
pub(super) async fn abandon(submission: Submission<'_>) {
    if let Err(left) = submission.abandon().await {
        tracing::warn!(error = %left, "abandon upload; the sweeper will remove it");
    }
}

/// Why a body could not be read to its end.
enum Unread {
    Frame(FrameError),
    Other(ApiError),
}

impl From<FrameError> for Unread {
    fn from(error: FrameError) -> Unread {
        Unread::Frame(error)
    }
}

impl From<SubmitError> for Unread {
    fn from(error: SubmitError) -> Unread {
        Unread::Other(error.into())
    }
}

impl From<ApiError> for Unread {
    fn from(error: ApiError) -> Unread {
        Unread::Other(error)
    }
}

impl From<Unread> for ApiError {
    fn from(error: Unread) -> ApiError {
        match error {
            Unread::Frame(error) => error.into(),
            Unread::Other(error) => error,
        }
    }
}

async fn read(
    app: &App,
    kind: BodyKind,
    incoming: &mut Incoming,
    submission: &mut Submission<'_>,
) -> Result<(), Unread> {
    let bounds = Bounds { frame_bytes: app.max_prompt, ..Bounds::default() };
    let mut splitter = match kind {
        BodyKind::Json => Splitter::json_within(bounds),
        BodyKind::Ndjson => Splitter::ndjson_within(bounds),
    };
    let mut frames = Vec::new();
    while let Some(piece) = incoming.next().await? {
        submission.keep_alive().await?;
        splitter.push(&piece, &mut frames)?;
        for frame in frames.drain(..) {
            submission.take(frame).await?;
        }
    }
    splitter.finish(&mut frames)?;
    for frame in frames {
        submission.take(frame).await?;
    }
    Ok(())
}

/// The same key again: the first answer, whole, if it is the same request.
pub(super) async fn replay(gateway: &Arc<Gateway>, first: &FirstAnswer, request: &str) -> Result<Response, ApiError> {
    if request != first.request {
        let detail = "this Idempotency-Key was used for another request or body: use a fresh key for a new one";
        return Err(ApiError::new(Code::IdempotencyMismatch, detail));
    }
    let batch = BatchId::parse(&first.batch).ok_or_else(unknown_batch)?;
    // Results are inlined again if they were the first time: sealed pages never change. They went with a deleted batch.
    let progress = gateway.store.progress(batch).await?;
    let inline = progress.filter(|progress| first.ended && object::is_inline(progress));
    let answer = object::respond(gateway, StatusCode::ACCEPTED, batch, &first.body, inline.as_ref()).await?;
    Ok(created(answer, batch, true))
}

fn created(mut response: Response, batch: BatchId, replayed: bool) -> Response {
    let location = HeaderValue::from_str(&format!("/batches/{batch}")).expect("hex digits are a header value");
    response.headers_mut().insert(header::LOCATION, location);
    if replayed {
        response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    response
}

/// The id in a path, whatever it is: one that is not even text is as unknown as any other.
pub(super) struct BatchPath(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for BatchPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<BatchPath, ApiError> {
        let id = Path::<String>::from_request_parts(parts, state).await;
        id.map(|Path(id)| BatchPath(id)).map_err(|_| unknown_batch())
    }
}

pub(super) fn unknown_batch() -> ApiError {
    ApiError::new(Code::NotFound, "there is no such batch")
}

/// `GET /batches/{id}`
pub(super) async fn show(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    BatchPath(id): BatchPath,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = Query::parse(query.as_deref(), &["wait"])?;
    let wait = Duration::from_secs(query.number("wait", 0..=60)?.unwrap_or(0));
    wait_for_end(&app, &team, &id, wait).await?.respond().await
}

/// Looks until the batch has ended or the time is up: after 50 ms, 100 ms, 200 ms, 400 ms, then every half second.
async fn wait_for_end(app: &App, team: &Team, id: &str, wait: Duration) -> Result<Found, ApiError> {
    let until = tokio::time::Instant::now() + wait;
    let mut pause = Duration::from_millis(50);
    loop {
        let found = find(app, team, id).await?;
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        if found.progress.ended_at.is_some() || left.is_zero() || app.tasks.stopping() {
            return Ok(found);
        }
        app.tasks.sleep(pause.min(left)).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// A batch that was asked for, and the namespace it is in.
pub(super) struct Found {
    pub(super) gateway: Arc<Gateway>,
    pub(super) batch: BatchId,
    pub(super) progress: Progress,
}

impl Found {
    /// 200 with its object.
    async fn respond(&self) -> Result<Response, ApiError> {
        let Found { gateway, batch, progress } = self;
        let inline = object::is_inline(progress).then_some(progress);
        object::respond(gateway, StatusCode::OK, *batch, &object::head(*batch, progress), inline).await
    }
}

/// A batch this team may read; anything else is a 404, be it unknown, another team's, or an id no batch can have. It is
/// where the team writes now, or where it once wrote, and an admin's may be anywhere.
///
/// Another team's takes as long to be not found as one that does not exist: all places are looked at, each with the one
/// small question whose a batch is. What there is to read of it is read for those alone who may have it.
pub(super) async fn find(app: &App, team: &Team, id: &str) -> Result<Found, ApiError> {
    let batch = BatchId::parse(id).ok_or_else(unknown_batch)?;
    let first = app.spaces.of(&team.namespaces);
    let written = &team.namespaces.write;
    let rest = app.spaces.all().into_iter().filter(|gateway| gateway.settings.namespace != *written);
    for gateway in std::iter::once(first).chain(rest) {
        let readable = team.is_admin() || gateway.store.owner(batch).await?.is_some_and(|owner| owner == team.name);
        if readable && let Some(progress) = gateway.store.progress(batch).await? {
            return Ok(Found { gateway, batch, progress });
        }
    }
    Err(unknown_batch())
}

/// A batch this team may change: its own. An admin may know of the others.
pub(super) async fn find_own(app: &App, team: &Team, id: &str) -> Result<Found, ApiError> {
    let found = find(app, team, id).await?;
    let of = &found.progress.team;
    if *of == team.name {
        return Ok(found);
    }
    let detail = format!("an admin reads the batches of other teams and changes none: ask with a key of team {of}");
    Err(ApiError::new(Code::Forbidden, detail))
}

/// `POST /batches/{id}/cancel`
pub(super) async fn cancel(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    BatchPath(id): BatchPath,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    Query::parse(query.as_deref(), &[])?;
    let Found { gateway, batch, .. } = find_own(&app, &team, &id).await?;
    match pipeline::cancel::cancel(&gateway, batch).await? {
        Canceled::Asked => {}
        Canceled::Ended => {
            return Err(ApiError::new(Code::BatchEnded, "the batch has ended; there is nothing to cancel"));
        }
        Canceled::Gone => return Err(unknown_batch()),
    }
    find_own(&app, &team, &id).await?.respond().await
}

/// `DELETE /batches/{id}`
pub(super) async fn delete(
    State(app): State<App>,
    Extension(team): Extension<Arc<Team>>,
    BatchPath(id): BatchPath,
    RawQuery(query): RawQuery,
) -> Result<Json<serde_json::Value>, ApiError> {
    Query::parse(query.as_deref(), &[])?;
    let Found { gateway, batch, .. } = find_own(&app, &team, &id).await?;
    match gateway.store.delete(batch, &team.name).await? {
        Deleted::Done => {
            Ok(Json(serde_json::json!({"id": batch.to_string(), "object": "batch.deleted", "deleted": true})))
        }
        Deleted::Running => Err(ApiError::new(Code::BatchRunning, "the batch is still running: cancel it first")),
        Deleted::Gone => Err(unknown_batch()),
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

fn body_kind(headers: &HeaderMap) -> Result<BodyKind, ApiError> {
    let unsupported = |detail: &str| ApiError::new(Code::UnsupportedMediaType, detail);
    match content_type(headers).to_ascii_lowercase().as_str() {
        "application/json" => Ok(BodyKind::Json),
        "application/x-ndjson" | "application/ndjson" | "application/jsonl" => Ok(BodyKind::Ndjson),
        _ => Err(unsupported("send Content-Type application/json or application/x-ndjson")),
    }
}

/// A body whose length is told beforehand is refused before it is read.
fn check_length(headers: &HeaderMap, max: u64) -> Result<(), ApiError> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > max) { Err(body::too_large(max)) } else { Ok(()) }
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(text) if (1..=255).contains(&text.len()) => Ok(Some(text.to_owned())),
        _ => Err(ApiError::invalid("Idempotency-Key must be 1 to 255 visible ASCII characters")),
    }
}
