//! Damage in Redis, done by hand, and what the reconciler makes of it: put right, and nothing bought twice. And, what
//! matters more: where nothing is wrong it finds nothing.

use crate::support::{
    Batch, Kind, World, check, claude, client::id, for_both, gpt, nothing_is_left_behind, settles, until,
};
use serde_json::json;
use std::collections::BTreeMap;

for_both!(
    a_busy_world_has_no_findings,
    damaged_queues_are_put_right,
    wrong_counters_are_put_right,
    a_page_nobody_would_seal_is_sealed,
    a_report_changes_nothing,
    a_lost_chunk_ends_with_its_batch,
    promises_to_nobody_are_taken_back,
);

const OFTEN: &[(&str, &str)] =
    &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms"), ("BATCHGATE_RECONCILE_EVERY", "200ms")];

pub(super) fn batch(name: &str) -> Batch {
    let both = |n: usize| [claude(&format!("{name} {n}")), gpt(&format!("{name} {n}"))];
    Batch::of((0..12).flat_map(both)).field("chunk", 4)
}

/// Findings or repairs of all gateways, by kind.
async fn told(world: &World, what: &str) -> BTreeMap<String, u64> {
    let mut told = BTreeMap::new();
    for gateway in &world.gateways {
        let page = gateway.client.get("/metrics").await;
        let name = format!("batchgate_reconciler_{what}_total{{kind=\"");
        for line in page.text.lines().filter_map(|line| line.strip_prefix(&name)) {
            let (kind, count) = line.split_once("\"} ").expect("a kind and a count");
            *told.entry(kind.to_owned()).or_default() += count.parse::<u64>().expect("a count");
        }
    }
    told
}

async fn passes(world: &World) -> u64 {
    let mut passes = 0;
    for gateway in &world.gateways {
        passes += gateway.client.metric("batchgate_reconciler_passes_total").await;
    }
    passes
}

async fn found(world: &World, kinds: &[&str]) {
    until(&format!("{kinds:?} to be found"), async || {
        let found = told(world, "findings").await;
        if kinds.iter().all(|kind| found.contains_key(*kind)) { Ok(()) } else { Err(found) }
    })
    .await;
}

async fn repaired(world: &World, kinds: &[&str]) {
    until(&format!("{kinds:?} to be put right"), async || {
        let repaired = told(world, "repairs").await;
        if kinds.iter().all(|kind| repaired.contains_key(*kind)) { Ok(()) } else { Err(repaired) }
    })
    .await;
}

fn hex(id: &str) -> &str {
    id.trim_start_matches("batch_")
}

/// Two gateways, provider errors, retries, a cancel, a back-off, and the reconciler ten times a second.
async fn a_busy_world_has_no_findings(kind: Kind) {
    let env = [OFTEN, &[("BATCHGATE_RECONCILE_EVERY", "100ms")]].concat();
    let mut world = World::with(kind, &env).await;
    world.start_gateway().await;
    world
        .sim
        .fault(json!({"match": {"route": "batches.create"}, "fault": {"status": 429, "retry_after": 1}, "times": 3}))
        .await;
    let canceled = Batch::of((0..8).map(|n| claude(&format!("canceled {n}")))).field("chunk", 1);
    let canceled = canceled.post(world.client()).await.accepted();
    let flaky = (0..6).map(|n| gpt(&format!("[[flaky:1]] busy {n}")));
    let steady = (0..12).flat_map(|n| [claude(&format!("busy {n}")), gpt(&format!("busy {n}"))]);
    let busy = Batch::of(flaky.chain(steady)).field("chunk", 3);
    let object = busy.post(world.client()).await.accepted();
    world.client().cancel(id(&canceled)).await.ok();
    world.client().ended(id(&object)).await;
    world.client().ended(id(&canceled)).await;
    let first = batch("after");
    check(&world, &first).await;
    assert!(passes(&world).await > 5, "it looked often");
    assert_eq!(told(&world, "findings").await, BTreeMap::new(), "nothing was wrong");
    assert_eq!(told(&world, "repairs").await, BTreeMap::new());
    nothing_is_left_behind(&world).await;
}

