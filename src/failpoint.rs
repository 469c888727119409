//! LEAF: places where a build for tests can be told to die, to stand still or to fail. The feature `failpoints` is what
//! makes such a build; without it [`fail_point!`] is nothing, and so is this module.
//!
//! To add a place: a line in [`POINTS`], `fail_point!("its_name");` at the seam, and a row in
//! `tests/it/faults/matrix/seams.rs`, or in `tests/it/faults/jobs.rs` if no batch comes by.

#[cfg(feature = "failpoints")]
mod armed;
#[cfg(feature = "failpoints")]
pub use armed::{Plan, Tripped, arm, is_known, reached};

/// The setting that arms points: `name=mode`, several with `;` between. `mode` is `exit`, `error` or `stall:3s`, and `@2`
/// behind it means the second time the process comes by.
#[cfg(feature = "failpoints")]
pub const VARIABLE: &str = "BATCHGATE_FAILPOINTS";

/// Every point, in the order in which a batch meets them.
#[cfg(feature = "failpoints")]
pub const POINTS: &[&str] = &[
    // accept
    "upload_entered",
    "page_half_written",
    "accepting",
    "accepted",
    "upload_undone",
    "numbers_given_back",
    "retry_frame_read",
    "marked",
    // dispatch
    "claimed",
    "reserving",
    "reserved",
    "input_uploaded",
    "intended",
    "created",
    "id_stored",
    "looking",
    "found",
    // join
    "marks_taken",
    "registering",
    "registered",
    // collect
    "cancel_noted",
    "cancel_sent",
    "ended",
    "answers_staged",
    // a server that is asked one by one
    "answer_came",
    "noting",
    "noted",
    // commit
    "fragments_written",
    "before_exec",
    "after_exec",
    "settled",
    // seal, sweep, stop
    "page_complete",
    "page_written",
    "page_sealed",
    "chore_taken",
    "chore_done",
    "draining",
    "drained_round",
    // what no batch comes by: the janitor, the reconciler, an adoption, a configuration read again
    "janitor_found",
    "janitor_kept",
    "janitor_noted",
    "reconcile_looked",
    "reconcile_repaired",
    "adopt_dropping",
    "adopting",
    "reloading",
];

/// `fail_point!("name")` where the function's error can be made of a [`Tripped`]; `fail_point!("name", StoreError)` where
/// it can be made of a `StoreError`.
#[cfg(feature = "failpoints")]
macro_rules! fail_point {
    ($name:literal $(, $through:ident)?) => {{
        const { assert!($crate::failpoint::is_known($name), "a point that is not in POINTS") };
        $crate::failpoint::reached($name)$(.map_err($through::from))??;
    }};
}

#[cfg(not(feature = "failpoints"))]
macro_rules! fail_point {
    ($($anything:tt)*) => {};
}

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("the feature `failpoints` is for builds of tests: a release must not be told to die");
