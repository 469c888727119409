//! A batch: what its client asked for as a whole, and how far it is.

use crate::domain::{
    duration, json,
    problem::{Problem, quote},
    reader::{MAX_CAP, Reader},
    run::Run,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

pub use crate::domain::reader::{ANTHROPIC_VERSIONS, Fields, HeaderFields};

/// How the batch deals with the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheMode {
    /// Read, join, store.
    #[default]
    Use,
    /// Ask again, then replace.
    Refresh,
    /// Neither read nor join; the answer still enters the cache if its key is free.
    Bypass,
    /// Never call a provider: a miss is a failure.
    Only,
    /// Neither read, join nor store.
    Off,
}

impl CacheMode {
    /// What it asks is marked, so that others can wait for its answers: they enter the cache for certain.
    pub fn marks(self) -> bool {
        matches!(self, CacheMode::Use | CacheMode::Refresh)
    }

    /// What others ask already is waited for instead of asked again.
    pub fn joins(self) -> bool {
        self == CacheMode::Use
    }
}

/// What identical prompts of one batch are to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeats {
    /// Independent samples, each asked for itself.
    #[default]
    Sample,
    /// One question with one answer.
    Share,
}

/// Which of its team's batches go first. What one team says of its own changes nothing for the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    #[default]
    Normal,
    /// Nothing of it is sent while something normal of its team could be, at the same provider.
    Low,
}

/// What becomes of prompts that cannot be accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInvalid {
    /// One of them refuses the whole batch.
    #[default]
    Refuse,
    /// Each becomes a failed result; the rest runs.
    Fail,
}

/// Part of the key only: another salt, another answer. `"1"` and `1` are two, `1` and `1.0` one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Salt(Value);

impl Salt {
    /// None if it is neither a string nor a number.
    pub fn new(value: Value) -> Option<Salt> {
        (value.is_string() || value.is_number()).then_some(Salt(value))
    }

    pub fn value(&self) -> &Value {
        &self.0
    }
}

/// One of the batch's own fields as it stands in the body, cut out and not yet read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldText {
    pub name: String,
    /// The header's line in an NDJSON body, from 1.
    pub line: Option<u64>,
    /// One JSON value.
    pub bytes: Bytes,
}

/// The batch's own fields, read. Absent here because not built yet: max_cost_usd.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What prompts get that do not say it themselves.
    pub fields: Fields,
    /// At most this many prompts per provider batch.
    pub chunk: Option<u64>,
    pub salt: Option<Salt>,
    /// Answers per prompt.
    pub samples: u64,
    pub repeats: Repeats,
    pub cache: CacheMode,
    /// Repeats are counted over all batches of this run.
    pub run: Option<Run>,
    pub on_invalid: OnInvalid,
    pub priority: Priority,
    pub metadata: BTreeMap<String, String>,
    /// Answers older than this at the batch's creation count as misses, and are replaced. None: any will do. Only
    /// matters where the cache is read.
    pub max_age: Option<Duration>,
    /// From the batch's creation to the end of all asking.
    pub deadline: Duration,
    /// A default for prompts could not be read: what they lack is no problem of theirs.
    pub(super) faulty: bool,
}

/// What a batch's retry takes over from it beside the prompts, whose bodies have all else laid in.
/// Stored with the batch; a field that an older batch lacks is the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u64>,
    pub repeats: Repeats,
    pub cache: CacheMode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
    /// Only a run needs it again: elsewhere the keys are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub salt: Option<Salt>,
    pub priority: Priority,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fields: Fields::default(),
            chunk: None,
            salt: None,
            samples: 1,
            repeats: Repeats::default(),
            cache: CacheMode::default(),
            run: None,
            on_invalid: OnInvalid::default(),
            priority: Priority::default(),
            metadata: BTreeMap::new(),
            max_age: None,
            deadline: Options::DEFAULT_DEADLINE,
            faulty: false,
        }
    }
}

