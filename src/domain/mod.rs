//! NOUNS: what a batch is. Pure values: no async, no I/O, no clock, nothing of axum, redis or reqwest.

pub mod batch;
pub mod canonical;
pub mod chunk;
pub mod key;
pub mod limits;
pub mod outcome;
pub mod prompt;
