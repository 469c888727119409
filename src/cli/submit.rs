//! `batchgate submit`: a file in, a batch out; with `--wait` until its answers are there.

use super::{
    Door,
    client::{Accepted, Client, Read, is_passing},
    failure::{Ending, Failure},
    forecast,
    out::{self, note},
    progress::{Batch, Live, sending},
    results::{self, Target},
    upload::Upload,
};
use serde_json::{Map, Value};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};
use uuid::Uuid;

/// How long a watcher bears with a gateway that is away (a deploy, a restart) before it gives up.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(clap::Args, Debug)]
pub(crate) struct SubmitArgs {
    /// NDJSON (.ndjson, .jsonl) or JSON; OpenAI and Anthropic batch lines are welcome
    file: PathBuf,
    #[command(flatten)]
    staying: Staying,
    /// Only say what would be bought; nothing is created
    #[arg(long, conflicts_with_all = ["wait", "output", "idempotency_key"])]
    dry_run: bool,
    /// Send under this key instead of a fresh one, so that a repeat is recognised
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    pub(crate) door: Door,
    #[command(flatten)]
    options: BatchOptions,
}

/// Whether a command that made a batch stays with it.
#[derive(clap::Args, Debug)]
pub(crate) struct Staying {
    /// Stay until the batch has ended; Ctrl-C detaches
    #[arg(long)]
    wait: bool,
    /// Write the results here, in order (`-` for standard output); implies --wait
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct RetryArgs {
    /// batch_... that has ended
    id: String,
    #[command(flatten)]
    staying: Staying,
    /// Send under this key instead of a fresh one, so that a repeat is recognised
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    pub(crate) door: Door,
}

/// Fields of the batch; they win over those in the file.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Fields of the batch (they win over those in the file)")]
pub(crate) struct BatchOptions {
    /// For prompts that name none
    #[arg(long)]
    model: Option<String>,
    /// Tokens an answer may have
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// At most so many prompts per provider batch
    #[arg(long, value_name = "N")]
    chunk: Option<u64>,
    /// How to treat the cache
    #[arg(long, value_parser = ["use", "refresh", "bypass", "only", "off"])]
    cache: Option<String>,
    /// Cached answers older than this are asked again, and replaced: 12h, 30d
    #[arg(long, value_name = "DURATION")]
    max_age: Option<String>,
    /// Answers to each prompt
    #[arg(long, value_name = "N")]
    samples: Option<u64>,
    /// Whether identical prompts are independent samples or share one answer
    #[arg(long, value_parser = ["sample", "share"])]
    repeats: Option<String>,
    /// Whether a bad prompt refuses the batch, or fails alone
    #[arg(long, value_parser = ["refuse", "fail"])]
    on_invalid: Option<String>,
    /// `low`: after the team's other batches
    #[arg(long, value_parser = ["normal", "low"])]
    priority: Option<String>,
    /// Another salt, another answer
    #[arg(long)]
    salt: Option<String>,
    /// Provider-native fields for every prompt, as a JSON object: '{"temperature": 0}'
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    params: Option<Map<String, Value>>,
    /// Count repeats over all batches of this run: NAME counts on, NAME~ATTEMPT begins anew in each attempt
    #[arg(long, value_name = "NAME~ATTEMPT")]
    run: Option<String>,
    /// The batch ends after this in any case: 1h to 30d
    #[arg(long, value_name = "DURATION")]
    deadline: Option<String>,
    /// A label of yours, returned as given; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    metadata: Vec<(String, String)>,
}

impl BatchOptions {
    /// As members of the batch, only those that were given.
    fn members(self) -> Map<String, Value> {
        let metadata: Map<String, Value> =
            self.metadata.into_iter().map(|(name, value)| (name, value.into())).collect();
        let members: [(&str, Option<Value>); 14] = [
            ("model", self.model.map(Value::from)),
            ("max_tokens", self.max_tokens.map(Value::from)),
            ("chunk", self.chunk.map(Value::from)),
            ("cache", self.cache.map(Value::from)),
            ("samples", self.samples.map(Value::from)),
            ("repeats", self.repeats.map(Value::from)),
            ("max_age", self.max_age.map(Value::from)),
            ("on_invalid", self.on_invalid.map(Value::from)),
            ("priority", self.priority.map(Value::from)),
            ("salt", self.salt.map(Value::from)),
            ("run", self.run.map(Value::from)),
            ("deadline", self.deadline.map(Value::from)),
            ("params", self.params.map(Value::from)),
            ("metadata", Some(metadata).filter(|labels| !labels.is_empty()).map(Value::from)),
        ];
        members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) async fn run(client: &Client, args: SubmitArgs) -> Result<Ending, Failure> {
    let upload = Upload::open(&args.file, &args.options.members())?;
    if args.dry_run {
        return forecast::run(client, &upload, args.door.json).await;
    }
    let key = args.idempotency_key.unwrap_or_else(|| Uuid::new_v4().to_string());
    let accepted = send(client, &upload, &key, &args.file.display().to_string()).await?;
    stay(client, accepted, args.staying, args.door.json).await
}

pub(crate) async fn retry(client: &Client, args: RetryArgs) -> Result<Ending, Failure> {
    let key = args.idempotency_key.unwrap_or_else(|| Uuid::new_v4().to_string());
    let accepted = client.retry(&args.id, &key).await?;
    stay(client, accepted, args.staying, args.door.json).await
}

/// Says which batch was made, and stays with it if that was asked for.
async fn stay(client: &Client, accepted: Accepted, staying: Staying, json: bool) -> Result<Ending, Failure> {
    let batch = Batch::read(&accepted.batch)?;
    if accepted.replayed {
        note("this Idempotency-Key was used before: this is the batch it made");
    }
    let target = staying.output.map(Target::from);
    if !staying.wait && target.is_none() {
        if json {
            out::json(&accepted.batch)?;
        } else {
            out::say(&format!("{}\n{}", batch.summary(), batch.id))?;
            note(&format!(
                "see it with:    batchgate status {0} --wait\nits answers:    batchgate results {0} --follow",
                batch.id
            ));
        }
        return Ok(Ending::Fine);
    }
    note(&format!("{}\n{}", batch.summary(), batch.id));
    let ended = watch(client, accepted.batch, target.as_ref()).await?;
    finish(client, &ended, target, json).await
}

/// Sends the file under a bar. Ctrl-C says how to try again without asking twice.
async fn send(client: &Client, upload: &Upload, key: &str, file: &str) -> Result<Accepted, Failure> {
    let bar = sending(upload.len());
    let moved = bar.clone();
    let sent = move |bytes| if bytes == 0 { moved.set_position(0) } else { moved.inc(bytes) };
    tokio::select! {
        accepted = client.submit(upload, key, sent) => {
            bar.finish_and_clear();
            accepted
        }
        _ = tokio::signal::ctrl_c() => {
            bar.abandon();
            Err(Failure::Interrupted(format!(
                "interrupted before the gateway confirmed the batch; to send {file} again without asking anything twice, add\n\
                 --idempotency-key {key}"
            )))
        }
    }
}

/// Shows the batch live until it has ended; returns the last object. Ctrl-C leaves the batch to itself.
pub(crate) async fn watch(client: &Client, object: Value, target: Option<&Target>) -> Result<Value, Failure> {
    let id = Batch::read(&object)?.id;
    let mut live = Live::new();
    let ended = tokio::select! {
        ended = until_ended(client, object, &mut live) => ended,
        _ = tokio::signal::ctrl_c() => {
            let output = target.map(|target| format!(" -o {target}")).unwrap_or_default();
            Err(Failure::Interrupted(format!(
                "detached: {id} goes on without you. Come back with:\n\
                 batchgate status {id} --wait\n\
                 batchgate results {id} --follow{output}\n\
                 or end it with: batchgate cancel {id}"
            )))
        }
    };
    live.end();
    ended
}

/// The same without an ear for Ctrl-C.
pub(crate) async fn watch_quietly(client: &Client, object: Value) -> Result<Value, Failure> {
    let mut live = Live::new();
    let ended = until_ended(client, object, &mut live).await;
    live.end();
    ended
}

async fn until_ended(client: &Client, mut object: Value, live: &mut Live) -> Result<Value, Failure> {
    let mut away_since: Option<Instant> = None;
    loop {
        let batch = Batch::read(&object)?;
        live.show(&batch);
        if batch.has_ended() {
            return Ok(object);
        }
        // The gateway holds the answer for a second, or until the end if that comes first: it sets the pace.
        match client.batch(&batch.id, Some(1)).await {
            Ok(fresh) => (object, away_since) = (fresh, None),
            Err(failure)
                if is_passing(&failure) && away_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE =>
            {
                live.trouble(&format!("{failure}; trying again"));
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Writes what was asked for of an ended batch, and says how it ended.
async fn finish(client: &Client, ended: &Value, target: Option<Target>, json: bool) -> Result<Ending, Failure> {
    let batch = Batch::read(ended)?;
    match &target {
        Some(target) => {
            let lines = results::fetch(client, &batch.id, Read::default(), target).await?;
            note(&format!("{} · {} results to {target}", batch.outcome(), out::count(lines)));
        }
        None => note(&format!("{}\nits answers:    batchgate results {}", batch.outcome(), batch.id)),
    }
    if json && !matches!(target, Some(Target::Stdout)) {
        out::json(ended)?;
    }
    Ok(if batch.lacking() > 0 { Ending::Lacking } else { Ending::Fine })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: SubmitArgs,
    }

    #[test]
    fn only_given_options_become_members() {
        let line = Line::try_parse_from(["x", "f.ndjson"]).expect("a file is enough");
        assert!(line.args.options.members().is_empty());
        let words = "x f.json --model m --max-tokens 100 --chunk 2 --cache only --max-age 12h --on-invalid fail --priority low \
                     --salt 7 --run arc-5~2 --deadline 9h --metadata run=a=b";
        let line = Line::try_parse_from(words.split_whitespace().chain(["--params", "{\"seed\": 1e400}"]))
            .expect("good options");
        let expect: Value = serde_json::from_str(
            r#"{"model": "m", "max_tokens": 100, "chunk": 2, "cache": "only", "max_age": "12h", "on_invalid": "fail",
                "priority": "low", "salt": "7", "run": "arc-5~2", "deadline": "9h",
                "params": {"seed": 1e400}, "metadata": {"run": "a=b"}}"#,
        )
        .expect("JSON");
        assert_eq!(Value::Object(line.args.options.members()), expect);
        for bad in [
            "x",
            "x f --dry-run --wait",
            "x f --dry-run -o out",
            "x f --cache sometimes",
            "x f --chunk -1",
            "x f --metadata run",
            "x f --params [1]",
        ] {
            assert!(Line::try_parse_from(bad.split(' ')).is_err(), "{bad}");
        }
    }
}
