//! Runs: in one attempt every asking of a question is a sample of its own, in whichever batch; the next attempt reads
//! them again. What came to nothing is free again, and nobody ever draws what somebody else holds.

use super::samples::calls;
use crate::support::{
    Batch, Kind, Prompt, World, check,
    check::{Answered, answered, check_once, paid},
    claude,
    client::{NDJSON, count, id},
    for_both, gpt, nothing_is_left_behind, until,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio::io::AsyncWriteExt;

for_both!(
    epochs_of_one_attempt_are_samples_and_the_next_attempt_reads_them,
    a_run_without_attempt_counts_on,
    a_custom_id_keeps_its_number,
    samples_are_askings_in_a_row,
    one_answer_for_all_where_answers_are_shared,
    a_failed_number_is_drawn_first,
    a_cancelled_batch_gives_its_numbers_back,
    what_somebody_else_holds_is_not_given_back,
    what_fails_at_once_is_free_at_once,
    a_refused_body_drew_nothing,
    a_client_that_goes_away_drew_nothing,
    two_uploads_at_once_draw_different_numbers,
);

fn asking(run: &str, prompts: impl IntoIterator<Item = Prompt>) -> Batch {
    Batch::of(prompts).field("run", run)
}

async fn bill(world: &World) -> u64 {
    paid(world).await.values().sum()
}

/// A batch that is answered, how many of its answers were bought, and the call behind each.
async fn ask(world: &World, batch: &Batch) -> (Answered, u64, Vec<u64>) {
    let before = bill(world).await;
    let first = check_once(world, batch).await;
    let calls = calls(world, &first.object).await;
    (first, bill(world).await - before, calls)
}

/// The first n samples of a prompt, from the cache: what has which number.
async fn numbered(world: &World, prompt: Prompt, n: u64) -> Vec<u64> {
    let (_, bought, calls) = ask(world, &Batch::of([prompt]).field("samples", n)).await;
    assert_eq!(bought, 0, "these {n} samples are known");
    calls
}

async fn epochs_of_one_attempt_are_samples_and_the_next_attempt_reads_them(kind: Kind) {
    let world = World::new(kind).await;
    let epochs = |attempt: &str| {
        [
            asking(attempt, [claude("a"), gpt("b")]),
            asking(attempt, [claude("a"), gpt("b")]).ndjson(),
            asking(attempt, ["a", "a"].map(claude)).field("chunk", 1),
        ]
    };
    let (mut first, mut repeats) = (Vec::new(), Vec::new());
    for epoch in epochs("arc-5~1") {
        let (answered, bought, calls) = ask(&world, &epoch).await;
        assert_eq!((bought, &answered.object["run"]), (2, &json!("arc-5~1")), "{}", answered.object);
        first.extend(calls);
        repeats.push(count(&answered.object, "repeats"));
    }
    assert_eq!(repeats, [0, 2, 2], "prompts whose question came before in the attempt");
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 6, "each asking is a sample of its own: {first:?}");
    for attempt in ["arc-5~2", "arc-5~3", "arc-5", "other~1"] {
        let mut read = Vec::new();
        for epoch in epochs(attempt) {
            let (answered, bought, calls) = ask(&world, &epoch).await;
            assert_eq!((bought, count(&answered.object, "cached")), (0, 2), "{}", answered.object);
            read.extend(calls);
        }
        assert_eq!(read, first, "{attempt} reads the same samples in the same order");
    }
    assert_eq!(numbered(&world, claude("a"), 4).await, [first[0], first[2], first[4], first[5]]);
    assert_eq!(numbered(&world, gpt("b"), 2).await, [first[1], first[3]]);
    nothing_is_left_behind(&world).await;
}

async fn a_run_without_attempt_counts_on(kind: Kind) {
    let world = World::new(kind).await;
    let batch = asking("daily", [claude("a"), gpt("b")]);
    let mut all = BTreeSet::new();
    for repeats in [0, 2, 2] {
        let (answered, bought, calls) = ask(&world, &batch).await;
        assert_eq!((bought, count(&answered.object, "repeats")), (2, repeats), "{}", answered.object);
        all.extend(calls);
    }
    assert_eq!(all.len(), 6);
}

