//! The configuration: one struct, read from the environment and an optional file, all mistakes told together.
//! The only place that reads the environment. Flags win over environment over file; secrets never print.

mod namespaces;
mod strange;
mod teams;
mod value;

use crate::{
    domain::{
        quota::Bounds,
        room::CacheMax,
        route::{DEFAULT_ANTHROPIC_MODELS, DEFAULT_OPENAI_MODELS, Glob, ProviderKind, Route, Routes, who},
        team::{Namespaces, Teams},
    },
    pipeline::{
        Settings, frames,
        reconcile::Mode,
        spaces::{Configured, Terms},
    },
    provider::secret::Secret,
    telemetry::{self, LogFormat},
};
use namespaces::FileNamespaces;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    net::SocketAddr,
    ops::RangeInclusive,
    path::Path,
    str::FromStr,
    time::Duration,
};
use teams::FileTeams;
use value::{cache_max, duration, kept, key_hash, size};

/// Which parts of the gateway run in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    #[default]
    All,
    Api,
    Worker,
}

/// Everything a gateway process is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// `BATCHGATE_LISTEN` (127.0.0.1:8080).
    pub listen: SocketAddr,
    /// `BATCHGATE_REDIS_URL`, which may hold a password; absent on a loopback listener: a private redis-server is started.
    pub redis_url: Option<Secret>,
    /// `[teams.NAME]` of the file, and `BATCHGATE_KEY_HASHES` (`sha256:<64 hex digits>`, comma-separated): keys of the team
    /// `default`, an admin. Neither: open, on loopback only.
    pub teams: Teams,
    /// `BATCHGATE_TEAM_BATCHES` (1,000; 1 to 10,000) and `BATCHGATE_TEAM_PROMPTS` (10,000,000; 1 to 1,000,000,000): open
    /// batches and pending prompts of a team that names no `max_open_batches` and `max_pending_prompts`.
    pub bounds: Bounds,
    /// `[namespaces.NAME]` of the file: what differs there from `BATCHGATE_CACHE_TTL` and `BATCHGATE_RETENTION`.
    pub namespaces: BTreeMap<String, Terms>,
    pub accounts: Vec<AccountConfig>,
    /// `BATCHGATE_WORKERS` (8; 1 to 1,024): chunks stepped at once.
    pub workers: usize,
    /// `BATCHGATE_MAX_BODY` (4GiB).
    pub max_body: u64,
    /// `BATCHGATE_MAX_PROMPT` (32MiB; 1KiB to 256MiB): bytes of one prompt in it, or of an NDJSON header. A body with a larger
    /// one is refused. It is in memory a few times over, for every body that is read: more than a chunk's bytes is never useful.
    pub max_prompt: usize,
    /// `BATCHGATE_MAX_UPLOADS` (4; 1 to 1,024): bodies read at once; more wait. Where there are several teams, one of them
    /// gets at most all but one.
    pub max_uploads: usize,
    /// `BATCHGATE_STALL` (15s): no byte moved on a provider connection.
    pub stall: Duration,
    /// `BATCHGATE_CREATE_TIMEOUT` (10m); at least the stall.
    pub create_timeout: Duration,
    /// `BATCHGATE_METRICS_LISTEN`: `/metrics` on a listener of its own, without a key; absent: beside the API, with one.
    pub metrics_listen: Option<SocketAddr>,
    /// `BATCHGATE_PUBLIC_URL`: how teams reach the gateway; what `batchgate check --online` looks at. Absent: nothing.
    pub public_url: Option<String>,
    /// `BATCHGATE_OTLP_ENDPOINT`: an OpenTelemetry collector that gets the spans, as in `http://127.0.0.1:4318`; absent:
    /// none. Needs a build with the feature `otel`, which is on by default.
    pub collector: Option<String>,
    /// `BATCHGATE_LOG` (info): a tracing filter.
    pub log: String,
    /// `BATCHGATE_LOG_FORMAT` (text): text or json.
    pub log_format: LogFormat,
    #[cfg(feature = "failpoints")]
    pub failpoints: crate::failpoint::Plan,
    pub settings: Settings,
}

