//! Brings a planned chunk to its provider.
//!
//! The intent is written before the call and the provider's id right after it. A death or a lost answer in between
//! leaves the chunk in [`doubt`].

use super::{
    Gateway, Provider, account, account::Move, account::Passage, budget, commit, creates, doubt, outgoing,
    outgoing::Unread,
};
use crate::{
    clock::{self, Millis},
    domain::{
        account::{Call, Reason, Waits},
        chunk::{Adopted, ChunkState},
        outcome::{Ending, Failure, FailureCode},
        settlement::{Rules, Settlement},
    },
    provider::{BatchProvider, CallError, CreateError, Created, InputFile, Parcel, RemoteId},
    store::{
        StoreError,
        chunks::{Chunk, Lease, Release, Step, Stepped},
    },
};
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
        let in_doubt = match to {
            ChunkState::InDoubt(search) => Some(doubt::waits(search)),
            _ => None,
        };
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

    /// Settles without answers what nobody waits for any more. What the provider still makes of it is the janitor's.
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

    /// Between two looks at something that runs: 5 s growing by half each time to 60 s, with a fifth of jitter (with the
    /// default settings).
    pub fn poll_wait(&self) -> Duration {
        let settings = &self.gateway.settings;
        let grown = settings.poll_min.mul_f64(1.5_f64.powi(self.chunk.polls.min(30).cast_signed()));
        grown.min(settings.poll_max).mul_f64(0.8 + 0.4 * rand::random::<f64>())
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
    let Some(provider) = held.provider() else {
        return if held.ending.is_some() { unsent(held).await } else { no_provider(held).await };
    };
    let server = held.gateway.store.server().await?;
    if !server.is_empty() && held.chunk.server.as_ref() != Some(&server) {
        return doubt::after_restart(held, &**provider).await;
    }
    if held.ending.is_some() {
        return unsent(held).await;
    }
    let passage = match account::enter(held, Call::Create).await? {
        Ok(passage) => passage,
        Err(after) => return Ok(after),
    };
    let beside = match budget::reserve(held).await? {
        Ok(beside) => beside,
        Err(after) => return Ok(after),
    };
    let (parcel, unread) = outgoing::parcel(held).await?;
    let input = match &held.chunk.input {
        Some(known) => Some(InputFile(known.clone())),
        None => match provider.upload(&parcel).await {
            Ok(Some(input)) => return note_input(held, &input).await,
            Ok(None) => None,
            Err(error) => {
                if let Some(damage) = unread.damage() {
                    return Err(not_readable(held, damage).await?);
                }
                return not_created(held, passage, &error, &ChunkState::Planned).await;
            }
        },
    };
    if let Err(after) = creates::take(held, &**provider).await? {
        return Ok(after);
    }
    let (after, fate) = create(held, &**provider, passage, beside, (&parcel, input.as_ref(), &unread)).await?;
    if fate == Fate::Known && !provider.labels() {
        creates::release(held).await;
    }
    Ok(after)
}

/// The bodies cannot be read: nothing was created, and neither the provider nor the account is to blame. What was reserved
/// is given back, and the error is for who looks after what cannot be read.
async fn not_readable(held: &Held<'_>, damage: StoreError) -> Result<StoreError, StoreError> {
    budget::release(held).await?;
    Ok(damage)
}

/// Nobody wants it any more, and nothing of it was sent.
async fn unsent(held: &Held<'_>) -> Result<After, StoreError> {
    let items = held.gateway.store.items(held.chunk.id).await?;
    let failure = held.ending.unwrap_or(Ending::Canceled).failure();
    commit::settle(held, Settlement::all(items, &failure)).await
}

/// Whether we know what became of a create.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Created, and its id is stored; or certainly not.
    Known,
    InDoubt,
}

