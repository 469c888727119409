//! Joining what is in flight: a prompt that another batch asks already is waited for, not bought again. The hazards of
//! `design.md` section 3, each a story; all end with the oracle, the ledger, and what is left in Redis.

use crate::support::{
    Batch, Kind, Prompt, World,
    check::{Answered, again, answered, paid},
    claude,
    client::{Client, JSON, count, id, waiting},
    for_both, gpt,
    local::{self, local},
    nothing_is_left_behind,
    prompt::{CLAUDE, GPT, MAX_TOKENS},
    until,
};
use serde_json::{Value, json};

for_both!(
    two_batches_of_the_same_prompts_are_bought_once,
    what_overlaps_in_part_is_bought_once,
    a_waiter_goes_on_when_the_owner_is_cancelled,
    a_waiter_takes_over_what_was_not_sent,
    only_what_was_answered_is_inherited,
    a_poison_prompt_fails_alone_in_both,
    a_waiter_that_is_cancelled_leaves_the_owner_alone,
    other_modes_ask_for_themselves,
);

/// Distinct bodies, and all paid calls.
async fn bill(world: &World) -> (usize, u64) {
    let paid = paid(world).await;
    (paid.len(), paid.values().sum())
}

async fn submitted(client: &Client, batch: &Batch) -> Value {
    batch.post(client).await.accepted()
}

/// Waits until so many prompts of a batch wait for another's call.
async fn joins(client: &Client, object: &Value, prompts: u64) {
    until("the prompts to wait for another batch", async || {
        let told = client.batch(id(object)).await;
        let expected = [("joined".to_owned(), prompts)];
        if waiting(&told) == expected { Ok(()) } else { Err(told) }
    })
    .await;
}

/// Providers that take their time, until [`they_end`].
async fn slow(world: &World) {
    world.sim.take(1_000.0).await;
}

async fn they_end(world: &World) {
    world.sim.take(0.2).await;
    world.sim.advance(1_000.0).await;
}

/// Joined results say so, and nothing was bought for them.
fn told_as_joined(batch: &Answered, joined: u64) {
    assert_eq!(count(&batch.object, "joined"), joined, "{}", batch.object);
    let sources = batch.results.iter().filter(|result| result["source"] == "joined").count() as u64;
    assert_eq!(sources, joined, "{}", batch.object);
}

fn both(name: &str, count: usize) -> Vec<Prompt> {
    (0..count).flat_map(|n| [claude(&format!("{name} {n}")), gpt(&format!("{name} {n}"))]).collect()
}

async fn two_batches_of_the_same_prompts_are_bought_once(kind: Kind) {
    let mut world = World::new(kind).await;
    world.start_gateway().await;
    slow(&world).await;
    let batch = Batch::of(both("same", 20)).field("chunk", 7);
    let first = submitted(world.client(), &batch).await;
    world.running(id(&first), 6).await;
    let second = submitted(&world.gateways[1].client, &batch).await;
    joins(world.client(), &second, 40).await;
    let told = world.client().batch(id(&second)).await;
    assert_eq!(
        told["chunks"],
        json!({"planned": 0, "submitting": 0, "running": 0, "settled": 0, "failed": 0}),
        "{told}"
    );
    let listed = world.client().get(&format!("/batches/{}/chunks", id(&second))).await.ok();
    assert_eq!(listed["chunks"], json!([]), "another's chunks are not told: {listed}");
    they_end(&world).await;
    let owner = answered(&world, &batch, id(&first)).await;
    told_as_joined(&owner, 0);
    let waiter = answered(&world, &batch, id(&second)).await;
    told_as_joined(&waiter, 40);
    assert_eq!(waiter.object["usage"]["output_tokens"], 0, "{}", waiter.object);
    assert_eq!(waiter.object["reported_prompts"], 0, "{}", waiter.object);
    assert_eq!(bill(&world).await, (40, 40));
    again(&world, &batch, &waiter).await;
    nothing_is_left_behind(&world).await;
}