/// A gateway that is down while its batch runs at the providers: what is damaged meanwhile stays as it was damaged.
pub(super) async fn down(kind: Kind, batch: &Batch) -> (World, String) {
    let mut world = World::with(kind, OFTEN).await;
    world
        .sim
        .fault(
            json!({"match": {"route": "batches.create"}, "fault": {"settings": {"in_progress_s": 1000}}, "times": 0}),
        )
        .await;
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 6).await;
    killed(&mut world).await;
    (world, id(&object).to_owned())
}

/// Kills the gateway, and waits until Redis has done what the dead one still asked of it.
pub(super) async fn killed(world: &mut World) {
    world.kill_gateway();
    until("nobody else to be connected", async || {
        let clients: String = world.redis.command(&["CLIENT", "LIST"]).await;
        if clients.trim().lines().count() == 1 { Ok(()) } else { Err(clients) }
    })
    .await;
}

pub(super) async fn up(world: &mut World) {
    world.sim.clear_faults().await;
    world.sim.advance(2000.0).await;
    world.start_gateway().await;
}

/// Takes a chunk out of the queues, and says which lane it would be ready in.
pub(super) async fn take_out(world: &World, chunk: &str) -> String {
    for queue in ["delayed", "claimed"] {
        world.redis.command::<u64>(&["ZREM", &format!("{{default}}:{queue}"), chunk]).await;
    }
    world.redis.command(&["HGET", &format!("{{default}}:k:{chunk}"), "lane_id"]).await
}

async fn damaged_queues_are_put_right(kind: Kind) {
    let batch = batch("queues");
    let (mut world, id) = down(kind, &batch).await;
    let chunk = |n: usize| format!("{}.{n}", hex(&id));
    take_out(&world, &chunk(0)).await;
    // Ready, and then the lane's whole set is gone.
    let lane = take_out(&world, &chunk(1)).await;
    let ready = format!("{{default}}:ready:{lane}");
    world.redis.command::<u64>(&["ZADD", &ready, "1", &chunk(1)]).await;
    world.redis.command::<u64>(&["SADD", "{default}:lanes", &lane]).await;
    world.redis.command::<u64>(&["DEL", &ready]).await;
    // In the hands of a worker that died with the claim's entry, and of nobody.
    take_out(&world, &chunk(2)).await;
    world.redis.command::<String>(&["SET", &format!("{{default}}:k:{}:fence", chunk(2)), "somebody"]).await;
    // Ready, and nobody looks there.
    let lane = take_out(&world, &chunk(3)).await;
    world.redis.command::<u64>(&["ZADD", &format!("{{default}}:ready:{lane}"), "1", &chunk(3)]).await;
    world.redis.command::<u64>(&["SREM", "{default}:lanes", &lane]).await;
    // In two queues.
    world.redis.command::<u64>(&["ZADD", "{default}:delayed", "1", &chunk(4)]).await;
    world.redis.command::<u64>(&["ZADD", "{default}:claimed", "1", &chunk(4)]).await;
    world.redis.command::<u64>(&["DEL", "{default}:open"]).await;
    world.set("BATCHGATE_RECONCILE", "report");
    up(&mut world).await;
    found(&world, &["chunk_lost", "open_entry"]).await;
    killed(&mut world).await;
    world.set("BATCHGATE_RECONCILE", "repair");
    world.start_gateway().await;
    repaired(&world, &["chunk_lost", "open_entry"]).await;
    settles(&world, &batch, &id).await;
    nothing_is_left_behind(&world).await;
}

