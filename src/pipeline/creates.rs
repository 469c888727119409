//! One create at a time at an account whose batches bear no label. The turn is the chunk's until everybody knows what became
//! of its create; the rules are [`crate::domain::creates`]'.
//!
//! The order of writes, and what a death between two of them leaves:
//!
//! | written so far | what follows |
//! |---|---|
//! | turn | the chunk is planned: its next dispatch has the turn already, or another takes it at the second look |
//! | turn, intent | the chunk is in doubt, and keeps the turn while it is looked for |
//! | the same and the provider's id, or *planned* again, or *settled* | the turn of a chunk that is idle: taken at the second look |
//!
//! Whoever gives the turn back wakes the next of its namespace; others look every `BATCHGATE_POLL_MAX`.
//!
//! What it costs: creates of one such account follow each other, whatever the namespace or gateway. One takes seconds; one
//! that the provider leaves unanswered takes `BATCHGATE_CREATE_TIMEOUT` (10 min), and then a doubt: a minute or two more.

use super::dispatch::{After, Held};
use crate::{
    clock,
    domain::{
        account::{Reason, Waits},
        chunk::{ChunkState, Search},
        creates::{Creates, Turn},
    },
    provider::{BatchProvider, RemoteId},
    store::{
        StoreError,
        chunks::{Release, Step},
    },
};

/// Chunks woken when the turn is free. The first one takes it; the second is there in case that one no longer wants it.
const WAKE: usize = 2;

fn group(account: &str) -> String {
    format!("creates:{account}")
}

/// Of these chunks those of one team: it is a team's turn first, and then one of its chunks'.
fn team_group(account: &str, team: &str) -> String {
    format!("{}:{team}", group(account))
}

fn turn(held: &Held<'_>) -> Turn {
    Turn::new(held.gateway.store.reservation(held.chunk.id), held.lease.token.as_str())
}

/// Takes the account's turn for the chunk, or has the chunk wait for it where it is. Free of charge where labels exist.
pub async fn take(held: &Held<'_>, provider: &dyn BatchProvider) -> Result<Result<(), After>, StoreError> {
    if provider.labels() {
        return Ok(Ok(()));
    }
    let (store, account, ours) = (&held.gateway.store, &held.chunk.lane.account, turn(held));
    let Err(other) = store.change_creates(account, |creates, _| creates.take(&ours)).await? else { return Ok(Ok(())) };
    let state = store.state_of(&other.chunk).await?;
    let idle = is_idle(state.as_deref());
    let pause = clock::millis(held.gateway.settings.poll_min);
    let contest = |creates: &mut Creates, now| creates.contest(&other, idle, &ours, now, pause);
    if store.change_creates(account, contest).await? {
        if is_idle(store.state_of(&other.chunk).await?.as_deref()) {
            tracing::warn!(%account, chunk = %held.chunk.id, left_by = other.chunk, "took over the turn to create");
            return Ok(Ok(()));
        }
        store.change_creates(account, |creates, _| creates.give_back(&ours, &other)).await?;
    }
    wait(held, state.as_deref(), idle).await.map(Err)
}

/// Neither submitting nor in doubt, or gone.
fn is_idle(state: Option<&str>) -> bool {
    let busy = [ChunkState::Submitting { newest_before: None }, ChunkState::InDoubt(Search::default())];
    state.is_none_or(|state| !busy.iter().any(|busy| busy.word() == state))
}

/// Waits where it is. Whoever gives the turn back wakes the next, so what is written here is only in case he dies.
async fn wait(held: &Held<'_>, state: Option<&str>, idle: bool) -> Result<After, StoreError> {
    if held.gives_up() {
        return held.give_up().await;
    }
    let (account, settings) = (&held.chunk.lane.account, &held.gateway.settings);
    let in_doubt = matches!(held.chunk.state, ChunkState::InDoubt(_))
        || state == Some(ChunkState::InDoubt(Search::default()).word());
    let detail =
        format!("the answer to a create at {account} was lost; nothing else is created there until it is found");
    let waits = Waits {
        reason: in_doubt.then_some(Reason::InDoubt),
        detail,
        group: Some(team_group(account, &held.chunk.team)),
    };
    let pause = if idle { settings.poll_min } else { settings.poll_max };
    let delay = clock::millis(pause.mul_f64(1.0 + 0.2 * rand::random::<f64>()));
    let (from, to) = ([held.chunk.state.word()], &held.chunk.state);
    let release = Release::After(held.within_deadline(delay));
    held.try_step(&Step { from: &from, to, fields: Vec::new(), release, asking: false, waits: Some(&waits) }).await
}

/// To be asked after the intent and before the create.
pub async fn still_ours(held: &Held<'_>) -> Result<bool, StoreError> {
    Ok(held.gateway.store.creates(&held.chunk.lane.account).await?.is(&turn(held)))
}

/// Notes whose a provider's batch is before the turn is given back: it is nobody else's candidate.
pub async fn know(held: &Held<'_>, provider: &dyn BatchProvider, remote: &RemoteId) -> Result<(), StoreError> {
    let (store, chunk) = (&held.gateway.store, held.chunk);
    if !provider.labels() {
        store.tell_whose(&chunk.lane.account, &remote.0, chunk.id).await?;
    }
    store.know_remote(&remote.0, chunk.id).await
}

/// Gives the turn back, if it is this dispatch's. Best effort: a turn that is kept is taken over from an idle chunk.
pub async fn release(held: &Held<'_>) {
    let (store, account, ours) = (&held.gateway.store, &held.chunk.lane.account, turn(held));
    let freed = async {
        if store.change_creates(account, |creates, _| creates.release(&ours)).await? {
            store.wake_in_turns(&group(account), WAKE).await?;
            held.gateway.wake.chunks.notify_one();
        }
        Ok::<(), StoreError>(())
    };
    if let Err(error) = freed.await {
        tracing::warn!(chunk = %held.chunk.id, %error, "give back the turn to create");
    }
}
