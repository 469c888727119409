//! `adopt`: makes a copy of a Redis the home of this deployment. Speaks to Redis itself, with the gateway's own
//! configuration, for a gateway on a copy accepts nothing.

use super::{
    failure::{Ending, Failure},
    out, serve,
};
use crate::{
    config::Config,
    pipeline::home::{self, Adoption},
};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
pub(super) struct AdoptArgs {
    /// The gateway's file of providers
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Do it; without, only say what would be done
    #[arg(long)]
    yes: bool,
    /// End what another deployment has under way as canceled; nothing at its providers is touched
    #[arg(long)]
    drop_running: bool,
}

pub(super) async fn run(args: &AdoptArgs) -> Result<Ending, Failure> {
    let config = Config::load(args.config.as_deref()).map_err(serve::mistakes)?;
    #[cfg(feature = "failpoints")]
    crate::failpoint::arm(config.failpoints.clone());
    let (private, url) = serve::redis(&config).await?;
    let done = adopt(args, &config, &url).await;
    if let Some(private) = private {
        private.stop().await?;
    }
    done
}

async fn adopt(args: &AdoptArgs, config: &Config, url: &str) -> Result<Ending, Failure> {
    let store = serve::connect(url, &config.settings.namespace).await?;
    let ours = &config.settings.deployment;
    let refused = |why: String| Err(Failure::Here(anyhow::anyhow!(why)));
    let what = home::consider(&store, ours).await.map_err(anyhow::Error::from)?;
    let plan = match &what {
        Adoption::AtHome => {
            out::say(&format!("this Redis is at home in the deployment {ours:?}: there is nothing to adopt"))?;
            return Ok(Ending::Fine);
        }
        Adoption::InUse(busy) => {
            return refused(format!(
                "a gateway of the deployment {busy:?} works on this Redis at this moment: this is no copy. Nothing was changed"
            ));
        }
        Adoption::GoesOn { .. } if args.drop_running => {
            return refused(format!(
                "what is under way was sent as {ours:?}, which is our own name: we would take its batches at the providers for \
                 ours. To leave them alone, give this gateway another BATCHGATE_DEPLOYMENT first. Nothing was changed"
            ));
        }
        Adoption::GoesOn { batches, chunks } => format!(
            "the deployment {ours:?} goes on here: {batches} batches, {chunks} chunks of them at the providers. Their first \
             home must be gone for good: two that go on with the same work pay for it twice"
        ),
        Adoption::Foreign { home, batches, chunks } if *batches > 0 && !args.drop_running => {
            return refused(format!(
                "{batches} batches of the deployment {home:?} are under way here, {chunks} chunks of them at its providers. \
                 To go on with them, because {home:?} is gone for good, set BATCHGATE_DEPLOYMENT={home}. \
                 To leave them to it, say --drop-running: here they end as canceled. Nothing was changed"
            ));
        }
        Adoption::Foreign { home, batches, .. } => format!(
            "this copy of {home:?} becomes the home of {ours:?}: {batches} batches end as canceled, and nothing at the providers is \
             touched"
        ),
    };
    out::say(&plan)?;
    if !args.yes {
        out::say("nothing was changed; to do it, say --yes")?;
        return Ok(Ending::Lacking);
    }
    if matches!(what, Adoption::Foreign { .. }) {
        home::drop_running(&store).await.map_err(anyhow::Error::from)?;
    }
    home::adopt(&store, ours).await.map_err(anyhow::Error::from)?;
    out::say("done: gateways that run here begin to work within two seconds")?;
    Ok(Ending::Fine)
}