/// Other order, other chunks, repeats, samples, prompts of its own; three batches at once.
async fn what_overlaps_in_part_is_bought_once(kind: Kind) {
    let world = World::new(kind).await;
    slow(&world).await;
    let first = Batch::of(both("part", 12)).field("chunk", 5);
    let mut turned = both("part", 12).into_iter().rev().collect::<Vec<_>>();
    turned.extend(both("own", 3));
    turned.push(claude("part 3"));
    let second = Batch::of(turned).field("chunk", 9).ndjson();
    let third = Batch::of(both("part", 4)).field("samples", 2);
    let mut objects = Vec::new();
    for batch in [&first, &second, &third] {
        objects.push(submitted(world.client(), batch).await);
    }
    joins(world.client(), &objects[1], 24).await;
    joins(world.client(), &objects[2], 9).await;
    they_end(&world).await;
    let owner = answered(&world, &first, id(&objects[0])).await;
    told_as_joined(&owner, 0);
    told_as_joined(&answered(&world, &second, id(&objects[1])).await, 24);
    // The second sample of `part 3` is the second batch's, and so is what the third has beyond the first.
    told_as_joined(&answered(&world, &third, id(&objects[2])).await, 9);
    assert_eq!(bill(&world).await, (30, 24 + 6 + 1 + 7));
    again(&world, &first, &owner).await;
    nothing_is_left_behind(&world).await;
}

/// Its chunks run: they are cancelled and read, and what they did not answer is asked by the one that waits.
async fn a_waiter_goes_on_when_the_owner_is_cancelled(kind: Kind) {
    let world = World::new(kind).await;
    slow(&world).await;
    let batch = Batch::of(both("left", 10)).field("chunk", 4);
    let first = submitted(world.client(), &batch).await;
    world.running(id(&first), 6).await;
    let (second, third) = (submitted(world.client(), &batch).await, submitted(world.client(), &batch).await);
    joins(world.client(), &second, 20).await;
    joins(world.client(), &third, 20).await;
    world.client().cancel(id(&first)).await.ok();
    let ended = world.client().ended(id(&first)).await;
    assert_eq!(count(&ended, "succeeded") + count(&ended, "canceled"), 20, "{ended}");
    they_end(&world).await;
    let heir = answered(&world, &batch, id(&second)).await;
    let other = answered(&world, &batch, id(&third)).await;
    for told in [&heir, &other] {
        assert_eq!(count(&told.object, "succeeded"), 20, "{}", told.object);
    }
    assert_eq!(bill(&world).await, (20, 20), "what the cancelled one answered is not asked again");
    again(&world, &batch, &heir).await;
    nothing_is_left_behind(&world).await;
}

/// Its chunks are planned and were never sent: they are the waiter's at once.
async fn a_waiter_takes_over_what_was_not_sent(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"status": 429}, "times": 0})).await;
    let batch = Batch::of(both("unsent", 10)).field("chunk", 4);
    let first = submitted(world.client(), &batch).await;
    let second = submitted(world.client(), &batch).await;
    joins(world.client(), &second, 20).await;
    world.client().cancel(id(&first)).await.ok();
    let ended = world.client().ended(id(&first)).await;
    assert_eq!(count(&ended, "canceled"), 20, "{ended}");
    world.sim.clear_faults().await;
    let heir = answered(&world, &batch, id(&second)).await;
    told_as_joined(&heir, 0);
    assert_eq!(bill(&world).await, (20, 20));
    again(&world, &batch, &heir).await;
    nothing_is_left_behind(&world).await;
}