async fn wrong_counters_are_put_right(kind: Kind) {
    let batch = batch("counters");
    let (mut world, id) = down(kind, &batch).await;
    let name = format!("{{default}}:b:{}", hex(&id));
    for (field, value) in [("c_running", "9"), ("c_planned", "many"), ("c_settled", "-1"), ("w:rate_limited", "7")] {
        world.redis.command::<u64>(&["HSET", &name, field, value]).await;
    }
    world.redis.command::<u64>(&["HDEL", &name, "c_submitting"]).await;
    world.start_gateway().await; // nothing has happened at the providers
    repaired(&world, &["counter"]).await;
    until("the counts to be right", async || {
        let object = world.client().batch(&id).await;
        let right =
            object["chunks"]["running"] == 6 && object["chunks"]["planned"] == 0 && object["waiting"] == json!([]);
        if right && object["chunks"]["settled"] == 0 { Ok(()) } else { Err(object) }
    })
    .await;
    killed(&mut world).await;
    up(&mut world).await;
    settles(&world, &batch, &id).await;
    assert_eq!(world.client().metric("batchgate_conservation_violations_total").await, 0);
    nothing_is_left_behind(&world).await;
}

/// A thief takes the page out of the seal queue in the moment in which the commit puts it there.
async fn a_page_nobody_would_seal_is_sealed(kind: Kind) {
    let batch = Batch::of((0..6).map(|n| gpt(&format!("page {n}"))));
    let mut world = World::with(kind, OFTEN).await;
    world
        .sim
        .fault(
            json!({"match": {"route": "batches.create"}, "fault": {"settings": {"in_progress_s": 1000}}, "times": 0}),
        )
        .await;
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 1).await;
    let thief = {
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(world.redis.url()).expect("a URL");
        let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
        let mut connection = connection.expect("redis answers");
        tokio::spawn(async move {
            let mut take = redis::cmd("BZPOPMIN");
            take.arg("{default}:seal").arg(0);
            take.query_async::<(String, String, f64)>(&mut connection).await
        })
    };
    world.sim.clear_faults().await;
    world.sim.advance(2000.0).await;
    let (_, stolen, _) = thief.await.expect("a task").expect("redis answers");
    assert_eq!(stolen, format!("{}:0", hex(id(&object))));
    repaired(&world, &["page_lost"]).await;
    settles(&world, &batch, id(&object)).await;
    // And a batch whose pages are all sealed, and that did not end; and one that nobody would ever remove.
    let hex = hex(id(&object));
    let name = format!("{{default}}:b:{hex}");
    killed(&mut world).await;
    world.redis.command::<u64>(&["HDEL", &name, "ended", "deleted"]).await;
    world.redis.command::<u64>(&["ZADD", "{default}:open", "1", hex]).await;
    world.redis.command::<u64>(&["DEL", "{default}:chores"]).await;
    world.start_gateway().await;
    repaired(&world, &["not_ended", "chore_lost"]).await; // the second is that of the batch from the cache
    world.client().ended(id(&object)).await;
    nothing_is_left_behind(&world).await;
}

/// What is lost beyond repair is told: the outcomes do not add up, and the batch ends all the same.
#[tokio::test]
async fn outcomes_that_do_not_add_up_are_told() {
    let batch = batch("unequal");
    let (mut world, id) = down(Kind::Ours, &batch).await;
    let name = format!("{{default}}:b:{}", hex(&id));
    world.redis.command::<u64>(&["HINCRBY", &name, "failed", "1"]).await;
    world.start_gateway().await;
    found(&world, &["pending"]).await;
    killed(&mut world).await;
    up(&mut world).await;
    until("the batch to end", async || {
        let page = world.client().get("/metrics").await.text;
        if page.contains("batchgate_conservation_violations_total 1") { Ok(()) } else { Err(page) }
    })
    .await;
    let results = world.client().results(&id).await;
    crate::support::check::right(&batch, &results);
    assert!(world.gateways[0].process.said().contains("do not add up"));
}

