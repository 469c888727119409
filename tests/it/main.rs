//! The integration tests, one binary: stories told against running gateways, real Redis and two simulators.
#![expect(clippy::panic, clippy::print_stderr, reason = "a story that fails says what it saw")]

mod architecture;
mod bad_input;
mod check;
mod chunk_lives;
mod claims;
mod commit;
mod contract;
mod deployment;
mod docs;
mod doors;
mod fairness;
mod faults;
mod fuzz;
mod giving_way;
mod joins;
mod namespaces;
mod path;
mod pause;
mod provenance;
mod provider_contract;
mod quota;
mod room;
mod run_numbers;
mod support;
mod teams;
mod telemetry;