/// An empty answer was billed. That something was refused, or that the provider was overloaded, the waiter finds out itself.
async fn only_what_was_answered_is_inherited(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1")]).await;
    slow(&world).await;
    let good = || both("good", 3);
    let prompts = |flaky: fn(Prompt) -> Prompt| {
        let mut prompts = good();
        prompts.push(gpt("[[nochoices]] last").fails_billed("empty_answer"));
        prompts.push(gpt("[[error:invalid_request]] last").fails("invalid_request"));
        prompts.push(claude("[[error:invalid_request]] last").fails("invalid_request"));
        prompts.push(flaky(gpt("[[flaky:1]] once")));
        prompts.push(flaky(claude("[[flaky:1]] once")));
        prompts
    };
    let owner = Batch::of(prompts(|prompt| prompt.fails("server_error")));
    let waiter = Batch::of(prompts(|prompt| prompt));
    let first = submitted(world.client(), &owner).await;
    world.running(id(&first), 2).await;
    let second = submitted(world.client(), &waiter).await;
    joins(world.client(), &second, 11).await;
    they_end(&world).await;
    answered(&world, &owner, id(&first)).await;
    let told = answered(&world, &waiter, id(&second)).await;
    told_as_joined(&told, 6);
    assert_eq!(bill(&world).await, (9, 9), "six good ones, one empty, two at the second try");
    again(&world, &waiter, &told).await;
    nothing_is_left_behind(&world).await;
}

/// The owner's chunk is refused whole for one prompt and cut in two, again and again; the waiter follows.
async fn a_poison_prompt_fails_alone_in_both(kind: Kind) {
    let world = World::new(kind).await;
    let refusal = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "requests.0: no"}});
    // The rule looks at the first model in the body.
    let spoiled = |fault: Value, times: u64| json!({"match": {"route": "batches.create", "model": "claude-poison"}, "fault": fault, "times": times});
    let slow = spoiled(json!({"delay": 1.5, "status": 400, "body": refusal}), 1);
    world.sim.fault(json!([slow, spoiled(json!({"status": 400, "body": refusal}), 0)])).await;
    let mut poison = claude("poison").fails("invalid_request");
    poison.sent = json!({"model": "claude-poison", "messages": poison.body["messages"]});
    let batch = Batch::of(std::iter::once(poison).chain((0..12).map(|n| claude(&format!("beside {n}")))));
    let first = submitted(world.client(), &batch).await;
    let second = submitted(world.client(), &batch).await;
    let owner = answered(&world, &batch, id(&first)).await;
    answered(&world, &batch, id(&second)).await;
    assert_eq!(bill(&world).await, (12, 12));
    again(&world, &batch, &owner).await;
    nothing_is_left_behind(&world).await;
}

async fn a_waiter_that_is_cancelled_leaves_the_owner_alone(kind: Kind) {
    let world = World::new(kind).await;
    slow(&world).await;
    let batch = Batch::of(both("stays", 5));
    let first = submitted(world.client(), &batch).await;
    world.running(id(&first), 2).await;
    let second = submitted(world.client(), &batch).await;
    joins(world.client(), &second, 10).await;
    world.client().cancel(id(&second)).await.ok();
    let ended = world.client().ended(id(&second)).await;
    assert_eq!(count(&ended, "canceled"), 10, "{ended}");
    they_end(&world).await;
    let owner = answered(&world, &batch, id(&first)).await;
    assert_eq!(count(&owner.object, "succeeded"), 10, "{}", owner.object);
    assert_eq!(bill(&world).await, (10, 10));
    again(&world, &batch, &owner).await;
    nothing_is_left_behind(&world).await;
}

