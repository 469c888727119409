//! What must come out when things go wrong: at the providers, on the wire, in the gateway, in Redis. The answers are
//! right all the same, and nothing is paid twice.

mod accounts;
mod budgets;
mod crashes;
mod creates;
mod deadlines;
mod downloads;
mod drains;
mod lines;
mod online;
mod poison;
mod rates;
mod reconcile;
mod records;
mod redis_away;
mod redis_full;
mod rotation;
mod windows;
mod zombies;
