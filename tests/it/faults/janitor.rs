//! What was paid for and nobody reads: a Redis that lost everything, batches whose patience was over, creates whose answer
//! never came. The janitor brings their answers into the cache, and touches nothing of anybody else.

use super::deadlines::pass_deadline;
use crate::support::{
    Batch, Kind, World, check,
    check::{again, answered, check_once, paid},
    client::{count, id},
    for_both, mixed, nothing_is_left_behind, until,
};
use serde_json::{Value, json};

for_both!(
    redis_that_forgot_all_gets_what_was_paid_for,
    redis_killed_and_started_empty_gets_what_was_paid_for,
    what_is_asked_again_meanwhile_is_counted,
    answers_after_the_patience_are_in_the_cache,
    a_create_whose_answer_was_lost_for_good_is_found_by_its_tag,
    another_deployments_batches_are_left_alone,
    what_may_not_be_kept_is_not_kept,
    a_short_download_is_read_again_and_nothing_is_done_before,
    what_a_worker_reads_is_read_once,
    a_provider_that_wants_to_be_left_alone_is,
);

/// Six prompts for each provider, in two chunks each.
const PROMPTS: usize = 6;
const CHUNKS: u64 = 4;
const ANSWERS: u64 = 12;

async fn world(kind: Kind) -> World {
    World::with(kind, &[("BATCHGATE_JANITOR", "300ms"), ("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await
}

pub(super) fn batch(name: &str) -> Batch {
    Batch::of(mixed(name, PROMPTS)).field("chunk", 3)
}

/// Sends a batch whose provider batches take long, and waits until they run.
pub(super) async fn running(world: &World, batch: &Batch) -> String {
    world.sim.take(1_000.0).await;
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), CHUNKS).await;
    world.sim.take(0.1).await;
    id(&object).to_owned()
}

/// Keys of Redis of this kind.
async fn keys(world: &World, kind: &str) -> u64 {
    let prefix = format!("{{default}}:{kind}:");
    world.redis.keys().await.keys().filter(|key| key.starts_with(&prefix)).count() as u64
}

async fn until_there_are(world: &World, kind: &str, wanted: u64) {
    until(&format!("{wanted} keys {kind}:"), async || {
        let found = keys(world, kind).await;
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await;
}

async fn calls(world: &World, route: &str) -> usize {
    world.sim.calls(route).await.len()
}

/// So many more looks at both providers' lists.
async fn passes(world: &World, more: usize) {
    let before = calls(world, "batches.list").await;
    until("the janitor to look again", async || {
        let seen = calls(world, "batches.list").await;
        if seen >= before + 2 * more { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// Every paid answer is in the cache, and asking again buys nothing.
pub(super) async fn all_is_kept(world: &World, batch: &Batch) {
    until_there_are(world, "c", ANSWERS).await;
    let creates = calls(world, "batches.create").await;
    let told = check(world, batch).await;
    assert_eq!(count(&told.object, "cached"), ANSWERS, "{}", told.object);
    assert_eq!(calls(world, "batches.create").await, creates, "nothing is asked again");
    assert_eq!(paid(world).await, batch.bill(), "every question was paid once");
    nothing_is_left_behind(world).await;
}

async fn redis_that_forgot_all_gets_what_was_paid_for(kind: Kind) {
    let world = world(kind).await;
    let batch = batch("forgot");
    let id = running(&world, &batch).await;
    world.redis.command::<()>(&["FLUSHALL"]).await;
    world.client().get(&format!("/batches/{id}")).await.refused(404, "not_found");
    world.sim.advance(1_100.0).await;
    all_is_kept(&world, &batch).await;
}

async fn redis_killed_and_started_empty_gets_what_was_paid_for(kind: Kind) {
    let mut world = world(kind).await;
    let batch = batch("empty");
    let id = running(&world, &batch).await;
    world.redis.restart_empty().await;
    world.sim.advance(1_100.0).await;
    until("the batch to be unknown", async || {
        let reply = world.client().get(&format!("/batches/{id}")).await;
        if reply.status == 404 { Ok(()) } else { Err(reply.text) }
    })
    .await;
    all_is_kept(&world, &batch).await;
}

async fn what_is_asked_again_meanwhile_is_counted(kind: Kind) {
    let world = world(kind).await;
    let batch = batch("meanwhile");
    running(&world, &batch).await;
    world.redis.command::<()>(&["FLUSHALL"]).await;
    let told = check_once(&world, &batch).await;
    assert_eq!(count(&told.object, "cached"), 0, "nobody could know: {}", told.object);
    world.sim.advance(1_100.0).await;
    // The four that were lost are read for nothing: the first answers stay.
    until_there_are(&world, "j", 2 * CHUNKS).await;
    let twice = batch.bill().into_iter().map(|(sha, times)| (sha, 2 * times)).collect();
    assert_eq!(paid(&world).await, twice, "the ledger knows what it cost");
    again(&world, &batch, &told).await;
    nothing_is_left_behind(&world).await;
}

async fn answers_after_the_patience_are_in_the_cache(kind: Kind) {
    let world = world(kind).await;
    let batch = batch("late");
    let id = running(&world, &batch).await;
    pass_deadline(&world, 31).await;
    let ended = world.client().ended(&id).await;
    assert_eq!(count(&ended, "expired"), ANSWERS, "{ended}");
    let told = world.client().results(&id).await;
    world.sim.advance(1_100.0).await;
    all_is_kept(&world, &batch).await;
    assert_eq!(world.client().results(&id).await, told, "ended means ended");
}

async fn a_create_whose_answer_was_lost_for_good_is_found_by_its_tag(kind: Kind) {
    let env = [("BATCHGATE_JANITOR", "300ms"), ("BATCHGATE_POLL_MAX", "60s")];
    let world = World::with(kind, &env).await;
    let lost = json!({"reset": "after", "list_hidden_s": 500});
    for provider in ["anthropic", "openai"] {
        world.sim.fault(json!({"match": {"route": "batches.create", "provider": provider}, "fault": lost})).await;
    }
    let batch = Batch::of(mixed("lost", PROMPTS));
    let object = batch.post(world.client()).await.accepted();
    until("both chunks to be in doubt", async || {
        let object = world.client().batch(id(&object)).await;
        if object["waiting"][0]["prompts"] == ANSWERS { Ok(()) } else { Err(object) }
    })
    .await;
    // A chunk in a worker's hands at this moment comes back after the pause of its doubt: it is moved once more then.
    let ended = until("the batch to be given up", async || {
        pass_deadline(&world, 31).await;
        let object = world.client().batch(id(&object)).await;
        if object["status"] == "ended" { Ok(object) } else { Err(object) }
    })
    .await;
    assert_eq!(count(&ended, "expired"), ANSWERS, "{ended}");
    world.sim.advance(600.0).await;
    all_is_kept(&world, &batch).await;
}

async fn another_deployments_batches_are_left_alone(kind: Kind) {
    let world = world(kind).await;
    let (anthropic, openai) = (world.sim.anthropic(), world.sim.openai());
    let env = [("BATCHGATE_DEPLOYMENT", "other"), ("ANTHROPIC_BASE_URL", &*anthropic), ("OPENAI_BASE_URL", &*openai)];
    let mut other = World::with(kind, &env).await;
    let batch = batch("others");
    world.sim.take(1_000.0).await;
    let object = batch.post(other.client()).await.accepted();
    other.running(id(&object), CHUNKS).await;
    world.sim.take(0.1).await;
    other.kill_gateway();
    world.sim.advance(1_100.0).await;
    // Anthropic's have no label: one line of each is read, once.
    until_there_are(&world, "j", 2).await;
    passes(&world, 4).await;
    assert_eq!((calls(&world, "batches.results").await, calls(&world, "files.content").await), (2, 0));
    assert_eq!(keys(&world, "c").await, 0, "their answers are not ours");
    let asked = check_once(&world, &batch).await;
    assert_eq!(count(&asked.object, "cached"), 0, "{}", asked.object);
    for route in ["batches.cancel", "batches.delete"] {
        assert_eq!(calls(&world, route).await, 0, "{route}");
    }
    other.start_gateway().await;
    answered(&other, &batch, id(&object)).await;
}

async fn what_may_not_be_kept_is_not_kept(kind: Kind) {
    let world = world(kind).await;
    running(&world, &batch("off").field("cache", "off")).await;
    world.redis.command::<()>(&["FLUSHALL"]).await;
    world.sim.advance(1_100.0).await;
    until_there_are(&world, "j", CHUNKS).await;
    assert_eq!(keys(&world, "c").await, 0, "mode off leaves nothing in the cache");
    nothing_is_left_behind(&world).await;
}

async fn a_short_download_is_read_again_and_nothing_is_done_before(kind: Kind) {
    let world = world(kind).await;
    let batch = batch("short");
    running(&world, &batch).await;
    world.redis.command::<()>(&["FLUSHALL"]).await;
    for framing in ["length", "close"] {
        world.sim.clear_faults().await;
        let cut = json!({"truncate": {"fraction": 0.6, "framing": framing, "at_line_end": true}});
        for route in ["batches.results", "files.content"] {
            world.sim.fault(json!({"match": {"route": route}, "fault": cut, "times": 0})).await;
        }
        world.sim.advance(1_100.0).await;
        let before = (calls(&world, "batches.results").await, calls(&world, "files.content").await);
        until("every kind of results to be tried several times", async || {
            let tried = (calls(&world, "batches.results").await, calls(&world, "files.content").await);
            if tried.0 >= before.0 + 4 && tried.1 >= before.1 + 4 { Ok(()) } else { Err(tried) }
        })
        .await;
        assert_eq!(keys(&world, "j").await, 0, "{framing}: half a download is not done with");
    }
    world.sim.clear_faults().await;
    all_is_kept(&world, &batch).await;
}

async fn what_a_worker_reads_is_read_once(kind: Kind) {
    let env = [("BATCHGATE_JANITOR", "50ms")];
    let world = World::with(kind, &env).await;
    let slow = json!({"trickle": {"bytes": 500, "every": 0.2}});
    for route in ["batches.results", "files.content"] {
        world.sim.fault(json!({"match": {"route": route}, "fault": slow, "times": 0})).await;
    }
    check(&world, &batch("once")).await;
    passes(&world, 3).await;
    let downloads = calls(&world, "batches.results").await + calls(&world, "files.content").await;
    assert_eq!(downloads as u64, CHUNKS, "each is read once");
}

async fn a_provider_that_wants_to_be_left_alone_is(kind: Kind) {
    let world = world(kind).await;
    for provider in ["anthropic", "openai"] {
        let busy = json!({"status": 429, "retry_after": 2});
        world.sim.fault(json!({"match": {"route": "batches.list", "provider": provider}, "fault": busy})).await;
    }
    passes(&world, 4).await;
    for provider in ["anthropic", "openai"] {
        let listed = world.sim.calls("batches.list").await;
        let listed: Vec<&Value> = listed.iter().filter(|call| call["provider"] == provider).collect();
        let refused = listed.iter().position(|call| call["status"] == 429).expect("one was refused");
        let times: Vec<f64> = listed[refused..].iter().filter_map(|call| call["time"].as_f64()).collect();
        assert!(times.len() >= 2 && times[1] - times[0] >= 1.9, "{provider}: {times:?}");
    }
    check(&world, &batch("after")).await;
}