/// `bypass`, `refresh` and `off` neither join nor (but for `refresh`) are joined; `only` asks nobody.
async fn other_modes_ask_for_themselves(kind: Kind) {
    let world = World::new(kind).await;
    slow(&world).await;
    let batch = |mode: &str| Batch::of(both("modes", 3)).field("cache", mode);
    let mut objects = Vec::new();
    for mode in ["off", "bypass", "refresh", "use", "bypass", "refresh", "off"] {
        objects.push((mode, submitted(world.client(), &batch(mode)).await));
    }
    let only = submitted(world.client(), &batch("only")).await;
    assert_eq!(count(&only, "failed"), 6, "{only}");
    // The one with `use` came after the first `refresh`, and waits for it.
    joins(world.client(), &objects[3].1, 6).await;
    they_end(&world).await;
    for (mode, object) in &objects {
        let told = answered(&world, &batch(mode), id(object)).await;
        told_as_joined(&told, if *mode == "use" { 6 } else { 0 });
    }
    assert_eq!(bill(&world).await, (6, 36));
    let plain = batch("use");
    let first = crate::support::check::check_once(&world, &plain).await;
    again(&world, &plain, &first).await;
    nothing_is_left_behind(&world).await;
}

/// What is asked one by one is joined like all else.
#[tokio::test]
async fn a_server_without_batches_is_asked_once() {
    let world = local::world(Kind::Ours, "", &[]).await;
    let slow = json!({"match": {"route": "chat.completions"}, "fault": {"delay_after": 4}, "times": 0});
    world.sim.fault(slow).await;
    let batch = Batch::of((0..200).map(|n| local(&format!("one {n}"))));
    let first = submitted(world.client(), &batch).await;
    let second = submitted(world.client(), &batch).await;
    joins(world.client(), &second, 200).await;
    world.sim.clear_faults().await;
    let owner = answered(&world, &batch, id(&first)).await;
    told_as_joined(&answered(&world, &batch, id(&second)).await, 200);
    assert_eq!(bill(&world).await, (200, 200));
    again(&world, &batch, &owner).await;
    nothing_is_left_behind(&world).await;
}

/// With `repeats: share` one question stands on many pages, of which another batch has some.
#[tokio::test]
async fn shared_repeats_are_joined_wherever_they_stand() {
    let world = World::new(Kind::Ours).await;
    slow(&world).await;
    let first = Batch::of(both("shared", 4)).field("repeats", "share");
    let prompts = (0..1_200)
        .map(|n| if n % 2 == 0 { claude(&format!("shared {}", n % 8)) } else { gpt(&format!("shared {}", n % 6)) });
    let second = Batch::of(prompts).field("repeats", "share");
    let object = submitted(world.client(), &first).await;
    world.running(id(&object), 2).await;
    let joined = submitted(world.client(), &second).await;
    joins(world.client(), &joined, 4).await;
    they_end(&world).await;
    answered(&world, &first, id(&object)).await;
    let told = answered(&world, &second, id(&joined)).await;
    told_as_joined(&told, 700);
    assert_eq!(bill(&world).await.0 as u64, bill(&world).await.1, "every question once");
    again(&world, &second, &told).await;
    nothing_is_left_behind(&world).await;
}

/// A number drawn from a run whose question comes to nothing in the call it joined is free again.
#[tokio::test]
async fn what_is_empty_in_a_joined_call_gives_its_number_back() {
    let world = World::new(Kind::Ours).await;
    slow(&world).await;
    let empty = || gpt("[[nochoices]] number").fails_billed("empty_answer");
    let owner = Batch::of([gpt("beside"), empty()]);
    let waiter = Batch::of([gpt("beside"), empty()]).field("run", "joined~1");
    let first = submitted(world.client(), &owner).await;
    world.running(id(&first), 1).await;
    let second = submitted(world.client(), &waiter).await;
    joins(world.client(), &second, 2).await;
    they_end(&world).await;
    answered(&world, &owner, id(&first)).await;
    told_as_joined(&answered(&world, &waiter, id(&second)).await, 1);
    let keys = world.redis.keys().await;
    let free = keys.keys().filter(|key| key.starts_with("{default}:n:") && key.ends_with(":free")).count();
    assert_eq!(free, 1, "one number is free again: {keys:?}");
    assert_eq!(bill(&world).await, (2, 2));
    nothing_is_left_behind(&world).await;
}

