//! What may happen to the cache without anybody reading another prompt's answer: entries swapped, broken, gone.

use crate::support::{
    Batch, Kind, World, again, check,
    check::{answered, check_once, paid},
    claude,
    client::{count, id},
    for_both, gpt, until,
};
use serde_json::json;

for_both!(
    a_swapped_entry_is_never_believed,
    a_broken_entry_is_a_miss,
    a_running_batch_does_not_need_the_cache,
    an_entry_dies_and_the_batch_keeps_its_results,
    a_batch_is_forgotten_at_the_end_of_its_retention,
);

async fn entries(world: &World) -> Vec<String> {
    world.redis.keys().await.into_keys().filter(|key| key.starts_with("{default}:c:")).collect()
}

async fn bought(world: &World) -> u64 {
    paid(world).await.values().sum()
}

fn four() -> Batch {
    Batch::of([claude("a"), gpt("b"), claude("c"), gpt("d")])
}

async fn a_swapped_entry_is_never_believed(kind: Kind) {
    let world = World::new(kind).await;
    let first = check(&world, &four()).await;
    let keys = entries(&world).await;
    assert_eq!(keys.len(), 4);
    // Everybody gets the next one's answer.
    world.redis.command::<String>(&["RENAME", &keys[0], "{default}:aside"]).await;
    for pair in keys.windows(2) {
        world.redis.command::<String>(&["RENAME", &pair[1], &pair[0]]).await;
    }
    world.redis.command::<String>(&["RENAME", "{default}:aside", &keys[3]]).await;
    let second = check_once(&world, &four()).await;
    assert_eq!((count(&second.object, "cached"), bought(&world).await), (0, 8), "each was a miss, and asked again");
    let suspects = world.redis.keys().await.into_keys().filter(|key| key.contains(":suspect:")).count();
    assert_eq!(suspects, 4, "set aside for an operator");
    assert_eq!(world.client().results(id(&first.object)).await, first.results, "the ended batch keeps its own");
    check(&world, &four()).await;
}

async fn a_broken_entry_is_a_miss(kind: Kind) {
    let world = World::new(kind).await;
    check(&world, &four()).await;
    for (key, value) in entries(&world).await.iter().zip(["", "nonsense", "\u{1}\u{2}\u{3}", "{}"]) {
        world.redis.command::<String>(&["SET", key, value, "EX", "3600"]).await;
    }
    let second = check_once(&world, &four()).await;
    assert_eq!((count(&second.object, "cached"), bought(&world).await), (0, 8));
    check(&world, &four()).await;
}

async fn a_running_batch_does_not_need_the_cache(kind: Kind) {
    let world = World::new(kind).await;
    check(&world, &Batch::of([claude("a"), gpt("b")])).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    let object = four().post(world.client()).await.accepted();
    assert_eq!(count(&object, "cached"), 2);
    until("the rest to run", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["running"] == 2 { Ok(()) } else { Err(object) }
    })
    .await;
    for key in entries(&world).await {
        world.redis.command::<i64>(&["DEL", &key]).await;
    }
    let partial = world.client().lines(&format!("/batches/{}/results?partial=true", id(&object))).await;
    assert_eq!(partial[0]["source"], "cache", "what was found at accept stays found");
    world.sim.advance(1_100.0).await;
    let told = answered(&world, &four(), id(&object)).await;
    for key in entries(&world).await {
        world.redis.command::<i64>(&["DEL", &key]).await;
    }
    assert_eq!(world.client().results(id(&object)).await, told.results);
}

async fn an_entry_dies_and_the_batch_keeps_its_results(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_CACHE_TTL", "3s")]).await;
    let first = check_once(&world, &four()).await;
    again(&world, &four(), &first).await;
    until("the entries to die", async || {
        let left = entries(&world).await;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    assert_eq!(world.client().results(id(&first.object)).await, first.results);
    let later = check_once(&world, &four()).await;
    assert_eq!((count(&later.object, "cached"), bought(&world).await), (0, 8));
}

async fn a_batch_is_forgotten_at_the_end_of_its_retention(kind: Kind) {
    let world =
        World::with(kind, &[("BATCHGATE_RETENTION", "4s"), ("BATCHGATE_LEASE", "500ms"), ("BATCHGATE_STALL", "250ms")])
            .await;
    let object = four().field("chunk", 1).post(world.client()).await.accepted();
    let told = answered(&world, &four(), id(&object)).await;
    until("the batch to be forgotten", async || {
        // It may be removed while it is read: then the answer is broken off, which is no answer.
        let request = world.client().request(reqwest::Method::GET, &format!("/batches/{}", id(&told.object)));
        match world.client().try_send(request).await {
            Ok(reply) if reply.status == 404 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    world.client().get(&format!("/batches/{}/results", id(&told.object))).await.refused(404, "not_found");
    let list = world.client().get("/batches").await.ok();
    assert_eq!(list["data"], json!([]));
    until("nothing but the cache to be left", async || {
        let keys = world.redis.keys().await;
        let mut rest: Vec<String> = keys.into_keys().filter(|key| !key.starts_with("{default}:c:")).collect();
        let known = ["{default}:r:", "{default}:j:"]; // whose a provider batch was, and that it was read: as long as its results
        rest.retain(|key| !known.iter().any(|known| key.starts_with(known)) && key != "{default}:chores");
        // What was learnt of how large answers are outlives them, and so does who was ever claimed for.
        rest.retain(|key| key != "{default}:sizes" && key != "{default}:shares");
        // What is known of an account has a time of its own: a worker that lost its lease right after its commit leaves
        // the tokens it had reserved to the next one that finds no room.
        rest.retain(|key| !key.starts_with("{acct:"));

        if rest.is_empty() { Ok(()) } else { Err(rest) }
    })
    .await;
    let later = check_once(&world, &four()).await;
    assert_eq!(count(&later.object, "cached"), 4, "the cache has its own time");
}
