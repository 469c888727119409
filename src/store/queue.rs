//! Which chunk next: ready, delayed and claimed are three sorted sets, never one. A claim is a lease with a fresh token
//! per dispatch; an owner's name would not be enough, for the same worker can meet its own ghost.
//!
//! Whose chunk is sent next is a matter of shares, not of luck: of all teams with something to send the one goes first that
//! has the fewest prompts under way (in a worker's hands to be sent, or sent and not settled); within a team the deadline
//! decides, and what is of low priority comes last. What is under way already is looked after whatever its team's share.
//!
//! A claim's work has a bound that no team can move: it takes in so many due chunks at most, and then looks at one head, or
//! two, for each team and account. Which model a chunk asks makes no difference to whose turn it is.

use super::{Store, StoreError, chunks::Lease, script, unreadable::count_dead_letters};
use crate::{
    clock::{self, Millis, Sure},
    domain::id::{ChunkId, Token},
};
use std::time::{Duration, Instant};

/// A chunk in our hands.
#[derive(Clone, Debug)]
pub struct Claim {
    pub lease: Lease,
    /// How often its claim ran out without a step; a step that failed in a living worker counts several times.
    pub reclaims: u32,
    /// The account that will answer it.
    pub account: String,
    /// Redis's clock at the claim.
    pub now: Millis,
}

impl Store {
    /// Claims the chunk whose turn it is, if any is due, of all accounts but those in `full`. `token` must be fresh.
    pub async fn claim(&self, token: Token, lease: Duration, full: &[String]) -> Result<Option<Claim>, StoreError> {
        let mut call = script!("claim").prepare_invoke();
        call.key(self.keys.delayed()).key(self.keys.claimed()).key(self.keys.lanes());
        call.key(self.keys.under_way()).key(self.keys.shares());
        call.arg(self.keys.prefix()).arg(token.as_str()).arg(clock::millis(lease)).arg(self.skew_ms);
        call.arg(self.keys.dead_letters()).arg(full);
        let asked = Instant::now();
        let (id, now, reclaims, lane, buried): (String, Millis, u32, String, u64) =
            call.invoke_async(&mut self.lease.clone()).await?;
        if buried > 0 {
            tracing::error!(buried, "chunks in the queues have no readable record; moved to the dead letters");
            count_dead_letters(buried);
        }
        if id.is_empty() {
            return Ok(None);
        }
        let Some(chunk) = ChunkId::parse(&id) else {
            self.dead_letter(&self.keys.claimed(), &id).await?;
            return Ok(None);
        };
        let account = lane.split(':').next().unwrap_or_default().to_owned();
        let lease = Lease { chunk, token, sure: Sure::since(asked, lease) };
        Ok(Some(Claim { lease, reclaims, account, now }))
    }

    /// Extends a claim; false if it is no longer ours.
    pub async fn renew(&self, held: &Lease, lease: Duration) -> Result<bool, StoreError> {
        let asked = Instant::now();
        let mut call = script!("renew").prepare_invoke();
        call.key(self.keys.fence(held.chunk)).key(self.keys.claimed());
        call.arg(held.chunk.to_string()).arg(held.token.as_str()).arg(clock::millis(lease)).arg(self.skew_ms);
        let ours = call.invoke_async::<u8>(&mut self.lease.clone()).await? == 1;
        if ours {
            held.sure.renewed(asked, lease);
        }
        Ok(ours)
    }

    /// True while the chunk is this dispatch's.
    pub async fn holds(&self, held: &Lease) -> Result<bool, StoreError> {
        let fence: Option<String> =
            redis::cmd("GET").arg(self.keys.fence(held.chunk)).query_async(&mut self.lease.clone()).await?;
        Ok(fence.as_deref() == Some(held.token.as_str()))
    }

    /// Counts a step that failed in a living worker, as so many claims that ran out.
    pub async fn strike(&self, held: &Lease, weight: u32) -> Result<(), StoreError> {
        let mut call = script!("strike").prepare_invoke();
        call.key(self.keys.fence(held.chunk)).key(self.keys.chunk(held.chunk));
        call.arg(held.token.as_str()).arg(weight);
        Ok(call.invoke_async(&mut self.lease.clone()).await?)
    }

    /// Lets go of a claim on a chunk that has nothing to be done.
    pub async fn forget_claim(&self, held: &Lease) -> Result<(), StoreError> {
        let mut pipe = redis::pipe();
        pipe.atomic().zrem(self.keys.claimed(), held.chunk.to_string()).ignore();
        pipe.del(self.keys.fence(held.chunk)).ignore();
        Ok(pipe.query_async(&mut self.lease.clone()).await?)
    }

    /// True for one process of all in every such time: for jobs that one does for all. Who dies in it leaves the job to
    /// the next turn, so a job must be repeatable, and harmless if a slow one meets the next.
    pub async fn turn(&self, job: &'static str, every: Duration) -> Result<bool, StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(self.keys.turn(job)).arg(1).arg("NX").arg("PX").arg(clock::millis(every));
        let first: Option<String> = set.query_async(&mut self.main.clone()).await?;
        Ok(first.is_some())
    }

    /// Leases the first due member of a queue of chores or pages: its text, and the lease to finish it with.
    pub(super) async fn take(&self, queue: &str, lease: Duration) -> Result<Option<(String, String)>, StoreError> {
        let mut call = script!("take").prepare_invoke();
        call.key(queue).arg(clock::millis(lease)).arg(self.skew_ms);
        Ok(call.invoke_async(&mut self.lease.clone()).await?)
    }

    /// Makes a leased member due again after a while, unless somebody has queued it again since.
    pub(super) async fn postpone(
        &self,
        queue: &str,
        member: &str,
        lease: &str,
        delay: Duration,
    ) -> Result<(), StoreError> {
        let mut call = script!("postpone").prepare_invoke();
        call.key(queue).arg(member).arg(lease).arg(clock::millis(delay)).arg(self.skew_ms);
        Ok(call.invoke_async(&mut self.lease.clone()).await?)
    }

    /// Removes a leased member, unless somebody has queued it again since.
    pub(super) async fn done(&self, queue: &str, member: &str, lease: &str) -> Result<(), StoreError> {
        let mut call = script!("done").prepare_invoke();
        call.key(queue).arg(member).arg(lease);
        Ok(call.invoke_async(&mut self.lease.clone()).await?)
    }
}
