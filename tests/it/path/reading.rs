//! Reading results: streams, pages, offsets, before and after the end.

use crate::support::{
    Batch, Kind, World, again, check,
    check::{answered, right},
    claude,
    client::{Client, JSON, NDJSON, count, id, lines},
    for_both, gpt, until,
};
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

for_both!(
    pages_and_offsets_cut_the_same_list,
    before_the_end_results_are_refused_or_partial,
    follow_sends_each_result_as_soon_as_all_before_it_are_known,
    wait_holds_the_answer_until_the_end,
    large_batches_do_not_bring_their_results_along,
);

async fn pages_and_offsets_cut_the_same_list(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of((0..25).map(|n| claude(&format!("Say {n}")))).field("chunk", 4).field("samples", 2);
    let first = check(&world, &batch).await;
    let (all, base) = (&first.results, format!("/batches/{}/results", id(&first.object)));
    for (offset, limit) in [(0, 1), (0, 50), (0, 1000), (7, 3), (49, 1), (49, 10), (50, 10)] {
        let page = world.client().get(&format!("{base}?offset={offset}&limit={limit}")).await;
        assert_eq!(page.header("content-type"), JSON);
        let page = page.ok();
        let end = (offset + limit).min(50);
        assert_eq!(page["results"], json!(all[offset..end]), "{offset} {limit}");
        let next = if end < 50 { json!(format!("{base}?offset={end}&limit={limit}")) } else { Value::Null };
        assert_eq!(page["next"], next, "{offset} {limit}");
    }
    // Walking by `next` meets every result once, also with the bodies.
    for more in ["", "&response=full"] {
        let (mut walked, mut next) = (Vec::new(), json!(format!("{base}?limit=7{more}")));
        while let Value::String(path) = &next {
            let page = world.client().get(path).await.ok();
            walked.extend(page["results"].as_array().expect("a page has results").clone());
            next = page["next"].clone();
        }
        assert_eq!(walked.len(), 50);
        assert_eq!(walked[0].get("response").is_some(), !more.is_empty(), "{}", walked[0]);
        right(&batch, &walked);
    }
    for offset in [0, 1, 24, 49, 50] {
        for more in ["", "&follow=true", "&partial=true"] {
            assert_eq!(
                world.client().lines(&format!("{base}?offset={offset}{more}")).await,
                all[offset..],
                "{offset}{more}"
            );
        }
    }
    let accept = |kinds: &str| world.client().request(Method::GET, &base).header("accept", kinds);
    let page = world.client().send(accept("application/json")).await.ok();
    assert_eq!(page, json!({"results": all, "next": null}));
    for kinds in ["*/*", NDJSON, "application/x-ndjson, application/json;q=0.5", ""] {
        let stream = world.client().send(accept(kinds)).await;
        assert_eq!(stream.header("content-type"), NDJSON, "{kinds:?}");
        assert_eq!(lines(&stream.text), *all, "{kinds:?}");
    }
}

/// A world in which OpenAI's batches take long and Anthropic's do not.
async fn half_stuck(kind: Kind) -> (World, Batch, String) {
    let world = World::new(kind).await;
    world.sim.settings(json!({"openai": {"in_progress_s": 5000}})).await;
    let batch = Batch::of([claude("a"), claude("b"), gpt("c"), claude("d"), gpt("e")]);
    let object = batch.post(world.client()).await.accepted();
    let id = id(&object).to_owned();
    until("the first provider to be done", async || {
        let object = world.client().batch(&id).await;
        if count(&object, "succeeded") == 3 { Ok(()) } else { Err(object) }
    })
    .await;
    (world, batch, id)
}

async fn before_the_end_results_are_refused_or_partial(kind: Kind) {
    let (world, batch, id) = half_stuck(kind).await;
    let base = format!("/batches/{id}/results");
    for query in ["", "?limit=2", "?offset=1", "?partial=false", "?follow=false"] {
        world.client().get(&format!("{base}{query}")).await.refused(409, "batch_running");
    }
    let partial = world.client().lines(&format!("{base}?partial=true")).await;
    let statuses: Vec<&Value> = partial.iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, ["succeeded", "succeeded", "pending", "succeeded", "pending"]);
    let pending = json!({"index": 2, "sample": 0, "custom_id": null, "status": "pending", "source": null, "model": null,
        "completion": null, "finish": null, "stop_reason": null, "usage": null, "cost_usd": null, "error": null});
    assert_eq!(partial[2], pending);
    assert_eq!(partial[0]["completion"], batch.prompts[0].echo());
    let page = world.client().get(&format!("{base}?partial=true&limit=2&offset=1")).await.ok();
    assert_eq!(page["results"], json!(partial[1..3]));
    assert_eq!(page["next"], format!("{base}?offset=3&limit=2&partial=true"));
    world.client().get(&format!("{base}?partial=true&follow=true")).await.refused(422, "invalid_request");
    world.client().get(&format!("{base}?limit=1&follow=true")).await.refused(422, "invalid_request");
    finish(&world, &batch, &id).await;
}

