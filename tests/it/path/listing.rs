//! The batch object over its life, and the list of batches.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{Client, count, id},
    for_both, gpt,
};
use serde_json::{Value, json};

for_both!(batches_are_listed_newest_first_and_in_pages, the_batch_object_tells_its_life);

async fn list(client: &Client, query: &str) -> Value {
    client.get(&format!("/batches{query}")).await.ok()
}

fn ids(page: &Value) -> Vec<String> {
    page["data"].as_array().expect("a list").iter().map(|object| id(object).to_owned()).collect()
}

async fn batches_are_listed_newest_first_and_in_pages(kind: Kind) {
    let world = World::new(kind).await;
    assert_eq!(list(world.client(), "").await, json!({"data": [], "has_more": false, "last_id": null}));
    let mut made = Vec::new();
    for n in 0..7 {
        let object = Batch::of([claude(&format!("{}", n % 3))]).post(world.client()).await.accepted();
        made.insert(0, id(&object).to_owned());
    }
    for id in &made {
        world.client().ended(id).await;
    }
    let all = list(world.client(), "").await;
    assert_eq!(ids(&all), made);
    assert_eq!((&all["has_more"], &all["last_id"]), (&json!(false), &json!(made[6])));
    for object in all["data"].as_array().expect("a list") {
        let mut alone = world.client().batch(id(object)).await;
        alone["results"] = Value::Null;
        assert_eq!(*object, alone, "as it is read alone, but without results");
    }
    for limit in [1, 2, 3, 7, 100] {
        let (mut walked, mut after) = (Vec::new(), String::new());
        loop {
            let page = list(world.client(), &format!("?limit={limit}{after}")).await;
            walked.extend(ids(&page));
            assert_eq!(page["has_more"], walked.len() < made.len(), "{limit}: {page}");
            if page["has_more"] == false {
                break;
            }
            after = format!("&after={}", page["last_id"].as_str().expect("the last of the page"));
        }
        assert_eq!(walked, made, "in pages of {limit}");
    }
    let beyond = list(world.client(), &format!("?after={}", made[6])).await;
    assert_eq!(beyond, json!({"data": [], "has_more": false, "last_id": null}));
    check(&world, &Batch::of([claude("0"), claude("1"), claude("2")])).await;
}

async fn the_batch_object_tells_its_life(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1.0}, "openai": {"in_progress_s": 1.0}})).await;
    let metadata = json!({"project": "x", "": "never"});
    let refused = Batch::of([claude("a")]).field("metadata", metadata).post(world.client()).await;
    refused.refused(422, "invalid_request");
    let batch = Batch::of([claude("a"), gpt("b"), claude("a")]).field("metadata", json!({"project": "x", "n": "1"}));
    let object = batch.post(world.client()).await.accepted();
    let expected = json!({
        "id": object["id"], "object": "batch", "status": "running", "created_at": object["created_at"], "ended_at": null,
        "expires_at": object["expires_at"], "deleted_at": null, "team": "default", "run": null,
        "metadata": {"project": "x", "n": "1"},
        "counts": {"total": 3, "pending": 3, "succeeded": 0, "failed": 0, "canceled": 0, "expired": 0, "cached": 0,
                   "joined": 0, "repeats": 1},
        "chunks": {"planned": 2, "submitting": 0, "running": 0, "settled": 0, "failed": 0},
        "reported_prompts": 0, "waiting": [], "usage": {"input_tokens": 0, "cached_input_tokens": 0, "output_tokens": 0},
        "cost": {"spent_usd": null, "saved_usd": null}, "results": null,
        "results_url": format!("/batches/{}/results", id(&object)),
    });
    assert_eq!(object, expected);
    let ended = world.client().ended(id(&object)).await;
    assert_eq!(ended["chunks"], json!({"planned": 0, "submitting": 0, "running": 0, "settled": 2, "failed": 0}));
    assert_eq!((count(&ended, "succeeded"), &ended["reported_prompts"]), (3, &json!(3)), "{ended}");
    let time = |name: &str| -> jiff::Timestamp { ended[name].as_str().expect("a time").parse().expect("RFC 3339") };
    let hours =
        |from: &str, to: &str| time(from).until(time(to)).expect("a span").total(jiff::Unit::Hour).expect("hours");
    assert!((hours("created_at", "expires_at") - 72.0).abs() < 0.01, "the deadline is 72 hours: {ended}");
    assert!((hours("ended_at", "deleted_at") - 720.0).abs() < 0.01, "kept for 30 days: {ended}");
    assert!(time("created_at") < time("ended_at"));
    for (member, value) in expected.as_object().expect("an object") {
        let changes = ["status", "ended_at", "deleted_at", "counts", "chunks", "reported_prompts", "usage", "results"];
        assert!(changes.contains(&member.as_str()) || ended[member] == *value, "{member} must not change: {ended}");
    }
    check(&world, &batch).await;
}
