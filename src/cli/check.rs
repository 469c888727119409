//! `check`: is this installation as it should be? Reads the gateway's own configuration, looks at Redis, and with `--online`
//! asks the providers; changes nothing and buys nothing.

use super::{
    client::Client,
    failure::{Ending, Failure},
    out,
};
use crate::{
    clock,
    config::{AccountConfig, Config},
    domain::route::ProviderKind,
    pipeline::check::{self, Finding, Level},
    provider::{
        CallError, Cursor,
        registry::{Account, AccountError, Kind},
        secret::Secret,
    },
    store::inspect::inspect,
};
use serde_json::json;
use std::path::PathBuf;

/// Look at configuration, Redis, clock and public URL; with --online at the providers too
#[derive(clap::Args, Debug)]
pub(super) struct CheckArgs {
    /// The gateway's file of providers and teams
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ask each provider with each key for its list of batches or models, which is free, and the public URL
    #[arg(long)]
    online: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: &CheckArgs) -> Result<Ending, Failure> {
    let found = match Config::load(args.config.as_deref()) {
        Ok(config) => look(&config, args.online).await,
        Err(mistakes) => {
            let told = |mistake| Finding::new("configuration", Level::Wrong, mistake);
            mistakes.into_iter().map(told).collect()
        }
    };
    let worst = found.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    if args.json {
        out::json(&json!({"ok": worst <= Level::Warning, "checks": found}))?;
    } else {
        for finding in &found {
            out::say(&row(finding))?;
        }
    }
    Ok(match worst {
        Level::Ok | Level::Warning => Ending::Fine,
        Level::Unreachable => Ending::Unreachable,
        Level::Wrong => Ending::Lacking,
    })
}

async fn look(config: &Config, online: bool) -> Vec<Finding> {
    let (accounts, teams) = (config.accounts.len(), config.teams.0.len());
    let who = if config.teams.are_open() { "no keys: loopback only".to_owned() } else { format!("{teams} team(s)") };
    let detail = format!("{accounts} provider(s), {who}");
    let mut found = vec![Finding::new("configuration", Level::Ok, detail)];
    found.extend(redis(config).await);
    found.push(public_url(config, online).await);
    for account in &config.accounts {
        found.extend(provider(config, account, online).await);
    }
    found
}

async fn redis(config: &Config) -> Vec<Finding> {
    let Some(url) = &config.redis_url else {
        let detail = "BATCHGATE_REDIS_URL is not set: `batchgate serve` starts a private redis-server in ./batchgate-data; \
                      for more than a laptop, run one of your own";
        return vec![Finding::new("redis", Level::Warning, detail)];
    };
    match inspect(url.reveal()).await {
        Ok(seen) => check::redis(&seen, &config.settings.deployment, clock::now_ms()),
        Err(error) => {
            let detail =
                format!("the Redis of BATCHGATE_REDIS_URL does not answer: is it up, and is the URL right? ({error})");
            vec![Finding::new("redis", Level::Unreachable, detail)]
        }
    }
}

async fn public_url(config: &Config, online: bool) -> Finding {
    let told = |level, detail: String| Finding::new("public_url", level, detail);
    let Some(url) = &config.public_url else {
        return told(
            Level::Ok,
            "BATCHGATE_PUBLIC_URL is not set: whether teams reach the gateway is not looked at".to_owned(),
        );
    };
    if !online {
        return told(Level::Ok, format!("{url}; asked with --online"));
    }
    let alive = async { Client::new(url, None)?.alive().await };
    match alive.await {
        Ok(()) => told(Level::Ok, format!("a gateway answers at {url}")),
        Err(failure) => told(Level::Unreachable, format!("no gateway answers at {url}: {failure}")),
    }
}

/// Each key by itself, for a gateway that works with one of them hides what is wrong with the others.
async fn provider(config: &Config, account: &AccountConfig, online: bool) -> Vec<Finding> {
    let (name, keys) = (&account.route.account, account.api_keys.len());
    if !online {
        return vec![Finding::new(
            format!("provider {name}"),
            Level::Ok,
            format!("{keys} key(s); asked with --online"),
        )];
    }
    let mut found = Vec::new();
    let alone = account.api_keys.iter().map(|key| vec![key.clone()]).zip(1..);
    let none = (keys == 0).then(|| (Vec::new(), 0));
    for (api_keys, number) in alone.chain(none) {
        let which = if number == 0 { "without a key, it".to_owned() } else { format!("key {number} of {keys}") };
        match ask(config, account, api_keys).await {
            Ok(answered) => found.push(check::provider(name, &which, &answered)),
            Err(why) => found.push(Finding::new(format!("provider {name}"), Level::Wrong, why.to_string())),
        }
    }
    found
}

async fn ask(
    config: &Config,
    account: &AccountConfig,
    api_keys: Vec<Secret>,
) -> Result<Result<(), CallError>, AccountError> {
    let of = |kind| Account {
        name: account.route.account.clone(),
        kind,
        base_url: account.base_url.clone(),
        api_keys,
        stall: config.stall,
        create_timeout: config.create_timeout,
    };
    let batches = match account.route.kind {
        ProviderKind::AnthropicBatch => of(Kind::Anthropic).connect()?,
        ProviderKind::OpenAiBatch => of(Kind::OpenAi).connect()?,
        ProviderKind::OpenAiOnline => return Ok(of(Kind::OpenAi).connect_online()?.models().await),
    };
    Ok(batches.list(&Cursor::default()).await.map(drop))
}

/// `ok       redis             Redis 7.0.15 at local`
fn row(finding: &Finding) -> String {
    let word = match finding.level {
        Level::Ok => "ok",
        Level::Warning => "warning",
        Level::Unreachable => "UNREACHABLE",
        Level::Wrong => "WRONG",
    };
    format!("{word:<12} {:<18} {}", out::inert(&finding.what), out::inert(&finding.detail))
}
