//! Waiting without blind sleeps: look, pause shortly, look again, and at the deadline say what was seen last.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

/// Longest any story waits for one thing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Looks until `look` answers `Ok`; its `Err` is what it saw instead, and is told if the time runs out.
pub(crate) async fn until<T, E: Debug>(what: &str, look: impl AsyncFnMut() -> Result<T, E>) -> T {
    within(PATIENCE, what, look).await
}

/// As [`until`], with its own patience.
pub(crate) async fn within<T, E: Debug>(
    patience: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let began = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if began.elapsed() > patience => {
                panic!("waited {patience:?} in vain for {what}; last seen: {seen:#?}")
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
