//! The composition root: from a configuration to a running gateway, and to its end.

use super::{descriptors, private_redis::PrivateRedis, reload::Reload};
use crate::{
    config::{AccountConfig, Config, Role},
    domain::route::ProviderKind,
    http::{
        self, App, Auth, Seats,
        listen::{self, Bounds, Door},
    },
    lifecycle::{self, Heartbeats, Tasks},
    pipeline::{
        Gateway, Provider, Wake,
        online::desk::{Desk, Pace},
        spaces::Spaces,
    },
    provider::registry::{Account, Kind},
    store::{Store, StoreError},
    telemetry, worker,
};
use anyhow::Context;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long a Redis that does not answer is waited for at the start.
const REDIS_START: Duration = Duration::from_secs(30);
/// After the first signal, steps in hand and bodies being read get this long.
const DRAIN: Duration = Duration::from_secs(25);
/// After the last step, answers being sent get this long.
const LAST_ANSWERS: Duration = Duration::from_secs(4);

/// Run the gateway: API and worker in one process
#[derive(clap::Args, Debug)]
pub(super) struct ServeArgs {
    /// Which parts run in this process
    #[arg(long, value_enum, default_value_t)]
    role: Role,
    /// A file for what is a table: providers and teams; SIGHUP reads its teams again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Serves until told to stop. `Ok(false)`: something was still running at the end of the drain.
pub(super) async fn run(args: &ServeArgs) -> anyhow::Result<bool> {
    let config = Config::load(args.config.as_deref()).map_err(mistakes)?;
    let _telemetry = telemetry::install(&config.log, config.log_format, config.collector.as_deref())
        .map_err(|why| anyhow::anyhow!("BATCHGATE_LOG or BATCHGATE_OTLP_ENDPOINT: {why}"))?;
    let providers = providers(&config).map_err(mistakes)?;
    #[cfg(feature = "failpoints")]
    crate::failpoint::arm(config.failpoints.clone());
    let (private, url) = redis(&config).await?;
    let listener = TcpListener::bind(config.listen).await.with_context(|| format!("listen on {}", config.listen))?;
    let metrics = match config.metrics_listen {
        Some(address) => Some(TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?),
        None => None,
    };
    let served = serve(&config, args, (&url, providers), Listeners { api: listener, metrics }).await;
    if let Some(private) = private {
        private.stop().await?;
    }
    served
}

/// All that is wrong with a configuration, at once.
#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
pub(super) fn mistakes(mistakes: Vec<String>) -> anyhow::Error {
    anyhow::anyhow!("{} mistake(s) in the configuration:\n  {}", mistakes.len(), mistakes.join("\n  "))
}

/// The configured Redis, or a private one: only on a loopback listener, and said loudly.
pub(super) async fn redis(config: &Config) -> anyhow::Result<(Option<PrivateRedis>, String)> {
    if let Some(url) = &config.redis_url {
        return Ok((None, url.reveal().to_owned()));
    }
    let home = Path::new("batchgate-data");
    tracing::warn!(data = %home.display(), "BATCHGATE_REDIS_URL is not set: starting a private redis-server, with its data here");
    let private = PrivateRedis::start(home).await?;
    if private.was_found() {
        tracing::info!("a private redis-server is running here already: using it");
    }
    let url = private.url();
    Ok((Some(private), url))
}

/// Where the process is spoken to.
struct Listeners {
    api: TcpListener,
    /// `/metrics` alone, without a key.
    metrics: Option<TcpListener>,
}

async fn serve(
    config: &Config,
    args: &ServeArgs,
    (redis_url, providers): (&str, BTreeMap<String, Provider>),
    listeners: Listeners,
) -> anyhow::Result<bool> {
    let role = args.role;
    let descriptors = descriptors::raise();
    let connections = descriptors::connections(descriptors);
    // A Redis that does not answer is waited for, but not past the order to stop: process 1 of a container has no other end.
    let told_to_stop = lifecycle::signal()?;
    let spaces = tokio::select! {
        spaces = spaces(config, redis_url, providers) => Arc::new(spaces?),
        () = told_to_stop => return Ok(true),
    };
    let (tasks, beats) = (Tasks::default(), Heartbeats::default());
    let (term, again) = (lifecycle::signal()?, lifecycle::signal()?);
    let metrics = telemetry::install_metrics();
    let works = (role != Role::Api).then_some(config.workers);
    let standing = worker::home::start(&spaces, &tasks, &beats, works).await?;
    let app = App {
        spaces: Arc::clone(&spaces),
        tasks: tasks.clone(),
        beats: beats.clone(),
        auth: Arc::new(Auth::new(config.teams.clone(), config.bounds)),
        metrics,
        seats: Arc::new(Seats::new(config.max_uploads)),
        max_body: config.max_body,
        max_prompt: config.max_prompt,
        standing,
    };
    worker::care(&spaces, &app.standing, &tasks, &beats);
    let (auth, routes, file) = (Arc::clone(&app.auth), config.routes(), args.config.clone());
    Reload { auth, spaces, routes, file }.start(&tasks)?;
    let address = listeners.api.local_addr()?;
    // The door stays open while steps in hand finish: POST is told to come back, GET still answers.
    let closing = CancellationToken::new();
    let (mut metrics_address, mut side) = (None, None);
    if let Some(listener) = listeners.metrics {
        let address = listener.local_addr()?;
        metrics_address = Some(address);
        let router = http::metrics_router(app.clone(), address.ip().is_loopback());
        let bounds = Bounds { connections: descriptors::beside(connections), ..Bounds::default() };
        let door = Door { name: "metrics", listener, bounds };
        side = Some(tokio::spawn(listen::serve(door, router, closing.clone())));
    }
    // Outside the tasks: answers in hand may outlive the last step by a little.
    let bounds = Bounds { connections, ..Bounds::default() };
    let door = Door { name: "api", listener: listeners.api, bounds };
    let mut server = tokio::spawn(listen::serve(door, http::router(app), closing.clone()));
    let metrics = metrics_address.map(tracing::field::display);
    tracing::info!(%address, connections, descriptors, metrics, ?role, "ready");
    let crashed = tokio::select! {
        () = term => false,
        () = tasks.crashed() => true,
    };
    tracing::info!("stopping: no new work; steps in hand finish");
    tasks.stop();
    fail_point!("draining");
    let drained = tokio::select! {
        drained = tasks.drained(DRAIN) => drained,
        () = second(again) => false,
    };
    closing.cancel();
    if tokio::time::timeout(LAST_ANSWERS, &mut server).await.is_err() {
        server.abort();
    }
    if let Some(side) = side {
        side.abort(); // what it says is said at once
    }
    tracing::info!(drained, "stopped");
    anyhow::ensure!(!crashed, "a loop ended by itself; see the log");
    Ok(drained)
}

/// The second signal: the first one wakes this listener too.
async fn second(first: impl Future<Output = ()>) {
    first.await;
    if let Ok(next) = lifecycle::signal() {
        next.await;
    }
}

/// Every account's way to its provider; all that is wrong with them, at once.
fn providers(config: &Config) -> Result<BTreeMap<String, Provider>, Vec<String>> {
    let (mut providers, mut mistakes) = (BTreeMap::new(), Vec::new());
    for account in &config.accounts {
        match connect_account(config, account) {
            Ok(provider) => drop(providers.insert(account.route.account.clone(), provider)),
            Err(why) => mistakes.push(why.to_string()),
        }
    }
    if mistakes.is_empty() { Ok(providers) } else { Err(mistakes) }
}

async fn spaces(config: &Config, redis_url: &str, providers: BTreeMap<String, Provider>) -> anyhow::Result<Spaces> {
    let settings = config.settings.clone();
    let store = connect(redis_url, &settings.namespace).await?;
    let wake = Arc::new(Wake::default());
    let common = Gateway { store, also: Vec::new(), providers, routes: config.routes(), settings, wake };
    Ok(Spaces::new(common, config.spaces()))
}

fn connect_account(config: &Config, account: &AccountConfig) -> anyhow::Result<Provider> {
    let adapter = |kind| Account {
        name: account.route.account.clone(),
        kind,
        base_url: account.base_url.clone(),
        api_keys: account.api_keys.clone(),
        stall: config.stall,
        create_timeout: config.create_timeout,
    };
    Ok(match account.route.kind {
        ProviderKind::AnthropicBatch => Provider::Batch(adapter(Kind::Anthropic).connect()?),
        ProviderKind::OpenAiBatch => Provider::Batch(adapter(Kind::OpenAi).connect()?),
        ProviderKind::OpenAiOnline => {
            let pace = Pace { least: config.settings.poll_min, most: config.settings.poll_max };
            let server = adapter(Kind::OpenAi).connect_online()?;
            Provider::Online(Arc::new(Desk::new(server, account.concurrency, account.adaptive, pace)))
        }
    })
}

/// Redis may start after us, or still be loading: it gets a while to answer.
pub(super) async fn connect(url: &str, namespace: &str) -> anyhow::Result<Store> {
    let until = tokio::time::Instant::now() + REDIS_START;
    loop {
        match Store::connect(url, namespace).await {
            Ok(store) => return Ok(store),
            Err(StoreError::Away(why)) if tokio::time::Instant::now() < until => {
                tracing::warn!(%why, "redis does not answer yet; trying again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(why) => {
                anyhow::bail!("cannot use the redis of BATCHGATE_REDIS_URL ({why}): is it up, and is the URL right?")
            }
        }
    }
}
