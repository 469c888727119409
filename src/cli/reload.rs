//! SIGHUP: the configuration is read again. Its teams, its namespaces and what models its providers answer hold from the next
//! request on; what is under way goes on as it was begun. A file with mistakes changes nothing.

use crate::{config::Config, domain::route::Routes, http::Auth, lifecycle::Tasks, pipeline::spaces::Spaces};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What may change while the gateway runs, and where it is told.
pub(super) struct Reload {
    pub(super) auth: Arc<Auth>,
    pub(super) spaces: Arc<Spaces>,
    /// The accounts the gateway was started with: another one, or another place for one of them, needs a restart.
    pub(super) routes: Routes,
    pub(super) file: Option<PathBuf>,
}

impl Reload {
    /// Listens from here on: before this a SIGHUP ends the process, as it does by default.
    ///
    /// # Errors
    /// The process may not install signal handlers.
    pub(super) fn start(self, tasks: &Tasks) -> std::io::Result<()> {
        let hangup = signal(SignalKind::hangup())?;
        metrics::gauge!("batchgate_config_refused").set(0.0);
        let stopping = tasks.clone();
        tasks.spawn(async move { self.listen(hangup, &stopping).await });
        Ok(())
    }

    async fn listen(self, mut hangup: Signal, tasks: &Tasks) {
        loop {
            tokio::select! {
                told = hangup.recv() => if told.is_none() { return },
                () = tasks.stopped() => return,
            }
            self.again(self.file.as_deref()).await;
        }
    }

    async fn again(&self, file: Option<&Path>) {
        match Reload::read(file) {
            // A file that is just being written looks like this; nobody means it.
            Ok(config) if config.teams.are_open() && self.auth.asks_for_keys() => {
                Reload::refuse("it has no keys any more");
            }
            Ok(config) => {
                let (teams, mut spaces) = (config.teams.0.len(), config.spaces());
                if !spaces.routes.are_among(&self.routes) {
                    tracing::warn!(
                        "the file has other providers, too: all that it says of providers holds after a restart"
                    );
                    spaces.routes = self.spaces.routes();
                }
                // Whatever is accepted in a new namespace, every worker knows of it.
                if let Err(why) = self.spaces.announce(&spaces.names).await {
                    return Reload::refuse(&format!("its new namespaces cannot be noted: {why}"));
                }
                self.spaces.configure(spaces);
                self.auth.replace(config.teams);
                metrics::gauge!("batchgate_config_refused").set(0.0);
                tracing::info!(teams, "configuration read again: its teams and routes hold from now on");
            }
            Err(mistakes) => Reload::refuse(&mistakes.to_string()),
        }
    }

    /// All of it, or nothing.
    fn read(file: Option<&Path>) -> anyhow::Result<Config> {
        let config = Config::load(file).map_err(|mistakes| anyhow::anyhow!(mistakes.join("; ")))?;
        fail_point!("reloading");
        Ok(config)
    }

    fn refuse(why: &str) {
        metrics::gauge!("batchgate_config_refused").set(1.0);
        tracing::error!(why, "configuration refused: teams and routes stay as they were");
    }
}