/// What was refused for something only the owner's request had (an API version that knows no `temperature`) is asked again.
#[tokio::test]
async fn a_refusal_of_another_s_request_is_not_inherited() {
    let world = World::new(Kind::Ours).await;
    slow(&world).await;
    let body = json!({"model": CLAUDE, "max_tokens": MAX_TOKENS, "temperature": 0.5,
        "messages": [{"role": "user", "content": "which version"}]});
    let sent = |headers: Value| json!({"endpoint": "/v1/messages", "headers": headers, "body": body});
    let owner = Prompt::new(sent(json!({"anthropic-version": "2026-10-21"})), body.clone()).fails("invalid_request");
    let (owner, waiter) = (Batch::of([owner]), Batch::of([Prompt::new(sent(json!({})), body.clone())]));
    let first = submitted(world.client(), &owner).await;
    world.running(id(&first), 1).await;
    let second = submitted(world.client(), &waiter).await;
    joins(world.client(), &second, 1).await;
    they_end(&world).await;
    answered(&world, &owner, id(&first)).await;
    let told = answered(&world, &waiter, id(&second)).await;
    again(&world, &waiter, &told).await;
    assert_eq!(bill(&world).await, (1, 1));
    nothing_is_left_behind(&world).await;
}

/// Who reads an answer that another paid for is not told what that one sent beside the question.
#[tokio::test]
async fn an_answer_does_not_tell_who_asked_first() {
    let world = World::new(Kind::Ours).await;
    let ask = |own: Value| {
        let mut body = json!({"model": GPT, "max_output_tokens": MAX_TOKENS, "input": "who asked"});
        body.as_object_mut().expect("one").extend(own.as_object().expect("one").clone());
        json!({"prompts": [{"endpoint": "/v1/responses", "body": body}]}).to_string()
    };
    let read = async |own: Value| {
        let object = world.client().post("/batches", JSON, ask(own)).await.accepted();
        world.client().ended(id(&object)).await;
        world.client().get(&format!("/batches/{}/results?response=full", id(&object))).await.text
    };
    let mine = read(json!({"user": "customer-4711", "metadata": {"campaign": "spring"}})).await;
    assert!(mine.contains("customer-4711") && mine.contains("spring"), "one's own is one's own: {mine}");
    let theirs = read(json!({})).await;
    assert!(theirs.contains("\"source\":\"cache\""), "{theirs}");
    assert!(!theirs.contains("customer-4711") && !theirs.contains("spring"), "{theirs}");
}

/// The dry run says what would be joined.
#[tokio::test]
async fn a_forecast_tells_what_others_are_asking() {
    let world = World::new(Kind::Ours).await;
    slow(&world).await;
    let first = Batch::of(both("forecast", 4));
    let object = submitted(world.client(), &first).await;
    let mut prompts = both("forecast", 4);
    prompts.extend(both("more", 2));
    let second = Batch::of(prompts);
    let (kind, body) = second.body();
    let forecast = world.client().post("/batches?dry_run=true", kind, body.clone()).await.ok();
    assert_eq!((&forecast["joined"], &forecast["to_buy"], &forecast["cached"]), (&json!(8), &json!(4), &json!(0)));
    they_end(&world).await;
    let owner = answered(&world, &first, id(&object)).await;
    let forecast = world.client().post("/batches?dry_run=true", kind, body).await.ok();
    assert_eq!((&forecast["joined"], &forecast["to_buy"], &forecast["cached"]), (&json!(0), &json!(4), &json!(8)));
    again(&world, &first, &owner).await;
    nothing_is_left_behind(&world).await;
}

