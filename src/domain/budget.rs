//! How many tokens an account may have enqueued for one model. Pure. In our own estimates throughout: a limit is learnt
//! from what was in flight when the provider refused, so that it does not matter by how much we misjudge.
//!
//! Without a refusal there is no limit. A refusal cuts it to three quarters of what the others had in flight; each
//! window in which the budget was used and nothing refused gives an eighth back.

use super::account::Millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An account's budget for one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Most estimated tokens in flight; none as long as no limit was met.
    pub cap: Option<u64>,
    /// The limit the provider named, in its own count.
    pub stated: Option<u64>,
    /// When the cap last changed.
    judged: Millis,
    /// Submitted and not yet settled: chunk -> estimated tokens.
    in_flight: BTreeMap<String, u64>,
}

impl Budget {
    /// Tokens of all chunks in flight but this one.
    pub fn others(&self, chunk: &str) -> u64 {
        self.in_flight
            .iter()
            .filter(|(other, _)| *other != chunk)
            .fold(0, |sum, (_, tokens)| sum.saturating_add(*tokens))
    }

    /// Enters a chunk, once however often it is asked. False if there is no room; one chunk alone always fits.
    pub fn reserve(&mut self, chunk: &str, tokens: u64) -> bool {
        let others = self.others(chunk);
        let fits = others == 0 || self.cap.is_none_or(|cap| others.saturating_add(tokens) <= cap);
        if fits {
            self.in_flight.insert(chunk.to_owned(), tokens);
        }
        fits
    }

    /// A chunk has gone without the provider having judged it.
    pub fn release(&mut self, chunk: &str) {
        self.in_flight.remove(chunk);
    }

    /// A chunk the provider took has been settled: the budget grows, once per window, if at least half of it was in use.
    pub fn settled(&mut self, chunk: &str, now: Millis, window: Millis) {
        let used = self.others("");
        if self.in_flight.remove(chunk).is_none() {
            return;
        }
        if let Some(cap) = &mut self.cap
            && used >= *cap / 2
            && now >= self.judged.saturating_add(window)
        {
            *cap = cap.saturating_add((*cap / 8).max(1));
            self.judged = now;
        }
    }

    /// The provider refused this chunk for its limit. `before`: what the others had in flight when it was sent. True if
    /// it was alone.
    pub fn refused(&mut self, chunk: &str, tokens: u64, before: u64, stated: Option<u64>, now: Millis) -> bool {
        let others = self.others(chunk).max(before);
        self.in_flight.remove(chunk);
        let cap = if others == 0 { tokens / 2 } else { tokens.max(others / 4 * 3) };
        self.cap = Some(self.cap.map_or(cap, |old| old.min(cap)));
        self.stated = stated.or(self.stated);
        self.judged = now;
        others == 0
    }

    /// Chunks in flight, to be looked for.
    pub fn chunks(&self) -> impl Iterator<Item = &String> {
        self.in_flight.keys()
    }
}

/// Whether a chunk that was refused for the limit so many times in a row, with nothing else in flight, is too large ever
/// to be taken, and is cut in two. The estimate is a token per four bytes, and a token is at least one byte: beyond half
/// of the limit it is very likely, beyond a quarter possible; below that somebody else uses the limit up, or images cost
/// more than their addresses.
pub fn is_too_large(tokens: u64, stated: Option<u64>, refusals: u32) -> bool {
    let (tokens, stated) = (u128::from(tokens), stated.map(u128::from));
    let patience = match stated {
        Some(limit) if tokens * 2 > limit => 1,
        Some(limit) if tokens * 4 <= limit => 8,
        Some(_) | None => 3,
    };
    refusals >= patience
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(cap: Option<u64>) -> Budget {
        Budget { cap, ..Budget::default() }
    }

    #[test]
    fn without_a_limit_everything_fits() {
        let mut budget = with(None);
        assert!(budget.reserve("a", u64::MAX) && budget.reserve("b", u64::MAX) && budget.reserve("c", 1));
    }

    #[test]
    fn the_exact_limit_fits_and_one_more_does_not() {
        let mut budget = with(Some(100));
        assert!(budget.reserve("a", 60) && budget.reserve("b", 40));
        assert!(budget.reserve("b", 40), "twice is once");
        assert!(!budget.reserve("c", 1));
        budget.release("b");
        assert!(!budget.reserve("c", 41));
        assert!(budget.reserve("c", 40));
    }

    #[test]
    fn at_zero_one_goes_at_a_time() {
        let mut budget = with(Some(0));
        assert!(budget.reserve("a", 5));
        assert!(!budget.reserve("b", 5) && budget.reserve("a", 5));
        budget.release("a");
        assert!(budget.reserve("b", 5));
        assert!(!budget.reserve("c", 0));
    }

    #[test]
    fn a_refusal_shrinks_and_quiet_use_grows_once_per_window() {
        let mut budget = with(None);
        for chunk in ["a", "b", "c", "d"] {
            assert!(budget.reserve(chunk, 100));
        }
        assert!(!budget.refused("d", 100, 300, Some(350), 1_000));
        assert_eq!((budget.cap, budget.stated), (Some(225), Some(350)));
        budget.settled("a", 1_500, 1_000);
        assert_eq!(budget.cap, Some(225), "within the window");
        budget.settled("b", 2_000, 1_000);
        assert_eq!(budget.cap, Some(225 + 28));
        budget.settled("b", 9_000, 1_000);
        budget.settled("c", 9_000, 1_000);
        assert_eq!(budget.cap, Some(225 + 28), "not of what was not there, nor of a budget that was hardly used");
    }

    #[test]
    fn alone_and_refused_makes_room_for_one_half() {
        let mut budget = with(None);
        budget.reserve("a", 100);
        assert!(budget.refused("a", 100, 0, None, 0));
        assert_eq!(budget.cap, Some(50));
        budget.reserve("b", 50);
        assert!(!budget.refused("c", 50, 50, None, 0), "it was not alone when it was sent");
    }

    #[test]
    fn what_can_never_fit_is_cut_and_the_rest_waits() {
        assert!(is_too_large(51, Some(100), 1) && !is_too_large(50, Some(100), 2) && is_too_large(50, Some(100), 3));
        assert!(!is_too_large(25, Some(100), 7) && is_too_large(25, Some(100), 8));
        assert!(!is_too_large(1, None, 2) && is_too_large(1, None, 3) && is_too_large(1, Some(0), 1));
        assert!(is_too_large(u64::MAX, Some(u64::MAX), 1));
    }

    proptest! {
        /// The cap holds whatever happens, but for one chunk alone; and something always fits once all is settled.
        #[test]
        fn the_cap_holds(steps in prop::collection::vec((0u8..4, 0u8..6, 0u64..50), 1..80)) {
            let mut budget = Budget::default();
            for (now, (what, chunk, tokens)) in (0..).zip(steps) {
                let chunk = chunk.to_string();
                match what {
                    0 | 1 => {
                        let (others, cap) = (budget.others(&chunk), budget.cap);
                        let fits = budget.reserve(&chunk, tokens);
                        prop_assert_eq!(fits, others == 0 || cap.is_none_or(|cap| others + tokens <= cap));
                    }
                    2 => { budget.refused(&chunk, tokens, 0, None, now); }
                    _ => budget.settled(&chunk, now, 10),
                }
            }
            let all: Vec<String> = budget.chunks().cloned().collect();
            for chunk in all { budget.release(&chunk); }
            prop_assert!(budget.reserve("new", 1_000_000));
        }
    }
}
