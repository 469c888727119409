//! The limit on tokens an account may have enqueued for a model: a chunk reserves what it is estimated to need before its
//! create and gives it back when it is settled. A limit that is met delays and shrinks; it never fails a prompt.

use super::{
    account::Move,
    commit,
    dispatch::{After, Held},
};
use crate::{
    clock,
    domain::{
        account::{Reason, Waits},
        budget::{self, Budget},
        chunk::ChunkState,
        settlement::Settlement,
    },
    provider::TokenLimit,
    store::{
        StoreError,
        chunks::{Chunk, Release, Step},
    },
};
use std::time::Duration;

/// Chunks woken when tokens become free; each looks whether it fits.
const WAKE: usize = 8;
const MAX_WAIT: Duration = Duration::from_secs(600);

/// A token per four bytes of the bodies, and one for each prompt.
fn estimate(held: &Held<'_>) -> u64 {
    let chunk = held.chunk;
    let limits = held.gateway.limits(&chunk.lane.account, chunk.lane.endpoint);
    let prompts = chunk.prompts as u64;
    let around = limits.fixed_bytes + limits.line_bytes.saturating_mul(prompts);
    chunk.wire_bytes.saturating_sub(around).div_ceil(4) + prompts
}

fn group(chunk: &Chunk, model: &str) -> String {
    format!("tokens:{}:{model}", chunk.lane.account)
}

/// Of these chunks those of one team: they are woken in turns.
fn team_group(chunk: &Chunk, model: &str) -> String {
    format!("{}:{}", group(chunk, model), chunk.team)
}

/// Reserves the chunk's tokens, however often it is asked; what others have enqueued beside it. Where batches mix models
/// nothing is counted: those providers have no such limit.
pub async fn reserve(held: &Held<'_>) -> Result<Result<u64, After>, StoreError> {
    let Some(model) = &held.chunk.lane.model else { return Ok(Ok(0)) };
    let (store, account) = (&held.gateway.store, &held.chunk.lane.account);
    let (name, tokens) = (store.reservation(held.chunk.id), estimate(held));
    let change = |budget: &mut Budget, _| {
        let beside = budget.others(&name);
        (budget.reserve(&name, tokens), beside, budget.clone())
    };
    fail_point!("reserving");
    let (mut fits, mut beside, mut budget) = store.change_budget(account, model, change).await?;
    if !fits && store.clear_budget(account, model).await? > 0 {
        (fits, beside, budget) = store.change_budget(account, model, change).await?;
    }
    if fits {
        fail_point!("reserved");
        return Ok(Ok(beside));
    }
    let wait = clock::millis(held.gateway.settings.poll_max.mul_f64(0.8 + 0.4 * rand::random::<f64>()));
    let state = &held.chunk.state;
    let told = told(held, model, tokens, beside, &budget);
    delay(held, model, told, wait, Move { from: state, to: state, fields: Vec::new() }).await.map(Err)
}

/// The chunk was not created, for reasons of its own.
pub async fn release(held: &Held<'_>) -> Result<(), StoreError> {
    let Some(model) = &held.chunk.lane.model else { return Ok(()) };
    let name = held.gateway.store.reservation(held.chunk.id);
    let change = |budget: &mut Budget, _| {
        budget.release(&name);
        budget.cap.is_some()
    };
    let limited = held.gateway.store.change_budget(&held.chunk.lane.account, model, change).await?;
    wake(held, model, limited).await
}

/// The chunk is settled: its tokens are free. Without this, whoever next finds no room looks for what is settled.
pub async fn settled(held: &Held<'_>) -> Result<(), StoreError> {
    let Some(model) = &held.chunk.lane.model else { return Ok(()) };
    let name = held.gateway.store.reservation(held.chunk.id);
    let window = clock::millis(held.gateway.settings.poll_max);
    let change = |budget: &mut Budget, now| {
        budget.settled(&name, now, window);
        budget.cap.is_some()
    };
    let limited = held.gateway.store.change_budget(&held.chunk.lane.account, model, change).await?;
    wake(held, model, limited).await
}

/// The provider refused the chunk, at its create or after it, for the limit: it waits; or, if nothing was beside it and it
/// can never fit, it is cut in halves, which is no attempt of its prompts.
pub async fn refused(held: &Held<'_>, from: &ChunkState, limit: TokenLimit) -> Result<After, StoreError> {
    metrics::counter!("batchgate_back_pressure_total").increment(1);
    let (store, chunk) = (&held.gateway.store, held.chunk);
    let model = chunk.lane.model.clone().unwrap_or_default();
    let (name, tokens) = (store.reservation(chunk.id), estimate(held));
    let change = |budget: &mut Budget, now| {
        let alone = budget.refused(&name, tokens, chunk.beside, limit.stated, now);
        (alone, budget.others(&name), budget.clone())
    };
    let (alone, beside, budget) = store.change_budget(&chunk.lane.account, &model, change).await?;
    let times = if alone { chunk.alone + 1 } else { 0 };
    if chunk.prompts > 1 && held.ending.is_none() && alone && budget::is_too_large(tokens, limit.stated, times) {
        tracing::warn!(chunk = %chunk.id, tokens, stated = limit.stated, "larger than the token limit: cut in halves");
        let items = store.items(chunk.id).await?;
        let chunk = Chunk { state: from.clone(), ..chunk.clone() };
        return commit::settle(&Held { chunk: &chunk, ..*held }, Settlement::halves(items)).await;
    }
    let doubled = held.gateway.settings.poll_min.saturating_mul(1 << chunk.attempt.min(10)).min(MAX_WAIT);
    let wait = clock::millis(doubled.mul_f64(0.8 + 0.4 * rand::random::<f64>()));
    tracing::warn!(chunk = %chunk.id, tokens, beside, cap = budget.cap, wait_ms = wait, "token limit: the chunk waits");
    let told = told(held, &model, tokens, beside, &budget);
    let fields = vec![("alone", times.to_string())];
    delay(held, &model, told, wait, Move { from, to: &ChunkState::Planned, fields }).await
}

fn told(held: &Held<'_>, model: &str, tokens: u64, beside: u64, budget: &Budget) -> String {
    let most = budget.cap.map_or(String::new(), |cap| format!(" of at most {cap} for now"));
    let stated = budget.stated.map_or(String::new(), |stated| format!("; the provider states a limit of {stated}"));
    let account = &held.chunk.lane.account;
    format!("about {beside} tokens{most} are enqueued at {account} for {model}, and a chunk needs {tokens}{stated}")
}

async fn delay(
    held: &Held<'_>,
    model: &str,
    detail: String,
    wait: clock::Millis,
    step: Move<'_>,
) -> Result<After, StoreError> {
    let waits = Waits { reason: Some(Reason::TokenLimit), detail, group: Some(team_group(held.chunk, model)) };
    let (from, release) = ([step.from.word()], Release::After(held.within_deadline(wait)));
    held.try_step(&Step { from: &from, to: step.to, fields: step.fields, release, asking: false, waits: Some(&waits) })
        .await
}

async fn wake(held: &Held<'_>, model: &str, limited: bool) -> Result<(), StoreError> {
    if limited && held.gateway.store.wake_in_turns(&group(held.chunk, model), WAKE).await? > 0 {
        held.gateway.wake.chunks.notify_one();
    }
    Ok(())
}
