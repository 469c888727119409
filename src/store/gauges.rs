//! What an operator sees of Redis at a glance: how much waits where, for how long, and how full it is.

use super::{Store, StoreError, fitness::is_forbidden};
use crate::{clock::Millis, domain::id::ChunkId};
use std::time::Duration;

/// How much is in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub name: &'static str,
    pub depth: u64,
    /// Since its first member was due; zero if none is. Of `open_batches` and `ready`: since the batch was created; of
    /// `uploads`: since the one idle for longest moved. None where members have no time.
    pub oldest: Option<Duration>,
}

impl Queue {
    /// The same of several namespaces, as one.
    pub fn sum(all: impl IntoIterator<Item = Queue>) -> Vec<Queue> {
        let mut sums: Vec<Queue> = Vec::new();
        for queue in all {
            match sums.iter_mut().find(|sum| sum.name == queue.name) {
                Some(sum) => {
                    *sum = Queue { depth: sum.depth + queue.depth, oldest: sum.oldest.max(queue.oldest), ..*sum }
                }
                None => sums.push(queue),
            }
        }
        sums
    }
}

/// Redis's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub used: u64,
    /// 0: no bound.
    pub max: u64,
}

/// The first member of a sorted set.
type Head = Vec<(String, f64)>;

impl Store {
    /// Every queue, in two round trips.
    pub async fn queues(&self) -> Result<Vec<Queue>, StoreError> {
        let keys = &self.keys;
        let sets = [
            ("delayed", keys.delayed()),
            ("claimed", keys.claimed()),
            ("seal", keys.seal()),
            ("chores", keys.chores()),
            ("open_batches", keys.open_batches()),
            ("uploads", keys.uploads()),
        ];
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").smembers(keys.lanes()).llen(keys.dead_letters());
        let ((seconds, micros), lanes, dead): ((u64, u64), Vec<String>, u64) =
            pipe.query_async(&mut self.main.clone()).await?;
        let now = seconds * 1_000 + micros / 1_000 + self.skew_ms;
        let names: Vec<String> = sets.iter().map(|(_, key)| key.clone()).collect();
        let ready: Vec<String> = lanes.iter().map(|lane| format!("{}ready:{lane}", keys.prefix())).collect();
        let mut queues = Vec::new();
        for ((name, _), (depth, head)) in sets.iter().zip(self.heads(&names).await?) {
            let due = head.first().map_or(now, |(_, score)| millis(*score));
            queues.push(Queue { name, depth, oldest: Some(since(now, due)) });
        }
        let heads = self.heads(&ready).await?;
        let created = heads.iter().filter_map(|(_, head)| ChunkId::parse(&head.first()?.0)?.batch.created_at());
        let oldest = Some(created.min().map_or(Duration::ZERO, |at| since(now, at)));
        queues.push(Queue { name: "ready", depth: heads.iter().map(|(depth, _)| depth).sum(), oldest });
        queues.push(Queue { name: "dead_letters", depth: dead, oldest: None });
        Ok(queues)
    }

    /// Size and first member of each sorted set, in their order.
    async fn heads(&self, sets: &[String]) -> Result<Vec<(u64, Head)>, StoreError> {
        if sets.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for set in sets {
            pipe.zcard(set).zrange_withscores(set, 0, 0);
        }
        Ok(pipe.query_async(&mut self.main.clone()).await?)
    }

    pub async fn memory(&self) -> Result<Memory, StoreError> {
        let asked = redis::cmd("INFO").arg("memory").query_async(&mut self.main.clone()).await;
        let info: String = match asked {
            Err(error) if is_forbidden(&error) => String::new(), // said once, by the check
            told => told?,
        };
        let figure = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        Ok(Memory { used: figure("used_memory"), max: figure("maxmemory") })
    }
}

fn since(now: Millis, then: Millis) -> Duration {
    Duration::from_millis(now.saturating_sub(then))
}

/// A score is a time in milliseconds, never negative and far below 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above; a float's cast saturates")]
fn millis(score: f64) -> Millis {
    score as Millis
}
