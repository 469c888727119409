//! A loop that fails, nearly always because Redis is away: it waits longer each time, and does not flood the log.

use crate::{lifecycle::Tasks, store::StoreError};
use std::time::{Duration, Instant};

/// Waits: 250 ms, 500 ms, 1 s, then every 2 s, each with jitter, so that not all processes come back in one moment.
const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_secs(2);
/// While it lasts it is said again this often.
const SAID_AGAIN: Duration = Duration::from_secs(30);

pub(super) struct Trouble {
    what: &'static str,
    failing: Option<Failing>,
}

struct Failing {
    since: Instant,
    said: Instant,
    rounds: u32,
}

impl Trouble {
    pub(super) fn of(what: &'static str) -> Trouble {
        Trouble { what, failing: None }
    }

    /// A round went well.
    pub(super) fn over(&mut self) {
        if let Some(Failing { since, rounds, .. }) = self.failing.take() {
            tracing::info!(what = self.what, rounds, lasted = ?since.elapsed(), "loop goes on again");
        }
    }

    /// A round failed: waits.
    pub(super) async fn wait(&mut self, error: &StoreError, tasks: &Tasks) {
        metrics::counter!("batchgate_loop_errors_total", "loop" => self.what).increment(1);
        let now = Instant::now();
        let failing = self.failing.get_or_insert(Failing { since: now, said: now, rounds: 0 });
        failing.rounds += 1;
        if failing.rounds == 1 || failing.said.elapsed() >= SAID_AGAIN {
            failing.said = now;
            tracing::error!(what = self.what, %error, rounds = failing.rounds, "loop failed; again shortly");
        }
        let wait = FIRST.saturating_mul(1 << failing.rounds.min(8).saturating_sub(1)).min(LAST);
        tasks.sleep(wait.mul_f64(0.5 + rand::random::<f64>())).await;
    }
}
