//! Works on the original alone. Each second it is looked at anew what this Redis is: a copy that is adopted sets the
//! worker's loops going, and an original that turns out to be a copy ends the process, which comes up again as a reader.

use super::trouble::Trouble;
use crate::{
    domain::home::Standing,
    lifecycle::{Heartbeats, Tasks},
    pipeline::{account, home, spaces::Spaces},
    store::StoreError,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

const EVERY: Duration = Duration::from_secs(1);
/// One look is two commands; the start of the worker a few more for each account.
const ROUND: Duration = Duration::from_secs(120);

/// Looks what this Redis is, starts to work if it is the original, and goes on looking. `workers`: chunks stepped at once;
/// none for a process that never works.
pub async fn start(
    spaces: &Arc<Spaces>,
    tasks: &Tasks,
    beats: &Heartbeats,
    workers: Option<usize>,
) -> Result<watch::Receiver<Standing>, StoreError> {
    let watcher = Watcher { spaces: Arc::clone(spaces), tasks: tasks.clone(), beats: beats.clone(), workers };
    let standing = home::standing(spaces.common(), workers.is_some()).await?;
    spaces.learn(standing == Standing::Original).await?;
    match &standing {
        Standing::Original => watcher.begin_work().await?,
        Standing::Copy(sign) => {
            tracing::warn!(
                why = %sign,
                "this redis is a copy: reads are served, nothing is accepted and no worker starts until `batchgate adopt`"
            );
        }
    }
    note(&standing);
    let (tell, told) = watch::channel(standing);
    beats.expect("home", ROUND);
    tasks.spawn_loop("home", async move { watcher.watch(&tell).await });
    Ok(told)
}

struct Watcher {
    spaces: Arc<Spaces>,
    tasks: Tasks,
    beats: Heartbeats,
    workers: Option<usize>,
}

impl Watcher {
    async fn begin_work(&self) -> Result<(), StoreError> {
        if let Some(workers) = self.workers {
            account::probe_at_start(self.spaces.common()).await?;
            super::start(&self.spaces, &self.tasks, &self.beats, workers);
        }
        Ok(())
    }

    /// Ends by itself, which ends the process, if a Redis we work on became a copy under our hands.
    async fn watch(&self, tell: &watch::Sender<Standing>) {
        let mut trouble = Trouble::of("home");
        loop {
            self.tasks.sleep(EVERY).await;
            if self.tasks.stopping() {
                return;
            }
            self.beats.tick("home");
            match self.look(tell).await {
                Ok(true) => trouble.over(),
                Ok(false) => return,
                Err(error) => trouble.wait(&error, &self.tasks).await,
            }
        }
    }

    async fn look(&self, tell: &watch::Sender<Standing>) -> Result<bool, StoreError> {
        let now = home::standing(self.spaces.common(), self.workers.is_some()).await?;
        if now == *tell.borrow() {
            return Ok(true);
        }
        match &now {
            Standing::Original => {
                self.begin_work().await?;
                tracing::info!("this redis was adopted: it is the original now");
            }
            Standing::Copy(sign) if self.workers.is_some() && *tell.borrow() == Standing::Original => {
                tracing::error!(why = %sign, "this redis became a copy while we worked on it: stopping");
                return Ok(false);
            }
            Standing::Copy(sign) => tracing::warn!(why = %sign, "this redis is a copy: only reads are served"),
        }
        note(&now);
        tell.send_replace(now);
        Ok(true)
    }
}

fn note(standing: &Standing) {
    metrics::gauge!("batchgate_copy").set(f64::from(u8::from(*standing != Standing::Original)));
}
