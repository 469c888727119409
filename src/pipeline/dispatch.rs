//! Brings a planned chunk to its provider, and finds out what became of a create whose answer was lost.
//!
//! The intent is written before the call and the provider's id right after it. A death or a lost answer in between
//! leaves the chunk *in doubt*; only looking at the provider's list, twice, with a pause, leads back to planned.

use super::{Gateway, Provider, account, account::Move, account::Passage, budget, commit};
use crate::{
    clock::{self, Millis},
    domain::{
        account::{Call, Reason, Waits},
        chunk::{Adopted, ChunkState, Item},
        key::CacheKey,
        outcome::{Ending, Failure, FailureCode},
        settlement::{Rules, Settlement},
    },
    provider::{
        BatchProvider, CallError, Candidate, CreateError, Doubt, InputFile, OpenLines, OutLine, Parcel, ReadError,
        RemoteId,
    },
    store::{
        StoreError,
        chunks::{Chunk, Lease, Release, Step, Stepped},
    },
};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::{sync::Arc, time::Duration};

/// A chunk in a worker's hands.
pub struct Held<'a> {
    pub gateway: &'a Gateway,
    pub lease: &'a Lease,
    pub chunk: &'a Chunk,
    /// Set once the batch wants no more answers.
    pub ending: Option<Ending>,
    /// Redis's clock at the claim.
    pub now: Millis,
}

/// What a verb leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The chunk moved on and is still held: look at it again.
    Continue,
    /// Given back, settled, or lost to another dispatch.
    Finished,
}

/// Longest wait between two tries of a call that keeps failing.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// After a batch's deadline the provider gets this long to end what it was asked to cancel.
const PATIENCE_AFTER_DEADLINE: Duration = Duration::from_secs(30 * 60);
/// Wait for an account that is not configured any more.
const UNCONFIGURED: Duration = Duration::from_secs(60);
/// Creates in a row that may miss the uploaded file, which providers show late, before it is uploaded anew.
const INPUT_PATIENCE: u32 = 6;
/// Looks at the provider's list before a create counts as not made.
const LOOKS: u32 = 2;

