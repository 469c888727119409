//! How much of the gateway one team may have at once: open batches, and prompts that wait for their answers.

use crate::support::{
    Batch, Kind, World,
    check::{paid, right},
    claude,
    client::id,
    nothing_is_left_behind,
    teams::{client, named},
    until,
};
use serde_json::{Value, json};

/// A team `narrow` of two batches and five prompts, one that may do as it likes, and an admin.
async fn world() -> World {
    let mut world = World::empty(Kind::Ours, &[("BATCHGATE_TEAM_PROMPTS", "100")]).await;
    let narrow = named("narrow", "max_open_batches = 2\nmax_pending_prompts = 5");
    world.configure(&(narrow + &named("wide", "") + &named("ops", "role = \"admin\"")));
    world.start_gateway().await;
    world
}

fn batch(name: &str, prompts: usize) -> Batch {
    Batch::of((0..prompts).map(|n| claude(&format!("{name} {n}"))))
}

async fn refused(world: &World, batch: &Batch, quota: Value) {
    let reply = batch.post(&client(world, "narrow")).await;
    let problem = reply.refused(429, "quota_exceeded");
    assert_eq!(problem["quota"], quota, "{problem}");
    assert_eq!(reply.header("retry-after"), "60");
    assert!(problem["detail"].as_str().is_some_and(|told| told.contains("nothing was created")), "{problem}");
}

#[tokio::test]
async fn a_team_has_so_much_in_work_and_no_more() {
    let world = world().await;
    let narrow = client(&world, "narrow");
    // What is answered already is no burden, whatever else there is.
    let known = batch("known", 4);
    let first = known.post(&narrow).await.accepted();
    narrow.ended(id(&first)).await;
    world.sim.take(1_000.0).await;
    let prompts = |used: u64, needed: u64| json!({"what": "pending_prompts", "used": used, "needed": needed, "max": 5});
    refused(&world, &batch("six", 6), prompts(0, 6)).await;
    let (one, two) = (batch("one", 3), batch("two", 2));
    let running = one.post(&narrow).await.accepted();
    refused(&world, &batch("three", 3), prompts(3, 3)).await;
    let other = two.post(&narrow).await.accepted();
    let full = json!({"what": "open_batches", "used": 2, "needed": 1, "max": 2});
    refused(&world, &batch("more", 1), full.clone()).await;
    let again = known.post(&narrow).await.accepted();
    assert_eq!(again["status"], "ended", "from the cache, beside two that run: {again}");
    right(&known, &narrow.results(id(&again)).await);
    // Another team's bounds are its own; what the environment says holds where the file says nothing.
    let wide = client(&world, "wide");
    let theirs = batch("wide", 6).post(&wide).await.accepted();
    let problem = batch("too wide", 95).post(&wide).await.refused(429, "quota_exceeded");
    assert_eq!(problem["quota"], json!({"what": "pending_prompts", "used": 6, "needed": 95, "max": 100}));

    narrow.cancel(id(&running)).await.ok();
    world.sim.take(0.1).await;
    world.sim.advance(2_000.0).await;
    for (batch, object, client) in [(&two, &other, &narrow), (&batch("wide", 6), &theirs, &wide)] {
        client.ended(id(object)).await;
        right(batch, &client.results(id(object)).await);
    }
    narrow.ended(id(&running)).await;
    let last = batch("last", 5);
    let object = last.post(&narrow).await.accepted();
    narrow.ended(id(&object)).await;
    right(&last, &narrow.results(id(&object)).await);
    let before = paid(&world).await;
    let object = last.post(&narrow).await.accepted();
    right(&last, &narrow.results(id(&object)).await);
    assert_eq!(paid(&world).await, before, "nothing is bought twice");
    let told = client(&world, "ops").metric("batchgate_quota_exceeded_total{what=\"pending_prompts\"}").await;
    assert_eq!(told, 3);
    nothing_is_left_behind(&world).await;
}

/// The list a team is counted over is put right by the reconciler where it lacks a batch, and by accept where it has one too
/// many.
#[tokio::test]
async fn the_count_heals() {
    let mut world = World::empty(Kind::Ours, &[("BATCHGATE_RECONCILE_EVERY", "200ms")]).await;
    world.configure(&named("narrow", "max_open_batches = 1"));
    world.start_gateway().await;
    world.sim.take(1_000.0).await;
    let narrow = client(&world, "narrow");
    let asked = batch("heals", 2);
    let object = asked.post(&narrow).await.accepted();
    let list = "{default}:open:narrow";
    assert_eq!(world.redis.command::<u64>(&["DEL", list]).await, 1);
    until("the reconciler to enter it again", async || {
        let count = world.redis.command::<u64>(&["ZCARD", list]).await;
        if count == 1 { Ok(()) } else { Err(count) }
    })
    .await;
    batch("one more", 1).post(&narrow).await.refused(429, "quota_exceeded");
    world.sim.take(0.1).await;
    world.sim.advance(2_000.0).await;
    narrow.ended(id(&object)).await;
    right(&asked, &narrow.results(id(&object)).await);
    world.redis.command::<u64>(&["ZADD", list, "1", "00000000000000000000000000000000"]).await;
    let object = batch("one more", 1).post(&narrow).await.accepted();
    narrow.ended(id(&object)).await;
}
