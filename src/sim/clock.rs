//! Simulated time: it runs with the wall clock and can be moved on, never back.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use jiff::Timestamp;

pub(crate) const DAY: f64 = 86_400.0;

pub(crate) struct Clock {
    born: f64,
    began: Instant,
    offset: Mutex<f64>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { born: Timestamp::now().as_duration().as_secs_f64(), began: Instant::now(), offset: Mutex::new(0.0) }
    }

    /// Seconds since 1970.
    pub(crate) fn now(&self) -> f64 {
        self.born + self.began.elapsed().as_secs_f64() + self.offset()
    }

    pub(crate) fn offset(&self) -> f64 {
        *self.offset.lock().expect("nothing panics while it holds the offset")
    }

    pub(crate) fn advance(&self, seconds: f64) {
        *self.offset.lock().expect("nothing panics while it holds the offset") += seconds.max(0.0);
    }

    pub(crate) fn reset(&self) {
        *self.offset.lock().expect("nothing panics while it holds the offset") = 0.0;
    }
}

/// OpenAI's form of a time.
#[expect(clippy::cast_possible_truncation, reason = "times of this century fit, and `as` saturates beyond")]
pub(crate) fn unix(at: f64) -> i64 {
    at as i64
}

/// Anthropic's form of a time.
#[expect(clippy::cast_possible_truncation, reason = "times of this century fit, and `as` saturates beyond")]
pub(crate) fn rfc3339(at: f64) -> String {
    Timestamp::from_microsecond((at * 1e6) as i64)
        .map_or_else(|_| "9999-12-31T23:59:59.000000Z".into(), |at| format!("{at:.6}"))
}

/// Real seconds as a script gives them; nonsense is no wait at all.
pub(crate) fn real(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_fraction_and_a_zone() {
        assert_eq!(rfc3339(1_796_000_000.5), "2026-11-30T00:53:20.500000Z");
        assert_eq!(unix(1_796_000_000.9), 1_796_000_000);
    }

    #[test]
    fn time_moves_on_and_not_back() {
        let clock = Clock::start();
        let before = clock.now();
        clock.advance(100.0);
        clock.advance(-50.0);
        assert!(clock.now() >= before + 100.0);
    }
}
