//! `batchgate sim`: the simulator as a command.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use super::{SimConfig, serve, settings::Answers};

/// Play the Anthropic and OpenAI batch servers on one port.
#[derive(Clone, Debug, clap::Args)]
pub struct SimArgs {
    /// Where to listen; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:8900", value_name = "HOST:PORT")]
    listen: String,
    /// An account and its key, for both providers; may be repeated. Without any: default=sim-key.
    #[arg(long = "key", value_name = "NAME=VALUE", value_parser = key)]
    keys: Vec<(String, String)>,
    /// A JSON file with "settings", "faults" and "keys".
    #[arg(long, value_name = "FILE.json")]
    script: Option<PathBuf>,
    /// What the models say: the last user text after a digest of the body, or the text alone.
    #[arg(long, value_enum)]
    answers: Option<Answers>,
    /// Where uploads and results are kept while it runs.
    #[arg(long, env = "TMPDIR", default_value = "/tmp", value_name = "DIRECTORY")]
    spool: PathBuf,
}

fn key(given: &str) -> Result<(String, String), String> {
    let (account, key) = given.split_once('=').ok_or("want NAME=VALUE")?;
    Ok((account.to_owned(), key.to_owned()))
}

/// Serve until SIGTERM or SIGINT.
pub async fn run(args: SimArgs) -> anyhow::Result<()> {
    let script = match &args.script {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("read script {}", path.display()))?;
            Some(serde_json::from_str(&text).with_context(|| format!("parse script {}", path.display()))?)
        }
        None => None,
    };
    let listener = TcpListener::bind(&args.listen).await.with_context(|| format!("listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    announce(&format!("listening on http://{address}"));
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    serve(listener, SimConfig { keys: args.keys, script, answers: args.answers, spool: args.spool }, stop).await
}

/// Scripts wait for this line.
#[expect(clippy::print_stdout, reason = "the one line of output a command has")]
fn announce(line: &str) {
    println!("{line}");
}

/// How long open connections may take to end once the simulator is told to stop.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