impl Options {
    /// Results a batch may have: prompts times samples.
    pub const MAX_RESULTS: u64 = 1_000_000;
    pub const MAX_SAMPLES: u64 = 1_000;
    pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(72 * 3_600);
    /// Younger than this no answer can be asked for: that is `cache: refresh`.
    const MIN_AGE: Duration = Duration::from_secs(1);
    const DEADLINES: std::ops::RangeInclusive<Duration> = Duration::from_secs(3_600)..=Duration::from_secs(30 * 86_400);

    /// What a retry of this batch goes by.
    pub fn terms(&self) -> Terms {
        let salt = self.salt.clone().filter(|_| self.run.is_some());
        let max_age_ms = self.max_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let Options { chunk, repeats, cache, priority, .. } = *self;
        Terms { chunk, repeats, cache, max_age_ms, salt, priority }
    }

    /// The options of a batch that asks an earlier one's prompts again.
    pub fn again(terms: &Terms, run: Option<Run>, metadata: BTreeMap<String, String>, deadline: Duration) -> Options {
        let Terms { chunk, repeats, cache, max_age_ms, salt, priority } = terms.clone();
        let max_age = max_age_ms.map(Duration::from_millis);
        Options { chunk, repeats, cache, max_age, salt, priority, run, metadata, deadline, ..Options::default() }
    }

    /// Reads the fields in the order they came; of those with one name the last. A null is a field not given.
    /// With problems the options are still good for checking the prompts, so that one answer tells of everything.
    /// `cache` is the mode where none is given.
    pub fn parse(fields: &[FieldText], cache: CacheMode) -> (Options, Vec<Problem>) {
        let last: HashMap<&str, usize> = fields.iter().enumerate().map(|(n, field)| (field.name.as_str(), n)).collect();
        let mut options = Options { cache, ..Options::default() };
        let mut problems = Vec::new();
        for (n, field) in fields.iter().enumerate() {
            if last[field.name.as_str()] != n {
                continue;
            }
            let mut reader = Reader::new("", field.line);
            match json::parse(&field.bytes) {
                Ok(value) => options.take(&mut reader, &field.name, value),
                Err(fault) => {
                    reader.note(
                        &format!("{}{}", crate::domain::problem::join("", &field.name), fault.pointer()),
                        fault.message(),
                    );
                }
            }
            let shared = matches!(field.name.as_str(), "model" | "max_tokens" | "params" | "headers");
            options.faulty |= shared && !reader.problems.is_empty();
            problems.append(&mut reader.problems);
        }
        (options, problems)
    }

    fn take(&mut self, reader: &mut Reader, name: &str, value: Value) {
        match name {
            "prompts" => {
                reader.note("/prompts", "in NDJSON each prompt is a line of its own: put them behind the header");
            }
            "batch" => {
                reader.note("/batch", "this is the header of an NDJSON body: put its members directly into the body");
            }
            "chunk" | "salt" | "samples" | "repeats" | "cache" | "run" | "metadata" | "deadline" | "max_age"
                if value.is_null() => {}
            "model" | "max_tokens" | "params" | "headers" | "on_invalid" | "priority" if value.is_null() => {}
            "chunk" => self.chunk = reader.integer("/chunk", &value, 1..=1_000_000_000),
            "salt" => {
                self.salt = Salt::new(value);
                if self.salt.is_none() {
                    reader.note("/salt", "must be a string or a number");
                }
            }
            "samples" => {
                self.samples = reader.integer("/samples", &value, 1..=Options::MAX_SAMPLES).unwrap_or(1);
            }
            "repeats" => {
                let words = [("sample", Repeats::Sample), ("share", Repeats::Share)];
                self.repeats = reader.word("/repeats", &value, &words).unwrap_or_default();
            }
            "cache" => self.cache = reader.word("/cache", &value, &CACHE_MODES).unwrap_or_default(),
            "run" => {
                self.run = value.as_str().and_then(Run::parse);
                if self.run.is_none() {
                    reader.note("/run", BAD_RUN);
                }
            }
            "on_invalid" => {
                let words = [("refuse", OnInvalid::Refuse), ("fail", OnInvalid::Fail)];
                self.on_invalid = reader.word("/on_invalid", &value, &words).unwrap_or_default();
            }
            "priority" => {
                let words = [("normal", Priority::Normal), ("low", Priority::Low)];
                self.priority = reader.word("/priority", &value, &words).unwrap_or_default();
            }
            "metadata" => self.metadata = metadata(reader, value),
            "deadline" => self.take_deadline(reader, &value),
            "max_age" => self.take_max_age(reader, &value),
            _ if reader.shared(&mut self.fields, name, value) => self.check_params(reader),
            _ => reader.unknown("", name),
        }
    }

