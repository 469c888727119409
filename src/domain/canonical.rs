//! Canonical JSON: one text for every way of writing the same value.