/// Writes the intent and creates.
async fn create(
    held: &Held<'_>,
    provider: &dyn BatchProvider,
    passage: Passage,
    beside: u64,
    (parcel, input, unread): (&Parcel, Option<&InputFile>, &Unread),
) -> Result<(After, Fate), StoreError> {
    let newest_before = match provider.newest().await {
        Ok(newest) => newest.map(|newest| serde_json::to_string(&newest).expect("strings serialize")),
        Err(error) => return Ok((not_created(held, passage, &error, &ChunkState::Planned).await?, Fate::Known)),
    };
    let submitting = ChunkState::Submitting { newest_before: newest_before.clone() };
    let mut fields = doubt::attempt(held, provider);
    fields.push(("beside", beside.to_string()));
    let (from, release) = (&["planned"], Release::Hold);
    let intent = Step { from, to: &submitting, fields, release, asking: true, waits: None };
    match held.gateway.store.step(held.lease, &intent).await? {
        Stepped::Done => {}
        Stepped::Ending => return Ok((After::Continue, Fate::Known)),
        Stepped::Lost | Stepped::Elsewhere(_) => return Ok((After::Finished, Fate::Known)),
    }
    if !provider.labels() && !creates::still_ours(held).await? {
        tracing::warn!(chunk = %held.chunk.id, "the turn to create was taken over meanwhile; later");
        let soon = Release::After(clock::millis(held.gateway.settings.poll_min));
        return Ok((held.step(&["submitting"], &ChunkState::Planned, Vec::new(), soon).await?, Fate::Known));
    }
    fail_point!("intended");
    let parcel = Parcel { attempt: held.chunk.attempt + 1, ..parcel.clone() };
    match provider.create(&parcel, input).await {
        Ok(created) => {
            fail_point!("created");
            Ok((created_at_last(held, provider, passage, &created).await?, Fate::Known))
        }
        Err(CreateError::NotCreated(error)) => {
            metrics::counter!("batchgate_submits_total", "outcome" => "not_created").increment(1);
            let Some(damage) = unread.damage() else {
                return Ok((not_created(held, passage, &error, &submitting).await?, Fate::Known));
            };
            // Planned again and still in hand, so that what it has worn out goes on to count.
            held.step(&["submitting"], &ChunkState::Planned, Vec::new(), Release::Hold).await?;
            if !provider.labels() {
                creates::release(held).await;
            }
            Err(not_readable(held, damage).await?)
        }
        Err(error @ CreateError::Unknown { .. }) => {
            metrics::counter!("batchgate_submits_total", "outcome" => "in_doubt").increment(1);
            let detail = error.head();
            tracing::warn!(chunk = %held.chunk.id, detail, "the create's answer was lost; the chunk is in doubt");
            Ok((doubt::begin(held, newest_before).await?, Fate::InDoubt))
        }
    }
}

/// The provider's id first: until it is written, a crash here is a doubt.
async fn created_at_last(
    held: &Held<'_>,
    provider: &dyn BatchProvider,
    passage: Passage,
    created: &Created,
) -> Result<After, StoreError> {
    metrics::counter!("batchgate_submits_total", "outcome" => "created").increment(1);
    tracing::info!(chunk = %held.chunk.id, remote = %created.remote.0, prompts = held.chunk.prompts, "chunk submitted");
    creates::know(held, provider, &created.remote).await.unwrap_or_else(|error| {
        tracing::warn!(chunk = %held.chunk.id, %error, "note the provider's batch id");
    });
    let fields = vec![doubt::identity(&created.identity)];
    let after = running(held, &["submitting"], &created.remote, None, fields).await?;
    fail_point!("id_stored");
    passage.answered(held).await.unwrap_or_else(|error| {
        tracing::warn!(chunk = %held.chunk.id, %error, "note that the account works");
    });
    Ok(after)
}

/// The chunk runs at the provider: the first poll comes after the shortest interval.
pub(super) async fn running(
    held: &Held<'_>,
    from: &[&'static str],
    remote: &RemoteId,
    adopted: Option<Adopted>,
    mut fields: Vec<(&'static str, String)>,
) -> Result<After, StoreError> {
    let zero = || "0".to_owned();
    fields.extend([("polls", zero()), ("fails", zero()), ("submitted_at", held.now.to_string())]);
    fields.push(("unaccounted", String::new()));
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
    let waits = Waits { reason: Some(Reason::AccountPaused), detail, group: None };
    let wait = clock::millis(UNCONFIGURED.min(held.gateway.settings.poll_max * 4));
    let (state, fields, release) = (&held.chunk.state, Vec::new(), Release::After(held.within_deadline(wait)));
    let from = [state.word()];
    held.try_step(&Step { from: &from, to: state, fields, release, asking: false, waits: Some(&waits) }).await
}
