//! Wall time as a value, and how long something is sure. LEAF: nothing else reads the clock, so that a test can say what
//! time it is.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Unix milliseconds.
pub type Millis = u64;

pub fn now_ms() -> Millis {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A duration in whole milliseconds.
pub fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// A time as RFC 3339 writes it; before 1970 is 1970. None if it is not one.
pub fn parse_rfc3339(text: &str) -> Option<Millis> {
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Millis::try_from(at.as_millisecond()).unwrap_or(0))
}

/// RFC 3339 in UTC, to the millisecond.
pub fn rfc3339(ms: Millis) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.unwrap_or(jiff::Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// Until when a lease is certainly ours, by this machine's own clock, which goes on while the process sleeps: counted from
/// before Redis was asked, so Redis never counts less. Shared between whoever renews it and whoever relies on it.
#[derive(Clone, Debug)]
pub struct Sure(Arc<Mutex<Option<Instant>>>);

impl Sure {
    /// Of a lease that was asked for at this moment.
    pub fn since(asked: Instant, lease: Duration) -> Sure {
        Sure(Arc::new(Mutex::new(Some(asked + lease))))
    }

    /// Renewed, unless it was given back meanwhile.
    pub fn renewed(&self, asked: Instant, lease: Duration) {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *until = until.map(|_| asked + lease);
    }

    /// We let go of it: from now on a refused renewal is no loss.
    pub fn give_back(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn is_given_back(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    pub fn is_now(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| Instant::now() < until)
    }
}
