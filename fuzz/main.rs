//! One binary for all targets: `BATCHGATE_FUZZ_TARGET` names one.
#![no_main]

#[path = "targets.rs"]
mod targets;

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("BATCHGATE_FUZZ_TARGET").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("BATCHGATE_FUZZ_TARGET={name:?} names no target")).1
});

fuzz_target!(|data: &[u8]| TARGET(data));
