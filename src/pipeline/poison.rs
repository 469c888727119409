//! A chunk whose claim runs out again and again: whoever works on it dies or fails there. It must not be recovered for
//! ever. What was never submitted is quarantined; what has a provider id is paid for, so it only waits longer each time.
//!
//! A process that is killed takes innocent chunks along, so ten of those count as much as three steps that failed, by
//! panic or on something stored that cannot be read, in a worker that lived on.

use super::{
    Gateway, commit,
    dispatch::{After, Held},
};
use crate::{
    domain::{
        chunk::ChunkState,
        outcome::{Failure, FailureCode},
        settlement::Settlement,
    },
    store::{StoreError, chunks::Release, queue::Claim},
};

/// Claims that ran out without a step before a chunk is set apart.
pub const MAX_RECLAIMS: u32 = 10;
/// What a step that failed in a living worker counts beside the claim that then runs out: three make ten.
pub const STRIKE: u32 = 3;
const FIRST_WAIT_MS: u64 = 60_000;
const LAST_WAIT_MS: u64 = 3_600_000;

/// A step failed on something stored that nobody can read: the chunk is given back and comes again, ever more seldom. At
/// the third time its name is laid among the dead letters.
pub async fn put_off(gateway: &Gateway, claim: &Claim) -> Result<(), StoreError> {
    let what = format!("chunk:{}", claim.lease.chunk);
    let delay = gateway.store.note_unreadable(&what, gateway.settings.lease).await?;
    gateway.store.put_off(&claim.lease, delay).await
}

/// Quarantines the chunk, or makes it wait: from a minute, doubled with every further reclaim, to an hour each time.
pub async fn set_apart(held: &Held<'_>, reclaims: u32) -> Result<After, StoreError> {
    let state = held.chunk.state.clone();
    tracing::error!(chunk = %held.chunk.id, state = state.word(), reclaims, "claims of this chunk run out without progress");
    metrics::counter!("batchgate_poison_chunks_total").increment(1);
    if state == ChunkState::Planned {
        match held.gateway.store.items(held.chunk.id).await {
            Ok(items) => {
                let message = "the gateway failed again and again at sending this prompt's chunk; nothing was bought";
                let failure = Failure::ours(FailureCode::Quarantined, message);
                return commit::settle(held, Settlement::all(items, &failure)).await;
            }
            // Nobody can say what was in it: an operator must look. It waits like a submitted one.
            Err(StoreError::Corrupt { .. }) => {}
            Err(away) => return Err(away),
        }
    }
    let wait = FIRST_WAIT_MS.saturating_mul(1 << reclaims.saturating_sub(MAX_RECLAIMS).min(6)).min(LAST_WAIT_MS);
    let fields = vec![("reclaims", reclaims.to_string()), ("backed_off", reclaims.to_string())];
    held.step(&[state.word()], &state, fields, Release::After(wait)).await
}