/// An upload that never becomes a batch keeps nobody from asking.
#[tokio::test]
async fn an_upload_that_is_given_up_takes_its_marks_along() {
    let mut world = World::empty(Kind::Ours, &[]).await;
    world.start_gateway_with(&[("BATCHGATE_FAILPOINTS", "marked=error")]).await;
    let batch = Batch::of(both("given up", 6));
    let failed = batch.post(world.client()).await;
    assert_eq!(failed.status, 503, "{}", failed.text);
    let marks = world.redis.keys().await.into_keys().filter(|key| key.starts_with("{default}:m:")).count();
    assert_eq!(marks, 0);
    let first = crate::support::check(&world, &batch).await;
    told_as_joined(&first, 0);
    nothing_is_left_behind(&world).await;
}

/// Dies between its marks and its batch: who meets the marks waits for a while, as long as it may still come, and then asks.
#[tokio::test]
async fn an_upload_that_died_is_not_waited_for_long() {
    let mut world = World::empty(Kind::Ours, &[]).await;
    world.start_gateway_with(&[("BATCHGATE_FAILPOINTS", "marked=exit")]).await;
    let batch = Batch::of(both("died", 6));
    let (kind, body) = batch.body();
    let request = world.client().request(reqwest::Method::POST, "/batches").header("content-type", kind).body(body);
    assert!(world.client().try_send(request).await.is_err(), "it died");
    world.gateways.clear();
    world.start_gateway().await;
    let second = submitted(world.client(), &batch).await;
    joins(world.client(), &second, 12).await;
    assert_eq!(bill(&world).await, (0, 0));
    let keys = world.redis.keys().await;
    let upload = keys.keys().find(|key| key.starts_with("{default}:u:")).expect("what is left of it");
    world.redis.command::<i64>(&["HINCRBY", upload, "marked", "-60000"]).await;
    let told = answered(&world, &batch, id(&second)).await;
    told_as_joined(&told, 0);
    assert_eq!(bill(&world).await, (12, 12));
    again(&world, &batch, &told).await;
    crate::support::leftovers::time_passes(&world, std::time::Duration::from_secs(601)).await;
    nothing_is_left_behind(&world).await;
}

/// The waiter comes while the owner stands between its look at who waits and its transaction: it is served all the same.
#[tokio::test]
async fn a_waiter_that_comes_during_the_commit_is_taken_along() {
    let mut world = World::empty(Kind::Ours, &[]).await;
    world.start_gateway_with(&[("BATCHGATE_FAILPOINTS", "before_exec=stall:2s")]).await;
    world.sim.take(0.5).await;
    let batch = Batch::of((0..6).map(|n| gpt(&format!("newcomer {n}"))));
    let first = submitted(world.client(), &batch).await;
    until("the commit to be at hand", async || {
        let staged = world.redis.keys().await.into_keys().filter(|key| key.starts_with("{default}:s:")).count();
        if staged == 6 { Ok(()) } else { Err(staged) }
    })
    .await;
    world.start_gateway().await;
    let second = submitted(&world.gateways[1].client, &batch).await;
    let owner = answered(&world, &batch, id(&first)).await;
    let told = answered(&world, &batch, id(&second)).await;
    // On a slow machine the second gateway starts when the commit is over.
    assert_eq!(count(&told.object, "joined") + count(&told.object, "cached"), 6, "{}", told.object);
    assert_eq!(bill(&world).await, (6, 6));
    again(&world, &batch, &owner).await;
    nothing_is_left_behind(&world).await;
}

