//! Idempotency-Key: the first answer again, whole; or a clear refusal.

use crate::support::{
    Batch, Kind, World, again,
    check::answered,
    claude,
    client::{Client, JSON, NDJSON, Reply, id},
    for_both, gpt, until,
};
use reqwest::Method;
use serde_json::json;

for_both!(
    the_first_answer_comes_again_whole,
    of_a_deleted_batch_the_first_answer_comes_without_results,
    another_body_under_the_same_key_is_refused,
    a_request_still_in_work_is_said_to_be,
    an_error_frees_the_key,
    many_at_once_make_one_batch,
);

async fn keyed(client: &Client, key: &str, kind: &str, body: impl Into<reqwest::Body>) -> Reply {
    let request = client.request(Method::POST, "/batches").header("content-type", kind).header("idempotency-key", key);
    client.send(request.body(body)).await
}

async fn the_first_answer_comes_again_whole(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("a"), gpt("b")]).field("metadata", json!({"a": "\u{e9}"}));
    let (kind, body) = batch.body();
    let first = keyed(world.client(), "k", kind, body.clone()).await;
    first.accepted();
    assert_eq!(first.header("idempotency-replayed"), "");
    let told = answered(&world, &batch, id(&first.json())).await;
    for _ in 0..2 {
        let replayed = keyed(world.client(), "k", kind, body.clone()).await;
        assert_eq!((replayed.status, &replayed.text), (first.status, &first.text), "the first answer, as it was");
        assert_eq!(replayed.header("location"), first.header("location"));
        assert_eq!(replayed.header("idempotency-replayed"), "true");
    }
    // A batch that was ended at once brings its results along again.
    let known = keyed(world.client(), "k2", kind, body.clone()).await;
    assert_eq!(known.accepted()["status"], "ended");
    let replayed = keyed(world.client(), "k2", kind, body.clone()).await;
    assert_eq!((&replayed.text, replayed.header("idempotency-replayed")), (&known.text, "true"));
    assert_ne!(id(&known.json()), id(&first.json()), "another key is another batch");
    again(&world, &batch, &told).await;
}

async fn of_a_deleted_batch_the_first_answer_comes_without_results(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("a"), gpt("b")]);
    let (kind, body) = batch.body();
    let first = keyed(world.client(), "k", kind, body.clone()).await;
    let told = answered(&world, &batch, id(&first.accepted())).await;
    let ended = keyed(world.client(), "k2", kind, body.clone()).await;
    assert_eq!(ended.accepted()["status"], "ended");
    for (key, first) in [("k", first), ("k2", ended)] {
        let path = format!("/batches/{}", id(&first.json()));
        world.client().send(world.client().request(Method::DELETE, &path)).await.ok();
        let replayed = keyed(world.client(), key, kind, body.clone()).await;
        let mut expect = first.json();
        expect["results"] = json!(null);
        assert_eq!((replayed.status, replayed.json()), (202, expect));
        assert_eq!((replayed.header("idempotency-replayed"), replayed.header("location")), ("true", &path[..]));
        world.client().get(&path).await.refused(404, "not_found");
    }
    again(&world, &batch, &told).await;
}

async fn another_body_under_the_same_key_is_refused(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("a")]);
    let (json_kind, body) = batch.body();
    let first = keyed(world.client(), "k", json_kind, body.clone()).await.accepted();
    let others = [
        (JSON, Batch::of([claude("b")]).body().1),
        (JSON, format!("{body} ")),
        (NDJSON, batch.clone().ndjson().body().1),
        (JSON, "{".to_owned()),
    ];
    for (kind, other) in others {
        keyed(world.client(), "k", kind, other).await.refused(422, "idempotency_mismatch");
    }
    assert_eq!(world.client().get("/batches").await.ok()["data"].as_array().map(Vec::len), Some(1));
    let told = answered(&world, &batch, id(&first)).await;
    again(&world, &batch, &told).await;
}

async fn a_request_still_in_work_is_said_to_be(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("a"), gpt("b")]);
    let (kind, body) = batch.body();
    let (more, pieces) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(4);
    let (head, tail) = body.as_bytes().split_at(20);
    more.send(Ok(head.to_vec())).await.expect("somebody listens");
    let client = world.client().clone();
    let stream =
        futures_util::stream::unfold(pieces, |mut pieces| async { pieces.recv().await.map(|piece| (piece, pieces)) });
    let first = tokio::spawn(async move { keyed(&client, "k", kind, reqwest::Body::wrap_stream(stream)).await });
    until("the key to be taken", async || {
        let keys = world.redis.keys().await;
        if keys.keys().any(|key| key.contains(":i:default:")) { Ok(()) } else { Err(keys) }
    })
    .await;
    let problem = keyed(world.client(), "k", kind, body.clone()).await;
    problem.refused(409, "idempotency_in_progress");
    more.send(Ok(tail.to_vec())).await.expect("somebody listens");
    drop(more);
    let first = first.await.expect("the first request ends");
    let object = first.accepted();
    let told = answered(&world, &batch, id(&object)).await;
    assert_eq!(keyed(world.client(), "k", kind, body).await.text, first.text);
    again(&world, &batch, &told).await;
}

async fn an_error_frees_the_key(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("a")]);
    let (kind, body) = batch.body();
    for (bad, status, code) in [
        ("{".to_owned(), 400, "malformed_body"),
        ("{\"prompts\": []}".to_owned(), 422, "invalid_request"),
        (body.replace("claude-haiku-4-5", "gpt5"), 422, "invalid_request"),
        (body.replace("claude-haiku-4-5", "llama"), 422, "invalid_request"),
    ] {
        keyed(world.client(), "k", kind, bad).await.refused(status, code);
        assert!(world.redis.keys().await.is_empty(), "nothing is left of it");
    }
    let object = keyed(world.client(), "k", kind, body).await.accepted();
    let told = answered(&world, &batch, id(&object)).await;
    again(&world, &batch, &told).await;
    for bad in ["", &"x".repeat(256)] {
        keyed(world.client(), bad, kind, batch.body().1).await.refused(422, "invalid_request");
    }
}

async fn many_at_once_make_one_batch(kind: Kind) {
    let mut world = World::new(kind).await;
    world.start_gateway().await;
    let batch = Batch::of([claude("a"), gpt("b")]);
    let (kind, body) = batch.body();
    let asking = (0..20).map(|n| keyed(&world.gateways[n % 2].client, "k", kind, body.clone()));
    let replies = futures_util::future::join_all(asking).await;
    let object = replies.iter().find(|reply| reply.status == 202).expect("one of them is accepted").json();
    for reply in &replies {
        match reply.status {
            202 => assert_eq!(id(&reply.json()), id(&object), "all are told of one batch"),
            _ => drop(reply.refused(409, "idempotency_in_progress")),
        }
    }
    let told = answered(&world, &batch, id(&object)).await;
    assert_eq!(world.client().get("/batches").await.ok()["data"].as_array().map(Vec::len), Some(1));
    again(&world, &batch, &told).await;
}
