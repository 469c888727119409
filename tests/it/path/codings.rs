//! gzip and zstd, in and out.

use crate::support::{
    Batch, Kind, World, check,
    check::{answered, paid, right},
    claude,
    client::{count, id, lines},
    for_both, gpt, until,
};
use async_compression::tokio::bufread::{GzipDecoder, GzipEncoder, ZstdDecoder};
use futures_util::TryStreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

for_both!(
    a_packed_body_is_the_same_request,
    answers_come_as_they_are_accepted,
    follow_sends_at_once_under_any_coding,
    a_stream_that_breaks_is_reset_under_any_coding,
);

async fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    GzipEncoder::new(bytes).read_to_end(&mut packed).await.expect("into memory");
    packed
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 19).expect("into memory")
}

/// A decoder for what a server called its answer.
fn unpacked(
    coding: &str,
    packed: impl tokio::io::AsyncBufRead + Send + Unpin + 'static,
) -> Box<dyn AsyncRead + Send + Unpin> {
    match coding {
        "gzip" => Box::new(GzipDecoder::new(packed)),
        "zstd" => Box::new(ZstdDecoder::new(packed)),
        other => panic!("an unknown coding: {other:?}"),
    }
}

async fn a_packed_body_is_the_same_request(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of((0..300).map(|n| claude(&format!("Säg {n}"))).chain([gpt("Say 300")])).field("chunk", 100);
    check(&world, &batch).await;
    let before = paid(&world).await;
    for (kind, body) in [batch.body(), batch.clone().ndjson().body()] {
        let (head, tail) = body.as_bytes().split_at(body.len() / 3);
        let members = [gzip(head).await, gzip(tail).await].concat();
        let frames = [zstd(head), zstd(tail)].concat();
        let mut told: Option<Value> = None;
        for (coding, bytes) in [
            ("gzip", gzip(body.as_bytes()).await),
            ("GZip", members),
            ("zstd", zstd(body.as_bytes())),
            ("zstd", frames),
            ("identity", body.clone().into_bytes()),
        ] {
            // In pieces, without a length, and under one key: packed or not, it is one request.
            let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
                bytes.chunks(97).map(|piece| Ok(piece.to_vec())).collect();
            let request = world
                .client()
                .request(Method::POST, "/batches")
                .header("content-type", kind)
                .header("content-encoding", coding)
                .header("idempotency-key", kind)
                .body(reqwest::Body::wrap_stream(futures_util::stream::iter(pieces)));
            let reply = world.client().send(request).await;
            let object = reply.accepted();
            assert_eq!(reply.header("idempotency-replayed"), if told.is_some() { "true" } else { "" }, "{coding}");
            assert_eq!(*told.get_or_insert(object.clone()), object, "{coding}");
            right(&batch, &world.client().results(id(&object)).await);
        }
    }
    assert_eq!(paid(&world).await, before);
}

/// An answer's coding, its `Vary`, and its decoded text.
async fn get(world: &World, path: &str, accept: &str) -> (String, String, String) {
    let request = world.client().request(Method::GET, path).header("accept-encoding", accept);
    let reply = request.send().await.expect("an answer");
    assert!(reply.status().is_success(), "{path} {accept}: {}", reply.status());
    let header = |name: &str| reply.headers().get(name).map_or("", |value| value.to_str().expect("ASCII")).to_owned();
    let (coding, vary) = (header("content-encoding"), header("vary"));
    let packed = reply.bytes().await.expect("to its end").to_vec();
    let mut text = String::new();
    if coding.is_empty() {
        text = String::from_utf8(packed).expect("UTF-8");
    } else {
        unpacked(&coding, std::io::Cursor::new(packed)).read_to_string(&mut text).await.expect("whole");
    }
    (coding, vary, text)
}

