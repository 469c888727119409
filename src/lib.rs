//! batchgate: a shared per-prompt cache in front of the batch APIs of LLM providers.

pub mod domain;
pub mod provider;
pub mod sim;
