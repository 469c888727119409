//! The batch calls. A create is spooled to disk and read from there before it is answered.

use std::{path::Path, sync::Arc};

use futures_util::StreamExt;
use http::header;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{intake::Intake, life::AnthropicBatch, wire};
use crate::sim::{
    batch::Batch,
    calls::{Call, hung_up},
    delivery::Outgoing,
    problem::{Problem, Provider, Trouble},
    settings::Own,
};

pub(crate) async fn create(call: &mut Call) -> Result<Outgoing, Problem> {
    let version = wire::version(call)?;
    let body = call.sim.spool.fresh();
    let max_bytes = call.sim.world().settings.anthropic.max_body_bytes;
    if receive(call, &body, max_bytes).await? > max_bytes {
        return Err(Problem::of(Provider::Anthropic, Trouble::TooLarge));
    }
    let own = {
        let world = call.sim.world();
        Own::new(&world.settings.common, &world.settings.anthropic, &call.fault.settings)
            .map_err(|error| Problem::invalid(format!("fault settings: {error}")))?
    };
    let intake = Intake { own: Arc::new(own), version };
    let (reader, from, to) = (intake.clone(), body.clone(), call.sim.spool.fresh());
    let requests = call.sim.blocking(move || reader.read(&from, to)).await?;
    tokio::fs::remove_file(&body).await?; // its requests have been copied
    let batch = AnthropicBatch::new(call.birth(), intake, requests);
    check_queue(call, batch.life.size())?;
    call.made(&batch.life.id);
    let rendered = batch.render(call.now(), &origin(call));
    call.sim.world().add_batch(Batch::Anthropic(Box::new(batch)));
    Ok(Outgoing::json(200, &rendered))
}

/// Put the body to `path`, and say how long it is; what is over the limit is counted but not kept.
async fn receive(call: &mut Call, path: &Path, max_bytes: u64) -> Result<u64, Problem> {
    let mut file = tokio::io::BufWriter::with_capacity(1 << 18, tokio::fs::File::create(path).await?);
    let mut body = std::mem::take(&mut call.body).into_data_stream();
    let mut size = 0;
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(|_| hung_up())?;
        size += bytes.len() as u64;
        if size <= max_bytes {
            file.write_all(&bytes).await?;
        }
    }
    file.flush().await?;
    Ok(size)
}

/// All requests of an account that wait together have a limit.
fn check_queue(call: &Call, more: usize) -> Result<(), Problem> {
    let now = call.now();
    let mut world = call.sim.world();
    let Some(limit) = world.settings.anthropic.max_queued_requests else { return Ok(()) };
    world.settle_all(now);
    let waiting = world.batches().filter_map(|batch| match batch {
        Batch::Anthropic(batch) if batch.life.account == call.account && batch.ended.is_none() => {
            Some(batch.life.size())
        }
        Batch::Anthropic(_) | Batch::OpenAi(_) => None,
    });
    if waiting.sum::<usize>() + more > limit {
        return Err(Problem::of(Provider::Anthropic, Trouble::RateLimit).header("retry-after", "60"));
    }
    Ok(())
}

/// Scheme and host as the caller wrote them, for absolute links.
fn origin(call: &Call) -> String {
    let host = call.parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    format!("http://{host}")
}

#[derive(Deserialize)]
struct Paging {
    limit: Option<String>,
    after_id: Option<String>,
    before_id: Option<String>,
}

pub(crate) fn list(call: &mut Call) -> Result<Outgoing, Problem> {
    let paging: Paging = call.query()?;
    let (now, origin) = (call.now(), origin(call));
    let mut world = call.sim.world();
    let batches = world.list_batches(Provider::Anthropic, &call.account, now);
    let (page, more) = page(batches, |batch| &batch.life().id, &paging)?;
    let data: Vec<_> = page
        .into_iter()
        .filter_map(|batch| match batch {
            Batch::Anthropic(batch) => Some(batch.render(now, &origin)),
            Batch::OpenAi(_) => None,
        })
        .collect();
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(Outgoing::json(
        200,
        &json!({
            "data": data, "has_more": more, "first_id": id(data.first()), "last_id": id(data.last()),
        }),
    ))
}

