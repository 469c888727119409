//! Bytes no client library would send: bodies that break off, chunks that are none, headers that lie.

use crate::support::{Batch, Kind, World, check, claude, until};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Sends these bytes, closes our side, and reads what comes.
async fn exchange(address: &str, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(address).await.expect("the gateway listens");
    // It may refuse before it has read everything.
    let _ = socket.write_all(bytes).await;
    let _ = socket.shutdown().await;
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut answer)).await;
    assert!(reading.is_ok(), "the connection stays open: {}", String::from_utf8_lossy(bytes));
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(headers: &str, body: &str) -> Vec<u8> {
    format!("POST /batches HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\r\n{body}")
        .into_bytes()
}

#[tokio::test]
async fn broken_requests_are_never_a_5xx_and_leave_nothing() {
    let world = World::new(Kind::Ours).await;
    let address = &world.gateways[0].address;
    let body = Batch::of([claude("a")]).body().1;
    let (half, length) = (&body[..body.len() / 2], body.len());
    let chunk = |size: &str| format!("{size}\r\n{body}\r\n0\r\n\r\n");
    let cases = [
        ("broken off", post(&format!("content-length: {length}\r\n"), half)),
        ("broken off at once", post(&format!("content-length: {length}\r\n"), "")),
        ("a chunk broken off", post("transfer-encoding: chunked\r\n", &format!("{length:x}\r\n{half}"))),
        ("no last chunk", post("transfer-encoding: chunked\r\n", &format!("{length:x}\r\n{body}\r\n"))),
        ("a chunk size that is none", post("transfer-encoding: chunked\r\n", &chunk("zz"))),
        ("a chunk longer than said", post("transfer-encoding: chunked\r\n", &chunk("5"))),
        ("a huge chunk size", post("transfer-encoding: chunked\r\n", &chunk("ffffffffffffffffff"))),
        ("two lengths", post(&format!("content-length: {length}\r\ncontent-length: {}\r\n", length + 1), &body)),
        ("a negative length", post("content-length: -5\r\n", &body)),
        ("a length beyond any", post("content-length: 99999999999999999999999\r\n", &body)),
        (
            "length and chunks",
            post(&format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n"), &chunk("zz")),
        ),
        ("a header without colon", post("nonsense\r\n", &body)),
        ("a header with control characters", post("x: a\x01b\r\n", "")),
        ("too many headers", post(&"x: y\r\n".repeat(5_000), "")),
        ("a header without end", post(&format!("x: {}", "y".repeat(1 << 20)), "")),
        ("no request", b"\x16\x03\x01\x02\x00\x01\x00".to_vec()),
        ("another protocol", b"GET /batches HTTP/9.9\r\n\r\n".to_vec()),
        ("a path with raw bytes", b"GET /batches/\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec()),
        ("no host", b"GET /batches HTTP/1.1\r\n\r\n".to_vec()),
        ("an expectation", post("expect: the moon\r\ncontent-length: 5\r\n", "{")),
        ("two hosts", b"GET /batches HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n".to_vec()),
        ("one host twice", b"GET /batches HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n".to_vec()),
        ("a host behind another", b"GET /batches HTTP/1.1\r\nhost: [::1].evil.example\r\n\r\n".to_vec()),
        ("a host in the target", b"GET http://evil.example/batches HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec()),
    ];
    for (what, bytes) in cases {
        let answer = exchange(address, &bytes).await;
        let status = answer.split(' ').nth(1).unwrap_or("none");
        assert!(!status.starts_with('5'), "{what}: {answer}");
        assert!(what == "no host" || !status.starts_with('2'), "{what}: {answer}");
        if what.contains("broken off") {
            assert!(answer.is_empty() || answer.contains("malformed_body"), "{what}: {answer}");
        }
        until(&format!("nothing to be left of `{what}`"), async || {
            let keys = world.redis.keys().await;
            if keys.is_empty() { Ok(()) } else { Err(keys) }
        })
        .await;
    }
    let log = world.gateways[0].process.said();
    assert!(!log.contains("panicked"), "{log}");
    check(&world, &Batch::of([claude("a")])).await;
}

/// A client that goes away without a word, in the middle of its body.
#[tokio::test]
async fn a_client_that_vanishes_leaves_nothing_behind() {
    let world = World::new(Kind::Ours).await;
    let lines: String = (0..5_000).map(|n| format!("\"question {n}\"\n")).collect();
    let body = format!("{{\"batch\": {{\"model\": \"gpt-5-mini\"}}}}\n{lines}");
    let head = format!(
        "POST /batches HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\nidempotency-key: k\r\ncontent-length: {}\r\n\r\n",
        body.len() + 1
    );
    let mut socket = TcpStream::connect(&world.gateways[0].address).await.expect("the gateway listens");
    socket.write_all(head.as_bytes()).await.expect("it reads");
    socket.write_all(body.as_bytes()).await.expect("it reads");
    until("pages of it to be stored", async || {
        let keys = world.redis.keys().await;
        if keys.keys().any(|key| key.contains(":m:")) { Ok(()) } else { Err(keys) }
    })
    .await;
    drop(socket);
    until("nothing to be left of it", async || {
        let keys = world.redis.keys().await;
        if keys.is_empty() { Ok(()) } else { Err(keys) }
    })
    .await;
}

/// Everything at once, many times: no refusal may disturb another request.
#[tokio::test]
async fn a_storm_of_bad_requests_disturbs_nobody() {
    let world = World::new(Kind::Ours).await;
    let address = world.gateways[0].address.clone();
    let storm = tokio::spawn(async move {
        for turn in 0..60 {
            let bad = [
                post("content-length: 50\r\n", "{\"prompts\": ["),
                post("content-length: 1\r\n", "{"),
                b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(),
                post("transfer-encoding: chunked\r\n", "zz\r\n"),
                b"\0\0\0\0".to_vec(),
            ];
            exchange(&address, &bad[turn % bad.len()]).await;
        }
    });
    for turn in 0..4 {
        check(&world, &Batch::of((0..20).map(|n| claude(&format!("{turn} {n}")))).field("chunk", 7)).await;
    }
    storm.await.expect("the storm passes");
}
