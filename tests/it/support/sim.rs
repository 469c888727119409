//! A simulator of the providers as a child process: ours or the referee. Both have the same control surface.

use super::{process::Process, wait};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Which simulator plays the providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `batchgate sim`.
    Ours,
    /// The Python one, written by others from the providers' contract.
    Referee,
}

/// Two keys of one account, and one of another that sees nothing of theirs.
const KEYS: [(&str, &str); 3] = [("default", "sim-key"), ("default", "new-key"), ("other", "other-key")];

pub(crate) struct Sim {
    /// `http://HOST:PORT`
    pub(crate) base: String,
    http: reqwest::Client,
    /// Held for its drop.
    _process: Process,
}

impl Sim {
    pub(crate) async fn start(kind: Kind, dir: &Path) -> Sim {
        let mut command = match kind {
            Kind::Ours => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_batchgate"));
                command.arg("sim");
                command
            }
            Kind::Referee => referee(),
        };
        command.args(["--listen", "127.0.0.1:0"]).env("TMPDIR", dir);
        for (account, key) in KEYS {
            command.args(["--key", &format!("{account}={key}")]);
        }
        let mut process = Process::start(&format!("sim-{kind:?}"), command, dir);
        let base = wait::until("the simulator to say where it listens", async || {
            let said = process.said();
            let base = said.lines().find_map(|line| line.strip_prefix("listening on "));
            if let (None, Some(status)) = (base, process.ended()) {
                panic!("the simulator {kind:?} cannot be started ({status}):\n{said}{}", hint(kind));
            }
            base.map(|base| base.trim().to_owned()).ok_or(said)
        })
        .await;
        Sim { base, http: reqwest::Client::new(), _process: process }
    }

    pub(crate) fn anthropic(&self) -> String {
        format!("{}/anthropic", self.base)
    }

    pub(crate) fn openai(&self) -> String {
        format!("{}/openai/v1", self.base)
    }

    /// As it was at its start: no batches, no bills, no faults.
    pub(crate) async fn reset(&self) {
        self.post("reset", &json!({})).await;
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        let address = self.base.strip_prefix("http://").expect("it speaks HTTP");
        address.parse().expect("it listens at an address")
    }

    /// Adds fault rules: one or a list.
    pub(crate) async fn fault(&self, rules: Value) {
        self.post("faults", &rules).await;
    }

    /// The rules with their hits.
    pub(crate) async fn faults(&self) -> Value {
        self.get("faults").await
    }

    pub(crate) async fn clear_faults(&self) {
        let url = format!("{}/_sim/faults", self.base);
        self.http.delete(url).send().await.expect("the simulator answers");
    }

    pub(crate) async fn settings(&self, patch: Value) {
        self.post("settings", &patch).await;
    }

    /// From now on a provider batch takes so long.
    pub(crate) async fn take(&self, seconds: f64) {
        self.settings(json!({"anthropic": {"in_progress_s": seconds}, "openai": {"in_progress_s": seconds}})).await;
    }

    /// Moves the simulated clock on.
    pub(crate) async fn advance(&self, seconds: f64) {
        self.post("clock", &json!({"advance_s": seconds})).await;
    }

    /// What the answer to a body is: `text`, `outcome`, `error`.
    pub(crate) async fn oracle(&self, provider: &str, body: &Value) -> Value {
        self.post("oracle", &json!({"provider": provider, "body": body})).await
    }

    /// The same, of one endpoint of OpenAI's; Anthropic has but one.
    pub(crate) async fn oracle_at(&self, provider: &str, endpoint: &str, body: &Value) -> Value {
        self.post("oracle", &json!({"provider": provider, "endpoint": endpoint, "body": body})).await
    }

    /// All that happened so far.
    pub(crate) async fn ledger(&self) -> Value {
        self.get("ledger").await
    }

    /// The answers billed so far: one row each.
    pub(crate) async fn billed(&self) -> Vec<Value> {
        let ledger = self.get("ledger?parts=billed").await;
        ledger["billed"].as_array().expect("the ledger has rows").clone()
    }

    /// How many calls of a route (`openai:chat.completions`) were in hand at most.
    pub(crate) async fn most_at_once(&self, route: &str) -> u64 {
        let totals = self.get("ledger?parts=totals").await;
        totals["totals"]["peak_in_flight"][route].as_u64().unwrap_or_else(|| panic!("no such route: {totals}"))
    }

    /// The calls of one route so far (`batches.create`, ...), of both providers.
    pub(crate) async fn calls(&self, route: &str) -> Vec<Value> {
        let ledger = self.get("ledger?parts=http").await;
        let calls = ledger["http"].as_array().expect("the ledger has calls");
        calls.iter().filter(|call| call["route"] == route).cloned().collect()
    }

    /// A call of a provider's API by somebody who is not the gateway.
    pub(crate) async fn outside(&self, request: reqwest::RequestBuilder, key: &str) -> Value {
        let request = request.bearer_auth(key).header("anthropic-version", "2023-06-01");
        let reply = request.send().await.expect("the simulator answers");
        let (status, text) = (reply.status(), reply.text().await.expect("a body"));
        assert!(status.is_success(), "{status} {text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// An Anthropic batch of so many requests that is not the gateway's; its id.
    pub(crate) async fn strangers_batch(&self, key: &str, requests: usize) -> String {
        let params = json!({"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "not yours"}]});
        let request = |n: usize| json!({"custom_id": format!("stranger-{n}"), "params": params});
        let body = json!({"requests": (0..requests).map(request).collect::<Vec<_>>()});
        let url = format!("{}/v1/messages/batches", self.anthropic());
        let batch = self.outside(self.http.post(url).json(&body), key).await;
        batch["id"].as_str().expect("a batch has an id").to_owned()
    }

    /// An OpenAI batch as it is.
    pub(crate) async fn openai_batch(&self, key: &str, id: &str) -> Value {
        self.outside(self.http.get(format!("{}/batches/{id}", self.openai())), key).await
    }

    /// Cancels an OpenAI batch.
    pub(crate) async fn stop(&self, key: &str, id: &str) {
        self.outside(self.http.post(format!("{}/batches/{id}/cancel", self.openai())), key).await;
    }

    /// The same OpenAI batch once more, with this in its metadata instead; its id.
    pub(crate) async fn once_more(&self, key: &str, batch: &Value, metadata: Value) -> String {
        let mut wanted = batch["metadata"].clone();
        for (name, value) in metadata.as_object().expect("names and values") {
            wanted[name] = value.clone();
        }
        let body = json!({
            "input_file_id": batch["input_file_id"], "endpoint": batch["endpoint"],
            "completion_window": "24h", "metadata": wanted,
        });
        let made = self.outside(self.http.post(format!("{}/batches", self.openai())).json(&body), key).await;
        made["id"].as_str().expect("a batch has an id").to_owned()
    }

    async fn get(&self, what: &str) -> Value {
        let url = format!("{}/_sim/{what}", self.base);
        let text = self.http.get(url).send().await.expect("the simulator answers").text().await.expect("a body");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{what}: {error}: {text}"))
    }

    async fn post(&self, what: &str, body: &Value) -> Value {
        let url = format!("{}/_sim/{what}", self.base);
        let reply = self.http.post(url).json(body).send().await.expect("the simulator answers");
        let (status, text) = (reply.status(), reply.text().await.expect("a body"));
        assert!(status.is_success(), "the simulator refuses {what} {body}: {status} {text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{what}: {error}: {text}"))
    }
}

/// `BATCHGATE_REFEREE` says where it is (`../shared/referee`), `BATCHGATE_PYTHON` who runs it (`.venv/bin/python`).
#[expect(clippy::disallowed_methods, reason = "the scripts say in the environment where the referee is")]
fn referee() -> Command {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = std::env::var_os("BATCHGATE_REFEREE").map_or(home.join("../shared/referee"), PathBuf::from);
    let script = place.join("provider_sim.py");
    assert!(script.is_file(), "the referee is not at {}{}", script.display(), hint(Kind::Referee));
    let own = home.join(".venv/bin/python");
    let python = std::env::var_os("BATCHGATE_PYTHON").map(PathBuf::from);
    let python = python.unwrap_or_else(|| if own.is_file() { own } else { "python3".into() });
    let mut command = Command::new(python);
    command.arg("-u").arg(script);
    command
}

fn hint(kind: Kind) -> &'static str {
    match kind {
        Kind::Ours => "",
        Kind::Referee => {
            "\nBATCHGATE_REFEREE names its directory, BATCHGATE_PYTHON a Python with its requirements (scripts/setup makes one)"
        }
    }
}
