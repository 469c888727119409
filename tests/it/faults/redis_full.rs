//! Redis at its memory limit: nothing new is taken, nothing is half written, and what was harvested waits.

use crate::support::{
    Batch, Kind, Prompt, World, check,
    check::{answered, check_once, paid},
    claude,
    client::{JSON, Reply, id},
    for_both, gpt, nothing_is_left_behind, settles, until,
};
use reqwest::Method;
use serde_json::json;

for_both!(
    a_full_redis_takes_nothing_and_loses_nothing,
    redis_fills_up_while_results_are_read,
    room_is_promised_and_given_back,
    the_cache_gives_way_before_a_batch_is_refused,
    promises_take_half_of_the_cache_at_most,
    no_body_takes_what_is_promised,
    a_chunk_waits_at_its_provider_for_room,
);

fn batch() -> Batch {
    Batch::of((0..8).flat_map(|n| [claude(&format!("a {n}")), gpt(&format!("b {n}"))])).field("chunk", 4)
}

async fn limit(world: &World, memory: &str) {
    world.redis.command::<String>(&["CONFIG", "SET", "maxmemory", memory]).await;
}

/// The gateway says what is the matter, and goes on.
async fn noticed(world: &World) {
    until("the gateway to say that Redis is full", async || {
        let said = world.gateways[0].process.said();
        if said.contains("OOM") || said.contains("maxmemory") { Ok(()) } else { Err("not a word of it") }
    })
    .await;
}

async fn refused(world: &World) {
    let before = world.redis.keys().await;
    // One that needs little, one whose pages are refused on the way in, and a keyed one whose lock is.
    let many = Batch::of((0..1_200).map(|n| claude(&format!("not now {n}"))));
    for batch in [Batch::of([claude("not now")]), many.clone(), many.ndjson()] {
        no_room(&batch.post(world.client()).await);
    }
    let (kind, body) = batch().body();
    let keyed = world.client().request(Method::POST, "/batches").header("idempotency-key", "k");
    no_room(&world.client().send(keyed.header("content-type", kind).body(body)).await);
    let after = world.redis.keys().await;
    let new: Vec<&String> = after.keys().filter(|key| !before.contains_key(*key)).collect();
    assert!(!new.iter().any(|key| key.contains(":b:") || key.contains(":u:") || key.contains(":i:")), "{new:?}");
}

/// 429 with what it would have needed, what there is, and when to come again.
fn no_room(reply: &Reply) {
    reply.refused(429, "storage_full");
    assert!(!reply.header("retry-after").is_empty(), "{}", reply.text);
    if let Some(storage) = reply.json().get("storage") {
        assert!(storage["max"].as_u64() > Some(0), "{storage}");
        assert!(storage["needed"].as_u64() > storage["free"].as_u64() || storage["free"] == 0, "{storage}");
    }
}

/// What is promised: the sum of all batches, or nothing.
async fn promised(world: &World) -> u64 {
    world.redis.command::<Option<u64>>(&["GET", "{default}:reserved"]).await.unwrap_or(0)
}

async fn a_full_redis_takes_nothing_and_loses_nothing(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    let object = batch().post(world.client()).await.accepted();
    until("all to run", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["running"] == 4 { Ok(()) } else { Err(object) }
    })
    .await;
    limit(&world, "1mb").await;
    world.sim.advance(1_100.0).await;
    noticed(&world).await;
    refused(&world).await;
    assert_eq!(world.client().batch(id(&object)).await["status"], "running", "reads go on");
    limit(&world, "0").await;
    settles(&world, &batch(), id(&object)).await;
    nothing_is_left_behind(&world).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 0.1}})).await;
    check(&world, &Batch::of([claude("not now")])).await;
}

async fn redis_fills_up_while_results_are_read(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    for route in ["files.content", "batches.results"] {
        let slow = json!({"trickle": {"bytes": 400, "every": 0.2}});
        world.sim.fault(json!({"match": {"route": route}, "fault": slow, "times": 0})).await;
    }
    let object = batch().post(world.client()).await.accepted();
    until("all results to be on their way", async || {
        let (files, results) = (world.sim.calls("files.content").await, world.sim.calls("batches.results").await);
        if files.len() >= 2 && results.len() >= 2 { Ok(()) } else { Err((files, results)) }
    })
    .await;
    limit(&world, "1mb").await;
    noticed(&world).await;
    world.sim.clear_faults().await;
    limit(&world, "0").await;
    settles(&world, &batch(), id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4);
    if kind == Kind::Ours {
        nothing_is_left_behind(&world).await; // takes a minute: what failed for lack of memory is leased so long
    }
}

