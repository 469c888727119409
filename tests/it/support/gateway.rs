//! A gateway as a child process, configured as a user would: by its environment.

use super::{client::Client, process::Process, redis::Redis, sim::Sim, wait};
use serde_json::Value;
use std::{collections::BTreeMap, path::Path, process::Command};

pub(crate) struct Gateway {
    pub(crate) process: Process,
    pub(crate) address: String,
    pub(crate) client: Client,
}

/// Settings over the suite's own.
pub(crate) type Env = BTreeMap<String, String>;

impl Gateway {
    /// Starts one and waits until it is ready.
    pub(crate) async fn start(name: &str, redis: &Redis, sim: &Sim, env: &Env, dir: &Path) -> Gateway {
        Gateway::run(name, command(redis, sim, env), dir).await
    }

    /// As [`Gateway::start`], by a command of one's own.
    pub(crate) async fn run(name: &str, command: Command, dir: &Path) -> Gateway {
        let mut process = Process::start(name, command, dir);
        let address = wait::until("the gateway to be ready", async || {
            let said = process.said();
            if let Some(status) = process.ended() {
                panic!("the gateway ended at its start ({status}):\n{said}");
            }
            ready(&said).ok_or(said)
        })
        .await;
        let client = Client::new(&address);
        Gateway { process, address, client }
    }
}

/// `batchgate serve` in this world.
pub(crate) fn command(redis: &Redis, sim: &Sim, env: &Env) -> Command {
    let mut command = configured(redis, sim, env);
    command.arg("serve");
    command
}

/// `batchgate` with a gateway's configuration; what it shall do is still to be said.
pub(crate) fn configured(redis: &Redis, sim: &Sim, env: &Env) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_batchgate"));
    command.env_clear();
    let set = [
        ("BATCHGATE_REDIS_URL", redis.url()),
        ("BATCHGATE_LISTEN", "127.0.0.1:0".into()),
        ("ANTHROPIC_API_KEY", "sim-key".into()),
        ("ANTHROPIC_BASE_URL", sim.anthropic()),
        ("OPENAI_API_KEY", "sim-key".into()),
        ("OPENAI_BASE_URL", sim.openai()),
        ("BATCHGATE_POLL_MIN", "50ms".into()),
        ("BATCHGATE_POLL_MAX", "500ms".into()),
        ("BATCHGATE_LEASE", "2s".into()),
        ("BATCHGATE_STALL", "1s".into()),
        ("BATCHGATE_LOG", "info,batchgate=debug".into()),
        ("BATCHGATE_LOG_FORMAT", "json".into()),
    ];
    command.envs(set).envs(env);
    command
}

/// The same command with these limits of open files, the soft and the hard one.
pub(crate) fn within(command: &Command, soft: u64, hard: u64) -> Command {
    let mut within = Command::new("/bin/sh");
    within.arg("-c").arg(format!("ulimit -n {hard} && ulimit -Sn {soft} && exec \"$0\" \"$@\""));
    within.arg(command.get_program()).args(command.get_args());
    within.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    within
}

/// Where it listens, from the one line that says so.
fn ready(log: &str) -> Option<String> {
    log.lines().find_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let fields = &line["fields"];
        (fields["message"] == "ready").then(|| fields["address"].as_str().map(str::to_owned))?
    })
}
