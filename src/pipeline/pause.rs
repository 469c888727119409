//! Pauses by hand: told once, read before everything that would be paid for. What runs is polled and harvested all the same,
//! and everybody may go on to post and to read.

use super::{
    Gateway, account,
    account::Move,
    dispatch::{After, Held},
};
use crate::{
    clock,
    domain::{
        account::{Closed, Reason},
        pause::{Paused, Scope},
    },
    store::{StoreError, chunks::Chunk},
};

/// The pause that holds for this chunk, if one does.
pub async fn of(held: &Held<'_>) -> Result<Option<Paused>, StoreError> {
    Ok(covering(&held.gateway.store.pauses().await?, held.chunk).cloned())
}

/// The one of these pauses that holds for a chunk.
pub fn covering<'a>(pauses: &'a [Paused], chunk: &Chunk) -> Option<&'a Paused> {
    pauses.iter().find(|paused| paused.scope.covers(&chunk.lane.account, &chunk.team))
}

/// Has the chunk wait where it is while a pause holds for it. None: go on.
pub async fn wait(held: &Held<'_>) -> Result<Option<After>, StoreError> {
    let Some(paused) = of(held).await? else { return Ok(None) };
    if held.gives_up() {
        return held.give_up().await.map(Some);
    }
    let detail = paused.detail(&clock::rfc3339(paused.told.since));
    let closed = Closed { reason: Reason::AccountPaused, detail, until: 0 };
    let state = &held.chunk.state;
    // Whoever ends the pause wakes it; by itself it comes only so that somebody does.
    let delay = clock::millis(held.gateway.settings.poll_max);
    account::wait(held, &closed, delay, Move { from: state, to: state, fields: Vec::new() }).await.map(Some)
}

/// Pauses, for `by`; as it was told first, if it was before.
pub async fn pause(gateway: &Gateway, scope: &Scope, by: &str) -> Result<Paused, StoreError> {
    let (paused, news) = gateway.store.pause(scope, by).await?;
    if news {
        tracing::warn!(%scope, by, "paused by hand: nothing new of it is sent");
    }
    Ok(paused)
}

/// Ends a pause; what waited for it is to be woken in every namespace. False if there was none.
pub async fn resume(gateway: &Gateway, scope: &Scope, by: &str) -> Result<bool, StoreError> {
    let was = gateway.store.resume(scope).await?;
    if was {
        tracing::warn!(%scope, by, "resumed by hand");
    }
    Ok(was)
}

/// Has what waited for a pause go on, in one namespace; also where it was over already: who ended it may have died before
/// he said so.
pub async fn wake(gateway: &Gateway, scope: &Scope) -> Result<(), StoreError> {
    for account in gateway.providers.keys() {
        if !matches!(scope, Scope::Provider(name) if name != account) {
            account::wake_all(gateway, account).await?;
        }
    }
    Ok(())
}
