//! The integration tests, one binary: stories told against running gateways, real Redis and two simulators.

mod faults;
mod path;
mod provider_contract;
mod support;
