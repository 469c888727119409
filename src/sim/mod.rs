//! A stand-in world: Anthropic's and OpenAI's batch servers, played on one port, with faults on demand and a
//! ledger of every answer that was billed.
//!
//! It is written from the providers' contracts and imports nothing else of this crate, so that it can bear
//! witness against the rest. Absent: streaming, images, webhooks, other providers, any real model.
//!
//! Base URLs are `/openai/v1` and `/anthropic`; the control surface is `/_sim`.
//!
//! ```text
//!   run      the command          control    /_sim
//!   calls    log, authenticate, fault, handle, deliver   -> route, faults, delivery, wire
//!   openai   endpoint, file(s), batches, life, lines     anthropic   check, intake, batches, life
//!   batch    the work all batches share                  results     their files, spoiled on demand
//!   oracle   what a model says    answers    in which shape          problem   what goes wrong
//!   world    all state            ledger, clock, settings, spool, json
//! ```

mod answers;
mod anthropic;
mod batch;
mod calls;
mod clock;
mod control;
mod delivery;
mod faults;
mod json;
mod ledger;
mod openai;
mod oracle;
mod problem;
mod results;
mod route;
mod run;
mod settings;
mod spool;
#[cfg(test)]
mod tests;
mod wire;
mod world;

use std::{
    future::{Future, IntoFuture},
    path::PathBuf,
    sync::Arc,
};

use axum::{Router, extract::DefaultBodyLimit};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use run::{SimArgs, run};
pub use settings::Answers;

/// How a simulator starts.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Account names and their keys; none means account `default` with key `sim-key`.
    pub keys: Vec<(String, String)>,
    /// `{"settings": {...}, "faults": [...], "keys": {...}}`, all optional.
    pub script: Option<Value>,
    /// What the models say, over what the script says.
    pub answers: Option<Answers>,
    /// The directory to keep uploads and results in while it runs.
    pub spool: PathBuf,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self { keys: Vec::new(), script: None, answers: None, spool: PathBuf::from("/tmp") }
    }
}

/// Play both providers on `listener` until `stop`.
pub async fn serve(
    listener: TcpListener,
    config: SimConfig,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let sim = world::Sim::new(config)?;
    let app = Router::new()
        .merge(control::routes())
        .fallback(calls::answer)
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::clone(&sim))
        .into_make_service_with_connect_info::<wire::Wire>();
    let token = CancellationToken::new();
    let serving = axum::serve(wire::Breakable(listener), app).with_graceful_shutdown(token.clone().cancelled_owned());
    let mut serving = std::pin::pin!(serving.into_future());
    tokio::select! {
        ended = &mut serving => ended?,
        () = stop => {
            token.cancel();
            // A body that trickles has no claim to be sent to its end.
            if let Ok(ended) = tokio::time::timeout(run::GRACE, serving).await {
                ended?;
            }
        }
    }
    Ok(())
}
