//! `batchgate demo`: the whole world on one machine, with nothing simulated but the providers.
//!
//! A private Redis, the simulators and the gateway run as child processes with settings in their environment; the demo
//! itself is a client of the public API. It sends two batches twice, looks at every position of every answer, and asks
//! the simulators' ledger what was billed: the second time must read the same, in order, for nothing.

use super::{
    client::{Client, Read},
    failure::{Ending, Failure},
    out::{self, clip, count, note},
    private_redis::PrivateRedis,
    progress::Batch,
    results::read_all,
    submit::watch_quietly,
    upload::Upload,
};
use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};
use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::{
    net::TcpListener,
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};
use uuid::Uuid;

/// The sample batch ships with the binary.
const SAMPLE: &str = include_str!("../../samples/demo.ndjson");
/// The batch that the library before us answered rightly once and wrongly ever after.
const ORIGIN: &str =
    r#"{"model": "claude-haiku-4-5", "max_tokens": 100, "chunk": 2, "prompts": ["Say 0", "Say 1", "Say 2", "Say 3"]}"#;
/// How many results are shown.
const SHOWN: usize = 8;
/// What takes a real provider minutes to a day.
const DWELL_S: f64 = 1.0;

#[derive(clap::Args, Debug)]
pub(crate) struct DemoArgs {
    /// End when everything was shown, instead of staying up to be tried by hand
    #[arg(long)]
    once: bool,
    /// Where the gateway listens [default: 127.0.0.1:8080 if it is free, else a free port]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<SocketAddr>,
}

pub(crate) async fn run(args: DemoArgs) -> Result<Ending, Failure> {
    let began = Instant::now();
    let dir = std::env::temp_dir().join(format!("batchgate-demo-{}", &Uuid::new_v4().simple().to_string()[..8]));
    let mut world = World { dir: dir.clone(), redis: None, children: Vec::new(), stays_up: false };
    let outcome = tokio::select! {
        outcome = show(&mut world, &args, began) => outcome,
        () = told_to_stop() => Err(Failure::Interrupted("stopping".to_owned())),
    };
    let outcome = match outcome {
        Err(Failure::Interrupted(_)) if world.stays_up => Ok(Ending::Fine), // how one leaves it
        other => other,
    };
    if let Err(Failure::Here(_) | Failure::Refused(_) | Failure::Unreachable { .. }) = &outcome {
        world.tell_logs();
    }
    let ended = world.end().await;
    std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    let ending = outcome?;
    ended?;
    if args.once {
        out::say(&format!("Everything ended and removed; {} in all.", seconds(began.elapsed())))?;
    }
    Ok(ending)
}

async fn show(world: &mut World, args: &DemoArgs, began: Instant) -> Result<Ending, Failure> {
    let (gateway, simulator) = world.begin(args).await?;
    let ledger = Ledger(&simulator);
    out::say(&format!("Private Redis, simulated providers and the gateway are up ({}).\n", seconds(began.elapsed())))?;

    out::say("1. Four prompts, at most two per provider batch: where it all began.")?;
    let origin = Sample::new(world, "origin.json", ORIGIN)?;
    let runs = twice(&gateway, &ledger, &origin).await?;
    for (when, run) in [("first run ", &runs.first), ("second run", &runs.second)] {
        let texts: Vec<&str> = run.results.iter().filter_map(|result| result["completion"].as_str()).collect();
        out::say(&format!("   {when}   {}", texts.join(", ")))?;
    }

    out::say("\n2. The sample batch: two providers, several chunks, questions, repeats, long texts, many scripts.")?;
    let sample = Sample::new(world, "demo.ndjson", SAMPLE)?;
    let runs = twice(&gateway, &ledger, &sample).await?;
    out::say(&format!(
        "   {} provider batches, finished in any order; the answers (an echo of each prompt) in order:\n",
        runs.chunks
    ))?;
    for result in runs.first.results.iter().take(SHOWN) {
        out::say(&row(result))?;
    }
    out::say(&format!("   ... and {} more\n", count((sample.asked.len().saturating_sub(SHOWN)) as u64)))?;
    out::say("   the same batch once more:\n")?;
    for result in runs.second.results.iter().take(3) {
        out::say(&row(result))?;
    }
    let total = sample.asked.len() as u64;
    out::say(&format!(
        "\n   first run    {:>4} answers   {:>4} billed   {}\n   second run   {:>4} answers   {:>4} billed   {}\n",
        count(total),
        count(runs.first.billed),
        seconds(runs.first.took),
        count(total),
        count(runs.second.billed),
        seconds(runs.second.took),
    ))?;
    out::say("   Each answer was held against its prompt, in both runs: every position is right.")?;
    if !args.once {
        world.stays_up = true;
        stay(world, &gateway).await?;
    }
    Ok(Ending::Fine)
}