async fn answers_come_as_they_are_accepted(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of((0..600).map(|n| claude(&format!("Say {n}"))));
    let first = check(&world, &batch).await;
    let object = format!("/batches/{}", id(&first.object));
    for path in [format!("{object}/results"), format!("{object}/results?limit=500&response=full"), object.clone()] {
        let (coding, vary, plain) = get(&world, &path, "br").await;
        assert_eq!((coding.as_str(), vary.as_str()), ("", "accept-encoding"), "{path}");
        for (accept, expect) in [
            ("gzip", "gzip"),
            ("zstd", "zstd"),
            ("gzip, deflate, br, zstd", "zstd"),
            ("zstd;q=0.5, gzip", "gzip"),
            ("*", "zstd"),
            ("gzip;q=0, zstd;q=0", ""),
            ("identity, gzip;q=0.5", ""),
            ("identity;q=0", ""),
            ("*;q=0", ""),
            ("nonsense;;q", ""),
        ] {
            let (coding, vary, text) = get(&world, &path, accept).await;
            assert_eq!((coding.as_str(), vary.as_str()), (expect, "accept-encoding"), "{path} {accept}");
            assert!(text == plain, "{path} {accept}: another text");
        }
    }
    // What is small goes as it is; what is neither JSON nor lines, too.
    for path in ["/healthz", "/batches?limit=1&after=", "/openapi.yaml"] {
        let path = path.replace("after=", &format!("after={}", id(&first.object)));
        assert_eq!(get(&world, &path, "gzip, zstd").await.0, "", "{path}");
    }
    // Nobody is told "not acceptable" of a batch that exists.
    let (kind, body) = batch.body();
    let request = world.client().request(Method::POST, "/batches").header("content-type", kind).body(body);
    world.client().send(request.header("accept-encoding", "identity;q=0, *;q=0")).await.accepted();
}

/// OpenAI's batches take long, Anthropic's do not.
async fn half_stuck(world: &World) -> (Batch, String) {
    world.sim.settings(json!({"openai": {"in_progress_s": 5000}})).await;
    let batch = Batch::of([claude("a"), claude("b"), gpt("c"), claude("d")]);
    let object = batch.post(world.client()).await.accepted();
    let id = id(&object).to_owned();
    until("the first provider to be done", async || {
        let object = world.client().batch(&id).await;
        if count(&object, "succeeded") == 3 { Ok(()) } else { Err(object) }
    })
    .await;
    (batch, id)
}

async fn follow(
    world: &World,
    id: &str,
    coding: &str,
) -> tokio::io::Lines<BufReader<Box<dyn AsyncRead + Send + Unpin>>> {
    let path = format!("/batches/{id}/results?follow=true");
    let reply = world.client().request(Method::GET, &path).header("accept-encoding", coding).send().await;
    let reply = reply.expect("an answer begins");
    assert_eq!(reply.headers()["content-encoding"], coding);
    let bytes = Box::pin(reply.bytes_stream().map_err(std::io::Error::other));
    BufReader::new(unpacked(coding, tokio_util::io::StreamReader::new(bytes))).lines()
}

async fn follow_sends_at_once_under_any_coding(kind: Kind) {
    let world = World::new(kind).await;
    let (batch, id) = half_stuck(&world).await;
    let mut streams = Vec::new();
    for coding in ["gzip", "zstd"] {
        let (mut stream, mut text) = (follow(&world, &id, coding).await, String::new());
        for _ in 0..2 {
            text += &(stream.next_line().await.expect("it goes on").expect("a known result") + "\n");
        }
        streams.push((stream, text));
    }
    world.sim.advance(7_200.0).await;
    let told = answered(&world, &batch, &id).await;
    for (mut stream, mut text) in streams {
        while let Some(line) = stream.next_line().await.expect("a clean end") {
            text += &(line + "\n");
        }
        assert_eq!(lines(&text), told.results);
    }
    check(&world, &batch).await;
}

async fn a_stream_that_breaks_is_reset_under_any_coding(kind: Kind) {
    let mut world = World::new(kind).await;
    // A result page that is gone.
    let whole = Batch::of((0..1_200).map(|n| claude(&format!("Say {n}"))));
    let first = check(&world, &whole).await;
    let pages = world.redis.keys().await.into_keys().filter(|key| key.contains(":p:1:"));
    let hex = id(&first.object).trim_start_matches("batch_").to_owned();
    for key in pages.filter(|key| key.contains(&hex)).collect::<Vec<_>>() {
        world.redis.command::<i64>(&["DEL", &key]).await;
    }
    for coding in ["identity", "gzip", "zstd"] {
        let path = format!("/batches/{}/results", id(&first.object));
        let request = world.client().request(Method::GET, &path).header("accept-encoding", coding);
        assert!(request.send().await.expect("it begins").bytes().await.is_err(), "{coding}: it must not end cleanly");
    }
    // A gateway that stops while somebody follows.
    let (batch, id) = half_stuck(&world).await;
    let mut streams = Vec::new();
    for coding in ["gzip", "zstd"] {
        let mut stream = follow(&world, &id, coding).await;
        stream.next_line().await.expect("it goes on").expect("a known result");
        streams.push(stream);
    }
    world.gateways[0].process.signal("TERM");
    for mut stream in streams {
        while let Ok(line) = stream.next_line().await {
            assert!(line.is_some(), "it must not end cleanly");
        }
    }
    world.kill_gateway();
    world.start_gateway().await;
    world.sim.advance(7_200.0).await;
    answered(&world, &batch, &id).await;
    check(&world, &batch).await;
}