async fn a_custom_id_keeps_its_number(kind: Kind) {
    let world = World::new(kind).await;
    let lines = [claude("a").named("x"), claude("a").named("y"), gpt("b").named("z")];
    let batch = asking("r~1", lines);
    let first = check(&world, &batch).await; // asks twice: the second time all is read
    let calls = calls(&world, &first.object).await;
    let (again, _, same) = ask(&world, &batch.clone().ndjson()).await;
    assert_eq!((count(&again.object, "repeats"), same), (3, calls.clone()), "the question came before all the same");
    let (_, bought, one) = ask(&world, &asking("r~1", [claude("a").named("y")])).await;
    assert_eq!((bought, one), (0, vec![calls[1]]), "in whichever batch");
    let mixed = [claude("a").named("w"), claude("a"), claude("a").named("x"), gpt("b").named("v")];
    let (_, bought, others) = ask(&world, &asking("r~1", mixed)).await;
    assert_eq!((bought, others[2]), (3, calls[0]), "another name, no name and another question are new askings");
    let expected: Vec<u64> = [calls[0], calls[1], others[0], others[1]].to_vec();
    assert_eq!(numbered(&world, claude("a"), 4).await, expected, "lowest number first");
    let (_, bought, next) = ask(&world, &asking("r~2", [claude("a").named("w"), claude("a").named("x")])).await;
    assert_eq!((bought, next), (0, vec![calls[0], calls[1]]), "each attempt names its own");
}

async fn samples_are_askings_in_a_row(kind: Kind) {
    let world = World::new(kind).await;
    let (first, _, three) = ask(&world, &asking("s~1", [claude("a").named("x"), gpt("b")]).field("samples", 3)).await;
    assert_eq!(count(&first.object, "repeats"), 0, "samples alone make no repeats");
    let (second, bought, two) = ask(&world, &asking("s~1", [claude("a")]).field("samples", 2)).await;
    assert_eq!((count(&second.object, "repeats"), bought), (1, 2));
    let (_, bought, five) = ask(&world, &asking("s~1", [claude("a").named("x")]).field("samples", 5)).await;
    assert_eq!((bought, &five[..3]), (2, &three[..3]), "the name keeps what it has and draws two more");
    let all = numbered(&world, claude("a"), 7).await;
    assert_eq!(all, [&three[..3], &two[..], &five[3..]].concat());
    // More samples than a page of results has.
    let many = asking("s~1", [claude("many").named("m"), claude("many")]).field("samples", 700);
    let (_, bought, calls) = ask(&world, &many).await;
    assert_eq!((bought, calls.iter().collect::<BTreeSet<_>>().len()), (1_400, 1_400));
    let (_, bought, again) = ask(&world, &many.clone().field("run", "s~2")).await;
    assert_eq!((bought, again), (0, calls));
}

async fn one_answer_for_all_where_answers_are_shared(kind: Kind) {
    let world = World::new(kind).await;
    let share = |prompts: &[&str]| asking("o~1", prompts.iter().map(|text| claude(text))).field("repeats", "share");
    let (first, bought, calls) = ask(&world, &share(&["a", "a"])).await;
    assert_eq!((bought, count(&first.object, "repeats"), calls[0]), (1, 1, calls[1]));
    let (second, bought, read) = ask(&world, &share(&["a"])).await;
    assert_eq!((bought, count(&second.object, "repeats"), read), (0, 1, vec![calls[0]]));
    let vectors = json!({"model": "text-embedding-3-small", "input": "a"});
    let vectors = || Prompt::new(json!({"endpoint": "/v1/embeddings", "body": vectors}), vectors.clone());
    for (cached, repeats) in [(0, 1), (2, 2)] {
        let object = asking("o~1", [vectors(), vectors()]).post(world.client()).await.accepted();
        let object = world.client().ended(id(&object)).await;
        assert_eq!((count(&object, "cached"), count(&object, "repeats")), (cached, repeats), "{object}");
    }
}

async fn a_failed_number_is_drawn_first(kind: Kind) {
    let world = World::with(kind, &[("BATCHGATE_ATTEMPTS", "1")]).await;
    for (run, prompt) in [("f~1", claude as fn(&str) -> Prompt), ("f~2", gpt)] {
        let text = "[[flaky:1]] now and then";
        let object = asking(run, [prompt(text), prompt(text)]).post(world.client()).await.accepted();
        let object = world.client().ended(id(&object)).await;
        assert_eq!((count(&object, "succeeded"), count(&object, "failed")), (1, 1), "{object}");
        let results = world.client().lines(&format!("/batches/{}/results?response=full", id(&object))).await;
        let lost = results.iter().position(|result| result["status"] == "failed").expect("one failed");
        let kept = results[1 - lost]["response"]["usage"]["sim_call"].as_u64().expect("a call");
        let (again, bought, freed) = ask(&world, &asking(run, [prompt(text)])).await;
        assert_eq!((bought, count(&again.object, "repeats")), (1, 1), "{}", again.object);
        let (_, bought, next) = ask(&world, &asking(run, [prompt(text)])).await;
        assert_eq!(bought, 1);
        let mut expected = vec![0, 0, next[0]];
        (expected[lost], expected[1 - lost]) = (freed[0], kept);
        assert_eq!(numbered(&world, prompt(text), 3).await, expected, "the failed number first, then a new one");
    }
    nothing_is_left_behind(&world).await;
}

