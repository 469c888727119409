//! Parse, run, exit code; nothing else.

use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    batchgate::cli::run(batchgate::cli::Cli::parse()).await
}
