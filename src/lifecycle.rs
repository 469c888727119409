//! Tasks and their end: every task is tracked and can be told to stop. LEAF: knows nothing of what the tasks do.
//!
//! SIGTERM: not ready, no new claims, POST answers 503, GET still works; steps in hand finish. A second signal, or the
//! drain limit, exits at once: safe by construction. A loop that ends by itself is a crash: exit 1.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
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
pub struct Heartbeats(Arc<Mutex<BTreeMap<&'static str, Instant>>>);

impl Heartbeats {
    pub fn tick(&self, name: &'static str) {
        metrics::counter!("batchgate_loop_ticks_total", "loop" => name).increment(1);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Instant::now());
    }

    /// Since each loop last went round.
    pub fn ages(&self) -> Vec<(&'static str, Duration)> {
        let beats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        beats.iter().map(|(name, at)| (*name, at.elapsed())).collect()
    }

    /// Loops that have not gone round for longer than `limit`.
    pub fn late(&self, limit: Duration) -> Vec<&'static str> {
        let beats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        beats.iter().filter(|(_, at)| at.elapsed() > limit).map(|(name, _)| *name).collect()
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