    fn take_deadline(&mut self, reader: &mut Reader, value: &Value) {
        match value.as_str().map(duration::parse) {
            Some(Ok(deadline)) if Options::DEADLINES.contains(&deadline) => self.deadline = deadline,
            Some(Ok(_)) => reader.note("/deadline", "must be from 1h to 30d"),
            Some(Err(why)) => reader.note("/deadline", why),
            None => reader.note("/deadline", "must be a string: 72h, 30d"),
        }
    }

    fn take_max_age(&mut self, reader: &mut Reader, value: &Value) {
        match value.as_str().map(duration::parse) {
            Some(Ok(age)) if age >= Options::MIN_AGE => self.max_age = Some(age),
            Some(Ok(_)) => reader.note("/max_age", "must be at least 1s; for fresh answers use `cache`: `refresh`"),
            Some(Err(why)) => reader.note("/max_age", why),
            None => reader.note("/max_age", "must be a string: 12h, 30d"),
        }
    }

    /// Told once here, not once per prompt.
    fn check_params(&mut self, reader: &mut Reader) {
        let params = &mut self.fields.params;
        if params.get("stream") == Some(&Value::Bool(true)) {
            params.remove("stream");
            reader.note("/params/stream", NO_STREAM);
        }
        if let Some(model) = params.remove("model")
            && let Some(model) = reader.model("/params/model", model)
        {
            params.insert("model".into(), model.into());
        }
        let cap = params.get("max_tokens").filter(|cap| !cap.is_null()).cloned();
        if cap.is_some_and(|cap| reader.integer("/params/max_tokens", &cap, 1..=MAX_CAP).is_none()) {
            self.fields.params.remove("max_tokens");
        }
    }
}

const BAD_RUN: &str =
    "must be a string `name` or `name~attempt`, each part of 1 to 128 letters, digits, dots, underscores and hyphens";

pub(super) const NO_STREAM: &str = "a batch cannot stream: leave `stream` out";

const CACHE_MODES: [(&str, CacheMode); 5] = [
    ("use", CacheMode::Use),
    ("refresh", CacheMode::Refresh),
    ("bypass", CacheMode::Bypass),
    ("only", CacheMode::Only),
    ("off", CacheMode::Off),
];

fn metadata(reader: &mut Reader, value: Value) -> BTreeMap<String, String> {
    const PAIRS: usize = 16;
    const KEY: usize = 64;
    const TEXT: usize = 512;
    let members = reader.object("/metadata", value).unwrap_or_default();
    if members.len() > PAIRS {
        reader.note("/metadata", format!("has {} pairs: at most {PAIRS} are kept", members.len()));
        return BTreeMap::new();
    }
    let mut pairs = BTreeMap::new();
    for (key, value) in members {
        let pointer = crate::domain::problem::join("/metadata", &key);
        match value {
            _ if key.is_empty() || key.chars().count() > KEY => {
                reader.note(&pointer, format!("the key {} must have 1 to {KEY} characters", quote(&key)));
            }
            Value::String(text) if text.chars().count() <= TEXT => {
                pairs.insert(key, text);
            }
            _ => reader.note(&pointer, format!("must be a string of at most {TEXT} characters")),
        }
    }
    pairs
}

#[cfg(test)]
mod tests;
