//! What must come out when things go wrong: at the providers, on the wire, in the gateway, in Redis. The answers are
//! right all the same, and nothing is paid twice.

mod accounts;
mod budgets;
mod candidates;
mod copies;
mod crashes;
mod creates;
mod deadlines;
mod doubles;
mod doubts_end;
mod downloads;
mod drains;
mod identities;
mod janitor;
#[cfg(feature = "failpoints")]
mod jobs;
mod lines;
#[cfg(feature = "failpoints")]
mod matrix;
mod online;
mod poison;
mod proxied;
mod rates;
mod reconcile;
mod records;
mod redis_away;
mod redis_forgets;
mod redis_full;
mod rotation;
mod trickles;
mod turns;
mod windows;
mod zombies;
