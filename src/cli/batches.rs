//! `batchgate status`, `list` and `cancel`: looking at batches, and ending one.

use super::{
    Door,
    client::{Client, Listing},
    failure::{Ending, Failure},
    out::{self, note},
    progress::Batch,
    submit,
};
use serde_json::Value;

#[derive(clap::Args, Debug)]
pub(crate) struct StatusArgs {
    /// batch_...
    id: String,
    /// Stay, with a live progress bar, until it has ended
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    pub(crate) door: Door,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    /// At most so many (up to 100), newest first
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
    /// Those behind this batch
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Only those that are running, canceling or ended
    #[arg(long, value_parser = ["running", "canceling", "ended"])]
    status: Option<String>,
    /// Only those of this run (name or name~attempt, as they were sent)
    #[arg(long)]
    run: Option<String>,
    /// Only those with this label; may be repeated, then with all of them
    #[arg(long, value_name = "NAME=VALUE", value_parser = submit::label)]
    metadata: Vec<(String, String)>,
    /// Only those created then or later: 2026-11-30T09:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Those of another team; needs an admin's key
    #[arg(long, value_name = "NAME")]
    team: Option<String>,
    #[command(flatten)]
    pub(crate) door: Door,
}

#[derive(clap::Args, Debug)]
pub(crate) struct CancelArgs {
    /// batch_...
    id: String,
    #[command(flatten)]
    pub(crate) door: Door,
}

pub(crate) async fn status(client: &Client, args: StatusArgs) -> Result<Ending, Failure> {
    let mut object = client.batch(&args.id, None).await?;
    if args.wait {
        note(&Batch::read(&object)?.summary());
        object = submit::watch(client, object, None).await?;
    }
    let batch = show(&object, args.door.json)?;
    Ok(if batch.lacking() > 0 { Ending::Lacking } else { Ending::Fine })
}

pub(crate) async fn cancel(client: &Client, args: CancelArgs) -> Result<Ending, Failure> {
    show(&client.cancel(&args.id).await?, args.door.json)?;
    Ok(Ending::Fine)
}

pub(crate) async fn list(client: &Client, args: ListArgs) -> Result<Ending, Failure> {
    let ListArgs { limit, after, status, run, metadata, since, team, .. } = args;
    let page = client.list(&Listing { limit, after, status, run, since, team, metadata }).await?;
    if args.door.json {
        out::json(&page)?;
        return Ok(Ending::Fine);
    }
    for object in page["data"].as_array().into_iter().flatten() {
        out::say(&row(object)?)?;
    }
    if page["has_more"] == true {
        let last = page["last_id"].as_str().unwrap_or_default();
        note(&format!("more with: --after {}", out::clip(last, 60)));
    }
    Ok(Ending::Fine)
}

fn show(object: &Value, json: bool) -> Result<Batch, Failure> {
    let batch = Batch::read(object)?;
    if json {
        out::json(object)?;
    } else {
        let chunks =
            if batch.has_ended() { String::new() } else { format!("\n{:>3}%  {}", batch.percent(), batch.state()) };
        out::say(&format!("{}\n{}\n{}{chunks}", out::inert(&batch.id), batch.summary(), batch.outcome()))?;
    }
    Ok(batch)
}

/// `batch_0198...  2026-11-30T09:00:00Z  running: 62,000 succeeded ...`
fn row(object: &Value) -> Result<String, Failure> {
    let batch = Batch::read(object)?;
    Ok(format!("{}  {}  {}", out::clip(&batch.id, 60), out::clip(&batch.created_at, 30), batch.outcome()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_one_line_whatever_the_server_says() {
        let object = json!({"id": "batch_1\nbatch_2", "created_at": "2026-11-30T09:00:00Z", "status": "ended",
                            "counts": {"total": 1, "succeeded": 1}});
        assert_eq!(row(&object).expect("a row"), "batch_1\\u000abatch_2  2026-11-30T09:00:00Z  ended: 1 succeeded");
    }
}