async fn room_is_promised_and_given_back(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    world.sim.take(1_000.0).await;
    // What fails once is asked again under a new chunk: the promise goes with it.
    let batch = Batch::of(batch().prompts.into_iter().chain([gpt("[[flaky:1]] once")])).field("chunk", 4);
    // Before it is sent: what is in flight would be joined, and its answers enter the cache for others.
    let forecast = world.client().post("/batches?dry_run=true", "application/json", batch.body().1).await.ok();
    let told = forecast["storage_bytes"].as_u64().expect("a number");
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 5).await;
    let needed = promised(&world).await;
    assert!(needed > 10_000, "room for 17 answers: {needed}");
    assert!(needed <= told && told < needed + 100, "one estimate: promised {needed}, foretold {told}");
    // So little is left that the next one does not fit, though Redis is far from full.
    let most = (world.redis.figure("used_memory").await + 2 * needed) * 10 / 9;
    limit(&world, &most.to_string()).await;
    let large = Batch::of((0..400).map(|n| gpt(&format!("too many {n}"))));
    no_room(&large.post(world.client()).await);
    assert_eq!(promised(&world).await, needed, "what is refused is promised nothing");
    limit(&world, "0").await;
    world.sim.advance(1_100.0).await;
    world.sim.take(0.1).await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(promised(&world).await, 0);
    nothing_is_left_behind(&world).await;
    check(&world, &large).await;
    assert_eq!(promised(&world).await, 0);
}

async fn the_cache_gives_way_before_a_batch_is_refused(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_CACHE_MAX", "1%")]).await;
    let entries = async || world.redis.keys().await.keys().filter(|key| key.starts_with("{default}:c:")).count();
    let old = Batch::of((0..600).map(|n| claude(&format!("old {n}"))));
    check(&world, &old).await;
    assert_eq!(entries().await, 600);
    let new = Batch::of((0..200).map(|n| claude(&format!("new {n}"))));
    // Room for the new ones is less than they are taken to need, and the old ones take more than that.
    let limit_at = (world.redis.figure("used_memory").await + 20_000) * 10 / 9;
    limit(&world, &limit_at.to_string()).await;
    let object = until("the cache to give way to the new batch", async || {
        let reply = new.post(world.client()).await;
        if reply.status == 202 { Ok(reply.accepted()) } else { Err(reply.text) }
    })
    .await;
    limit(&world, "0").await;
    let kept = entries().await;
    assert!((1..600).contains(&kept), "{kept} of 600 old answers stayed, and what was needed went");
    world.client().ended(id(&object)).await;
    check_once(&world, &new).await;
    let bought: u64 = paid(&world).await.values().sum();
    assert_eq!(bought, 800);
    // The clock's job does the same for BATCHGATE_CACHE_MAX: a hundredth of 20 MB.
    limit(&world, "20mb").await;
    until("the cache to keep within its bound", async || {
        let kept = entries().await;
        if kept < 400 { Ok(()) } else { Err(kept) }
    })
    .await;
    limit(&world, "0").await;
    check_once(&world, &old).await; // what went is bought again, and right
}

/// Text that packs to half of its length.
fn noise(length: usize) -> String {
    (0..length / 32).map(|_| format!("{:032x}", rand::random::<u128>())).collect()
}

