//! Asking once more what a batch left unanswered.

use crate::support::{
    Batch, Kind, Prompt, World, check,
    check::{Answered, answered, check_once, paid},
    claude,
    client::{JSON, Reply, count, id},
    for_both, gpt, nothing_is_left_behind, until,
};
use reqwest::Method;
use serde_json::{Value, json};

for_both!(
    failures_are_retried_until_none_is_left,
    samples_and_repeats_keep_their_numbers,
    a_cancelled_batch_of_many_pages_is_retried,
    a_retry_outlives_the_spool_and_the_batch_it_came_from,
    what_was_bought_meanwhile_is_a_hit,
    a_miss_of_cache_only_is_looked_up_again,
    what_nobody_can_carry_stays_failed,
    a_repeated_retry_is_the_first_one,
);

/// Retries, and asks the oracle about every position of the new batch.
async fn retried(world: &World, of: &str, prompts: impl IntoIterator<Item = Prompt>) -> Answered {
    let object = world.client().retry(of).await.accepted();
    let told = answered(world, &Batch::of(prompts), id(&object)).await;
    assert_eq!(told.object["retry_of"], of, "{}", told.object);
    told
}

/// The batch's results without an answer.
fn unanswered(results: &[Value]) -> Vec<&Value> {
    results.iter().filter(|result| result["status"] != "succeeded").collect()
}

fn index(result: &Value) -> usize {
    result["index"].as_u64().and_then(|index| index.try_into().ok()).unwrap_or_else(|| panic!("no index: {result}"))
}

async fn failures_are_retried_until_none_is_left(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1")]).await;
    // Each fails as often as its number says.
    let all: Vec<Prompt> = [0, 2, 1, 0, 1, 0, 2, 2]
        .iter()
        .enumerate()
        .map(|(n, times)| {
            let text = format!("[[flaky:{times}]] {n}");
            if n % 3 == 0 { gpt(&text) } else { claude(&text) }.named(&format!("mine {n}"))
        })
        .collect();
    let failing = |which: &[usize], fails: &[usize]| -> Vec<Prompt> {
        let one = |n: &usize| if fails.contains(n) { all[*n].clone().fails("server_error") } else { all[*n].clone() };
        which.iter().map(one).collect()
    };
    let whole = Batch::of(failing(&[0, 1, 2, 3, 4, 5, 6, 7], &[1, 2, 4, 6, 7]))
        .field("chunk", 2)
        .field("metadata", json!({"a": "b"}))
        .field("deadline", "5h");
    let first = check_once(&world, &whole).await;
    assert_eq!(first.object["retry_of"], Value::Null);
    let of = id(&first.object);
    let second = retried(&world, of, failing(&[1, 2, 4, 6, 7], &[1, 6, 7])).await;
    assert_eq!(second.object["metadata"], json!({"a": "b"}));
    let settled = second.object["chunks"]["settled"].as_u64();
    assert!(settled >= Some(3), "five prompts in chunks of two: {}", second.object);
    let time =
        |name: &str| -> jiff::Timestamp { second.object[name].as_str().expect("a time").parse().expect("RFC 3339") };
    let life = time("expires_at").duration_since(time("created_at"));
    assert_eq!(life.as_hours(), 5, "the deadline is counted anew: {}", second.object);
    // A retry may be retried, and then there is nothing left of it.
    let third = retried(&world, id(&second.object), failing(&[1, 6, 7], &[])).await;
    world.client().retry(id(&third.object)).await.refused(409, "nothing_to_retry");
    // The batches they came from are what they were, and may be asked again: all hits now.
    for (before, failed) in [(&first, vec![1, 2, 4, 6, 7]), (&second, vec![1, 6, 7])] {
        assert_eq!(world.client().batch(id(&before.object)).await, before.object, "ended means ended");
        assert_eq!(world.client().results(id(&before.object)).await, before.results);
        let once_more = retried(&world, id(&before.object), failing(&failed, &[])).await;
        assert_eq!(count(&once_more.object, "cached"), failed.len() as u64, "{}", once_more.object);
    }
    assert_eq!(paid(&world).await, Batch::of(all.clone()).bill(), "every question was bought once");
    let last = check(&world, &Batch::of(all)).await;
    assert_eq!(count(&last.object, "cached"), 8, "all of it is in the cache");
    nothing_is_left_behind(&world).await;
}