/// Keeps everything up and says how to play with it, until Ctrl-C (which ends `run`) or until a part of it dies.
async fn stay(world: &mut World, gateway: &Client) -> Result<(), Failure> {
    let url = gateway.shown();
    out::say(&format!(
        r#"
It stays up until Ctrl-C. Try it from another terminal:

  curl -s {url}/batches -H 'content-type: application/json' \
       -d '{{"model": "claude-haiku-4-5", "max_tokens": 100, "prompts": ["Say hello", "Say goodbye"]}}'
  curl -sN '{url}/batches/ID/results?follow=true'      # ID as the first command gave it

  curl -s {url}/batches                                  # what there is
  curl -s {url}/metrics                                  # what happened"#
    ))?;
    Err(world.await_death().await.into())
}

/// A batch as it is sent, and what each of its prompts asks.
struct Sample {
    upload: Upload,
    asked: Vec<String>,
}

impl Sample {
    fn new(world: &World, name: &str, text: &str) -> Result<Sample, Failure> {
        let path = world.dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(Sample { upload: Upload::open(&path, &Map::new())?, asked: asked(text)? })
    }
}

/// The last user text of each prompt: what an echoing provider answers.
fn asked(text: &str) -> anyhow::Result<Vec<String>> {
    let prompts: Vec<Value> = match serde_json::from_str::<Value>(text) {
        Ok(mut body) => serde_json::from_value(body["prompts"].take())?,
        Err(_) => text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?,
    };
    let prompts = prompts.iter().filter(|line| line.get("batch").is_none());
    prompts
        .map(|prompt| last_user_text(prompt).with_context(|| format!("a prompt without a user text: {prompt}")))
        .collect()
}

fn last_user_text(prompt: &Value) -> Option<String> {
    if let Some(text) = prompt.as_str() {
        return Some(text.to_owned());
    }
    let body = ["body", "params"].into_iter().map(|name| &prompt[name]).find(|body| body["messages"].is_array());
    let messages = body.unwrap_or(prompt)["messages"].as_array()?;
    let content = &messages.iter().rfind(|message| message["role"] == "user")?["content"];
    match content {
        Value::String(text) => Some(text.clone()),
        blocks => Some(blocks.as_array()?.iter().filter_map(|block| block["text"].as_str()).collect()),
    }
}

/// One pass of a batch.
struct Run {
    results: Vec<Value>,
    billed: u64,
    took: Duration,
}

struct Runs {
    first: Run,
    second: Run,
    /// Provider batches of the first.
    chunks: u64,
}

/// Sends the batch twice and holds both against the prompts and the bill.
async fn twice(gateway: &Client, ledger: &Ledger<'_>, sample: &Sample) -> Result<Runs, Failure> {
    let (first, batch) = pass(gateway, ledger, sample).await?;
    let (second, _) = pass(gateway, ledger, sample).await?;
    let total = sample.asked.len();
    check_positions(&sample.asked, &first.results).context("first run")?;
    check_positions(&sample.asked, &second.results).context("second run")?;
    check_same_from_cache(&first.results, &second.results)?;
    check_bill(total as u64, &first, &second)?;
    Ok(Runs { first, second, chunks: batch.chunks.total() })
}

