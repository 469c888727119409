//! NOUNS: what a batch is. Pure values: no async, no I/O, no clock, nothing of axum, redis or reqwest.

pub mod account;
pub mod batch;
pub mod budget;
pub mod canonical;
pub mod chunk;
pub mod creates;
pub mod duration;
pub mod estimate;
pub mod filter;
pub mod home;
pub mod id;
pub mod identity;
pub mod json;
pub mod key;
pub mod limits;
pub mod outcome;
pub mod problem;
pub mod progress;
pub mod prompt;
mod reader;
pub mod room;
pub mod route;
pub mod run;
pub mod settlement;
pub mod span;
pub mod team;