async fn a_report_changes_nothing(kind: Kind) {
    let batch = batch("report");
    let (mut world, id) = down(kind, &batch).await;
    let chunk = format!("{}.0", hex(&id));
    take_out(&world, &chunk).await;
    world.redis.command::<u64>(&["HSET", &format!("{{default}}:b:{}", hex(&id)), "c_running", "9"]).await;
    world.set("BATCHGATE_RECONCILE", "report");
    world.start_gateway().await;
    found(&world, &["chunk_lost", "counter"]).await;
    let before = passes(&world).await;
    until("three more passes", async || {
        let now = passes(&world).await;
        if now >= before + 3 { Ok(()) } else { Err(now) }
    })
    .await;
    assert_eq!(told(&world, "repairs").await, BTreeMap::new());
    assert_eq!(world.client().batch(&id).await["chunks"]["running"], 9, "as it was found");
    let place: Option<String> = world.redis.command(&["ZSCORE", "{default}:delayed", &chunk]).await;
    assert_eq!(place, None, "as it was found");
    killed(&mut world).await;
    world.set("BATCHGATE_RECONCILE", "repair");
    // Nothing has happened at the providers: a batch that ended before the second look would keep its wrong counter.
    world.start_gateway().await;
    repaired(&world, &["chunk_lost", "counter"]).await;
    until("the counter to be right", async || {
        let object = world.client().batch(&id).await;
        if object["chunks"]["running"] == 6 { Ok(()) } else { Err(object) }
    })
    .await;
    world.sim.clear_faults().await;
    world.sim.advance(2000.0).await;
    settles(&world, &batch, &id).await;
    nothing_is_left_behind(&world).await;
}

/// More is promised in all than to any batch, and then less: what is promised is the sum of what open batches were.
async fn promises_to_nobody_are_taken_back(kind: Kind) {
    let batch = batch("promises");
    let (mut world, id) = down(kind, &batch).await;
    let name = format!("{{default}}:b:{}", hex(&id));
    let promised: String = world.redis.command(&["HGET", &name, "reserved"]).await;
    let all = async |world: &World| world.redis.command::<Option<String>>(&["GET", "{default}:reserved"]).await;
    assert_eq!(all(&world).await.as_deref(), Some(promised.as_str()));
    for wrong in ["999999999", "1", "many"] {
        world.redis.command::<String>(&["SET", "{default}:reserved", wrong]).await;
        world.start_gateway().await;
        repaired(&world, &["promises"]).await;
        assert_eq!(all(&world).await.as_deref(), Some(promised.as_str()), "{wrong}");
        killed(&mut world).await;
    }
    up(&mut world).await;
    settles(&world, &batch, &id).await;
    assert_eq!(all(&world).await, None, "nothing is promised any more");
    nothing_is_left_behind(&world).await;
}

/// A chunk whose record is gone: its prompts are never asked anew, for they may have been bought. They wait, with an alert,
/// until their team cancels the batch; the others have their answers.
async fn a_lost_chunk_ends_with_its_batch(kind: Kind) {
    let mut batch = Batch::of((0..12).map(|n| claude(&format!("lost {n}")))).field("chunk", 2);
    let (mut world, id) = down(kind, &batch).await;
    for n in [1, 4] {
        world.redis.command::<u64>(&["DEL", &format!("{{default}}:k:{}.{n}", hex(&id))]).await;
    }
    up(&mut world).await;
    found(&world, &["pending"]).await;
    until("the others to be answered", async || {
        let object = world.client().batch(&id).await;
        if object["counts"]["succeeded"] == 8 { Ok(()) } else { Err(object) }
    })
    .await;
    assert_eq!(world.client().batch(&id).await["status"], "running", "nobody gives up what was paid for");
    world.client().cancel(&id).await.ok();
    world.client().ended(&id).await;
    for n in [2, 3, 8, 9] {
        batch.prompts[n] = claude(&format!("lost {n}")).fails("canceled");
    }
    crate::support::check::answered(&world, &batch, &id).await;
    assert_eq!(world.client().metric("batchgate_conservation_violations_total").await, 0);
    assert_eq!(world.sim.calls("batches.create").await.len(), 6, "nothing was asked anew");
    world.redis.command::<u64>(&["DEL", "{default}:dead"]).await; // as an operator would
    nothing_is_left_behind(&world).await;
}
