//! A simulator as a child process, and its control surface. Knows nothing of the adapters.

use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

/// How long a simulator may take to say where it listens.
const START: Duration = Duration::from_secs(60);

pub(super) struct Simulator {
    pub name: &'static str,
    /// `http://HOST:PORT`
    pub base: String,
    http: reqwest::Client,
    #[expect(dead_code, reason = "held for its drop")]
    process: Process,
}

/// Killed on drop, and what it kept on disk with it.
struct Process {
    child: Child,
    spool: PathBuf,
}

impl Simulator {
    /// The Python one: `BATCHGATE_REFEREE` or `../shared/referee`, run by `BATCHGATE_PYTHON` or the `.venv` that
    /// `scripts/setup` makes.
    pub(super) fn referee() -> Simulator {
        let default = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/referee");
        let place = std::env::var_os("BATCHGATE_REFEREE").map_or(default, PathBuf::from);
        let venv = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python");
        let python = std::env::var_os("BATCHGATE_PYTHON").map_or(venv, PathBuf::from);
        let mut command = Command::new(python);
        command.arg("-u").arg(place.join("provider_sim.py"));
        Simulator::start("the referee", command)
    }

    /// Ours, as a user would start it.
    pub(super) fn ours() -> Simulator {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batchgate"));
        command.arg("sim");
        Simulator::start("batchgate sim", command)
    }

    fn start(name: &'static str, mut command: Command) -> Simulator {
        let spool = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&spool).expect("cargo's own temporary directory is writable");
        command.args(["--listen", "127.0.0.1:0"]).env("TMPDIR", &spool).stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name} ({command:?}): {error}"));
        let mut process = Process { child, spool };
        let output = process.child.stdout.take().expect("stdout is piped");
        let (said, listen) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(base) = line.strip_prefix("listening on ") {
                    said.send(base.trim().to_owned()).ok();
                }
            }
        });
        match listen.recv_timeout(START) {
            Ok(base) => Simulator { name, base, http: reqwest::Client::new(), process },
            Err(why) => panic!("{name} ({command:?}) does not listen: {why}"),
        }
    }

    pub(super) async fn reset(&self) {
        self.post("reset", &json!({})).await;
    }

    /// Adds fault rules: one or a list.
    pub(super) async fn fault(&self, rules: Value) {
        self.post("faults", &rules).await;
    }

    pub(super) async fn settings(&self, patch: Value) {
        self.post("settings", &patch).await;
    }

    pub(super) async fn advance(&self, seconds: f64) {
        self.post("clock", &json!({"advance_s": seconds})).await;
    }

    /// What the answer to this body is.
    pub(super) async fn oracle(&self, provider: &str, body: &Value) -> Value {
        self.post("oracle", &json!({"provider": provider, "body": body})).await
    }

    /// The same, of one endpoint of OpenAI's; Anthropic has but one.
    pub(super) async fn oracle_at(&self, provider: &str, endpoint: &str, body: &Value) -> Value {
        self.post("oracle", &json!({"provider": provider, "endpoint": endpoint, "body": body})).await
    }

    pub(super) async fn ledger(&self) -> Value {
        let url = format!("{}/_sim/ledger", self.base);
        self.http.get(url).send().await.expect("the simulator answers").json().await.expect("a ledger is JSON")
    }

    async fn post(&self, what: &str, body: &Value) -> Value {
        let reply = self
            .http
            .post(format!("{}/_sim/{what}", self.base))
            .json(body)
            .send()
            .await
            .expect("the simulator answers");
        let (status, text) = (reply.status(), reply.text().await.expect("an answer has a body"));
        assert!(status.is_success(), "{what} {body}: {status} {text}");
        serde_json::from_str(&text).expect("an answer is JSON")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.spool).ok();
    }
}
