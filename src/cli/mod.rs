//! DOOR: the terminal. Parses the command line, runs one command, answers with an exit code.
//!
//! `serve` is the composition root. Everything else but `adopt` and `check` is a client: it sees the public API and nothing private.
//! Exit codes: 0 fine, 1 refused or some prompts have no answer, 2 usage, 3 unreachable (130 after Ctrl-C, as shells do).

mod adopt;
mod batches;
mod check;
mod client;
mod demo;
mod descriptors;
mod failure;
mod forecast;
mod key;
mod out;
mod pause;
mod private_redis;
mod progress;
mod reload;
mod results;
#[cfg(test)]
mod scripted;
mod serve;
mod submit;
mod upload;

use client::Client;
use failure::{Ending, Failure};
use std::{net::SocketAddr, process::ExitCode};

/// Where a gateway listens unless it is told otherwise.
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// One cache in front of the batch APIs of LLM providers
#[derive(clap::Parser, Debug)]
#[command(
    version,
    about,
    max_term_width = 100,
    after_help = "Exit codes: 0 fine, 1 refused or some prompts have no answer, 2 usage, 3 unreachable."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Which gateway, and who asks it: the same for every client command.
#[derive(clap::Args, Debug)]
pub(crate) struct Door {
    /// The gateway
    #[arg(long, env = "BATCHGATE_URL", value_name = "URL", default_value = DEFAULT_URL)]
    url: String,
    /// Your key at the gateway
    #[arg(long, env = "BATCHGATE_KEY", value_name = "KEY", hide_env_values = true)]
    key: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Door {
    /// A variable that is set to nothing is not set: compose files cannot say it otherwise.
    fn client(&self) -> Result<Client, Failure> {
        let url = if self.url.is_empty() { DEFAULT_URL } else { &self.url };
        Client::new(url, self.key.clone().filter(|key| !key.is_empty()))
    }
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Serve(serve::ServeArgs),
    /// Everything at once on a laptop: private Redis, simulated providers, a sample batch, twice
    Demo(demo::DemoArgs),
    Sim(crate::sim::SimArgs),
    /// Send a file of prompts as one batch
    Submit(Box<submit::SubmitArgs>),
    /// How far a batch is
    Status(batches::StatusArgs),
    /// The answers of a batch, in the order of its prompts
    Results(results::ResultsArgs),
    /// The batches there are, newest first
    List(batches::ListArgs),
    /// End a batch; what is answered by then is kept
    Cancel(batches::CancelArgs),
    /// Ask once more what a batch left unanswered, as a new batch
    Retry(submit::RetryArgs),
    /// Make a copied Redis the home of this deployment; until then its gateways only read
    Adopt(adopt::AdoptArgs),
    /// Send nothing new of a provider, a team or at all, while what runs goes on; without any of them: what is paused
    Pause(pause::PauseArgs),
    /// End a pause
    Resume(pause::PauseArgs),
    Check(check::CheckArgs),
    /// Keys of the gateway
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Is the gateway ready? For Docker's HEALTHCHECK
    Healthcheck(HealthArgs),
}

#[derive(clap::Args, Debug)]
struct HealthArgs {
    /// The gateway, if it is not the one that listens here
    #[arg(long, env = "BATCHGATE_URL", value_name = "URL")]
    url: Option<String>,
    /// Where the gateway listens
    #[arg(long, env = "BATCHGATE_LISTEN", value_name = "HOST:PORT", default_value = DEFAULT_LISTEN)]
    listen: SocketAddr,
}

/// Runs one command to its end.
pub async fn run(cli: Cli) -> ExitCode {
    let code = match dispatch(cli.command).await {
        Ok(ending) => ending.exit_code(),
        Err(failure) => {
            if let Some(text) = failure.told() {
                out::note(&text);
            }
            failure.exit_code()
        }
    };
    ExitCode::from(code)
}

async fn dispatch(command: Command) -> Result<Ending, Failure> {
    match command {
        Command::Serve(args) => Ok(if serve::run(&args).await? { Ending::Fine } else { Ending::Lacking }),
        Command::Sim(args) => crate::sim::run(args).await.map(|()| Ending::Fine).map_err(Failure::from),
        Command::Demo(args) => demo::run(args).await,
        Command::Submit(args) => submit::run(&args.door.client()?, *args).await,
        Command::Status(args) => batches::status(&args.door.client()?, args).await,
        Command::Results(args) => results::run(&args.door.client()?, args).await,
        Command::List(args) => batches::list(&args.door.client()?, args).await,
        Command::Cancel(args) => batches::cancel(&args.door.client()?, args).await,
        Command::Retry(args) => submit::retry(&args.door.client()?, args).await,
        Command::Adopt(args) => adopt::run(&args).await,
        Command::Pause(args) => pause::pause(&args.door.client()?, &args).await,
        Command::Resume(args) => pause::resume(&args.door.client()?, &args).await,
        Command::Check(args) => check::run(&args).await,
        Command::Key(command) => key::run(command).await,
        Command::Healthcheck(args) => healthcheck(args).await,
    }
}

/// Docker knows two answers, 0 and 1, so a gateway that cannot be reached is 1 here.
async fn healthcheck(args: HealthArgs) -> Result<Ending, Failure> {
    let url = args.url.filter(|url| !url.is_empty()).unwrap_or_else(|| format!("http://{}", reachable(args.listen)));
    match Client::new(&url, None)?.ready().await {
        Ok(()) => Ok(Ending::Fine),
        Err(failure) => {
            out::note(&format!("not ready: {failure}"));
            Ok(Ending::Lacking)
        }
    }
}

/// Who listens on all addresses answers on loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    match listen {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => ([127, 0, 0, 1], v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => ([0, 0, 0, 0, 0, 0, 0, 1], v6.port()).into(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        assert!(Cli::try_parse_from(["batchgate", "results", "b", "--follow", "--partial"]).is_err());
        assert!(Cli::try_parse_from(["batchgate", "list", "--json", "--url", "http://[::1]:1"]).is_ok());
    }

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_loopback() {
        for (listen, asked) in
            [("0.0.0.0:8080", "127.0.0.1:8080"), ("[::]:9000", "[::1]:9000"), ("10.0.0.7:80", "10.0.0.7:80")]
        {
            assert_eq!(reachable(listen.parse().expect("an address")), asked.parse().expect("an address"));
        }
    }
}