async fn pass(gateway: &Client, ledger: &Ledger<'_>, sample: &Sample) -> Result<(Run, Batch), Failure> {
    let before = ledger.billed().await?;
    let began = Instant::now();
    let accepted = gateway.submit(&sample.upload, &Uuid::new_v4().to_string(), |_| {}).await?;
    note(&format!("   {}", Batch::read(&accepted.batch)?.summary()));
    let batch = Batch::read(&watch_quietly(gateway, accepted.batch).await?)?;
    let results = read_all(gateway, &batch.id, Read::default()).await?;
    let took = began.elapsed();
    Ok((Run { results, billed: ledger.billed().await? - before, took }, batch))
}

/// Does position i hold the answer to prompt i? Says of every position where it does not.
fn check_positions(asked: &[String], results: &[Value]) -> anyhow::Result<()> {
    ensure!(results.len() == asked.len(), "{} prompts, but {} results", asked.len(), results.len());
    let mut wrong = Vec::new();
    for (position, text) in asked.iter().enumerate() {
        let result = &results[position];
        let right =
            result["index"] == position && result["completion"] == text.as_str() && result["status"] == "succeeded";
        if !right {
            wrong.push(format!(
                "  position {position}: asked {}, got {}",
                clip(text, 60),
                clip(&result.to_string(), 300)
            ));
        }
    }
    let shown = wrong.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n");
    ensure!(wrong.is_empty(), "WRONG ANSWERS at {} of {} positions:\n{shown}", wrong.len(), asked.len());
    Ok(())
}

/// Once each the first time, nothing the second.
fn check_bill(prompts: u64, first: &Run, second: &Run) -> anyhow::Result<()> {
    ensure!(first.billed == prompts, "the first run had {prompts} prompts, but {} were billed", first.billed);
    ensure!(second.billed == 0, "the second run had every answer in the cache, yet {} were billed", second.billed);
    Ok(())
}

/// The second time: the same texts, all of them from the cache.
fn check_same_from_cache(first: &[Value], second: &[Value]) -> anyhow::Result<()> {
    for (position, again) in second.iter().enumerate() {
        let once = first.get(position).unwrap_or(&Value::Null);
        for member in ["custom_id", "model", "completion", "finish", "stop_reason", "usage"] {
            ensure!(
                once[member] == again[member],
                "position {position}: `{member}` was {}, and is {} from the cache",
                clip(&once[member].to_string(), 80),
                clip(&again[member].to_string(), 80)
            );
        }
        ensure!(again["source"] == "cache", "position {position}: source is {}, not \"cache\"", again["source"]);
    }
    Ok(())
}

/// `     3  claude-haiku-4-5-20251001   provider  Say 3`
fn row(result: &Value) -> String {
    let text = |name: &str, width| clip(result[name].as_str().unwrap_or("-"), width);
    format!(
        "   {:>5}  {:<26} {:<9} {}",
        result["index"].to_string(),
        text("model", 26),
        text("source", 9),
        text("completion", 60)
    )
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// What the simulated providers charged for.
struct Ledger<'a>(&'a Client);

impl Ledger<'_> {
    async fn billed(&self) -> Result<u64, Failure> {
        let ledger = self.0.get_path(&["_sim", "ledger"], "parts=totals").await?;
        let billed = ledger["totals"]["billed"].as_u64();
        Ok(billed.with_context(|| {
            format!("the simulator's ledger has no totals.billed: {}", clip(&ledger.to_string(), 200))
        })?)
    }
}

/// Everything the demo started, and where it keeps its things.
struct World {
    dir: PathBuf,
    redis: Option<PrivateRedis>,
    children: Vec<Process>,
    /// Everything was shown; from here on Ctrl-C is no interruption.
    stays_up: bool,
}