async fn a_cancelled_batch_gives_its_numbers_back(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    let epoch = asking("c~1", [claude("a"), claude("a").named("x"), gpt("b").named("y")]);
    let object = epoch.post(world.client()).await.accepted();
    world.running(id(&object), 2).await;
    world.client().cancel(id(&object)).await.ok();
    let ended = world.client().ended(id(&object)).await;
    assert_eq!(count(&ended, "canceled"), 3, "{ended}");
    world.sim.take(0.1).await;
    let (_, bought, calls) = ask(&world, &epoch).await;
    assert_eq!(bought, 3);
    assert_eq!(numbered(&world, claude("a"), 2).await, [calls[0], calls[1]], "the same numbers again");
    assert_eq!(numbered(&world, gpt("b"), 1).await, [calls[2]]);
    nothing_is_left_behind(&world).await;
}

async fn what_somebody_else_holds_is_not_given_back(kind: Kind) {
    let world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    let epoch = asking("h~1", [claude("a").named("x"), gpt("b").named("y")]);
    let first = epoch.post(world.client()).await.accepted();
    let second = epoch.clone().field("chunk", 1).post(world.client()).await.accepted();
    world.running(id(&first), 2).await;
    world.client().cancel(id(&first)).await.ok();
    world.client().ended(id(&first)).await;
    // What it joined is gone: it asks for itself.
    world.running(id(&second), 2).await;
    // Both numbers are still the second batch's: a new asking draws the next ones.
    let next = asking("h~1", [claude("a"), gpt("b")]);
    let third = next.post(world.client()).await.accepted();
    world.running(id(&third), 2).await;
    world.sim.advance(2_000.0).await;
    let second = answered(&world, &epoch, id(&second)).await;
    let third = answered(&world, &next, id(&third)).await;
    let (held, new) = (calls(&world, &second.object).await, calls(&world, &third.object).await);
    world.sim.take(0.1).await;
    assert_eq!(numbered(&world, claude("a"), 2).await, [held[0], new[0]]);
    assert_eq!(numbered(&world, gpt("b"), 2).await, [held[1], new[1]]);
}

async fn what_fails_at_once_is_free_at_once(kind: Kind) {
    let world = World::new(kind).await;
    let known = check(&world, &Batch::of([gpt("b")])).await;
    for (prompts, total) in
        [(vec![claude("a"), claude("a"), gpt("b")], 3), (vec![claude("a"), gpt("new").named("x")], 2)]
    {
        let object = asking("n~1", prompts).field("cache", "only").post(world.client()).await.accepted();
        assert_eq!((&object["status"], count(&object, "total")), (&json!("ended"), total), "{object}");
        assert_eq!(count(&object, "failed"), 2, "{object}");
    }
    let (answered, bought, calls) = ask(&world, &asking("n~1", [claude("a"), gpt("new"), gpt("b")])).await;
    assert_eq!(
        (bought, count(&answered.object, "repeats")),
        (3, 3),
        "gpt's first number is the hit's: {}",
        known.object
    );
    assert_eq!(numbered(&world, claude("a"), 1).await, [calls[0]]);
    assert_eq!(numbered(&world, gpt("new"), 1).await, [calls[1]]);
    // A page with hits and misses: what must be asked keeps its number.
    let (_, _, both) = ask(&world, &asking("n~1", ["a", "fresh"].map(claude))).await;
    assert_eq!(numbered(&world, claude("a"), 2).await, [calls[0], both[0]]);
    nothing_is_left_behind(&world).await;
}

/// Enough lines for a page to be drawn before the last one is read.
fn many_lines(run: &str) -> String {
    let header = json!({"batch": {"model": "gpt-5-mini", "run": run}}).to_string();
    std::iter::once(header).chain((0..600).map(|n| format!("\"say {}\"", n % 300))).map(|line| line + "\n").collect()
}