/// The owner dies with fragments written for the waiter, and is swept only when the waiter's batch has taken along what told
/// where they lie.
#[cfg(feature = "failpoints")]
#[tokio::test]
async fn what_a_dead_commit_wrote_for_a_waiter_does_not_stay() {
    let mut world = World::with(Kind::Ours, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    slow(&world).await;
    let batch = Batch::of((0..6).map(|n| gpt(&format!("dead commit {n}"))));
    let first = submitted(world.client(), &batch).await;
    world.running(id(&first), 1).await;
    let second = submitted(world.client(), &batch).await;
    joins(world.client(), &second, 6).await;
    world.kill_gateway();
    world.start_gateway_with(&[("BATCHGATE_FAILPOINTS", "before_exec=exit")]).await;
    they_end(&world).await;
    until("the owner to die", async || {
        let said = world.gateways[0].process.said();
        if said.contains("fail point tripped") { Ok(()) } else { Err(said) }
    })
    .await;
    world.kill_gateway();
    let chores = "{default}:chores";
    let all: Vec<String> = world.redis.command(&["ZRANGE", chores, "0", "-1"]).await;
    let [stage] = &all.iter().filter(|chore| chore.starts_with("stage:")).collect::<Vec<_>>()[..] else {
        panic!("one dispatch was staging: {all:?}")
    };
    world.redis.command::<i64>(&["ZADD", chores, "9999999999999", stage]).await;
    world.start_gateway().await;
    let heir = answered(&world, &batch, id(&first)).await;
    told_as_joined(&answered(&world, &batch, id(&second)).await, 6);
    let items = format!("{{default}}:k:{}.0:items", id(&second).trim_start_matches("batch_"));
    until("the waiter's chunks to be removed", async || {
        if world.redis.keys().await.contains_key(&items) { Err(()) } else { Ok(()) }
    })
    .await;
    world.redis.command::<i64>(&["ZADD", chores, "0", stage]).await;
    assert_eq!(bill(&world).await, (6, 6));
    again(&world, &batch, &heir).await;
    nothing_is_left_behind(&world).await;
}

/// A chunk that is set apart says nothing of its prompts: who waits for it asks.
#[tokio::test]
async fn a_quarantine_is_not_inherited() {
    let world = World::new(Kind::Ours).await;
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"status": 429}, "times": 0})).await;
    let owner = Batch::of((0..4).map(|n| claude(&format!("apart {n}")).fails("quarantined")));
    let waiter = Batch::of((0..4).map(|n| claude(&format!("apart {n}"))));
    let first = submitted(world.client(), &owner).await;
    let second = submitted(world.client(), &waiter).await;
    joins(world.client(), &second, 4).await;
    let chunk = format!("{{default}}:k:{}.0", id(&first).trim_start_matches("batch_"));
    until("the chunk to be set apart", async || {
        world.redis.command::<i64>(&["HSET", &chunk, "reclaims", "10"]).await; // a step that ends in between sets it back
        let told = world.client().batch(id(&first)).await;
        if told["status"] == "ended" { Ok(()) } else { Err(told) }
    })
    .await;
    answered(&world, &owner, id(&first)).await;
    world.sim.clear_faults().await;
    let told = answered(&world, &waiter, id(&second)).await;
    told_as_joined(&told, 0);
    again(&world, &waiter, &told).await;
    nothing_is_left_behind(&world).await;
}

/// Answers that came before the registration are in the cache; if they are gone from there they are asked again.
#[tokio::test]
async fn what_was_answered_before_the_registration_is_a_hit() {
    let mut world = World::empty(Kind::Ours, &[]).await;
    world.start_gateway_with(&[("BATCHGATE_FAILPOINTS", "registering=error")]).await;
    slow(&world).await;
    let batch = Batch::of((0..6).map(|n| gpt(&format!("late {n}"))));
    let first = submitted(world.client(), &batch).await;
    world.running(id(&first), 1).await;
    let second = submitted(world.client(), &batch).await;
    until("the registration to fail", async || {
        let said = world.gateways[0].process.said();
        if said.contains("fail point tripped") { Ok(()) } else { Err(said) }
    })
    .await;
    they_end(&world).await;
    let owner = answered(&world, &batch, id(&first)).await;
    let told = answered(&world, &batch, id(&second)).await;
    // On a slow machine the claim may run out before the owner commits.
    assert_eq!(count(&told.object, "joined") + count(&told.object, "cached"), 6, "{}", told.object);
    assert_eq!(bill(&world).await, (6, 6));
    again(&world, &batch, &owner).await;
    nothing_is_left_behind(&world).await;
}
