//! Deleting a batch, and looking at its chunks.

use crate::support::{
    Batch, Kind, World, again, check, claude,
    client::{count, id},
    for_both, gpt, nothing_is_left_behind, settles, until,
};
use serde_json::{Value, json};

for_both!(a_deleted_batch_is_gone_and_its_answers_stay_in_the_cache, chunks_tell_where_the_prompts_are);

async fn a_deleted_batch_is_gone_and_its_answers_stay_in_the_cache(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of((0..6).flat_map(|n| [claude(&format!("a {n}")), gpt(&format!("b {n}"))])).field("chunk", 2);
    let first = check(&world, &batch).await;
    let gone = id(&first.object);
    let told = world.client().delete(gone).await.ok();
    assert_eq!(told, json!({"id": gone, "object": "batch.deleted", "deleted": true}));
    for path in ["", "/results", "/results?follow=true", "/chunks"] {
        world.client().get(&format!("/batches/{gone}{path}")).await.refused(404, "not_found");
    }
    world.client().cancel(gone).await.refused(404, "not_found");
    world.client().delete(gone).await.refused(404, "not_found");
    let list = world.client().get("/batches").await.ok();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1), "the other one is still there: {list}");
    let left: Vec<String> = world.redis.keys().await.into_keys().collect();
    let hex = gone.trim_start_matches("batch_");
    until("nothing of it to be left", async || {
        let keys = world.redis.keys().await;
        let of_it: Vec<String> = keys.into_keys().filter(|key| key.contains(hex)).collect();
        if of_it.is_empty() { Ok(()) } else { Err(of_it) }
    })
    .await;
    drop(left);
    again(&world, &batch, &first).await;
    nothing_is_left_behind(&world).await;
    // What runs cannot be deleted.
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}})).await;
    let running = Batch::of([claude("slow")]);
    let object = running.post(world.client()).await.accepted();
    world.client().delete(id(&object)).await.refused(409, "batch_running");
    until("it to run", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["running"] == 1 { Ok(()) } else { Err(object) }
    })
    .await;
    world.client().delete(id(&object)).await.refused(409, "batch_running");
    world.sim.advance(1_100.0).await;
    world.client().ended(id(&object)).await;
    check(&world, &running).await;
}

async fn chunks_tell_where_the_prompts_are(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    let prompts = (0..5).flat_map(|n| [claude(&format!("a {n}")), gpt(&format!("b {n}"))]);
    let batch = Batch::of(prompts).field("chunk", 2);
    let object = batch.post(world.client()).await.accepted();
    until("all to run", async || {
        let object = world.client().batch(id(&object)).await;
        if object["chunks"]["running"] == 6 { Ok(()) } else { Err(object) }
    })
    .await;
    let page = world.client().get(&format!("/batches/{}/chunks", id(&object))).await.ok();
    let running = page["chunks"].as_array().expect("chunks").clone();
    assert_eq!((running.len(), &page["next"]), (6, &Value::Null), "{page}");
    let made: Vec<Value> = world.sim.calls("batches.create").await.iter().map(|call| call["made"].clone()).collect();
    for chunk in &running {
        assert!(made.contains(&chunk["provider_batch_id"]), "the provider's own id: {chunk}");
        assert_eq!((&chunk["status"], &chunk["settled_at"]), (&json!("running"), &Value::Null), "{chunk}");
        assert!(chunk["submitted_at"].is_string() && chunk["prompts"].as_u64() <= Some(2), "{chunk}");
    }
    assert_eq!(running.iter().filter_map(|chunk| chunk["prompts"].as_u64()).sum::<u64>(), 10);
    world.sim.advance(1_100.0).await;
    let first = settles(&world, &batch, id(&object)).await;
    let (mut walked, mut next) = (Vec::new(), json!(format!("/batches/{}/chunks?limit=4", id(&object))));
    while let Value::String(path) = &next {
        let page = world.client().get(path).await.ok();
        walked.extend(page["chunks"].as_array().expect("chunks").clone());
        next = page["next"].clone();
    }
    assert_eq!(walked.len(), 6);
    let succeeded: u64 = walked.iter().filter_map(|chunk| chunk["succeeded"].as_u64()).sum();
    assert_eq!(succeeded, count(&first.object, "succeeded"));
    for (before, after) in running.iter().zip(&walked) {
        assert_eq!((&after["status"], &after["id"]), (&json!("settled"), &before["id"]), "{after}");
        assert_eq!(after["provider_batch_id"], before["provider_batch_id"]);
    }
}
