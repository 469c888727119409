//! Everything of a request but its body: paths, ids, queries, headers, keys.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{JSON, id},
};
use reqwest::Method;
use serde_json::json;

#[tokio::test]
async fn ids_that_name_no_batch_are_404_on_every_route() {
    let world = World::new(Kind::Ours).await;
    let made = check(&world, &Batch::of([claude("a")])).await;
    let real = id(&made.object).to_owned();
    let mut strange = vec![
        "batch_0198f3a17d207c119d6f2f1f6f3b8a10".to_owned(),
        "batch_".into(),
        "x".into(),
        "0".into(),
        "batch_%ff".into(),
        "%00".into(),
        "batch_../x".replace('/', "%2f"),
        real.to_uppercase(),
        format!("{real}0"),
        real[..real.len() - 1].to_owned(),
        format!("{real}%20"),
        "x".repeat(5_000),
        "{sys}:batch:*".into(),
        "%F0%9F%98%80".into(),
    ];
    strange.push(real.replace("batch_", "batch_batch_"));
    for id in &strange {
        for (method, path) in [
            (Method::GET, format!("/batches/{id}")),
            (Method::GET, format!("/batches/{id}?wait=1")),
            (Method::GET, format!("/batches/{id}/results")),
            (Method::GET, format!("/batches/{id}/results?limit=5&partial=true")),
            (Method::GET, format!("/batches/{id}/results?follow=true")),
            (Method::POST, format!("/batches/{id}/cancel")),
            (Method::POST, format!("/batches/{id}/retry")),
        ] {
            let reply = world.client().send(world.client().request(method.clone(), &path)).await;
            assert_eq!(
                (reply.status, &reply.json()["code"]),
                (404, &"not_found".into()),
                "{method} {path}: {}",
                reply.text
            );
        }
    }
}