#[tokio::test]
async fn broken_codings_are_refused() {
    let world = World::with(Kind::Ours, &[("BATCHGATE_MAX_BODY", "1MiB")]).await;
    let (kind, body) = Batch::of((0..100).map(|n| claude(&format!("Say {n}")))).ndjson().body();
    let (gz, zs) = (gzip(body.as_bytes()).await, zstd(body.as_bytes()));
    let spoilt = |bytes: &[u8], at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 0x55;
        bytes
    };
    let post = async |kind: &str, coding: &str, bytes: Vec<u8>| {
        let request = world.client().request(Method::POST, "/batches").header("content-type", kind);
        world.client().send(request.header("content-encoding", coding).body(bytes)).await
    };
    // A window of 128 MiB is announced in the frame's header.
    let mut wide = zstd::stream::Encoder::new(Vec::new(), 3).expect("an encoder");
    wide.window_log(27).expect("a window");
    std::io::Write::write_all(&mut wide, body.as_bytes()).expect("into memory");
    let wide = wide.finish().expect("into memory");
    for (coding, bytes) in [
        ("gzip", body.clone().into_bytes()),
        ("gzip", zs.clone()),
        ("gzip", Vec::new()),
        ("gzip", gz[..gz.len() / 2].to_vec()),
        ("gzip", gz[..gz.len() - 1].to_vec()),
        ("gzip", spoilt(&gz, gz.len() - 6)), // its checksum
        ("gzip", [&gz[..], b"rest"].concat()),
        ("zstd", body.clone().into_bytes()),
        ("zstd", gz.clone()),
        ("zstd", zs[..zs.len() / 2].to_vec()),
        ("zstd", zs[..zs.len() - 1].to_vec()),
        ("zstd", [&zs[..], b"rest"].concat()),
        ("zstd", wide),
    ] {
        let shown = format!("{coding} {:?}", &bytes[..bytes.len().min(8)]);
        let reply = post(kind, coding, bytes.clone()).await;
        assert_eq!(reply.status, 400, "{shown}: {}", reply.text);
        let problem = reply.refused(400, "malformed_body");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains(coding)), "{shown}: {problem}");
        assert!(world.redis.keys().await.is_empty(), "nothing is left of {shown}");
    }
    for coding in ["br", "deflate", "compress", "x-strange", "gzip, zstd", "gzip, gzip", "identity, gzip", "*"] {
        let reply = post(kind, coding, gz.clone()).await;
        let problem = reply.refused(415, "unsupported_media_type");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains("`gzip`, `zstd`")), "{problem}");
        assert_eq!(reply.header("accept-encoding"), "gzip, zstd");
    }
    // What unpacks to too much, a little or very much.
    let blank = vec![b'\n'; 1 << 20];
    for (coding, bytes) in [("gzip", gzip(&blank).await), ("zstd", zstd(&blank))] {
        for more in [1, 200] {
            let bomb = bytes.repeat(1 + more);
            assert!(bomb.len() < 1 << 20, "it is small on the wire: {}", bomb.len());
            post(kind, coding, bomb).await.refused(413, "body_too_large");
        }
    }
    // Members without contents, for ever.
    let nothing = gzip(b"").await.repeat(1_000);
    let pieces = std::iter::repeat_n(nothing, 80).map(Ok::<_, std::io::Error>);
    let request = world.client().request(Method::POST, "/batches").header("content-type", kind);
    let endless = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let reply = world.client().send(request.header("content-encoding", "gzip").body(endless)).await;
    reply.refused(413, "body_too_large");
    assert!(world.redis.keys().await.is_empty());
    for (coding, bytes) in [("gzip", gz), ("zstd", zs), ("", body.into_bytes())] {
        post(kind, coding, bytes).await.accepted();
    }
}
