//! Combinations that are known to break. Each must still break: one that holds has to leave this list, and may not break
//! again from then on, for then it is a test like all others.

use super::{Combination, Mode};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;

/// Point, mode, gateways, and what is broken.
const KNOWN: &[(&str, Mode, usize, &str)] = &[];
/// So long the gateway stands still in a combination that is known to break, however busy the machine...
pub(super) const STALL: &str = "stall:9s";
/// ... and so long a provider batch takes in it: what another gateway made of the chunk is not settled before it wakes.
pub(super) const TAKES: f64 = 12.0;

pub(super) fn known_broken(given: &Combination) -> Option<&'static str> {
    let is = |(point, mode, gateways, _): &&(&str, Mode, usize, &str)| {
        (*point, *mode, *gateways) == (given.seam.point, given.mode, given.gateways)
    };
    KNOWN.iter().find(is).map(|(.., why)| *why)
}

/// Runs what is known to break.
pub(super) async fn still_breaks(why: &str, trial: impl Future<Output = ()>) {
    let broke = AssertUnwindSafe(trial).catch_unwind().await.is_err();
    assert!(broke, "this holds now, so it is to leave tests/it/faults/matrix/ratchet.rs: {why}");
}
