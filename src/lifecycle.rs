//! Tasks and their end: every task is tracked and can be told to stop. LEAF: knows nothing of what the tasks do.
//!
//! SIGTERM: not ready, no new claims, POST answers 503, GET still works; steps in hand finish. A second signal, or the
//! drain limit, exits at once: safe by construction. A loop that ends by itself is a crash: exit 1.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// All tasks of one process, or of one server in a test.
#[derive(Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    crashed: CancellationToken,
}

impl Tasks {
    /// A tracked task; it is waited for at the end.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// A loop that runs until it is told to stop. If it ends before, by panic or by itself, the process is broken.
    pub fn spawn_loop(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let (running, tasks) = (self.tracker.spawn(task), self.clone());
        self.tracker.spawn(async move {
            let ended = running.await;
            if !tasks.stopping() {
                tracing::error!(name, panicked = ended.is_err(), "loop ended by itself");
                tasks.crashed.cancel();
            }
        });
    }

    pub fn stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Tells everything to stop.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// The order to stop, for work that outlives no loop but listens by itself.
    pub fn stop_order(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Resolves when everything is told to stop.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Resolves when a loop has ended by itself.
    pub async fn crashed(&self) {
        self.crashed.cancelled().await;
    }

    /// Sleeps, but not past the order to stop.
    pub async fn sleep(&self, duration: Duration) {
        tokio::select! {
            () = tokio::time::sleep(duration) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Waits for every task; false if some are still running after `limit`.
    pub async fn drained(&self, limit: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(limit, self.tracker.wait()).await.is_ok()
    }
}

/// When each loop last went round: readiness looks at their age.
#[derive(Clone, Default)]
pub struct Heartbeats(Arc<Mutex<BTreeMap<&'static str, Beat>>>);

/// A loop's last round, and how long one may take.
#[derive(Clone, Copy, Debug)]
struct Beat {
    at: Instant,
    limit: Duration,
}

/// A loop as readiness sees it.
#[derive(Clone, Copy, Debug)]
pub struct LoopAge {
    pub name: &'static str,
    /// Since it last went round.
    pub age: Duration,
    /// Beyond which it is stuck.
    pub limit: Duration,
}

impl LoopAge {
    pub fn is_late(&self) -> bool {
        self.age > self.limit
    }
}

/// How long a round may take of a loop that said nothing else: a few commands to Redis, each bounded by 20 s.
const ROUND: Duration = Duration::from_secs(60);

impl Heartbeats {
    /// A loop that begins now, and whose rounds take at most `limit`. One that never goes round is seen too.
    pub fn expect(&self, name: &'static str, limit: Duration) {
        self.beats().insert(name, Beat { at: Instant::now(), limit });
    }

    /// The loop went round.
    pub fn tick(&self, name: &'static str) {
        metrics::counter!("batchgate_loop_ticks_total", "loop" => name).increment(1);
        self.beats().entry(name).or_insert(Beat { at: Instant::now(), limit: ROUND }).at = Instant::now();
    }

    /// Every loop there is.
    pub fn ages(&self) -> Vec<LoopAge> {
        let age = |(name, beat): (&&'static str, &Beat)| LoopAge { name, age: beat.at.elapsed(), limit: beat.limit };
        self.beats().iter().map(age).collect()
    }

    fn beats(&self) -> MutexGuard<'_, BTreeMap<&'static str, Beat>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// SIGTERM or SIGINT, whichever comes first.
///
/// # Errors
/// The process may not install signal handlers.
pub fn signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_never_goes_round_is_late_by_its_own_limit() {
        let beats = Heartbeats::default();
        beats.expect("stuck", Duration::ZERO);
        beats.expect("slow", ROUND);
        beats.tick("lively");
        let late: Vec<&str> = beats.ages().iter().filter(|age| age.is_late()).map(|age| age.name).collect();
        assert_eq!(late, ["stuck"]);
        assert_eq!(beats.ages().len(), 3);
    }

    #[tokio::test]
    async fn a_loop_that_ends_by_itself_is_a_crash_and_one_that_is_told_to_is_none() {
        let tasks = Tasks::default();
        let told = tasks.clone();
        tasks.spawn_loop("obedient", async move { told.stopped().await });
        tasks.spawn_loop("faithless", async {});
        tokio::time::timeout(Duration::from_secs(10), tasks.crashed()).await.expect("it is seen");
        let calm = Tasks::default();
        let told = calm.clone();
        calm.spawn_loop("obedient", async move { told.stopped().await });
        calm.stop();
        assert!(calm.drained(Duration::from_secs(10)).await);
        assert!(!calm.crashed.is_cancelled());
    }
}
