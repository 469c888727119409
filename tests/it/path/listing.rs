//! The batch object over its life, and the list of batches.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{Client, count, id},
    for_both, gpt,
};
use serde_json::{Value, json};

for_both!(
    batches_are_listed_newest_first_and_in_pages,
    the_list_is_filtered,
    a_search_among_thousands_goes_on_page_by_page,
    the_batch_object_tells_its_life,
);

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

async fn the_list_is_filtered(kind: Kind) {
    let world = World::new(kind).await;
    let client = world.client();
    let labelled = async |text: &str, metadata: Value| {
        let batch = Batch::of([claude(text)]).field("metadata", metadata);
        id(&batch.post(client).await.accepted()).to_owned()
    };
    let old = labelled("a", json!({"project": "x", "step": "1"})).await;
    let middle = labelled("b", json!({"project": "x", "step": "2", "a b&c": "d=e+f"})).await;
    for id in [&old, &middle] {
        client.ended(id).await;
    }
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}})).await;
    let young = labelled("c", json!({"project": "y", "step": "2"})).await;
    let time = |object: &Value| object["created_at"].as_str().expect("a time").to_owned();
    let (middle_time, young_time) = (time(&client.batch(&middle).await), time(&client.batch(&young).await));
    let elsewhere: jiff::Timestamp = middle_time.parse().expect("a time");
    let elsewhere =
        elsewhere.to_zoned(jiff::tz::TimeZone::fixed(jiff::tz::offset(2))).strftime("%Y-%m-%dT%H:%M:%S%.3f%:z");
    let elsewhere = elsewhere.to_string().replace('+', "%2B");
    for (query, expected) in [
        ("?status=running".to_owned(), vec![&young]),
        ("?status=ended".into(), vec![&middle, &old]),
        ("?status=canceling".into(), vec![]),
        ("?metadata.project=x".into(), vec![&middle, &old]),
        ("?metadata.step=2".into(), vec![&young, &middle]),
        ("?metadata.project=x&metadata.step=2".into(), vec![&middle]),
        ("?metadata.project=x&metadata.step=3".into(), vec![]),
        ("?metadata.project=".into(), vec![]),
        ("?metadata.stranger=x".into(), vec![]),
        ("?metadata.a%20b%26c=d%3De%2Bf".into(), vec![&middle]),
        ("?metadata.step=2&status=ended".into(), vec![&middle]),
        ("?run=nobody".into(), vec![]),
        (format!("?since={middle_time}"), vec![&young, &middle]),
        (format!("?since={elsewhere}"), vec![&young, &middle]),
        (format!("?since={young_time}&metadata.project=x"), vec![]),
        ("?since=2100-01-01T00:00:00Z".into(), vec![]),
        ("?since=1950-01-01T00:00:00Z".into(), vec![&young, &middle, &old]),
        (format!("?metadata.project=x&after={middle}"), vec![&old]),
        (format!("?status=ended&after={young}"), vec![&middle, &old]),
    ] {
        let page = list(client, &query).await;
        assert_eq!(ids(&page), expected.iter().map(|id| (*id).clone()).collect::<Vec<_>>(), "{query}");
        assert_eq!((&page["has_more"], &page["last_id"]), (&json!(false), &json!(expected.last())), "{query}");
    }
    let page = list(client, "?metadata.project=x&limit=1").await;
    assert_eq!((ids(&page), &page["has_more"], &page["last_id"]), (vec![middle.clone()], &json!(true), &json!(middle)));
    let page = list(client, &format!("?metadata.project=x&limit=1&after={middle}")).await;
    assert_eq!((ids(&page), &page["has_more"]), (vec![old], &json!(false)));
    client.cancel(&young).await.ok();
    client.ended(&young).await;
    assert_eq!(list(client, "?status=running").await["data"], json!([]));
    world.sim.settings(json!({"anthropic": {"in_progress_s": 0.1}})).await;
    check(&world, &Batch::of([claude("a"), claude("b"), claude("c")])).await;
}

/// One request looks at 2,000 batches and no more, and what it could not look at is found by the next one.
async fn a_search_among_thousands_goes_on_page_by_page(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("a")]);
    let wanted = batch.clone().field("metadata", json!({"wanted": "yes"})).post(world.client()).await.accepted();
    world.client().ended(id(&wanted)).await;
    let other = check(&world, &batch).await;
    // Many more of the other, younger than both, 150 of each moment: too many to be made one by one.
    let copies = "for n = 1, 150 do \
        local hex = ARGV[2] .. '70008' .. string.format('%015x', n) \
        redis.call('COPY', KEYS[1] .. 'b:' .. ARGV[1], KEYS[1] .. 'b:' .. hex) \
        redis.call('ZADD', KEYS[1] .. 't:default', tonumber(ARGV[2], 16), hex) end return 150";
    let hex = id(&other.object).trim_start_matches("batch_");
    let millis = u64::from_str_radix(&hex[..12], 16).expect("an id begins with its time") + 60_000;
    for moment in millis..millis + 14 {
        let _: u64 = world.redis.command(&["EVAL", copies, "1", "{default}:", hex, &format!("{moment:012x}")]).await;
    }
    let (mut found, mut after, mut requests) = (Vec::new(), String::new(), 0);
    loop {
        let page = list(world.client(), &format!("?metadata.wanted=yes{after}")).await;
        found.extend(ids(&page));
        requests += 1;
        if page["has_more"] == false {
            break;
        }
        after = format!("&after={}", page["last_id"].as_str().expect("the last one looked at"));
    }
    assert_eq!((found, requests), (vec![id(&wanted).to_owned()], 2));
    let mut all = std::collections::BTreeSet::new();
    let mut after = String::new();
    for _ in 0..22 {
        let page = list(world.client(), &format!("?limit=100{after}")).await;
        all.extend(ids(&page));
        after = format!("&after={}", page["last_id"].as_str().unwrap_or_default());
    }
    assert_eq!(all.len(), 2_103, "each of one moment is listed, and the three that were sent");
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
        "expires_at": object["expires_at"], "deleted_at": null, "team": "default", "run": null, "retry_of": null,
        "metadata": {"project": "x", "n": "1"}, "priority": "normal",
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
