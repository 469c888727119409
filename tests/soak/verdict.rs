//! What must hold once the chaos is over: every batch holds what it held when it ended; every question was paid for once;
//! the same prompts once more come from the cache alone; and nothing is left in Redis that should be gone.

use crate::{
    chaos::{CONCURRENCY, Chaos},
    clients::Sent,
    history::History,
    support::{
        Prompt, World, check,
        client::{count, id},
        leftovers::{nothing_is_left_behind, time_passes},
        local::LOCAL,
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

pub(crate) async fn judge(chaos: &Chaos, sent: Vec<Sent>, history: &History) {
    let (world, began) = (&chaos.world, Instant::now());
    for batch in &sent {
        ended_means_ended(world, batch, history).await;
    }
    bills(world, &sent, history).await;
    let before = check::paid(world).await;
    for batch in sent.iter().filter(|batch| !batch.canceled) {
        from_the_cache(world, batch, history).await;
    }
    assert_eq!(check::paid(world).await, before, "the second time nothing is bought");
    println!("  {} batches judged in {:.0} s", sent.len(), began.elapsed().as_secs_f64());
    time_passes(world, Duration::from_secs(11 * 60)).await;
    nothing_is_left_behind(world).await;
}

async fn ended_means_ended(world: &World, sent: &Sent, history: &History) {
    let object = world.client().batch(&sent.id).await;
    let results = world.client().results(&sent.id).await;
    let has = |status: &str| results.iter().filter(|result| result["status"] == status).count() as u64;
    let counted = ["succeeded", "failed", "canceled", "expired"].iter().all(|name| count(&object, name) == has(name));
    if results != sent.results || !counted || results.len() != sent.batch.prompts.len() {
        history.tell(&sent.label);
        panic!("{} ({}) changed after its end, or its counts are not its results': {object}", sent.label, sent.id);
    }
    for (prompt, result) in sent.batch.prompts.iter().zip(&results) {
        let right = result["status"] == "canceled" && sent.canceled
            || result["status"] == "succeeded" && prompt.succeeds() && answers(prompt, result)
            || result["status"] == "failed" && !prompt.succeeds();
        if !right {
            history.tell(&sent.label);
            panic!("{} ({}): {result} for {}", sent.label, sent.id, prompt.sent);
        }
    }
}

fn answers(prompt: &Prompt, result: &Value) -> bool {
    let completion = result["completion"].as_str().unwrap_or_default();
    completion.starts_with(&prompt.echo())
}

/// What a body may and must have cost: the most often one batch asked it, and the most often one batch was answered.
#[derive(Default)]
struct Due<'a> {
    least: u64,
    most: u64,
    online: bool,
    asked_by: Vec<&'a str>,
}

async fn bills(world: &World, sent: &[Sent], history: &History) {
    let mut due: BTreeMap<String, Due<'_>> = BTreeMap::new();
    for batch in sent {
        let mut own: BTreeMap<String, (u64, u64, bool)> = BTreeMap::new();
        for (prompt, result) in batch.batch.prompts.iter().zip(&batch.results).filter(|(prompt, _)| prompt.is_billed())
        {
            let entry = own.entry(prompt.sha()).or_default();
            entry.0 += u64::from(result["status"] == "succeeded");
            entry.1 += 1;
            entry.2 = prompt.body["model"] == LOCAL;
        }
        for (sha, (answered, asked, online)) in own {
            let entry = due.entry(sha).or_default();
            entry.least = entry.least.max(answered);
            entry.most = entry.most.max(asked);
            entry.online = online;
            entry.asked_by.push(&batch.label);
        }
    }
    let paid = check::paid(world).await;
    let mut excess = 0;
    for (sha, times) in &paid {
        let Some(due) = due.get(sha) else { panic!("an answer was paid that nobody asked for: {sha}") };
        let over = times.saturating_sub(due.most);
        if over > 0 && !due.online {
            due.asked_by.iter().for_each(|label| history.tell(label));
            who_made(world, sha).await;
            panic!("paid {times} times instead of {} at most: {sha}, asked by {:?}", due.most, due.asked_by);
        }
        excess += over;
    }
    for (sha, due) in &due {
        let times = paid.get(sha).copied().unwrap_or(0);
        if times < due.least {
            due.asked_by.iter().for_each(|label| history.tell(label));
            panic!("answered {} times and paid {times} times: {sha}, asked by {:?}", due.least, due.asked_by);
        }
    }
    history.count(|tally| tally.reasked += excess);
    let tally = history.tally();
    let disturbances = tally.kills + tally.stops + tally.redis_kills + tally.stalls;
    let most = CONCURRENCY * disturbances + 4 * tally.faults + tally.cuts;
    assert!(excess <= most, "{excess} online answers were paid twice, and at most {most} were in the air");
}

/// The provider batches that answered a body, the calls that made them, and what the gateways said of their chunks.
async fn who_made(world: &World, sha: &str) {
    let ledger = world.sim.ledger().await;
    let rows = |part: &str| ledger[part].as_array().cloned().unwrap_or_default();
    let mut remotes = Vec::new();
    for row in rows("billed").iter().filter(|row| row["sha"] == sha) {
        println!("  billed: {row}");
        rows("http").iter().filter(|call| call["made"] == row["batch"]).for_each(|call| println!("    made by {call}"));
        remotes.extend(row["batch"].as_str().map(str::to_owned));
    }
    let lines = logged(world);
    let chunk =
        |line: &Value| line["fields"]["chunk"].as_str().or(line["spans"][0]["chunk"].as_str()).map(str::to_owned);
    let of_these = |line: &&Value| remotes.iter().any(|remote| line["fields"]["remote"] == remote.as_str());
    let chunks: BTreeSet<String> = lines.iter().filter(of_these).filter_map(chunk).collect();
    for line in lines.iter().filter(|line| chunk(line).is_some_and(|chunk| chunks.contains(&chunk))) {
        println!("  {} {}", line["timestamp"], line["fields"]);
    }
}

/// What all gateways of this world have said, the dead ones too, in the order of time.
fn logged(world: &World) -> Vec<Value> {
    let files = std::fs::read_dir(world.dir.path()).expect("the world's directory").filter_map(Result::ok);
    let logs = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "log"));
    let text: String = logs.map(|log| std::fs::read_to_string(log).unwrap_or_default()).collect();
    let mut lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    lines.sort_by(|one, other| one["timestamp"].as_str().cmp(&other["timestamp"].as_str()));
    lines
}

/// The same prompts as a new batch: all known, and the same answers.
async fn from_the_cache(world: &World, sent: &Sent, history: &History) {
    let mut batch = sent.batch.clone();
    batch.prompts.retain(Prompt::succeeds);
    if batch.prompts.is_empty() {
        return;
    }
    let object = batch.post(world.client()).await.accepted();
    let object = world.client().ended(id(&object)).await;
    let results = world.client().results(id(&object)).await;
    let first =
        sent.results.iter().filter(|result| result["status"] == "succeeded").map(|result| &result["completion"]);
    let same = first.eq(results.iter().map(|result| &result["completion"]));
    if !same || object["counts"]["cached"] != json!(batch.prompts.len()) {
        history.tell(&sent.label);
        panic!("{} ({}) once more is not what it was: {object}", sent.label, sent.id);
    }
}
