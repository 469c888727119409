//! The end of a batch's patience. Nobody can wait 72 hours, so these stories move the deadline in Redis: `deadline` of
//! the chunks' hashes is the one stored field the suite knows.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{count, id},
    for_both, gpt, nothing_is_left_behind, settles, until,
};
use serde_json::json;

for_both!(
    at_the_deadline_what_exists_is_kept_and_the_rest_expires,
    a_provider_that_is_gone_cannot_hold_a_batch_beyond_the_deadline,
    a_cancelled_batch_ends_though_its_provider_is_gone,
    results_that_are_gone_cannot_hold_a_batch_beyond_the_deadline,
    what_ended_while_all_gateways_were_away_is_looked_at_once_more,
);

fn batch() -> Batch {
    Batch::of((0..5).flat_map(|n| [claude(&format!("a {n}")), gpt(&format!("b {n}"))]))
}

/// Moves the deadline of every chunk to so many minutes ago.
pub(super) async fn pass_deadline(world: &World, minutes_ago: u64) {
    let time: Vec<u64> = world.redis.command(&["TIME"]).await;
    let deadline = (time[0] * 1_000 - minutes_ago * 60_000).to_string();
    let mut moved = 0;
    for key in world.redis.keys().await.into_keys() {
        if key.strip_prefix("{default}:k:").is_some_and(|rest| !rest.contains(':')) {
            world.redis.command::<i64>(&["HSET", &key, "deadline", &deadline]).await;
            moved += 1;
        }
    }
    assert!(moved > 0, "chunks are hashes under k:");
    // Whatever was to be looked at later is looked at now.
    for chunk in world.redis.command::<Vec<String>>(&["ZRANGE", "{default}:delayed", "0", "-1"]).await {
        world.redis.command::<i64>(&["ZADD", "{default}:delayed", "XX", "0", &chunk]).await;
    }
}

async fn running(world: &World) -> String {
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    let object = batch().post(world.client()).await.accepted();
    let id = id(&object).to_owned();
    until("the chunks to run", async || {
        let object = world.client().batch(&id).await;
        if object["chunks"]["running"] == 2 { Ok(()) } else { Err(object) }
    })
    .await;
    id
}

async fn at_the_deadline_what_exists_is_kept_and_the_rest_expires(kind: Kind) {
    let world = World::new(kind).await;
    let id = running(&world).await;
    world.sim.advance(500.0).await;
    pass_deadline(&world, 1).await;
    let ended = world.client().ended(&id).await;
    let (kept, expired) = (count(&ended, "succeeded"), count(&ended, "expired"));
    assert!(kept + expired == 10 && (2..=8).contains(&kept), "{ended}");
    for result in world.client().results(&id).await.iter().filter(|result| result["status"] == "expired") {
        assert_eq!(result["error"]["code"], "expired", "{result}");
    }
    assert_eq!(world.sim.calls("batches.cancel").await.len(), 2, "the providers were told to stop");
    world.sim.settings(json!({"anthropic": {"in_progress_s": 0.1}, "openai": {"in_progress_s": 0.1}})).await;
    let later = check(&world, &batch()).await;
    assert_eq!(count(&later.object, "cached"), kept, "what was paid is in the cache");
}

async fn a_provider_that_is_gone_cannot_hold_a_batch_beyond_the_deadline(kind: Kind) {
    let world = World::new(kind).await;
    let id = running(&world).await;
    world.sim.fault(json!({"match": {"route": "*"}, "fault": {"status": 401}, "times": 0})).await;
    pass_deadline(&world, 31).await;
    let ended = world.client().ended(&id).await;
    assert_eq!(count(&ended, "expired"), 10, "{ended}");
    nothing_is_left_behind(&world).await;
}

async fn a_cancelled_batch_ends_though_its_provider_is_gone(kind: Kind) {
    let world = World::new(kind).await;
    let id = running(&world).await;
    world.sim.fault(json!({"match": {"route": "*"}, "fault": {"status": 404}, "times": 0})).await;
    world.client().cancel(&id).await.ok();
    pass_deadline(&world, 31).await;
    let ended = world.client().ended(&id).await;
    assert_eq!(count(&ended, "canceled") + count(&ended, "expired"), 10, "{ended}");
    nothing_is_left_behind(&world).await;
}

async fn results_that_are_gone_cannot_hold_a_batch_beyond_the_deadline(kind: Kind) {
    let world = World::new(kind).await;
    let gone = json!([
        {"match": {"route": "files.content"}, "fault": {"status": 404}, "times": 0},
        {"match": {"route": "batches.results"}, "fault": {"status": 404}, "times": 0},
    ]);
    world.sim.fault(gone).await;
    let object = batch().post(world.client()).await.accepted();
    until("the results to be asked for", async || {
        let (files, results) = (world.sim.calls("files.content").await, world.sim.calls("batches.results").await);
        if files.is_empty() || results.is_empty() { Err((files, results)) } else { Ok(()) }
    })
    .await;
    pass_deadline(&world, 31).await;
    let ended = world.client().ended(id(&object)).await;
    assert_eq!(count(&ended, "expired"), 10, "{ended}");
    nothing_is_left_behind(&world).await;
}

/// The provider's batches ended in time; the gateways came back when the deadline and its patience were over.
async fn what_ended_while_all_gateways_were_away_is_looked_at_once_more(kind: Kind) {
    let mut world = World::new(kind).await;
    let id = running(&world).await;
    world.kill_gateway();
    world.sim.advance(2_000.0).await;
    pass_deadline(&world, 31).await;
    world.start_gateway().await;
    settles(&world, &batch(), &id).await;
    assert_eq!(world.sim.calls("batches.cancel").await.len(), 0, "there was nothing left to cancel");
    nothing_is_left_behind(&world).await;
}
