//! How far a batch is: counts that always add up, and the status derived from them.

use super::{account::Reason, batch::Terms, id::BatchId, outcome::Usage};
use serde::Serialize;

/// Results of a batch by outcome. `total == pending + succeeded + failed + canceled + expired`, by construction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub total: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub canceled: u64,
    pub expired: u64,
    /// How many of `succeeded` came from the cache.
    pub cached: u64,
    /// How many of `succeeded` came from another batch's call.
    pub joined: u64,
    /// Prompts whose question came before in this batch, or in its run; `samples` alone make none.
    pub repeats: u64,
}

impl Counts {
    /// Zero also where the outcomes exceed the total, which only damage in Redis can do.
    pub fn pending(&self) -> u64 {
        self.total.saturating_sub(self.succeeded + self.unanswered())
    }

    /// Every result has one outcome, as in every batch that has ended.
    pub fn add_up(&self) -> bool {
        self.total == self.succeeded + self.unanswered()
    }

    /// Results that ended without an answer.
    pub fn unanswered(&self) -> u64 {
        self.failed + self.canceled + self.expired
    }
}

/// A batch's own chunks by state; `submitting` includes in doubt, `running` includes harvested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChunkCounts {
    pub planned: u64,
    pub submitting: u64,
    pub running: u64,
    pub settled: u64,
    /// Settled without one success.
    pub failed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    Running,
    Canceling,
    Ended,
}

/// Prompts that wait, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub reason: Reason,
    pub detail: String,
    /// Questions in the chunks that wait.
    pub prompts: u64,
    /// Since when any of the batch's prompts waits for this.
    pub since: u64,
}

/// Everything known of a batch as a whole; enough for its public object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    pub team: String,
    /// The run whose repeats it counts among: `name` or `name~attempt`, as its client gave it; none outside runs.
    pub run: Option<String>,
    /// Unix milliseconds, as all times here.
    pub created_at: u64,
    pub deadline: u64,
    pub ended_at: Option<u64>,
    /// End of retention, once ended.
    pub deleted_at: Option<u64>,
    pub cancel_requested: bool,
    pub counts: Counts,
    pub chunks: ChunkCounts,
    /// Prompts the providers say are done in chunks not yet settled or already so; for display.
    pub reported_prompts: u64,
    /// Empty where everything moves, and once ended.
    pub waiting: Vec<Waiting>,
    pub usage: Usage,
    pub metadata: std::collections::BTreeMap<String, String>,
    /// The batch whose unanswered prompts it asks again.
    pub retry_of: Option<BatchId>,
    pub terms: Terms,
    /// Result pages, and how many are sealed.
    pub pages: u32,
    pub sealed: u32,
}

impl Progress {
    pub fn status(&self) -> BatchStatus {
        match (self.ended_at, self.cancel_requested) {
            (Some(_), _) => BatchStatus::Ended,
            (None, true) => BatchStatus::Canceling,
            (None, false) => BatchStatus::Running,
        }
    }
}