/// One provider account.
#[derive(Clone, Debug)]
pub struct AccountConfig {
    pub route: Route,
    pub base_url: String,
    pub api_keys: Vec<Secret>,
    /// `openai-online` only: requests in the air at most (8; 1 to 1,024).
    pub concurrency: usize,
    /// `openai-online` only: begin with fewer and go by how the server does (false).
    pub adaptive: bool,
}

/// Requests an `openai-online` server gets at once unless configured otherwise.
const DEFAULT_CONCURRENCY: usize = 8;
const MAX_CONCURRENCY: usize = 1_024;
/// Chunks worked on, or bodies read, at once.
const MAX_AT_ONCE: usize = 1_024;
/// Most prompts of a batch, so of a chunk.
const MAX_CHUNK: usize = 1_000_000;
/// A lease is renewed at a third of it, over a network.
const SHORTEST_LEASE: Duration = Duration::from_millis(300);
/// The longest wait for anything that is waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Variables by name; a value need not be text before somebody asks for it.
pub type Environment = BTreeMap<String, OsString>;

/// The file's tables; scalars are environment only.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    providers: Vec<FileProvider>,
    #[serde(default)]
    teams: FileTeams,
    #[serde(default)]
    namespaces: FileNamespaces,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileProvider {
    name: String,
    kind: ProviderKind,
    base_url: Option<String>,
    #[serde(default)]
    api_key_env: Vec<String>,
    models: Option<Vec<String>>,
    concurrency: Option<usize>,
    adaptive: Option<bool>,
}

impl Config {
    /// Reads the process's environment, and the file named by `path` or `BATCHGATE_CONFIG`.
    ///
    /// # Errors
    /// Every mistake, each naming its setting and remedy.
    pub fn load(path: Option<&Path>) -> Result<Config, Vec<String>> {
        #[expect(clippy::disallowed_methods, reason = "config is the one place that reads the environment")]
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let environment: Environment = variables.collect();
        let named = environment.get("BATCHGATE_CONFIG").filter(|path| !path.is_empty());
        let path = path.map(Path::to_owned).or_else(|| named.map(Into::into));
        let text = match path.map(|path| (std::fs::read_to_string(&path), path)) {
            None => String::new(),
            Some((Ok(text), _)) => text,
            Some((Err(why), path)) => return Err(vec![format!("read {}: {why}", path.display())]),
        };
        Config::parse(&environment, &text)
    }

    /// From a map and a file's text: what tests use.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(environment: &Environment, file: &str) -> Result<Config, Vec<String>> {
        let mut reader = Reader { environment, mistakes: Vec::new(), asked: BTreeSet::new() };
        let config = reader.config(file);
        reader.mistakes.extend(strange::settings(environment, &reader.asked));
        if reader.mistakes.is_empty() { Ok(config) } else { Err(reader.mistakes) }
    }

    /// The namespaces that teams name, their terms, and who answers there.
    pub fn spaces(&self) -> Configured {
        Configured { names: self.teams.namespaces(), terms: self.namespaces.clone(), routes: self.routes() }
    }

    pub fn routes(&self) -> Routes {
        Routes::new(self.accounts.iter().map(|account| account.route.clone()).collect())
    }
}

/// What the file says.
#[derive(Default)]
struct Tables {
    accounts: Vec<AccountConfig>,
    teams: Teams,
    namespaces: BTreeMap<String, Terms>,
}

struct Reader<'a> {
    environment: &'a Environment,
    mistakes: Vec<String>,
    /// Every variable that was asked for, so the names there are.
    asked: BTreeSet<String>,
}

