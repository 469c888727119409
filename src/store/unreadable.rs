//! Stored things that nobody can read. A queue member that names nothing is moved out of the way at once. A record is
//! tried again, ever more seldom, for an operator may put it right; at the third time its name is laid among the dead
//! letters. Nothing else stops for either.

use super::{Store, StoreError, chunks::Lease, script};
use crate::clock;
use std::time::Duration;

/// Times in a day at which a record becomes a dead letter: once or twice may be a race with whoever removes it.
const THIRD: u32 = 3;
const FORGOTTEN: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest time between two tries.
const SELDOM: Duration = Duration::from_secs(60 * 60);

impl Store {
    /// Notes that something could not be read, by its name and never by what is in it. Says how long to wait before it is
    /// tried again: twice `least` at first, twice as long each time, at most an hour.
    pub async fn note_unreadable(&self, what: &str, least: Duration) -> Result<Duration, StoreError> {
        let name = self.keys.unreadable(what);
        let mut pipe = redis::pipe();
        pipe.atomic().incr(&name, 1).cmd("PEXPIRE").arg(&name).arg(clock::millis(FORGOTTEN)).ignore();
        let (times,): (u32,) = pipe.query_async(&mut self.main.clone()).await?;
        if times == THIRD {
            tracing::error!(what, "cannot be read again and again; laid among the dead letters");
            self.lay_down(what).await?;
        }
        Ok(least.saturating_mul(1 << times.min(20)).min(SELDOM))
    }

    /// Moves a queue member nobody can read out of the way.
    pub(super) async fn dead_letter(&self, queue: &str, member: &str) -> Result<(), StoreError> {
        tracing::error!(queue, member, "queue member cannot be read; moved to the dead letters");
        redis::cmd("ZREM").arg(queue).arg(member).query_async::<()>(&mut self.main.clone()).await?;
        self.lay_down(member).await
    }

    pub(super) async fn lay_down(&self, letter: &str) -> Result<(), StoreError> {
        count_dead_letters(1);
        let (name, mut pipe) = (self.keys.dead_letters(), redis::pipe());
        pipe.atomic().lpush(&name, letter).ignore().ltrim(&name, 0, 999).ignore();
        Ok(pipe.query_async(&mut self.main.clone()).await?)
    }

    /// Gives a claim back without a step, due again after a while.
    pub async fn put_off(&self, held: &Lease, delay: Duration) -> Result<(), StoreError> {
        let mut call = script!("put_off").prepare_invoke();
        call.key(self.keys.fence(held.chunk)).key(self.keys.claimed()).key(self.keys.delayed());
        call.key(self.keys.chunk(held.chunk));
        call.arg(held.chunk.to_string()).arg(held.token.as_str()).arg(clock::millis(delay)).arg(self.skew_ms);
        Ok(call.invoke_async(&mut self.lease.clone()).await?)
    }
}

pub(super) fn count_dead_letters(count: u64) {
    metrics::counter!("batchgate_dead_letters_total").increment(count);
}