/// Two hours later the slow ones are done, too.
async fn finish(world: &World, batch: &Batch, id: &str) {
    world.sim.advance(7_200.0).await;
    let first = answered(world, batch, id).await;
    again(world, batch, &first).await;
}

async fn follow_sends_each_result_as_soon_as_all_before_it_are_known(kind: Kind) {
    let (world, batch, id) = half_stuck(kind).await;
    let base = format!("/batches/{id}/results?follow=true");
    let mut stream = Follow::open(world.client(), &base).await;
    assert_eq!(stream.until_lines(2).await.len(), 2, "the first two are known, the third is not");
    let mut later = Follow::open(world.client(), &format!("{base}&offset=3")).await;
    assert_eq!(later.until_lines(1).await[0]["index"], 3);
    finish(&world, &batch, &id).await;
    let all = world.client().results(&id).await;
    assert_eq!(stream.read_on().await, all, "it stays open to the end");
    assert_eq!(later.read_on().await, all[3..]);
    right(&batch, &all);
}

/// A stream being read.
struct Follow {
    reply: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: String,
}

impl Follow {
    async fn open(client: &Client, path: &str) -> Follow {
        let reply = client.request(Method::GET, path).send().await.expect("an answer begins");
        assert_eq!(reply.status(), 200);
        Follow { reply: reply.bytes_stream().boxed(), text: String::new() }
    }

    /// Reads until there are so many whole lines.
    async fn until_lines(&mut self, count: usize) -> Vec<Value> {
        while self.text.matches('\n').count() < count {
            let piece = self.reply.next().await.expect("the stream goes on").expect("and does not break");
            self.text.push_str(std::str::from_utf8(&piece).expect("pieces end between characters"));
        }
        lines(&self.text)
    }

    async fn read_on(mut self) -> Vec<Value> {
        while let Some(piece) = self.reply.next().await {
            self.text.push_str(std::str::from_utf8(&piece.expect("a clean end")).expect("UTF-8"));
        }
        lines(&self.text)
    }
}

async fn wait_holds_the_answer_until_the_end(kind: Kind) {
    let (world, batch, id) = half_stuck(kind).await;
    let began = std::time::Instant::now();
    let object = world.client().get(&format!("/batches/{id}?wait=1")).await.ok();
    assert_eq!(object["status"], "running");
    assert!(began.elapsed().as_millis() >= 900, "held for a second: {:?}", began.elapsed());
    let client = world.client().clone();
    let path = format!("/batches/{id}?wait=60");
    let waiting = tokio::spawn(async move { client.get(&path).await.ok() });
    finish(&world, &batch, &id).await;
    let object = waiting.await.expect("the request ends");
    assert_eq!(object["status"], "ended");
    let began = std::time::Instant::now();
    world.client().get(&format!("/batches/{id}?wait=60")).await.ok();
    assert!(began.elapsed().as_secs() < 10, "an ended batch is not waited for");
}

async fn large_batches_do_not_bring_their_results_along(kind: Kind) {
    let world = World::new(kind).await;
    for (count, inline) in [(1_000, true), (1_001, false)] {
        let batch = Batch::of((0..count).map(|n| claude(&format!("{count}: {n}")))).ndjson();
        let first = check(&world, &batch).await;
        assert_eq!(first.object["results"].is_array(), inline);
        assert_eq!(first.object["results_url"], format!("/batches/{}/results", id(&first.object)));
        let page = world.client().send(
            world
                .client()
                .request(Method::GET, &format!("/batches/{}/results", id(&first.object)))
                .header("accept", JSON),
        );
        let page = page.await.ok();
        assert_eq!(page["results"].as_array().map(Vec::len), Some(1_000), "a page has a thousand by default");
        assert_eq!(page["next"].is_null(), inline);
    }
}