impl Reader<'_> {
    fn config(&mut self, file: &str) -> Config {
        let seconds = Duration::from_secs;
        let stall = self.waiting("BATCHGATE_STALL", seconds(15));
        let lease = self.waiting("BATCHGATE_LEASE", seconds(30));
        let create_timeout = self.waiting("BATCHGATE_CREATE_TIMEOUT", seconds(600));
        let (poll_min, poll_max) =
            (self.waiting("BATCHGATE_POLL_MIN", seconds(5)), self.waiting("BATCHGATE_POLL_MAX", seconds(60)));
        self.check_times(stall, lease, create_timeout);
        if poll_max < poll_min {
            self.mistakes.push(format!(
                "BATCHGATE_POLL_MIN ({poll_min:?}) must be at most BATCHGATE_POLL_MAX ({poll_max:?}): polls begin with the one \
                 and slow down to the other"
            ));
        }
        let listen = self.read("BATCHGATE_LISTEN", parsed, SocketAddr::from(([127, 0, 0, 1], 8080)));
        let bounds = Bounds {
            open_batches: self.within("BATCHGATE_TEAM_BATCHES", 1_000, 1..=Bounds::MOST_BATCHES),
            pending_prompts: self.within("BATCHGATE_TEAM_PROMPTS", 10_000_000, 1..=Bounds::MOST_PROMPTS),
        };
        let Tables { accounts, teams, namespaces } = self.tables(file, listen, bounds);
        let redis_url = self.read("BATCHGATE_REDIS_URL", |text| redis_url(text).map(Some), None);
        if self.text("BATCHGATE_REDIS_URL").is_none() && !listen.ip().is_loopback() {
            self.mistakes.push("BATCHGATE_REDIS_URL is required unless the listener is a loopback address".to_owned());
        }
        let janitor = self.waiting("BATCHGATE_JANITOR", seconds(600));
        let settings = Settings {
            deployment: self.text("BATCHGATE_DEPLOYMENT").unwrap_or_else(|| "default".to_owned()),
            namespace: Namespaces::DEFAULT.to_owned(),
            chunk: self.within("BATCHGATE_CHUNK", 5_000, 1..=MAX_CHUNK),
            chunk_bytes: self.read("BATCHGATE_CHUNK_BYTES", size, 64 << 20),
            attempts: self.within("BATCHGATE_ATTEMPTS", 3, 1..=u8::MAX),
            poll_min,
            poll_max,
            lease,
            cache_ttl: self.lasting("BATCHGATE_CACHE_TTL", seconds(30 * 86_400)),
            cache_max: self.read("BATCHGATE_CACHE_MAX", cache_max, CacheMax::Percent(60)),
            janitor,
            retention: self.lasting("BATCHGATE_RETENTION", seconds(30 * 86_400)),
            reconcile: self.read("BATCHGATE_RECONCILE", Mode::parse, Mode::Repair),
            reconcile_every: self.read("BATCHGATE_RECONCILE_EVERY", reconcile_every, seconds(60)),
        };
        let log_format = self.read("BATCHGATE_LOG_FORMAT", log_format, LogFormat::Text);
        Config {
            listen,
            redis_url,
            teams,
            bounds,
            namespaces,
            accounts,
            workers: self.within("BATCHGATE_WORKERS", 8, 1..=MAX_AT_ONCE),
            max_body: self.read("BATCHGATE_MAX_BODY", size, 4 << 30),
            max_prompt: self.read("BATCHGATE_MAX_PROMPT", prompt_size, frames::Bounds::default().frame_bytes),
            max_uploads: self.within("BATCHGATE_MAX_UPLOADS", 4, 1..=MAX_AT_ONCE),
            stall,
            create_timeout,
            metrics_listen: self.read("BATCHGATE_METRICS_LISTEN", |text| parsed(text).map(Some), None),
            public_url: self.read("BATCHGATE_PUBLIC_URL", |text| public_url(text).map(Some), None),
            collector: self.read("BATCHGATE_OTLP_ENDPOINT", |text| collector(text).map(Some), None),
            log: self.read("BATCHGATE_LOG", log_filter, "info".to_owned()),
            log_format,
            #[cfg(feature = "failpoints")]
            failpoints: self.read(crate::failpoint::VARIABLE, crate::failpoint::Plan::parse, Default::default()),
            settings,
        }
    }

    /// Times that have to fit together.
    fn check_times(&mut self, stall: Duration, lease: Duration, create_timeout: Duration) {
        if lease < stall * 2 {
            self.mistakes.push(format!(
                "BATCHGATE_LEASE ({lease:?}) must be at least twice BATCHGATE_STALL ({stall:?}): \
                 a worker that waits for a stalled provider would lose its chunk"
            ));
        }
        if lease < SHORTEST_LEASE {
            self.mistakes.push(format!(
                "BATCHGATE_LEASE ({lease:?}) must be at least {SHORTEST_LEASE:?}: it is renewed at a third of it, over a network"
            ));
        }
        if create_timeout < stall {
            self.mistakes.push(format!(
                "BATCHGATE_CREATE_TIMEOUT ({create_timeout:?}) must be at least BATCHGATE_STALL ({stall:?}): every create that \
                 takes longer is in doubt, and looked for instead of waited for"
            ));
        }
    }

    /// The file's tables, and what the environment says in their place.
    fn tables(&mut self, text: &str, listen: SocketAddr, bounds: Bounds) -> Tables {
        let hashes = self.list("BATCHGATE_KEY_HASHES", key_hash);
        let file: File = match toml::from_str(text) {
            Ok(file) => file,
            Err(why) => {
                self.mistakes.push(format!("the configuration file: {}", why.to_string().trim()));
                return Tables::default();
            }
        };
        let namespaces = namespaces::terms(file.namespaces, &mut self.mistakes);
        let accounts = self.accounts(file.providers);
        let names: Vec<&str> = accounts.iter().map(|account| account.route.account.as_str()).collect();
        let teams = teams::teams(file.teams, &hashes, &names, bounds, &mut self.mistakes);
        if teams.are_open() && !listen.ip().is_loopback() {
            self.mistakes.push(format!(
                "no key is configured and {listen} is not a loopback address: set BATCHGATE_KEY_HASHES or [teams.NAME] \
                 (`batchgate key new TEAM` prints one), or listen on 127.0.0.1"
            ));
        }
        Tables { accounts, teams, namespaces }
    }

    // Providers: the file's table, else the two whose key is in the environment.

    fn accounts(&mut self, providers: Vec<FileProvider>) -> Vec<AccountConfig> {
        let accounts = if providers.is_empty() { self.default_accounts() } else { self.file_accounts(providers) };
        if accounts.is_empty() && self.mistakes.is_empty() {
            self.mistakes
                .push("no provider: set ANTHROPIC_API_KEY or OPENAI_API_KEY, or [[providers]] in the file".to_owned());
        }
        accounts
    }

    fn default_accounts(&mut self) -> Vec<AccountConfig> {
        let table = [
            ("anthropic", ProviderKind::AnthropicBatch, "ANTHROPIC", DEFAULT_ANTHROPIC_MODELS),
            ("openai", ProviderKind::OpenAiBatch, "OPENAI", DEFAULT_OPENAI_MODELS),
        ];
        let mut accounts = Vec::new();
        for (name, kind, prefix, models) in table {
            let Some(key) = self.text(&format!("{prefix}_API_KEY")) else { continue };
            let base_url =
                self.text(&format!("{prefix}_BASE_URL")).unwrap_or_else(|| default_base_url(kind).to_owned());
            let models: Vec<String> = models.iter().map(|model| (*model).to_owned()).collect();
            accounts.extend(self.account(name, kind, base_url, vec![Secret::new(key)], &models));
        }
        accounts
    }

    fn file_accounts(&mut self, providers: Vec<FileProvider>) -> Vec<AccountConfig> {
        let mut accounts: Vec<AccountConfig> = Vec::new();
        for provider in providers {
            let name = &provider.name;
            let fits = !name.is_empty() && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
            if !fits || accounts.iter().any(|account| account.route.account == *name) {
                self.mistakes.push(format!("provider {name:?}: a name is unique, of a-z, 0-9 and -"));
            }
            let mut keys = Vec::new();
            for variable in &provider.api_key_env {
                match self.text(variable) {
                    Some(key) => keys.push(Secret::new(key)),
                    None => self.mistakes.push(format!("provider {name}: {variable} is not set")),
                }
            }
            let online = provider.kind == ProviderKind::OpenAiOnline;
            if provider.api_key_env.is_empty() && !online {
                self.mistakes.push(format!("provider {name}: name its key's variable in api_key_env"));
            }
            self.check_online(&provider);
            let base_url = provider.base_url.unwrap_or_else(|| default_base_url(provider.kind).to_owned());
            let owned = |models: &[&str]| models.iter().map(|model| (*model).to_owned()).collect();
            let models = provider.models.unwrap_or_else(|| match provider.kind {
                ProviderKind::AnthropicBatch => owned(DEFAULT_ANTHROPIC_MODELS),
                ProviderKind::OpenAiBatch => owned(DEFAULT_OPENAI_MODELS),
                ProviderKind::OpenAiOnline => Vec::new(),
            });
            let account = self.account(&provider.name, provider.kind, base_url, keys, &models);
            accounts.extend(account.map(|account| AccountConfig {
                concurrency: provider.concurrency.unwrap_or(DEFAULT_CONCURRENCY),
                adaptive: provider.adaptive.unwrap_or(false),
                ..account
            }));
        }
        accounts
    }

    /// A server without a batch API has no official place and no models of its own; the others have no use for its limits.
    fn check_online(&mut self, provider: &FileProvider) {
        let name = &provider.name;
        if provider.kind != ProviderKind::OpenAiOnline {
            if provider.concurrency.is_some() || provider.adaptive.is_some() {
                self.mistakes.push(format!("provider {name}: concurrency and adaptive are for kind \"openai-online\""));
            }
            return;
        }
        if provider.base_url.is_none() {
            self.mistakes.push(format!("provider {name}: say where the server is: base_url = \"http://HOST:PORT/v1\""));
        }
        if provider.models.as_ref().is_none_or(Vec::is_empty) {
            self.mistakes.push(format!("provider {name}: name the models it answers: models = [\"llama-*\"]"));
        }
        if provider.concurrency.is_some_and(|given| !(1..=MAX_CONCURRENCY).contains(&given)) {
            self.mistakes.push(format!("provider {name}: concurrency must be from 1 to {MAX_CONCURRENCY}"));
        }
    }

    fn account(
        &mut self,
        name: &str,
        kind: ProviderKind,
        base_url: String,
        api_keys: Vec<Secret>,
        models: &[String],
    ) -> Option<AccountConfig> {
        let globs: Result<Vec<Glob>, String> = models.iter().map(|model| Glob::parse(model)).collect();
        match globs {
            Ok(models) => {
                let route = Route { account: name.to_owned(), who: who(name, &base_url), kind, models };
                Some(AccountConfig { route, base_url, api_keys, concurrency: DEFAULT_CONCURRENCY, adaptive: false })
            }
            Err(why) => {
                self.mistakes.push(format!("provider {name}: {why}"));
                None
            }
        }
    }

    // Single settings.

    /// A variable that is set to nothing is not set: compose files cannot say it otherwise.
    fn text(&mut self, name: &str) -> Option<String> {
        self.asked.insert(name.to_owned());
        let value = self.environment.get(name).filter(|value| !value.is_empty())?;
        if value.to_str().is_none() {
            let mistake = format!("{name}: its value is not UTF-8 text; set it anew");
            if !self.mistakes.contains(&mistake) {
                self.mistakes.push(mistake);
            }
        }
        value.to_str().map(str::to_owned)
    }

    fn read<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>, default: T) -> T {
        match self.text(name).map(|text| parse(text.trim())) {
            None => default,
            Some(Ok(value)) => value,
            Some(Err(why)) => {
                self.mistakes.push(format!("{name}: {why}"));
                default
            }
        }
    }

    /// A time something is kept: from a second to ten years.
    fn lasting(&mut self, name: &str, default: Duration) -> Duration {
        self.read(name, kept, default)
    }

    /// A time that something is waited for.
    fn waiting(&mut self, name: &str, default: Duration) -> Duration {
        let waiting = |text: &str| match duration(text)? {
            Duration::ZERO => Err("must be above zero".to_owned()),
            wait if wait > LONGEST_WAIT => Err(format!("must be at most 24h, and is {text}")),
            wait => Ok(wait),
        };
        self.read(name, waiting, default)
    }

    fn within<N>(&mut self, name: &str, default: N, range: RangeInclusive<N>) -> N
    where
        N: Copy + PartialOrd + FromStr + std::fmt::Display,
    {
        let within = |text: &str| match text.parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err(format!("must be a whole number from {} to {}, and is {text:?}", range.start(), range.end())),
        };
        self.read(name, within, default)
    }

    fn list<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let text = self.text(name).unwrap_or_default();
        let mut values = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match parse(part) {
                Ok(value) => values.push(value),
                Err(why) => self.mistakes.push(format!("{name}: {why}")),
            }
        }
        values
    }
}