impl World {
    /// Brings everything up; returns clients of the gateway and of the simulators.
    async fn begin(&mut self, args: &DemoArgs) -> Result<(Client, Client), Failure> {
        std::fs::create_dir(&self.dir).with_context(|| format!("make {}", self.dir.display()))?;
        let redis = PrivateRedis::start(&self.dir.join("redis")).await?;
        let redis_url = redis.url();
        self.redis = Some(redis);

        let script = self.dir.join("sim.json");
        let dwell =
            json!({"settings": {"openai": {"in_progress_s": DWELL_S}, "anthropic": {"in_progress_s": DWELL_S}}});
        std::fs::write(&script, dwell.to_string()).context("write the simulators' script")?;
        let mut sim = ourselves("sim")?;
        sim.args(["--listen", "127.0.0.1:0", "--answers", "echo", "--script"])
            .arg(&script)
            .arg("--spool")
            .arg(&self.dir);
        self.children.push(Process::start("sim", sim, &self.dir)?);
        let sim_url = self.children[0].announced_url().await?;

        let address = self.choose_address(args).await?;
        let mut serve = ourselves("serve")?;
        for (name, value) in [
            ("BATCHGATE_REDIS_URL", redis_url.as_str()),
            ("BATCHGATE_LISTEN", &address.to_string()),
            ("BATCHGATE_POLL_MIN", "200ms"),
            ("BATCHGATE_POLL_MAX", "1s"),
            ("ANTHROPIC_API_KEY", "sim-key"),
            ("ANTHROPIC_BASE_URL", &format!("{sim_url}/anthropic")),
            ("OPENAI_API_KEY", "sim-key"),
            ("OPENAI_BASE_URL", &format!("{sim_url}/openai/v1")),
        ] {
            serve.env(name, value);
        }
        self.children.push(Process::start("gateway", serve, &self.dir)?);
        let gateway = Client::new(&format!("http://{address}"), None)?;
        self.await_ready(&gateway).await?;
        Ok((gateway, Client::new(&sim_url, None)?))
    }

    async fn choose_address(&self, args: &DemoArgs) -> anyhow::Result<SocketAddr> {
        let wishes = match args.listen {
            Some(address) => vec![address],
            None if args.once => vec![([127, 0, 0, 1], 0).into()],
            None => vec![([127, 0, 0, 1], 8080).into(), ([127, 0, 0, 1], 0).into()],
        };
        for wish in &wishes {
            if let Ok(listener) = TcpListener::bind(wish).await {
                return Ok(listener.local_addr()?);
            }
        }
        bail!("{} is taken", wishes[0])
    }