async fn samples_and_repeats_keep_their_numbers(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1")]).await;
    // Of six calls of either body three fail, whichever.
    let prompts = || [claude("[[flaky:3]] a"), gpt("[[flaky:3]] b"), claude("[[flaky:3]] a"), gpt("[[flaky:3]] b")];
    let batch = Batch::of(prompts()).field("samples", 3).field("salt", 7);
    let object = batch.post(world.client()).await.accepted();
    assert_eq!(count(&object, "repeats"), 2, "{object}");
    let ended = world.client().ended(id(&object)).await;
    assert_eq!((count(&ended, "succeeded"), count(&ended, "failed")), (6, 6), "{ended}");
    let results = world.client().results(id(&object)).await;
    let failed = unanswered(&results);
    let retry = world.client().retry(id(&object)).await.accepted();
    let retry = world.client().ended(id(&retry)).await;
    assert_eq!(count(&retry, "succeeded"), 6, "{retry}");
    let told = world.client().results(id(&retry)).await;
    // Prompts are numbered anew from 0, their samples are not.
    let mut old_indexes: Vec<&Value> = failed.iter().map(|result| &result["index"]).collect();
    old_indexes.dedup();
    for (old, new) in failed.iter().zip(&told) {
        assert_eq!(old_indexes[index(new)], &old["index"], "{old} became {new}");
        assert_eq!((&old["sample"], &old["custom_id"]), (&new["sample"], &new["custom_id"]));
        assert_eq!(new["completion"], prompts()[index(old)].echo(), "{old} became {new}");
    }
    let repeats = [0, 1].iter().filter(|n| old_indexes.contains(&&json!(*n)) && old_indexes.contains(&&json!(*n + 2)));
    assert_eq!(count(&retry, "repeats"), repeats.count() as u64, "{retry}");
    // The very numbers of the samples: the whole batch again is nothing but hits.
    let last = check(&world, &batch).await;
    assert_eq!(count(&last.object, "cached"), 12, "{}", last.object);
    // Shared repeats are one question, and stay one.
    let shared: Vec<Prompt> = ["[[flaky:1]] c"; 3].map(claude).into();
    let fails: Vec<Prompt> = shared.iter().cloned().map(|prompt| prompt.fails("server_error")).collect();
    let failed = check_once(&world, &Batch::of(fails).field("repeats", "share")).await;
    let retry = world.client().retry(id(&failed.object)).await.accepted();
    assert_eq!((count(&retry, "total"), count(&retry, "repeats")), (3, 2), "{retry}");
    let before = paid(&world).await.values().sum::<u64>();
    answered(&world, &Batch::of(shared).field("repeats", "share"), id(&retry)).await;
    assert_eq!(paid(&world).await.values().sum::<u64>(), before + 1);
}

async fn a_cancelled_batch_of_many_pages_is_retried(kind: Kind) {
    let world = World::new(kind).await;
    let refuse = json!({"match": {"route": "batches.create"}, "fault": {"status": 429, "retry_after": 1}, "times": 0});
    world.sim.fault(refuse).await;
    let prompts: Vec<Prompt> = (0..1_201)
        .map(|n| if n % 7 == 0 { gpt(&format!("b {n}")) } else { claude(&format!("a {n}")) }.named(&format!("{n}")))
        .collect();
    let object = Batch::of(prompts.clone()).post(world.client()).await.accepted();
    let of = id(&object);
    world.client().retry(of).await.refused(409, "batch_running");
    world.client().cancel(of).await.ok();
    let ended = world.client().ended(of).await;
    assert_eq!(count(&ended, "canceled"), 1_201, "{ended}");
    world.sim.clear_faults().await;
    assert!(paid(&world).await.is_empty());
    retried(&world, of, prompts.clone()).await;
    assert_eq!(paid(&world).await, Batch::of(prompts.clone()).bill());
    let last = check(&world, &Batch::of(prompts)).await;
    assert_eq!(count(&last.object, "cached"), 1_201);
}

