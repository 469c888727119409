//! What must come out when all goes well: the promises of the native API, each told as a story.

mod answers;
mod bodies;
mod cache_modes;
mod cache_trust;
mod cancel;
mod codings;
mod dashboard;
mod deleting;
mod dry_run;
mod endpoints;
mod failures;
mod forms;
mod idempotency;
mod large;
mod listing;
mod max_age;
mod on_invalid;
mod online;
mod origin;
mod reading;
mod retrying;
mod runs;
mod samples;