#[tokio::test]
async fn bad_queries_name_the_parameter() {
    let world = World::new(Kind::Ours).await;
    let made = check(&world, &Batch::of([claude("a"), claude("b")])).await;
    let batch = format!("/batches/{}", id(&made.object));
    let mut wrong = Vec::new();
    for (path, name) in [
        ("/batches?limit=0", "limit"),
        ("/batches?limit=101", "limit"),
        ("/batches?limit=-1", "limit"),
        ("/batches?limit=x", "limit"),
        ("/batches?limit=", "limit"),
        ("/batches?limit=1e1", "limit"),
        ("/batches?limit=99999999999999999999", "limit"),
        ("/batches?limit=1&limit=2", "limit"),
        ("/batches?after=x", "after"),
        ("/batches?after=", "after"),
        ("/batches?after=batch_0198f3a17d207c119d6f2f1f6f3b8a10", "after"),
        ("/batches?colour=red", "colour"),
        ("/batches?status=done", "status"),
        ("/batches?status=", "status"),
        ("/batches?status=Running", "status"),
        ("/batches?status=ended&status=ended", "status"),
        ("/batches?run=", "run"),
        ("/batches?metadata=x", "metadata"),
        ("/batches?metadata.=x", "metadata."),
        ("/batches?metadata.a=1&metadata.a=2", "metadata.a"),
        ("/batches?since=yesterday", "since"),
        ("/batches?since=2026-11-30", "since"),
        ("/batches?since=2026-11-30T09:00:00", "since"),
        ("/batches?since=2026-11-30T09:00:00+01:00", "since"),
        ("/batches?since=1764493200", "since"),
        ("/batches?since=", "since"),
        ("/batches?since=999999-01-01T00:00:00Z", "since"),
        ("/batches?=1", "`"),
        ("/batches?limit=%zz", "query"),
        ("/batches?limit=%ff", "query"),
        ("B?wait=61", "wait"),
        ("B?wait=-1", "wait"),
        ("B?wait=1.5", "wait"),
        ("B?wait=x", "wait"),
        ("B?wait=", "wait"),
        ("B?wait=1&wait=1", "wait"),
        ("B?limit=1", "limit"),
        ("B/results?offset=3", "offset"),
        ("B/results?offset=-1", "offset"),
        ("B/results?offset=x", "offset"),
        ("B/results?offset=99999999999999999999", "offset"),
        ("B/results?limit=0", "limit"),
        ("B/results?limit=1001", "limit"),
        ("B/results?limit=x", "limit"),
        ("B/results?partial=maybe", "partial"),
        ("B/results?partial=1", "partial"),
        ("B/results?follow=", "follow"),
        ("B/results?response=some", "response"),
        ("B/results?response=", "response"),
        ("B/results?partial=true&follow=true", "follow"),
        ("B/results?follow=true&limit=1", "follow"),
        ("B/results?wait=1", "wait"),
        ("B/results?x", "x"),
    ] {
        let path = path.replace('B', &batch);
        let reply = world.client().get(&path).await;
        if reply.status != 422
            || reply.json()["code"] != "invalid_request"
            || !reply.json()["detail"].as_str().is_some_and(|text| text.contains(name))
        {
            wrong.push(format!("{path}: want 422 about {name}, got {} {}", reply.status, reply.text));
        }
    }
    for path in ["/batches?dry=1".to_owned(), format!("{batch}/cancel?now=true"), format!("{batch}/retry?all=true")] {
        let reply = world.client().post(&path, JSON, Batch::of([claude("a")]).body().1).await;
        if reply.status != 422 {
            wrong.push(format!("POST {path}: {} {}", reply.status, reply.text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn bodies_of_unknown_kinds_are_a_415() {
    let world = World::new(Kind::Ours).await;
    let body = Batch::of([claude("a")]).body().1;
    for kind in [
        "",
        "text/plain",
        "application/xml",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "json",
        "application/json5",
        ";",
    ] {
        let mut request = world.client().request(Method::POST, "/batches").body(body.clone());
        if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        world.client().send(request).await.refused(415, "unsupported_media_type");
    }
    for encoding in ["br", "x-strange"] {
        let request = world
            .client()
            .request(Method::POST, "/batches")
            .header("content-type", JSON)
            .header("content-encoding", encoding);
        world.client().send(request.body(body.clone())).await.refused(415, "unsupported_media_type");
    }
    for kind in ["application/json; charset=utf-8", "APPLICATION/JSON", " application/json "] {
        let request = world
            .client()
            .request(Method::POST, "/batches")
            .header("content-type", kind)
            .header("content-encoding", "identity");
        world.client().send(request.body(body.clone())).await.accepted();
    }
}

#[tokio::test]
async fn bodies_beyond_the_bound_are_a_413() {
    let world = World::with(Kind::Ours, &[("BATCHGATE_MAX_BODY", "64KiB")]).await;
    let long = Batch::of([claude(&"x".repeat(70_000))]);
    for (kind, body) in [long.body(), long.clone().ndjson().body()] {
        let problem = world.client().post("/batches", kind, body.clone()).await.refused(413, "body_too_large");
        assert!(
            problem["detail"].as_str().is_some_and(|text| text.contains("BATCHGATE_MAX_BODY")),
            "names the remedy: {problem}"
        );
        let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
            body.as_bytes().chunks(10_000).map(|piece| Ok(piece.to_vec())).collect();
        let unknown_length = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
        world.client().post("/batches", kind, unknown_length).await.refused(413, "body_too_large");
        assert!(world.redis.keys().await.is_empty(), "nothing is left of it");
    }
    check(&world, &Batch::of([claude(&"x".repeat(60_000))])).await;
}

/// However small it was packed: one prompt is in memory whole.
#[tokio::test]
async fn a_prompt_beyond_the_bound_is_a_413_that_names_it() {
    let world = World::with(Kind::Ours, &[("BATCHGATE_MAX_PROMPT", "4KiB")]).await;
    let of = |bytes: usize| Batch::of([claude("a"), claude(&"x".repeat(bytes)), claude("b")]);
    let post = async |query: &str, kind: &str, coding: &str, body: Vec<u8>| {
        let request = world.client().request(Method::POST, &format!("/batches{query}")).header("content-type", kind);
        world.client().send(request.header("content-encoding", coding).body(body)).await
    };
    for (batch, place, value) in [
        (of(5_000), "pointer", json!("/prompts/1")),
        (of(5_000).field("on_invalid", "fail"), "pointer", json!("/prompts/1")),
        (of(5_000).ndjson(), "line", json!(3)),
    ] {
        let (kind, body) = batch.body();
        let packed = zstd::encode_all(body.as_bytes(), 19).expect("into memory");
        assert!(packed.len() < 1_000, "it is small on the wire: {}", packed.len());
        for (query, coding, body) in
            [("", "identity", body.into_bytes()), ("", "zstd", packed.clone()), ("?dry_run=true", "zstd", packed)]
        {
            let problem = post(query, kind, coding, body).await.refused(413, "body_too_large");
            assert_eq!(problem["errors"][0][place], value, "{coding}: {problem}");
            let told = problem["errors"][0]["message"].as_str().unwrap_or_default();
            assert!(told.contains("at most 4096 bytes") && told.contains("BATCHGATE_MAX_PROMPT"), "{problem}");
            assert!(world.redis.keys().await.is_empty(), "nothing is left of it");
        }
    }
    check(&world, &of(3_000)).await;
}

/// A refusal that needs nothing of the body must not cut off who is still sending it.
#[tokio::test]
async fn early_refusals_reach_clients_that_are_still_sending() {
    let world = World::new(Kind::Ours).await;
    let bounded = World::with(Kind::Ours, &[("BATCHGATE_MAX_BODY", "1MiB")]).await;
    let body = || "x".repeat(3 << 20);
    let post = |path: &str| world.client().request(Method::POST, path);
    for (request, status) in [
        (bounded.client().request(Method::POST, "/batches").header("content-type", JSON), 413),
        (post("/batches").header("content-type", "text/plain"), 415),
        (post("/batches?x=1").header("content-type", JSON), 422),
        (post("/batches").header("content-type", JSON).header("idempotency-key", ""), 422),
        (post("/batches").header("content-type", JSON).header("origin", "http://evil.example"), 403),
        (post("/nowhere"), 404),
        (post("/healthz"), 405),
    ] {
        let reply = world.client().try_send(request.body(body())).await;
        let status_seen = reply.as_ref().map(|reply| reply.status).map_err(|error| format!("{error:?}"));
        assert_eq!(status_seen, Ok(status));
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problem_documents() {
    let world = World::new(Kind::Ours).await;
    for (method, path) in [
        (Method::GET, "/assets/none.js"),
        (Method::GET, "/batch"),
        (Method::GET, "/batches/"),
        (Method::GET, "/v1/batches"),
        (Method::POST, "/batches/x/again"),
        (Method::GET, "/batches/x/retry"),
        (Method::GET, "/batches/x/y"),
        (Method::GET, "//batches"),
        (Method::DELETE, "/batches"),
        (Method::PUT, "/batches/x"),
        (Method::GET, "/batches/x/cancel"),
        (Method::POST, "/batches/x/results"),
        (Method::POST, "/healthz"),
        (Method::PATCH, "/metrics"),
    ] {
        let reply = world.client().send(world.client().request(method.clone(), path)).await;
        assert!(reply.status == 404 || reply.status == 405, "{method} {path}: {} {}", reply.status, reply.text);
        assert_eq!(reply.json()["code"], "not_found");
    }
}

#[tokio::test]
async fn without_keys_only_loopback_names_are_served() {
    let world = World::new(Kind::Ours).await;
    for (name, value) in [
        ("host", "evil.example"),
        ("host", "evil.example:8080"),
        ("host", "[::1].evil.example"),
        ("host", "evil@localhost"),
        ("origin", "http://evil.example"),
        ("origin", "http://[::1].evil.example"),
        ("origin", "null"),
    ] {
        let request = world.client().request(Method::GET, "/batches").header(name, value);
        world.client().send(request).await.refused(403, "forbidden");
    }
    let request = world
        .client()
        .request(Method::POST, "/batches")
        .header("origin", "http://evil.example")
        .header("content-type", JSON);
    world.client().send(request.body(Batch::of([claude("a")]).body().1)).await.refused(403, "forbidden");
    for (name, value) in
        [("host", "localhost:1"), ("origin", "http://localhost:3000"), ("authorization", "Bearer whatever")]
    {
        world.client().send(world.client().request(Method::GET, "/batches").header(name, value)).await.ok();
    }
}

#[tokio::test]
async fn with_keys_only_known_ones_are_let_in() {
    // SHA-256 of `secret-1` and of `secret-2`.
    let hashes = ["secret-1", "secret-2"].map(|key| {
        use sha2::Digest;
        format!("sha256:{}", sha2::Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    });
    let world = World::with(Kind::Ours, &[("BATCHGATE_KEY_HASHES", &hashes.join(","))]).await;
    let client = world.client();
    let routes = [
        (Method::GET, "/batches"),
        (Method::POST, "/batches"),
        (Method::GET, "/batches/x"),
        (Method::GET, "/batches/x/results"),
        (Method::POST, "/batches/x/cancel"),
        (Method::POST, "/batches/x/retry"),
        (Method::GET, "/metrics"),
    ];
    let refused: [&[(&str, &str)]; 7] = [
        &[],
        &[("authorization", "Bearer wrong")],
        &[("x-api-key", "wrong")],
        &[("authorization", "Basic secret-1")],
        &[("authorization", "secret-1")],
        &[("authorization", "Bearer secret-1"), ("x-api-key", "secret-2")],
        &[("authorization", "Bearer ")],
    ];
    for (method, path) in &routes {
        for headers in refused {
            let request = headers
                .iter()
                .fold(client.request(method.clone(), path), |request, (name, value)| request.header(*name, *value));
            let reply = client.send(request).await;
            reply.refused(401, "unauthorized");
            assert!(!reply.text.contains("secret"), "no key in an answer: {}", reply.text);
        }
    }
    for (name, value) in
        [("authorization", "Bearer secret-1"), ("authorization", "bearer secret-2"), ("x-api-key", "secret-2")]
    {
        client.send(client.request(Method::GET, "/batches").header(name, value)).await.ok();
        // With keys, names do not matter.
        client
            .send(client.request(Method::GET, "/batches").header(name, value).header("origin", "http://app.example"))
            .await
            .ok();
    }
    for path in ["/healthz", "/readyz", "/openapi.yaml"] {
        assert_eq!(client.get(path).await.status, 200, "{path} asks for no key");
    }
    let said = world.gateways[0].process.said();
    assert!(!said.contains("secret-1") && !said.contains("sim-key"), "no secret in a log");
}