/// A promise is to be had for a few bytes, and need not be kept: what all teams have paid for must not go for it.
async fn promises_take_half_of_the_cache_at_most(kind: Kind) {
    const MIB: u64 = 1 << 20;
    let world = World::with(kind, &[("BATCHGATE_CACHE_MAX", "1MiB")]).await;
    let entries = async || -> Vec<String> {
        world.redis.keys().await.into_keys().filter(|key| key.starts_with("{default}:c:")).collect()
    };
    let paid_for = Batch::of((0..600).map(|n| claude(&format!("{n} {}", noise(3_200)))));
    check_once(&world, &paid_for).await;
    let each: u64 = world.redis.command(&["MEMORY", "USAGE", &entries().await[0]]).await;
    assert!(600 * each > MIB, "there is more than the cache may take: {each} bytes each");
    // What no model gives is not promised.
    let inputs = vec!["a"; 2_048];
    for dimensions in [4_096, u64::MAX] {
        let body = json!({"model": "text-embedding-3-small", "input": inputs, "dimensions": dimensions});
        let one = Prompt::new(json!({"endpoint": "/v1/embeddings", "body": body}), body);
        let forecast = world.client().post("/batches?dry_run=true", JSON, Batch::of([one]).body().1).await.ok();
        assert_eq!(forecast["storage_bytes"], 80 * MIB + 500, "{dimensions} dimensions: {forecast}");
    }
    world.sim.take(1_000.0).await;
    let most = (world.redis.figure("used_memory").await + 20_000) * 10 / 9;
    limit(&world, &most.to_string()).await;
    let mut promised_to = Vec::new();
    let mut refusals = 0;
    for n in 0..60 {
        let cheap = Batch::of([claude(&format!("cheap {n}"))]).field("samples", 25);
        let reply = cheap.post(world.client()).await;
        if reply.status == 202 {
            promised_to.push((id(&reply.accepted()).to_owned(), cheap));
        } else {
            no_room(&reply);
            refusals += 1;
        }
    }
    let gone = world.client().metric("batchgate_cache_removed_total{reason=\"reserve\"}").await;
    assert!(gone > 0 && promised_to.len() > 2, "some of the cache gave way: {gone} to {}", promised_to.len());
    assert!(refusals > 20, "and no more however often it is asked: {refusals} refusals");
    // A look at the cache's size may err by some per cent.
    let kept = entries().await.len() as u64 * each;
    assert!(kept > MIB / 2 * 8 / 10, "{kept} bytes of the cache are kept");
    limit(&world, "0").await;
    world.sim.advance(1_100.0).await;
    world.sim.take(0.1).await;
    for (id, cheap) in &promised_to {
        answered(&world, cheap, id).await;
    }
    check_once(&world, &paid_for).await;
}

/// A body lies in Redis before it is a batch, and that of a dry run, too: not where a harvest was promised to find room.
async fn no_body_takes_what_is_promised(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    world.sim.take(1_000.0).await;
    let object = batch().post(world.client()).await.accepted();
    world.running(id(&object), 4).await;
    let most = (world.redis.figure("used_memory").await + (10 << 20)) * 10 / 9;
    limit(&world, &most.to_string()).await;
    let before = world.redis.keys().await;
    let large = Batch::of((0..1_100).map(|_| claude(&noise(20_000))));
    for (path, large) in
        [("/batches", &large), ("/batches?dry_run=true", &large), ("/batches", &large.clone().ndjson())]
    {
        let (kind, body) = large.body();
        no_room(&world.client().post(path, kind, body).await);
        let peak = world.redis.figure("used_memory_peak").await;
        assert!(peak < most, "{path} {kind}: {peak} of {most} bytes were used");
    }
    // Nothing of this one has to be kept.
    let (kind, body) = large.clone().ndjson().body();
    let forecast = world.client().post("/batches?dry_run=true", kind, body).await.ok();
    assert_eq!(forecast["total"], 1_100, "{forecast}");
    let after = world.redis.keys().await;
    let new: Vec<&String> = after.keys().filter(|key| !before.contains_key(*key)).collect();
    assert!(!new.iter().any(|key| key.contains(":b:") || key.contains(":u:") || key.contains(":m:")), "{new:?}");
    // What was promised is there, with Redis as small as before.
    world.sim.advance(1_100.0).await;
    world.sim.take(0.1).await;
    settles(&world, &batch(), id(&object)).await;
    assert!(!world.gateways[0].process.said().contains("OOM"), "redis never had to refuse anything");
    nothing_is_left_behind(&world).await;
}

async fn a_chunk_waits_at_its_provider_for_room(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_LEASE", "500ms"), ("BATCHGATE_STALL", "250ms")]).await;
    world.sim.take(1_000.0).await;
    let object = batch().post(world.client()).await.accepted();
    world.running(id(&object), 4).await;
    limit(&world, "1mb").await;
    world.sim.advance(1_100.0).await;
    until("the batch to say that it waits for room", async || {
        let object = world.client().batch(id(&object)).await;
        if object["waiting"][0]["reason"] == "storage" { Ok(()) } else { Err(object) }
    })
    .await;
    limit(&world, "0").await;
    world.sim.take(0.1).await;
    settles(&world, &batch(), id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4);
    nothing_is_left_behind(&world).await;
}
