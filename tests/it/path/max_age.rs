//! Answers that have become too old for somebody. Entries are aged by hand, in Redis.

use crate::support::{
    Batch, Kind, World, again, check,
    check::{answered, check_once, paid},
    claude,
    client::{count, id},
    for_both, gpt, until,
};
use batchgate::{
    domain::key::CacheKey,
    store::record::{pack_cached, unpack_cached},
};
use serde_json::{Value, json};

for_both!(
    old_answers_are_asked_again_and_replaced,
    only_the_old_ones_are_asked_again,
    a_younger_answer_of_somebody_else_stays,
    only_finds_no_old_answer,
    modes_that_read_nothing_do_as_ever,
);

const HOUR: u64 = 3_600_000;

fn four() -> Batch {
    Batch::of([claude("a"), gpt("b"), claude("c"), gpt("d")]).field("chunk", 1)
}

fn young() -> Batch {
    four().field("max_age", "30m")
}

/// Makes every answer in the cache so much older; of those `which` says yes to.
async fn age(world: &World, by: u64, which: impl Fn(&[u8]) -> bool) -> usize {
    let mut aged = 0;
    let mut connection = world.redis.connect().await.expect("redis answers");
    for name in world.redis.keys().await.into_keys() {
        let Some(key) = name.strip_prefix("{default}:c:") else { continue };
        let key = CacheKey::parse(key).expect("a key of ours");
        let stored: Vec<u8> = redis::cmd("GET").arg(&name).query_async(&mut connection).await.expect("an entry");
        let mut answer = unpack_cached(&key, &stored).expect("readable").expect("its own");
        if which(&answer.body) {
            answer.from.at -= by;
            let mut set = redis::cmd("SET");
            set.arg(&name).arg(pack_cached(&key, &answer)).arg("KEEPTTL");
            set.query_async::<()>(&mut connection).await.expect("redis writes");
            aged += 1;
        }
    }
    aged
}

async fn bodies(world: &World, batch: &Value) -> Vec<Value> {
    let path = format!("/batches/{}/results?response=full", id(batch));
    world.client().lines(&path).await.into_iter().map(|mut result| result["response"].take()).collect()
}

async fn bought(world: &World) -> u64 {
    paid(world).await.values().sum()
}

async fn old_answers_are_asked_again_and_replaced(kind: Kind) {
    let world = World::new(kind).await;
    let first = check(&world, &four()).await;
    let old = bodies(&world, &first.object).await;
    check(&world, &young()).await; // they are young enough
    assert_eq!(age(&world, HOUR, |_| true).await, 4);
    let fresh = check_once(&world, &young()).await;
    assert_eq!((bought(&world).await, count(&fresh.object, "cached")), (8, 0), "all were too old");
    let new = bodies(&world, &fresh.object).await;
    assert!(old.iter().zip(&new).all(|(old, new)| old != new), "another call answered each");
    assert_eq!(bodies(&world, &first.object).await, old, "ended means ended");
    for batch in [four(), young(), four().field("max_age", "1000d")] {
        let later = check_once(&world, &batch).await;
        assert_eq!((bought(&world).await, count(&later.object, "cached")), (8, 4));
        assert_eq!(bodies(&world, &later.object).await, new, "later batches read the new answers");
    }
    for (name, ttl) in world.redis.keys().await {
        assert!(!name.starts_with("{default}:s:"), "nothing staged is left: {name}");
        assert!(!name.starts_with("{default}:c:") || ttl > 0, "{name} lives for {ttl} ms");
    }
}

async fn only_the_old_ones_are_asked_again(kind: Kind) {
    let world = World::new(kind).await;
    let batch = four().field("chunk", 9);
    let first = check(&world, &batch).await;
    let old = bodies(&world, &first.object).await;
    let echo_of_a = batch.prompts[0].echo();
    assert_eq!(age(&world, HOUR, |body| String::from_utf8_lossy(body).contains(&echo_of_a)).await, 1);
    let fresh = check_once(&world, &batch.clone().field("max_age", "30m")).await;
    assert_eq!((bought(&world).await, count(&fresh.object, "cached")), (5, 3));
    let new = bodies(&world, &fresh.object).await;
    assert_eq!((new[0] == old[0], &new[1..]), (false, &old[1..]));
    // Without a bound an old answer is as good as any.
    assert_eq!(age(&world, HOUR, |_| true).await, 4);
    again(&world, &batch, &fresh).await;
}

/// Two batches find the same old answers and ask both. The first answer that comes stays, as ever.
async fn a_younger_answer_of_somebody_else_stays(kind: Kind) {
    let world = World::new(kind).await;
    check(&world, &four()).await;
    age(&world, HOUR, |_| true).await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    let slow = young().post(world.client()).await.accepted();
    until("the slow one to run", async || {
        let object = world.client().batch(id(&slow)).await;
        if object["chunks"]["running"] == 4 { Ok(()) } else { Err(object) }
    })
    .await;
    world.sim.settings(json!({"anthropic": {"in_progress_s": 0}, "openai": {"in_progress_s": 0}})).await;
    // One that would wait for the slow one's answers is no somebody else.
    let quick = check_once(&world, &young().field("cache", "refresh")).await;
    let stays = bodies(&world, &quick.object).await;
    world.sim.advance(1_100.0).await;
    let slow = answered(&world, &young(), id(&slow)).await;
    assert_eq!((bought(&world).await, count(&slow.object, "cached")), (12, 0));
    let own = bodies(&world, &slow.object).await;
    assert!(stays.iter().zip(&own).all(|(one, other)| one != other), "each keeps what it bought");
    let later = check_once(&world, &young()).await;
    assert_eq!(bodies(&world, &later.object).await, stays, "what the quick one brought is young: it stays");
    assert_eq!((bought(&world).await, count(&later.object, "cached")), (12, 4));
}

async fn only_finds_no_old_answer(kind: Kind) {
    let world = World::new(kind).await;
    let first = check(&world, &four()).await;
    again(&world, &young().field("cache", "only"), &first).await;
    age(&world, HOUR, |_| true).await;
    let misses = ["a", "c"].map(|text| claude(text).fails("not_cached"));
    let told = check(&world, &Batch::of(misses).field("cache", "only").field("max_age", "30m")).await;
    let message = told.results[0]["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("max_age"), "{message}");
    again(&world, &four().field("cache", "only"), &first).await;
}

async fn modes_that_read_nothing_do_as_ever(kind: Kind) {
    let world = World::new(kind).await;
    let first = check(&world, &four()).await;
    let old = bodies(&world, &first.object).await;
    age(&world, HOUR, |_| true).await;
    for mode in ["bypass", "off"] {
        check_once(&world, &young().field("cache", mode)).await;
        let later = check_once(&world, &four()).await;
        assert_eq!(bodies(&world, &later.object).await, old, "{mode} replaces nothing, however old");
    }
    let fresh = check_once(&world, &young().field("cache", "refresh")).await;
    let later = check_once(&world, &young()).await;
    assert_eq!(bodies(&world, &later.object).await, bodies(&world, &fresh.object).await);
    assert_eq!(bought(&world).await, 16);
}