/// One page of `items`, which are newest first, and whether there are more on its far side.
fn page<T>(mut items: Vec<T>, id: impl Fn(&T) -> &str, paging: &Paging) -> Result<(Vec<T>, bool), Problem> {
    let given = paging.limit.as_deref().unwrap_or("20");
    let limit = match given.parse::<i64>() {
        Err(_) => Err("a valid integer"),
        Ok(limit) if limit < 1 => Err("greater than or equal to 1"),
        Ok(limit) if limit > 1000 => Err("less than or equal to 1000"),
        Ok(limit) => Ok(usize::try_from(limit).unwrap_or(1)),
    };
    let limit = limit.map_err(|want| Problem::invalid(format!("limit: Input should be {want}")))?;
    let place = |name: &str, wanted: &str| {
        let place = items.iter().position(|item| id(item) == wanted);
        place.ok_or_else(|| Problem::invalid(format!("{name}: no such message batch")))
    };
    match (paging.after_id.as_deref(), paging.before_id.as_deref()) {
        (Some(_), Some(_)) => Err(Problem::invalid("after_id and before_id cannot both be given")),
        (Some(after), None) => {
            let mut rest = items.split_off(place("after_id", after)? + 1);
            let more = rest.len() > limit;
            rest.truncate(limit);
            Ok((rest, more))
        }
        (None, Some(before)) => {
            items.truncate(place("before_id", before)?);
            let start = items.len().saturating_sub(limit);
            Ok((items.split_off(start), start > 0))
        }
        (None, None) => {
            let more = items.len() > limit;
            items.truncate(limit);
            Ok((items, more))
        }
    }
}

/// The batch that the path names.
fn with<T>(call: &Call, work: impl FnOnce(&mut AnthropicBatch, f64) -> Result<T, Problem>) -> Result<T, Problem> {
    let now = call.now();
    match call.sim.world().find_batch(call.seeker(now)) {
        Some(Batch::Anthropic(batch)) => work(batch, now),
        Some(Batch::OpenAi(_)) | None => Err(Problem::of(Provider::Anthropic, Trouble::NotFound)),
    }
}

pub(crate) fn get(call: &mut Call) -> Result<Outgoing, Problem> {
    let rendered = with(call, |batch, now| Ok(batch.render(now, &origin(call))))?;
    Ok(Outgoing::json(200, &rendered))
}

pub(crate) fn cancel(call: &mut Call) -> Result<Outgoing, Problem> {
    let now = call.now();
    let mut world = call.sim.world();
    let rendered = world.with_batch(call.seeker(now), |batch, world| match batch {
        Batch::Anthropic(batch) => {
            Some(batch.cancel(now, &mut world.ledger).map(|()| batch.render(now, &origin(call))))
        }
        Batch::OpenAi(_) => None,
    });
    let rendered = rendered.flatten().ok_or_else(|| Problem::of(Provider::Anthropic, Trouble::NotFound))??;
    Ok(Outgoing::json(200, &rendered))
}

pub(crate) fn delete(call: &mut Call) -> Result<Outgoing, Problem> {
    with(call, |batch, _| batch.delete())?;
    Ok(Outgoing::json(200, &json!({"id": call.id, "type": "message_batch_deleted"})))
}

pub(crate) async fn results(call: &mut Call) -> Result<Outgoing, Problem> {
    let results = with(call, |batch, now| batch.results(now))?;
    let path = results.path(&call.sim).await?;
    let ranges = call.sim.world().settings.common.content_ranges;
    Ok(Outgoing::file(path, "application/x-jsonl", results.framing(), ranges).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_both_ways() {
        let check = |limit: &str, after: Option<&str>, before: Option<&str>, expected: Option<(&[&str], bool)>| {
            let text = |given: Option<&str>| given.map(str::to_owned);
            let paging = Paging { limit: text(Some(limit)), after_id: text(after), before_id: text(before) };
            let got = page(vec!["d", "c", "b", "a"], |item| item, &paging).ok();
            assert_eq!(got, expected.map(|(items, more)| (items.to_vec(), more)));
        };
        check("2", None, None, Some((&["d", "c"], true)));
        check("2", Some("c"), None, Some((&["b", "a"], false)));
        check("1", Some("c"), None, Some((&["b"], true)));
        check("2", None, Some("a"), Some((&["c", "b"], true)));
        check("5", None, Some("b"), Some((&["d", "c"], false)));
        check("2", Some("c"), Some("b"), None);
        check("2", Some("z"), None, None);
        check("1001", None, None, None);
        check("x", None, None, None);
    }
}