async fn a_retry_outlives_the_spool_and_the_batch_it_came_from(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1")]).await;
    let prompts = || [claude("good"), claude("[[flaky:1]] a"), gpt("[[flaky:1]] b"), gpt("fine")];
    let [good, a, b, fine] = prompts();
    let first = Batch::of([good, a.clone().fails("server_error"), b.clone().fails("server_error"), fine]);
    let first = check_once(&world, &first).await;
    let of = id(&first.object);
    nothing_is_left_behind(&world).await; // spool, manifests and items are swept
    world.sim.settings(json!({"anthropic": {"in_progress_s": 1000}, "openai": {"in_progress_s": 1000}})).await;
    let retry = world.client().retry(of).await.accepted();
    world.client().delete(of).await.ok();
    let hex = of.trim_start_matches("batch_");
    until("nothing of the first batch to be left", async || {
        let left: Vec<String> = world.redis.keys().await.into_keys().filter(|key| key.contains(hex)).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    world.client().retry(of).await.refused(404, "not_found");
    until("both chunks to run", async || {
        let object = world.client().batch(id(&retry)).await;
        if object["chunks"]["running"] == 2 { Ok(()) } else { Err(object) }
    })
    .await;
    world.sim.advance(1_100.0).await;
    let told = answered(&world, &Batch::of([a, b]), id(&retry)).await;
    assert_eq!(told.object["retry_of"], of, "it keeps the name of what is gone");
    world.sim.settings(json!({"anthropic": {"in_progress_s": 0.1}, "openai": {"in_progress_s": 0.1}})).await;
    let last = check(&world, &Batch::of(prompts())).await;
    assert_eq!(count(&last.object, "cached"), 4);
    assert_eq!(paid(&world).await, Batch::of(prompts()).bill());
    nothing_is_left_behind(&world).await;
}

async fn what_was_bought_meanwhile_is_a_hit(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1")]).await;
    let fine = || [claude("[[flaky:1]] a").named("a"), gpt("[[flaky:1]] b"), claude("[[flaky:2]] c")];
    let failed = check_once(&world, &Batch::of(fine().map(|prompt| prompt.fails("server_error")))).await;
    let [a, b, c] = fine();
    check_once(&world, &Batch::of([b.clone(), c.clone().fails("server_error"), a.clone()])).await;
    let retry = retried(&world, id(&failed.object), [a, b, c]).await;
    assert_eq!(count(&retry.object, "cached"), 2, "{}", retry.object);
    // By now all of it is known: the next one has ended when it is born.
    let last = world.client().retry(id(&failed.object)).await.accepted();
    assert_eq!((&last["status"], count(&last, "cached")), (&json!("ended"), 3), "{last}");
    assert_eq!(paid(&world).await, Batch::of(fine()).bill());
    check(&world, &Batch::of(fine())).await;
}

async fn a_miss_of_cache_only_is_looked_up_again(kind: Kind) {
    let world = World::new(kind).await;
    let prompts = || [claude("a"), gpt("b").named("b"), claude("c")];
    let missed = prompts().map(|prompt| prompt.fails("not_cached"));
    let of = check_once(&world, &Batch::of(missed.clone()).field("cache", "only")).await;
    let [a, b, c] = prompts();
    let [miss, _, _] = missed;
    let again = retried(&world, id(&of.object), [a.clone(), b.clone(), c.clone()].map(|p| p.fails("not_cached"))).await;
    assert_eq!(again.object["status"], "ended", "nobody is asked: the mode holds");
    check_once(&world, &Batch::of([c.clone(), b.clone()])).await;
    let second = retried(&world, id(&again.object), [miss, b, c]).await;
    assert_eq!((count(&second.object, "cached"), count(&second.object, "failed")), (2, 1));
    check_once(&world, &Batch::of([a.clone()])).await;
    retried(&world, id(&second.object), [a]).await;
    assert_eq!(paid(&world).await, Batch::of(prompts()).bill());
    check(&world, &Batch::of(prompts())).await;
    nothing_is_left_behind(&world).await;
}

async fn what_nobody_can_carry_stays_failed(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1"), ("BATCHGATE_CHUNK_BYTES", "4KiB")]).await;
    let huge = claude(&"x".repeat(5_000)).named("huge").fails("too_large");
    let flaky = |fails: bool| {
        let prompt = gpt("[[flaky:1]] b").named("flaky");
        if fails { prompt.fails("server_error") } else { prompt }
    };
    // Alone on a page that is sealed at once, and beside prompts that are asked.
    let alone = check_once(&world, &Batch::of([huge.clone()])).await;
    world.client().retry(id(&alone.object)).await.refused(409, "nothing_to_retry");
    let mixed = check_once(&world, &Batch::of([claude("fine"), huge.clone(), flaky(true)])).await;
    let retry = retried(&world, id(&mixed.object), [huge.clone(), flaky(false)]).await;
    assert_eq!(retry.results[0]["error"], mixed.results[1]["error"], "the same failure");
    world.client().retry(id(&retry.object)).await.refused(409, "nothing_to_retry");
    check(&world, &Batch::of([claude("fine"), huge, flaky(false)])).await;
    nothing_is_left_behind(&world).await;
}

async fn keyed(world: &World, path: &str, key: &str, body: String) -> Reply {
    let request = world.client().request(Method::POST, path).header("idempotency-key", key);
    world.client().send(request.header("content-type", JSON).body(body)).await
}

async fn a_repeated_retry_is_the_first_one(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1")]).await;
    let prompts = || [claude("[[flaky:1]] a"), gpt("[[flaky:1]] b")];
    let failed = check_once(&world, &Batch::of(prompts().map(|prompt| prompt.fails("server_error")))).await;
    let fine = check_once(&world, &Batch::of([claude("fine")])).await;
    let path = |of: &Answered| format!("/batches/{}/retry", id(&of.object));
    // What is refused leaves its key free.
    keyed(&world, &path(&fine), "k", String::new()).await.refused(409, "nothing_to_retry");
    keyed(&world, "/batches/batch_0198f3a17d207c119d6f2f1f6f3b8a10/retry", "k", String::new())
        .await
        .refused(404, "not_found");
    keyed(&world, &path(&failed), "", String::new()).await.refused(422, "invalid_request");
    let first = keyed(&world, &path(&failed), "k", String::new()).await;
    let object = first.accepted();
    answered(&world, &Batch::of(prompts()), id(&object)).await;
    for gone in [false, true] {
        if gone {
            world.client().delete(id(&failed.object)).await.ok();
        }
        let replayed = keyed(&world, &path(&failed), "k", String::new()).await;
        assert_eq!((replayed.status, &replayed.text), (202, &first.text), "the first answer, as it was");
        assert_eq!(replayed.header("idempotency-replayed"), "true");
        assert_eq!(replayed.header("location"), first.header("location"));
    }
    // The same key for anything else is another request.
    keyed(&world, &path(&fine), "k", String::new()).await.refused(422, "idempotency_mismatch");
    keyed(&world, "/batches", "k", Batch::of(prompts()).body().1).await.refused(422, "idempotency_mismatch");
    let listed = world.client().get("/batches").await.ok();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(2), "{listed}");
    check(&world, &Batch::of(prompts())).await;
}