    async fn await_ready(&mut self, gateway: &Client) -> anyhow::Result<()> {
        let began = Instant::now();
        while let Err(failure) = gateway.ready().await {
            if let Some(dead) = self.children.iter_mut().find_map(Process::is_dead) {
                return Err(dead);
            }
            ensure!(began.elapsed() < Duration::from_secs(30), "the gateway does not get ready: {failure}");
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        Ok(())
    }

    /// Returns when a child has ended by itself.
    async fn await_death(&mut self) -> anyhow::Error {
        loop {
            if let Some(dead) = self.children.iter_mut().find_map(Process::is_dead) {
                return dead;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// The last lines of what the children had to say.
    fn tell_logs(&self) {
        for child in &self.children {
            let text = std::fs::read(&child.log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            note(&format!("--- {}: its last words", child.name));
            lines[lines.len().saturating_sub(25)..].iter().for_each(|line| note(&clip(line, 600)));
        }
    }

    /// Ends the children in the order in which they need each other: gateway, simulators, Redis.
    async fn end(self) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        for child in self.children.into_iter().rev() {
            outcome = outcome.and(child.end().await);
        }
        match self.redis {
            Some(redis) => outcome.and(redis.stop().await),
            None => outcome,
        }
    }
}

/// This very binary with another command. The variables of the caller's shell stay outside: a demo that spends real
/// money because a key was exported would be a bad one.
fn ourselves(command: &str) -> anyhow::Result<Command> {
    let mut ours = Command::new(std::env::current_exe().context("find our own binary")?);
    ours.env_clear().arg(command);
    Ok(ours)
}

/// A child process with a log.
struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(name: &'static str, mut command: Command, dir: &Path) -> anyhow::Result<Process> {
        let log = dir.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        command.process_group(0).kill_on_drop(true); // Ctrl-C is ours; we end the children in order
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Process { name, child, log })
    }

    /// The URL of `listening on http://...`, once the process has said it.
    async fn announced_url(&mut self) -> anyhow::Result<String> {
        let began = Instant::now();
        loop {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            let url = said.lines().find_map(|line| line.strip_prefix("listening on "));
            if let Some(url) = url.filter(|_| said.ends_with('\n')) {
                return Ok(url.trim().to_owned());
            }
            if let Some(dead) = self.is_dead() {
                return Err(dead);
            }
            ensure!(began.elapsed() < Duration::from_secs(15), "{} does not say where it listens", self.name);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn is_dead(&mut self) -> Option<anyhow::Error> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(anyhow::anyhow!("{} ended by itself ({status})", self.name)),
            Err(error) => Some(anyhow::Error::new(error).context(format!("look after {}", self.name))),
        }
    }

    /// SIGTERM and ten seconds; then there is no asking any more.
    async fn end(mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id() {
            let mut kill = Command::new("sh"); // the shell's own kill: there may be no other
            kill.args(["-c", "kill -TERM \"$0\"", &pid.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
            kill.status().await.context("run sh")?;
        }
        if tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await.is_err() {
            self.child.kill().await?;
            bail!("{} did not end in ten seconds and was killed", self.name);
        }
        Ok(())
    }
}

/// Ctrl-C, SIGTERM, or a terminal that was closed.
async fn told_to_stop() {
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_worth_looking_at() {
        let asked = asked(SAMPLE).expect("every line is a prompt with a user text");
        assert!((200..=1_000).contains(&asked.len()), "{}", asked.len());
        let distinct: std::collections::BTreeSet<_> = asked.iter().collect();
        assert!(distinct.len() < asked.len(), "there are repeats");
        assert!(asked.iter().any(|text| text.len() > 4_000) && asked.iter().any(|text| text.contains('\u{2028}')));
        for word in ["claude-haiku-4-5", "gpt-5-mini", "/v1/chat/completions", "\"params\""] {
            assert!(SAMPLE.contains(word), "{word}");
        }
        assert!(!SAMPLE.contains("[["), "no marker that steers a simulator");
        assert_eq!(super::asked(ORIGIN).expect("four strings"), ["Say 0", "Say 1", "Say 2", "Say 3"]);
    }

    #[test]
    fn the_poisoned_second_run_would_be_seen() {
        let asked: Vec<String> = (0..4).map(|i| format!("Say {i}")).collect();
        let run = |texts: [&str; 4], source: &str| -> Vec<Value> {
            let results = texts.iter().enumerate();
            results
                .map(|(i, t)| json!({"index": i, "status": "succeeded", "completion": t, "source": source}))
                .collect()
        };
        let first = run(["Say 0", "Say 1", "Say 2", "Say 3"], "provider");
        let poisoned = run(["Say 2", "Say 3", "Say 2", "Say 3"], "cache");
        check_positions(&asked, &first).expect("all right");
        let wrong = check_positions(&asked, &poisoned).expect_err("two are wrong").to_string();
        assert!(wrong.contains("2 of 4") && wrong.contains("position 0: asked Say 0, got"), "{wrong}");
        assert!(check_positions(&asked, &first[..3]).is_err());
        assert!(check_same_from_cache(&first, &poisoned).is_err());
        assert!(check_same_from_cache(&first, &first).is_err(), "not from the cache");
        check_same_from_cache(&first, &run(["Say 0", "Say 1", "Say 2", "Say 3"], "cache")).expect("all right");
    }
}
