//! One match from a chunk's state to the verb that moves it on.

use crate::{
    domain::chunk::ChunkState,
    pipeline::{
        Gateway, Provider,
        collect::{self, Found},
        dispatch::{self, After, Held},
        doubt, join,
        online::{self, desk::Seat},
        patience, poison,
    },
    store::{
        StoreError,
        chunks::{Release, Step},
        queue::Claim,
    },
};
use std::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Steps taken in one claim before it is looked at anew: a chunk passes at most through all its states.
const MAX_STEPS: usize = 12;

/// Steps a claimed chunk until it is given back; once the process ends, only the step in hand. `seat`: the permit of its server that came with the claim, where it is
/// asked one by one.
pub(super) async fn run(
    gateway: &Gateway,
    claim: &Claim,
    mut seat: Option<Seat>,
    drain: &CancellationToken,
) -> Result<(), StoreError> {
    fail_point!("claimed");
    for _ in 0..MAX_STEPS {
        if drain.is_cancelled() {
            return give_back(gateway, claim).await;
        }
        if one(gateway, claim, &mut seat, drain).await? == After::Finished {
            return Ok(());
        }
    }
    Err(StoreError::corrupt(format!("chunk {}", claim.lease.chunk), "does not come to rest"))
}

/// Nothing more is begun: the chunk stays where it is, due at once for whoever comes next, and no claim has run out.
async fn give_back(gateway: &Gateway, claim: &Claim) -> Result<(), StoreError> {
    let store = &gateway.store;
    match store.chunk(claim.lease.chunk).await?.map(|chunk| chunk.state) {
        None | Some(ChunkState::Settled) => store.forget_claim(&claim.lease).await,
        Some(state) => {
            let (from, release) = ([state.word()], Release::After(0));
            let stay = Step { from: &from, to: &state, fields: Vec::new(), release, asking: false, waits: None };
            store.step(&claim.lease, &stay).await.map(|_| ())
        }
    }
}

async fn one(
    gateway: &Gateway,
    claim: &Claim,
    seat: &mut Option<Seat>,
    drain: &CancellationToken,
) -> Result<After, StoreError> {
    let id = claim.lease.chunk;
    let Some(chunk) = gateway.store.chunk(id).await? else {
        gateway.store.forget_claim(&claim.lease).await?;
        return Ok(After::Finished);
    };
    let ending = gateway.ending(&chunk, claim.now).await?;
    let held = Held { gateway, lease: &claim.lease, chunk: &chunk, ending, now: claim.now };
    if claim.reclaims >= poison::MAX_RECLAIMS && claim.reclaims != chunk.backed_off {
        return poison::set_apart(&held, claim.reclaims).await;
    }
    let verb = verb(&chunk.state);
    let span = tracing::info_span!("step", verb, chunk = %id, account = %chunk.lane.account);
    let began = Instant::now();
    let done = step(&held, seat, drain).instrument(span).await;
    metrics::histogram!("batchgate_step_seconds", "verb" => verb).record(began.elapsed().as_secs_f64());
    let outcome = if done.is_ok() { "done" } else { "failed" };
    metrics::counter!("batchgate_steps_total", "verb" => verb, "outcome" => outcome).increment(1);
    match done {
        Err(error) if error.is_full() => patience::wait_for_room(&held).await,
        done => done,
    }
}

/// What a chunk in this state is stepped by: the word in spans and metrics.
fn verb(state: &ChunkState) -> &'static str {
    match state {
        ChunkState::Joining { .. } => "join",
        ChunkState::Planned => "submit",
        ChunkState::Asking => "ask",
        ChunkState::Submitting { .. } => "doubt",
        ChunkState::InDoubt(_) => "look",
        ChunkState::Running { .. } => "poll",
        ChunkState::Harvested { .. } => "harvest",
        ChunkState::Settled => "settled",
    }
}

async fn step(held: &Held<'_>, seat: &mut Option<Seat>, drain: &CancellationToken) -> Result<After, StoreError> {
    match &held.chunk.state {
        ChunkState::Joining { owner } => join::wait(held, *owner).await,
        ChunkState::Planned if held.chunk.gave => join::look_again(held).await,
        ChunkState::Planned => match held.gateway.providers.get(&held.chunk.lane.account) {
            Some(Provider::Online(_)) => online::begin(held).await,
            Some(Provider::Batch(_)) | None => dispatch::submit(held).await,
        },
        ChunkState::Asking => online::ask(held, seat.take(), drain).await,
        ChunkState::Submitting { newest_before } => doubt::begin(held, newest_before.clone()).await,
        ChunkState::InDoubt(search) => doubt::look(held, search).await,
        ChunkState::Running { remote, adopted } => collect::poll(held, remote, adopted.as_ref()).await,
        ChunkState::Harvested { remote, sources, looked, adopted } => {
            let found = Found { remote, sources, looked: *looked, adopted: adopted.as_ref() };
            collect::harvest(held, found).await
        }
        ChunkState::Settled => {
            held.gateway.store.forget_claim(held.lease).await?;
            Ok(After::Finished)
        }
    }
}
