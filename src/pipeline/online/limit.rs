//! An adaptive limit on requests in the air, judged once per window. Pure: times are given.
//!
//! ```text
//! trouble in the window (refused, 429, 503, silence)          seven tenths of it, at least 1
//! used to the full, and answers as quick as ever, nearly      a tenth more, at least 1, never above `most`
//! else                                                        as it is
//! ```
//!
//! One bad answer among many is one bad window and no more: judged answer by answer, a burst of refusals would take the
//! limit to 1 at once.

use std::time::Duration;

/// A window lasts at least this long, and holds at least as many ends of requests as may be in the air.
const WINDOW: Duration = Duration::from_secs(1);
/// Answers that take longer than so many times the best window's mean: more at once would only wait in the server.
const SLOW: u32 = 3;
/// What counts as best is forgotten slowly, by a hundredth each window: a few short answers at the start are no promise.
const FORGET: f64 = 1.01;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Answered { took: Duration },
    Trouble,
}

/// The limit, and what was seen since it was last judged.
#[derive(Clone, Debug)]
pub struct Limit {
    now: usize,
    most: usize,
    /// Mean time of the quickest window.
    best: Option<Duration>,
    window: Window,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began: Duration,
    answers: u32,
    took: Duration,
    troubles: u32,
    full: bool,
}

impl Limit {
    /// Begins at a quarter of `most`, at least 1.
    pub fn new(most: usize) -> Limit {
        Limit { now: (most / 4).max(1), most: most.max(1), best: None, window: Window::default() }
    }

    pub fn now(&self) -> usize {
        self.now
    }

    /// A request has ended at `at` (on any clock that only goes forward); `full`: as many were in the air as may be.
    pub fn note(&mut self, at: Duration, ended: Ended, full: bool) {
        match ended {
            Ended::Answered { took } => {
                self.window.answers += 1;
                self.window.took += took;
            }
            Ended::Trouble => self.window.troubles += 1,
        }
        self.window.full |= full;
        let ends = self.window.answers + self.window.troubles;
        if at.saturating_sub(self.window.began) >= WINDOW && ends as usize >= self.now {
            self.judge();
            self.window = Window { began: at, ..Window::default() };
        }
    }

    fn judge(&mut self) {
        if self.window.troubles > 0 {
            self.now = (self.now * 7 / 10).max(1);
            return;
        }
        let mean = self.window.took / self.window.answers.max(1);
        let best = self.best.map_or(mean, |best| best.mul_f64(FORGET).min(mean));
        self.best = Some(best);
        if self.window.full && mean <= best * SLOW {
            self.now = (self.now + (self.now / 10).max(1)).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// A window of `count` requests that end within a second and a bit after `from`.
    fn window(limit: &mut Limit, from: u64, count: usize, took: u64, troubles: usize, full: bool) {
        for n in 0..count {
            let ended = if n < troubles { Ended::Trouble } else { Ended::Answered { took: MS(took) } };
            limit.note(
                MS(from) + MS(1_100) * u32::try_from(n + 1).expect("few") / u32::try_from(count).expect("few"),
                ended,
                full,
            );
        }
    }

    #[test]
    fn it_grows_to_the_most_while_all_is_well() {
        let mut limit = Limit::new(16);
        let mut seen = vec![limit.now()];
        for n in 0..20 {
            window(&mut limit, n * 1_100, 40, 50, 0, true);
            seen.push(limit.now());
        }
        assert_eq!(seen[0], 4);
        assert!(seen.is_sorted() && limit.now() == 16, "{seen:?}");
    }

    #[test]
    fn a_burst_of_refusals_costs_one_step() {
        let mut limit = Limit::new(40);
        window(&mut limit, 0, 40, 50, 39, true);
        assert_eq!(limit.now(), 7, "from ten, once");
    }

    #[test]
    fn what_was_not_used_does_not_grow() {
        let mut limit = Limit::new(40);
        window(&mut limit, 0, 40, 50, 0, false);
        assert_eq!(limit.now(), 10);
    }

    #[test]
    fn slow_answers_stop_the_growth_until_the_best_is_forgotten() {
        let mut limit = Limit::new(1_000);
        window(&mut limit, 0, 300, 10, 0, true);
        let grown = limit.now();
        for n in 1..20 {
            window(&mut limit, n * 1_100, 300, 100, 0, true);
        }
        assert_eq!(limit.now(), grown);
        for n in 20..300 {
            window(&mut limit, n * 1_100, 1_000, 100, 0, true);
        }
        assert!(limit.now() > grown, "{}", limit.now());
    }

    proptest! {
        /// Whatever happens it stays within its bounds, and moves at most once a second.
        #[test]
        fn it_stays_within_bounds(
            most in 1usize..200,
            ends in prop::collection::vec((0u64..400, 0u64..1_000, any::<bool>(), any::<bool>()), 0..300),
        ) {
            let mut limit = Limit::new(most);
            let (mut at, mut moved) = (0, 0);
            for (pause, took, trouble, full) in ends {
                at += pause;
                let before = limit.now();
                let ended = if trouble { Ended::Trouble } else { Ended::Answered { took: MS(took) } };
                limit.note(MS(at), ended, full);
                prop_assert!((1..=most).contains(&limit.now()));
                if limit.now() != before {
                    prop_assert!(at - moved >= 1_000, "{} after {}", at, moved);
                    moved = at;
                }
            }
        }
    }
}
