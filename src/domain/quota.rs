//! How much of the gateway one team may have at once. Pure: the accept script counts, under its one look.

use serde::Serialize;

/// What a team's batches that have not ended may be in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Batches.
    pub open_batches: u64,
    /// Results without an outcome: prompts times samples.
    pub pending_prompts: u64,
}

impl Bounds {
    /// Most open batches that can be configured: each accept looks at all of its team's.
    pub const MOST_BATCHES: u64 = 10_000;
    pub const MOST_PROMPTS: u64 = 1_000_000_000;
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { open_batches: 1_000, pending_prompts: 10_000_000 }
    }
}

/// Which bound a batch would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bounded {
    OpenBatches,
    PendingPrompts,
}

impl Bounded {
    pub fn word(self) -> &'static str {
        match self {
            Bounded::OpenBatches => "open_batches",
            Bounded::PendingPrompts => "pending_prompts",
        }
    }
}

/// A batch was not taken: its team has so much already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Exceeded {
    pub what: Bounded,
    /// What the team has now.
    pub used: u64,
    /// What the batch would add.
    pub needed: u64,
    pub max: u64,
}