fn default_base_url(kind: ProviderKind) -> &'static str {
    match kind {
        ProviderKind::AnthropicBatch => "https://api.anthropic.com",
        ProviderKind::OpenAiBatch => "https://api.openai.com/v1",
        ProviderKind::OpenAiOnline => "", // told as a mistake
    }
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|why| format!("{text:?}: {why}"))
}

fn public_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match rest.map(|rest| rest.trim_end_matches('/')) {
        Some(host) if !host.is_empty() && !host.contains(['?', '#', '@', ' ']) => {
            Ok(text.trim_end_matches('/').to_owned())
        }
        _ => Err(format!("{text:?} is not where a gateway is: write https://batchgate.example.com")),
    }
}

fn collector(text: &str) -> Result<String, String> {
    match text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
        Some(rest) if !rest.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not the URL of a collector: write http://127.0.0.1:4318")),
    }
}

/// Up to what the largest batch of any provider holds.
fn prompt_size(text: &str) -> Result<usize, String> {
    let fits = |bytes: &usize| (1 << 10..=256 << 20).contains(bytes);
    let told = || format!("must be from 1KiB to 256MiB, and is {text}");
    usize::try_from(size(text)?).ok().filter(fits).ok_or_else(told)
}

/// From a tenth of a second, for tests, to an hour.
fn reconcile_every(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        every if (100..=3_600_000).contains(&every.as_millis()) => Ok(every),
        _ => Err("must be from 100ms to 1h".to_owned()),
    }
}