async fn no_run_is_known(world: &World) {
    until("the numbers to be given back", async || {
        let keys = world.redis.keys().await;
        if keys.is_empty() { Ok(()) } else { Err(keys) }
    })
    .await;
}

async fn a_refused_body_drew_nothing(kind: Kind) {
    let world = World::new(kind).await;
    let body = many_lines("b~1") + "5\n";
    let problem = world.client().post("/batches", NDJSON, body).await.refused(422, "invalid_request");
    assert_eq!(problem["errors"][0]["pointer"], "/prompts/600", "{problem}");
    no_run_is_known(&world).await;
    let (first, _, _) = ask(&world, &asking("b~1", [claude("a")])).await;
    assert_eq!(count(&first.object, "repeats"), 0, "nothing came before");
    // The same beside numbers that are somebody's.
    let lines = many_lines("b~1").replace(
        "\"say 7\"",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \
        \"model\": \"claude-haiku-4-5\", \"max_tokens\": 100}",
    );
    world.client().post("/batches", NDJSON, lines + "5\n").await.refused(422, "invalid_request");
    let (second, _, calls) = ask(&world, &asking("b~1", [claude("a")])).await;
    assert_eq!(count(&second.object, "repeats"), 1);
    assert_eq!(numbered(&world, claude("a"), 2).await[1], calls[0], "the next number is still the next");
}

async fn a_client_that_goes_away_drew_nothing(kind: Kind) {
    let world = World::new(kind).await;
    let body = many_lines("g~1");
    let address = world.gateways[0].address.clone();
    let head = format!(
        "POST /batches HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
        body.len() + 10
    );
    let mut socket = tokio::net::TcpStream::connect(&address).await.expect("the gateway listens");
    socket.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.expect("it reads");
    until("numbers to be drawn", async || {
        let keys = world.redis.keys().await;
        if keys.keys().any(|key| key.starts_with("{default}:n:")) { Ok(()) } else { Err(keys) }
    })
    .await;
    drop(socket);
    no_run_is_known(&world).await;
    let first = check_once(&world, &asking("g~1", [gpt("say 1"), gpt("say 1")])).await;
    assert_eq!(count(&first.object, "repeats"), 1);
}

async fn two_uploads_at_once_draw_different_numbers(kind: Kind) {
    let world = World::new(kind).await;
    let batch = asking("t~1", (0..600).map(|_| gpt("the same"))).ndjson();
    let (one, two) = tokio::join!(batch.post(world.client()), batch.post(world.client()));
    let (one, two) = (one.accepted(), two.accepted());
    let mut all: Vec<u64> = Vec::new();
    for object in [&one, &two] {
        let object = answered(&world, &batch, id(object)).await.object;
        all.extend(calls(&world, &object).await);
    }
    let distinct: BTreeSet<&u64> = all.iter().collect();
    assert_eq!((distinct.len(), bill(&world).await), (1_200, 1_200), "every asking is a sample of its own");
    let repeats: u64 = [&one, &two].map(|object| count(object, "repeats")).iter().sum();
    assert_eq!(repeats, 1_199, "only one was the first");
    let known: BTreeSet<u64> = numbered_all(&world, 1_200).await;
    assert_eq!(known, all.into_iter().collect(), "the numbers are 0 to 1,199, without gaps");
}

async fn numbered_all(world: &World, n: usize) -> BTreeSet<u64> {
    let (_, bought, calls) = ask(world, &Batch::of((0..n).map(|_| gpt("the same")))).await;
    assert_eq!(bought, 0);
    calls.into_iter().collect()
}

#[tokio::test]
async fn a_run_is_told_in_the_object_and_the_list() {
    let world = World::new(Kind::Ours).await;
    let with = asking("told~1", [claude("a")]).post(world.client()).await.accepted();
    let without = Batch::of([claude("a")]).field("run", Value::Null).post(world.client()).await.accepted();
    let list = world.client().get("/batches").await.ok();
    for (object, run) in [(&with, json!("told~1")), (&without, Value::Null)] {
        assert_eq!(object["run"], run);
        assert_eq!(world.client().ended(id(object)).await["run"], run);
        let listed = list["data"].as_array().expect("a list").iter().find(|listed| listed["id"] == object["id"]);
        assert_eq!(listed.map(|listed| &listed["run"]), Some(&run), "{list}");
    }
}
