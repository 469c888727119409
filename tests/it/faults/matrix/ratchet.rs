//! Combinations that are known to break. Each must still break: one that holds has to leave this list, and may not break
//! again from then on, for then it is a test like all others.

use super::{Asked, Combination, Mode};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;

/// Point, who is asked, mode, gateways, and what is broken.
const KNOWN: &[(&str, Asked, Mode, usize, &str)] = &[(
    "intended",
    Asked::Anthropic,
    Mode::Stall,
    2,
    "a gateway that stood still between its intent and its POST sends it after another has looked twice and sent the chunk",
)];

pub(super) fn known_broken(given: &Combination) -> Option<&'static str> {
    let is = |(point, asked, mode, gateways, _): &&(&str, Asked, Mode, usize, &str)| {
        (*point, *asked, *mode, *gateways) == (given.seam.point, given.asked, given.mode, given.gateways)
    };
    KNOWN.iter().find(is).map(|(.., why)| *why)
}

/// Runs what is known to break.
pub(super) async fn still_breaks(why: &str, trial: impl Future<Output = ()>) {
    let broke = AssertUnwindSafe(trial).catch_unwind().await.is_err();
    assert!(broke, "this holds now, so it is to leave tests/it/faults/matrix/ratchet.rs: {why}");
}