/// The address alone is looked at: what else is wrong Redis says.
fn redis_url(text: &str) -> Result<Secret, String> {
    let known = ["redis://", "rediss://", "unix://", "redis+unix://"];
    let address = known.iter().find_map(|scheme| text.strip_prefix(scheme));
    match address {
        Some(address) if !address.is_empty() => Ok(Secret::new(text)),
        // Not quoted: it may hold a password.
        _ => {
            Err("is not the URL of a Redis: write redis://HOST:6379, rediss://USER:PASSWORD@HOST:6379 or unix:///PATH"
                .to_owned())
        }
    }
}

fn log_filter(text: &str) -> Result<String, String> {
    telemetry::check_filter(text).map(|()| text.to_owned())
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("must be text or json".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)], file: &str) -> Result<Config, Vec<String>> {
        let environment = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        Config::parse(&environment, file)
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let config = parse(&[("ANTHROPIC_API_KEY", "k")], "").expect("enough to start");
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.settings.chunk, 5_000);
        assert_eq!(config.settings.chunk_bytes, 64 << 20);
        assert_eq!((config.max_prompt, config.max_uploads), (32 << 20, 4));
        assert_eq!(config.settings.janitor, Duration::from_secs(600));
        assert_eq!(config.accounts[0].route.who, "anthropic");
    }

    #[test]
    fn all_mistakes_are_told_together() {
        let given = [
            ("BATCHGATE_LISTEN", "0.0.0.0:80"),
            ("BATCHGATE_CHUNK", "0"),
            ("BATCHGATE_LEASE", "1s"),
            ("BATCHGATE_POLL_MIN", "soon"),
            ("BATCHGATE_JANITOR", "0s"),
            ("BATCHGATE_KEY_HASHES", "sha256:xyz"),
            ("BATCHGATE_LIESTEN", "127.0.0.1:80"),
        ];
        let mistakes = parse(&given, "").expect_err("nothing of it holds");
        for name in [
            "BATCHGATE_LIESTEN is no setting: is it BATCHGATE_LISTEN?",
            "BATCHGATE_CHUNK",
            "BATCHGATE_LEASE",
            "BATCHGATE_POLL_MIN",
            "BATCHGATE_JANITOR",
            "BATCHGATE_KEY_HASHES",
            "BATCHGATE_REDIS_URL",
        ] {
            assert!(mistakes.iter().any(|mistake| mistake.contains(name)), "{name}: {mistakes:?}");
        }
    }

    /// Each alone: the variable's name, and what is said of it.
    #[test]
    fn what_cannot_work_is_told_with_its_remedy() {
        for (given, piece) in [
            (&[("BATCHGATE_LEASE", "29s")][..], "at least twice BATCHGATE_STALL (15s)"),
            (&[("BATCHGATE_STALL", "16s")], "BATCHGATE_LEASE (30s) must be at least twice BATCHGATE_STALL (16s)"),
            (
                &[("BATCHGATE_LEASE", "200ms"), ("BATCHGATE_STALL", "100ms")],
                "BATCHGATE_LEASE (200ms) must be at least 300ms",
            ),
            (&[("BATCHGATE_LEASE", "0s")], "BATCHGATE_LEASE: must be above zero"),
            (&[("BATCHGATE_STALL", "0ms")], "BATCHGATE_STALL: must be above zero"),
            (&[("BATCHGATE_CREATE_TIMEOUT", "0s")], "BATCHGATE_CREATE_TIMEOUT: must be above zero"),
            (&[("BATCHGATE_CREATE_TIMEOUT", "14s")], "BATCHGATE_CREATE_TIMEOUT (14s) must be at least BATCHGATE_STALL"),
            (&[("BATCHGATE_POLL_MIN", "2m")], "BATCHGATE_POLL_MIN (120s) must be at most BATCHGATE_POLL_MAX (60s)"),
            (&[("BATCHGATE_POLL_MAX", "25h")], "BATCHGATE_POLL_MAX: must be at most 24h"),
            (&[("BATCHGATE_ATTEMPTS", "256")], "BATCHGATE_ATTEMPTS: must be a whole number from 1 to 255"),
            (&[("BATCHGATE_ATTEMPTS", "0")], "BATCHGATE_ATTEMPTS: must be a whole number from 1 to 255"),
            (&[("BATCHGATE_WORKERS", "0")], "BATCHGATE_WORKERS: must be a whole number from 1 to 1024"),
            (&[("BATCHGATE_WORKERS", "18446744073709551615")], "BATCHGATE_WORKERS: must be"),
            (&[("BATCHGATE_TEAM_BATCHES", "0")], "BATCHGATE_TEAM_BATCHES: must be a whole number from 1 to 10000"),
            (&[("BATCHGATE_TEAM_PROMPTS", "lots")], "BATCHGATE_TEAM_PROMPTS: must be"),
            (&[("BATCHGATE_MAX_UPLOADS", "-1")], "BATCHGATE_MAX_UPLOADS: must be"),
            (&[("BATCHGATE_MAX_PROMPT", "1023")], "BATCHGATE_MAX_PROMPT: must be from 1KiB to 256MiB"),
            (&[("BATCHGATE_MAX_PROMPT", "1GiB")], "BATCHGATE_MAX_PROMPT: must be from 1KiB to 256MiB"),
            (&[("BATCHGATE_MAX_PROMPT", "32MB")], "BATCHGATE_MAX_PROMPT: \"32MB\" is not a size"),
            (&[("BATCHGATE_CHUNK", "1000001")], "BATCHGATE_CHUNK: must be"),
            (&[("BATCHGATE_CHUNK_BYTES", "0")], "BATCHGATE_CHUNK_BYTES"),
            (&[("BATCHGATE_RETENTION", "0s")], "BATCHGATE_RETENTION: must be from 1s to ten years"),
            (&[("BATCHGATE_LOG", "info,batchgate=louder")], "BATCHGATE_LOG"),
            (&[("BATCHGATE_LOG", "inof")], "BATCHGATE_LOG: \"inof\" is no level"),
            (&[("BATCHGATE_LOG_FORMAT", "xml")], "BATCHGATE_LOG_FORMAT: must be text or json"),
            (&[("BATCHGATE_REDIS_URL", "127.0.0.1:6379")], "BATCHGATE_REDIS_URL: is not the URL of a Redis"),
            (&[("BATCHGATE_METRICS_LISTEN", "9090")], "BATCHGATE_METRICS_LISTEN"),
            (
                &[("BATCHGATE_PUBLIC_URL", "batchgate.example.com")],
                "BATCHGATE_PUBLIC_URL: \"batchgate.example.com\" is not",
            ),
            (&[("BATCHGATE_PUBLIC_URL", "https://u:p@h/?x")], "BATCHGATE_PUBLIC_URL"),
        ] {
            let mut pairs = vec![("ANTHROPIC_API_KEY", "k")];
            pairs.extend(given);
            let mistakes = parse(&pairs, "").expect_err("it cannot work");
            assert!(mistakes.len() == 1 && mistakes[0].contains(piece), "{given:?}: {mistakes:?}");
        }
        for fine in ["debug", "info,hyper=warn", "off", "batchgate[step]=debug"] {
            parse(&[("ANTHROPIC_API_KEY", "k"), ("BATCHGATE_LOG", fine)], "").expect(fine);
        }
    }

    #[test]
    fn a_value_that_is_no_text_is_told_and_a_password_is_not() {
        use std::os::unix::ffi::OsStringExt;
        let mut environment = Environment::from([("ANTHROPIC_API_KEY".to_owned(), "k".into())]);
        environment.insert("BATCHGATE_REDIS_URL".to_owned(), "redis://:hunter2@127.0.0.1".into());
        let config = Config::parse(&environment, "").expect("enough to start");
        assert!(!format!("{config:?}").contains("hunter2"));
        environment.insert("BATCHGATE_DEPLOYMENT".to_owned(), OsString::from_vec(vec![b'a', 0xff]));
        environment.insert("OPENAI_API_KEY".to_owned(), OsString::from_vec(vec![0xff]));
        environment.insert("SOMETHING_ELSE".to_owned(), OsString::from_vec(vec![0xff]));
        let mistakes = Config::parse(&environment, "").expect_err("two are no text");
        assert_eq!(mistakes.len(), 2, "{mistakes:?}");
        assert!(mistakes.iter().all(|mistake| mistake.contains("not UTF-8")), "{mistakes:?}");
    }

    #[test]
    fn a_file_names_providers_and_never_holds_their_keys() {
        let file = "[[providers]]\nname = \"main\"\nkind = \"openai-batch\"\nbase_url = \"http://h/v1\"\n\
                    api_key_env = [\"KEY_A\", \"KEY_B\"]\nmodels = [\"gpt-*\"]\n";
        let config = parse(&[("KEY_A", "a"), ("KEY_B", "b")], file).expect("enough to start");
        assert_eq!(config.accounts[0].api_keys.len(), 2);
        assert_eq!(config.accounts[0].route.who, "main");
        assert!(!format!("{config:?}").contains("\"a\""));
        assert!(parse(&[], file).expect_err("keys are missing").iter().any(|mistake| mistake.contains("KEY_A")));
    }

    fn online(rest: &str) -> Result<Config, Vec<String>> {
        parse(&[], &format!("[[providers]]\nname = \"local\"\nkind = \"openai-online\"\n{rest}"))
    }

    #[test]
    fn a_local_server_needs_a_place_and_models_and_no_key() {
        let config = online("base_url = \"http://h:11434\"\nmodels = [\"llama*\"]\n").expect("enough to start");
        let account = &config.accounts[0];
        assert_eq!((account.api_keys.len(), account.concurrency, account.adaptive), (0, 8, false));
        assert_eq!(account.route.who, "local");
        let config = online("base_url = \"http://h\"\nmodels = [\"*\"]\nconcurrency = 64\nadaptive = true\n");
        let account = &config.expect("enough to start").accounts[0];
        assert_eq!((account.concurrency, account.adaptive), (64, true));
    }

    #[test]
    fn a_local_server_s_mistakes_are_told() {
        let told =
            |mistakes: Vec<String>, piece: &str| assert!(mistakes.iter().any(|m| m.contains(piece)), "{mistakes:?}");
        let bare = online("").expect_err("nowhere, nothing");
        for piece in ["base_url", "models"] {
            told(bare.clone(), piece);
        }
        for count in ["0", "1025"] {
            let text = format!("base_url = \"http://h\"\nmodels = [\"*\"]\nconcurrency = {count}\n");
            told(online(&text).expect_err("out of range"), "from 1 to 1024");
        }
        let file = "[[providers]]\nname = \"a\"\nkind = \"openai-batch\"\napi_key_env = [\"K\"]\nconcurrency = 3\n";
        told(parse(&[("K", "k")], file).expect_err("not for batches"), "openai-online");
    }
}
