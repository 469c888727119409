//! What is paid for and in our hands is not let go because Redis refuses a write or does not answer: the claim and what
//! was staged under it are kept, and only the write is made again. The guard of the claim renews it meanwhile, and ends
//! the step if it is lost; after four leases the chunk goes back, and another claim reads its results anew.

use super::{
    dispatch::{After, Held},
    room,
};
use crate::{
    domain::account::{Reason, Waits},
    store::{
        StoreError,
        chunks::{Release, Step},
    },
};
use std::time::{Duration, Instant};

/// Leases a refused write is made again for.
const LEASES: u32 = 4;
/// Waits between: 100 ms, 200 ms, ... then every 5 s, each with jitter.
const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(5);

/// Makes a repeatable write until it is done, or Redis has not taken it for four leases.
pub async fn insist<T, W>(held: &Held<'_>, what: &'static str, write: impl Fn() -> W) -> Result<T, StoreError>
where
    W: Future<Output = Result<T, StoreError>>,
{
    let (began, mut wait) = (Instant::now(), FIRST);
    loop {
        let error = match write().await {
            Err(error @ StoreError::Away(_)) if began.elapsed() < held.gateway.settings.lease * LEASES => error,
            other => return other,
        };
        tracing::warn!(chunk = %held.chunk.id, what, %error, ?wait, "redis did not take it; again shortly");
        if error.is_full() {
            metrics::counter!("batchgate_redis_full_total").increment(1);
            room::give_way(held.gateway).await;
        }
        tokio::time::sleep(wait.mul_f64(0.5 + rand::random::<f64>())).await;
        wait = (wait * 2).min(LAST);
    }
}

/// Redis has no room for what the chunk brought, and did not find any in time: the answers stay at the provider.
pub async fn wait_for_room(held: &Held<'_>) -> Result<After, StoreError> {
    // The step may have moved it before it ran into this.
    let Some(chunk) = held.gateway.store.chunk(held.chunk.id).await? else { return Ok(After::Finished) };
    tracing::error!(chunk = %chunk.id, "redis is full: the answers of this chunk stay at the provider until there is room");
    let waits = Waits {
        reason: Some(Reason::Storage),
        detail: "Redis is at its maxmemory; the answers stay at the provider until it has room".to_owned(),
        group: None,
    };
    let wait = held.gateway.settings.poll_max.mul_f64(0.8 + 0.4 * rand::random::<f64>());
    let release = Release::After(crate::clock::millis(wait));
    let from = [chunk.state.word()];
    let step = Step { from: &from, to: &chunk.state, fields: Vec::new(), release, asking: false, waits: Some(&waits) };
    held.try_step(&step).await
}
