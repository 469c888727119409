//! `batchgate pause` and `resume`: stop sending anything new, and go on. For an admin.

use super::{
    Door,
    client::Client,
    failure::{Ending, Failure},
    out,
};
use serde_json::Value;

#[derive(clap::Args, Debug)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    #[command(flatten)]
    pub(crate) door: Door,
}

#[derive(clap::Args, Debug)]
#[group(multiple = false)]
struct ScopeArgs {
    /// One provider account, by its configured name
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// One team's batches
    #[arg(long, value_name = "NAME")]
    team: Option<String>,
    /// Everything
    #[arg(long)]
    all: bool,
}

impl ScopeArgs {
    fn id(&self) -> Option<String> {
        let named = |kind: &str, name: &String| format!("{kind}:{name}");
        let all = self.all.then(|| "all".to_owned());
        let provider = self.provider.as_ref().map(|name| named("provider", name));
        all.or(provider).or_else(|| self.team.as_ref().map(|name| named("team", name)))
    }
}

/// Without a scope: what is paused.
pub(crate) async fn pause(client: &Client, args: &PauseArgs) -> Result<Ending, Failure> {
    let Some(id) = args.scope.id() else { return list(client, args.door.json).await };
    let paused = client.pause(&id).await?;
    if args.door.json {
        out::json(&paused)?;
    } else {
        out::say(&row(&paused))?;
    }
    Ok(Ending::Fine)
}

/// Without a scope there is nothing to be done.
pub(crate) async fn resume(client: &Client, args: &PauseArgs) -> Result<Ending, Failure> {
    let Some(id) = args.scope.id() else {
        return Err(Failure::Usage("say what: --provider NAME, --team NAME or --all".to_owned()));
    };
    let resumed = client.resume(&id).await?;
    if args.door.json {
        out::json(&resumed)?;
    } else {
        let was = if resumed["resumed"] == true { "goes on" } else { "was not paused" };
        out::say(&format!("{id} {was}"))?;
    }
    Ok(Ending::Fine)
}

async fn list(client: &Client, json: bool) -> Result<Ending, Failure> {
    let pauses = client.pauses().await?;
    if json {
        out::json(&pauses)?;
        return Ok(Ending::Fine);
    }
    let told = pauses["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    if told.is_empty() {
        out::say("nothing is paused")?;
    }
    for paused in told {
        out::say(&row(paused))?;
    }
    Ok(Ending::Fine)
}

fn row(paused: &Value) -> String {
    let text = |member: &str| out::clip(paused[member].as_str().unwrap_or("?"), 60);
    format!("{}  paused by {}  since {}", text("id"), text("by"), text("since"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: PauseArgs,
    }

    #[test]
    fn one_scope_at_a_time() {
        let id = |words: &str| Line::try_parse_from(words.split(' ')).map(|line| line.args.scope.id());
        for (words, expect) in [
            ("x", None),
            ("x --all", Some("all")),
            ("x --team evals", Some("team:evals")),
            ("x --provider a", Some("provider:a")),
        ] {
            assert_eq!(id(words).expect("good"), expect.map(str::to_owned), "{words}");
        }
        assert!(id("x --all --team evals").is_err() && id("x --team a --provider b").is_err());
    }
}