impl Held<'_> {
    pub fn provider(&self) -> Option<&Arc<dyn BatchProvider>> {
        match self.gateway.providers.get(&self.chunk.lane.account)? {
            Provider::Batch(provider) => Some(provider),
            Provider::Online(_) => None,
        }
    }

    pub fn rules(&self) -> Rules {
        Rules { attempts: self.gateway.settings.attempts, ending: self.ending }
    }

    /// One fenced step. A step that is refused ends our work on the chunk, or asks for another look at it.
    pub async fn step(
        &self,
        from: &[&'static str],
        to: &ChunkState,
        fields: Vec<(&'static str, String)>,
        release: Release,
    ) -> Result<After, StoreError> {
        let in_doubt = matches!(to, ChunkState::InDoubt { .. }).then(|| Waits {
            reason: Reason::InDoubt,
            detail: "the answer to a create was lost; its batch is looked for before anything is sent again".to_owned(),
            group: None,
        });
        self.try_step(&Step { from, to, fields, release, asking: false, waits: in_doubt.as_ref() }).await
    }

    pub(super) async fn try_step(&self, step: &Step<'_>) -> Result<After, StoreError> {
        match self.gateway.store.step(self.lease, step).await? {
            Stepped::Done if step.release == Release::Hold => Ok(After::Continue),
            Stepped::Done => Ok(After::Finished),
            Stepped::Ending => Ok(After::Continue),
            Stepped::Lost => {
                metrics::counter!("batchgate_fences_lost_total").increment(1);
                Ok(After::Finished)
            }
            Stepped::Elsewhere(state) => {
                tracing::error!(chunk = %self.chunk.id, found = %state, wanted = ?step.from, "chunk is not where it should be");
                Ok(After::Finished)
            }
        }
    }

    /// True once the provider has had its time too: the batch ends without what it has not said by now.
    pub fn gives_up(&self) -> bool {
        self.ending.is_some() && self.now > self.chunk.deadline + clock::millis(PATIENCE_AFTER_DEADLINE)
    }

    /// Settles without answers what nobody waits for any more.
    pub async fn give_up(&self) -> Result<After, StoreError> {
        let ending = self.ending.unwrap_or(Ending::Expired);
        tracing::warn!(chunk = %self.chunk.id, state = self.chunk.state.word(), "gave up: the deadline is long past");
        let items = self.gateway.store.items(self.chunk.id).await?;
        commit::settle(self, Settlement::all(items, &ending.failure())).await
    }

    /// The chunk stays where it is and is tried again later; long after its deadline there is no later.
    pub async fn later(&self, error: &CallError) -> Result<After, StoreError> {
        if self.gives_up() {
            return self.give_up().await;
        }
        let state = &self.chunk.state;
        account::failed(self, Call::Read, error, Move { from: state, to: state, fields: Vec::new() }).await
    }

    /// A wait, cut at the deadline or at the end of the provider's patience after it.
    pub fn within_deadline(&self, wait: Millis) -> Millis {
        let patience = if self.ending.is_some() { PATIENCE_AFTER_DEADLINE } else { Duration::ZERO };
        wait.min((self.chunk.deadline + clock::millis(patience)).saturating_sub(self.now).max(1_000))
    }

    /// Full jitter under a doubling bound; at least what the provider asked for; never past the deadline.
    pub fn back_off(&self, error: &CallError) -> Millis {
        let bound = Duration::from_millis(500).saturating_mul(1 << self.chunk.fails.min(10)).min(MAX_BACK_OFF);
        let jittered = bound.mul_f64(rand::random::<f64>()).max(Duration::from_millis(50));
        let wait = match error {
            CallError::Again { after: Some(after), .. } => (*after).max(jittered),
            CallError::Again { .. }
            | CallError::Paused { .. }
            | CallError::NotFound { .. }
            | CallError::Refused { .. } => jittered,
        };
        let (chunk, account) = (self.chunk.id, &self.chunk.lane.account);
        tracing::warn!(%chunk, %account, error = error.head(), ?wait, "provider call failed; again later");
        metrics::counter!("batchgate_provider_call_failures_total", "account" => self.chunk.lane.account.clone())
            .increment(1);
        self.within_deadline(clock::millis(wait))
    }
}

/// Uploads and creates. The chunk is planned.
pub async fn submit(held: &Held<'_>) -> Result<After, StoreError> {
    if let Some(ending) = held.ending {
        let items = held.gateway.store.items(held.chunk.id).await?;
        return commit::settle(held, Settlement::all(items, &ending.failure())).await;
    }
    let Some(provider) = held.provider() else { return no_provider(held).await };
    let passage = match account::enter(held, Call::Create).await? {
        Ok(passage) => passage,
        Err(after) => return Ok(after),
    };
    let beside = match budget::reserve(held).await? {
        Ok(beside) => beside,
        Err(after) => return Ok(after),
    };
    let parcel = parcel(held).await?;
    let input = match &held.chunk.input {
        Some(known) => Some(InputFile(known.clone())),
        None => match provider.upload(&parcel).await {
            Ok(Some(input)) => return note_input(held, &input).await,
            Ok(None) => None,
            Err(error) => return not_created(held, passage, &error, &ChunkState::Planned).await,
        },
    };
    let newest_before = match provider.newest().await {
        Ok(newest) => newest.map(|newest| serde_json::to_string(&newest).expect("strings serialize")),
        Err(error) => return not_created(held, passage, &error, &ChunkState::Planned).await,
    };
    let submitting = ChunkState::Submitting { newest_before: newest_before.clone() };
    let attempt = ("attempt", (held.chunk.attempt + 1).to_string());
    let fields = vec![attempt, ("credential", provider.credential()), ("beside", beside.to_string())];
    let (from, release) = (&["planned"], Release::Hold);
    let intent = Step { from, to: &submitting, fields, release, asking: true, waits: None };
    match held.gateway.store.step(held.lease, &intent).await? {
        Stepped::Done => {}
        Stepped::Ending => return Ok(After::Continue),
        Stepped::Lost | Stepped::Elsewhere(_) => return Ok(After::Finished),
    }
    fail_point!("intended");
    let parcel = Parcel { attempt: held.chunk.attempt + 1, ..parcel };
    match provider.create(&parcel, input.as_ref()).await {
        Ok(created) => {
            fail_point!("created");
            metrics::counter!("batchgate_submits_total", "outcome" => "created").increment(1);
            tracing::info!(chunk = %held.chunk.id, remote = %created.remote.0, prompts = held.chunk.prompts, "chunk submitted");
            held.gateway.store.know_remote(&created.remote.0, held.chunk.id).await.unwrap_or_else(|error| {
                tracing::warn!(chunk = %held.chunk.id, %error, "note the provider's batch id");
            });
            let identity = ("identity", created.identity.unwrap_or_default());
            // The provider's id first: until it is written, a crash here is a doubt.
            let after = running(held, &["submitting"], &created.remote, None, vec![identity]).await?;
            fail_point!("id_stored");
            passage.answered(held).await.unwrap_or_else(|error| {
                tracing::warn!(chunk = %held.chunk.id, %error, "note that the account works");
            });
            Ok(after)
        }
        Err(CreateError::NotCreated(error)) => {
            metrics::counter!("batchgate_submits_total", "outcome" => "not_created").increment(1);
            not_created(held, passage, &error, &submitting).await
        }
        Err(error @ CreateError::Unknown { .. }) => {
            metrics::counter!("batchgate_submits_total", "outcome" => "in_doubt").increment(1);
            let detail = error.head();
            tracing::warn!(chunk = %held.chunk.id, detail, "the create's answer was lost; the chunk is in doubt");
            doubt(held, newest_before).await
        }
    }
}

/// The chunk runs at the provider: the first poll comes after the shortest interval.
async fn running(
    held: &Held<'_>,
    from: &[&'static str],
    remote: &RemoteId,
    adopted: Option<Adopted>,
    mut fields: Vec<(&'static str, String)>,
) -> Result<After, StoreError> {
    let zero = || "0".to_owned();
    fields.extend([("polls", zero()), ("fails", zero()), ("submitted_at", held.now.to_string())]);
    let running = ChunkState::Running { remote: remote.0.clone(), adopted };
    held.step(from, &running, fields, Release::After(clock::millis(held.gateway.settings.poll_min))).await
}

async fn note_input(held: &Held<'_>, input: &InputFile) -> Result<After, StoreError> {
    fail_point!("input_uploaded");
    held.step(&["planned"], &ChunkState::Planned, vec![("input", input.0.clone())], Release::Hold).await
}

/// Certainly not created: planned again, later; or refused for what it holds, and then cut in two.
async fn not_created(
    held: &Held<'_>,
    passage: Passage,
    error: &CallError,
    state: &ChunkState,
) -> Result<After, StoreError> {
    if matches!(error, CallError::NotFound { .. } | CallError::Refused { .. }) {
        passage.answered(held).await?;
    }
    if let Some(limit) = error.token_limit() {
        return budget::refused(held, state, limit).await;
    }
    budget::release(held).await?;
    match error {
        CallError::Refused { status, code, .. } if matches!(status, 400 | 413 | 422) => {
            let items = held.gateway.store.items(held.chunk.id).await?;
            let kind = if *status == 413 { FailureCode::TooLarge } else { FailureCode::InvalidRequest };
            let provider_code = code.clone().or(Some(status.to_string()));
            let message =
                error.said().map_or_else(|| format!("the provider refused it with status {status}"), str::to_owned);
            let alone = Failure { code: kind, message, provider_code, retryable: false };
            // The intent may have been written since the chunk was read: it is settled from where it is now.
            let chunk = Chunk { state: state.clone(), ..held.chunk.clone() };
            let settlement = Settlement::bisect(items, &alone, held.rules());
            commit::settle(&Held { chunk: &chunk, ..*held }, settlement).await
        }
        CallError::Again { .. } | CallError::Paused { .. } | CallError::NotFound { .. } | CallError::Refused { .. } => {
            let again = (held.chunk.fails + 1).is_multiple_of(INPUT_PATIENCE);
            let lost = matches!(error, CallError::NotFound { .. }) && again;
            let fields = if lost { vec![("input", String::new())] } else { Vec::new() };
            let step = Move { from: state, to: &ChunkState::Planned, fields };
            account::failed(held, Call::Create, error, step).await
        }
    }
}

pub(super) async fn no_provider(held: &Held<'_>) -> Result<After, StoreError> {
    if held.gives_up() {
        return held.give_up().await;
    }
    let detail = format!("no provider named {} is configured any more: put it back", held.chunk.lane.account);
    let waits = Waits { reason: Reason::AccountPaused, detail, group: None };
    let wait = clock::millis(UNCONFIGURED.min(held.gateway.settings.poll_max * 4));
    let (state, fields, release) = (&held.chunk.state, Vec::new(), Release::After(held.within_deadline(wait)));
    let from = [state.word()];
    held.try_step(&Step { from: &from, to: state, fields, release, asking: false, waits: Some(&waits) }).await
}

/// A dispatch before ours died between intent and id, or the answer was lost: look at the provider's list, soon.
pub async fn doubt(held: &Held<'_>, newest_before: Option<String>) -> Result<After, StoreError> {
    let soon = clock::millis(held.gateway.settings.poll_min);
    let state = ChunkState::InDoubt { newest_before, looks: 0 };
    held.step(&["submitting"], &state, Vec::new(), Release::After(soon)).await
}

/// Looks for the batch of a create whose answer was lost.
pub async fn look(held: &Held<'_>, newest_before: Option<&String>, looks: u32) -> Result<After, StoreError> {
    let Some(provider) = held.provider() else { return no_provider(held).await };
    let passage = match account::enter(held, Call::Read).await? {
        Ok(passage) => passage,
        Err(after) => return Ok(after),
    };
    let question = Doubt {
        chunk: held.chunk.id.to_string(),
        deployment: held.gateway.settings.deployment.clone(),
        attempt: held.chunk.attempt,
        prompts: held.chunk.prompts,
        input: held.chunk.input.clone().map(InputFile),
        credential: held.chunk.credential.clone(),
        newest_before: newest_before.and_then(|text| serde_json::from_str(text).ok()),
    };
    fail_point!("looking");
    let found = match provider.find(&question).await {
        Ok(found) => found,
        Err(CallError::NotFound { .. }) => {
            passage.answered(held).await?;
            let detail = format!(
                "it is not certain whether {} took a chunk, for the key it was sent with is not let in any more: \
                 put that key back behind the new one in api_key_env, or cancel the batch",
                held.chunk.lane.account
            );
            let state = &held.chunk.state;
            return account::unseen(held, detail, Move { from: state, to: state, fields: Vec::new() }).await;
        }
        Err(error) => return held.later(&error).await,
    };
    passage.answered(held).await?;
    let mut ours = None;
    // Oldest first: if two are ours the older is kept.
    for candidate in found.into_iter().rev() {
        let tried = held.chunk.tried.contains(&candidate.remote.0);
        if candidate.exact || !(tried || another_chunks(held, &candidate.remote).await?) {
            ours = Some(candidate);
            break;
        }
    }
    if let Some(Candidate { remote, exact }) = ours {
        fail_point!("found");
        tracing::info!(chunk = %held.chunk.id, remote = %remote.0, exact, "doubt settled: found");
        metrics::counter!("batchgate_doubts_total", "outcome" => "found").increment(1);
        let adopted = (!exact).then(|| Adopted { newest_before: newest_before.cloned() });
        return running(held, &["in_doubt"], &remote, adopted, Vec::new()).await;
    }
    if looks + 1 < LOOKS {
        let pause = clock::millis(held.gateway.settings.poll_max);
        let state = ChunkState::InDoubt { newest_before: newest_before.cloned(), looks: looks + 1 };
        return held.step(&["in_doubt"], &state, Vec::new(), Release::After(pause)).await;
    }
    tracing::info!(chunk = %held.chunk.id, looks = LOOKS, "doubt settled: never created");
    metrics::counter!("batchgate_doubts_total", "outcome" => "not_found").increment(1);
    held.step(&["in_doubt"], &ChunkState::Planned, Vec::new(), Release::After(0)).await
}

/// True if this provider batch is known to be another chunk's: its create was answered.
async fn another_chunks(held: &Held<'_>, remote: &RemoteId) -> Result<bool, StoreError> {
    let owner = held.gateway.store.remote_owner(&remote.0).await?;
    Ok(owner.is_some_and(|owner| owner != held.chunk.id))
}

/// The chunk as the provider will see it; its prompts are read from the spool when they are sent.
async fn parcel(held: &Held<'_>) -> Result<Parcel, StoreError> {
    let chunk = held.chunk;
    let settings = &held.gateway.settings;
    let open = open_lines(held, &held.gateway.store.items(chunk.id).await?);
    Ok(Parcel {
        chunk: chunk.id.to_string(),
        deployment: settings.deployment.clone(),
        attempt: chunk.attempt,
        endpoint: chunk.lane.endpoint,
        model: chunk.lane.model.clone().unwrap_or_default(),
        headers: chunk.lane.headers.clone(),
        prompts: chunk.prompts,
        wire_bytes: chunk.wire_bytes,
        open,
    })
}

/// The way to the bodies of some of the chunk's questions, page by page of the spool.
pub(super) fn open_lines(held: &Held<'_>, items: &[Item]) -> OpenLines {
    let (chunk, ids) = (held.chunk, commit::wire_ids(held.chunk));
    let mut pages: Vec<(u32, Vec<CacheKey>)> = Vec::new();
    for item in items {
        let home = item.places[0].page;
        match pages.last_mut() {
            Some((page, keys)) if *page == home => keys.push(item.key),
            _ => pages.push((home, vec![item.key])),
        }
    }
    let (store, batch, pages) = (held.gateway.store.clone(), chunk.id.batch, Arc::new(pages));
    Arc::new(move || {
        let (store, ids, pages) = (store.clone(), ids.clone(), Arc::clone(&pages));
        let pages = (0..pages.len()).map(move |at| pages[at].clone());
        let read = move |(page, keys): (u32, Vec<CacheKey>)| {
            let (store, ids) = (store.clone(), ids.clone());
            async move {
                let mut bodies = store.spool(batch, page).await.map_err(|error| ReadError(error.to_string()))?;
                let line = |key: CacheKey| match bodies.remove(&key) {
                    Some(body) => Ok(OutLine { custom_id: ids.write(&key), body }),
                    None => Err(ReadError(format!("page {page} of {batch} lacks a prompt of the chunk"))),
                };
                Ok::<_, ReadError>(stream::iter(keys.into_iter().map(line).collect::<Vec<_>>()))
            }
        };
        stream::iter(pages).then(read).try_flatten().boxed()
    })
}
