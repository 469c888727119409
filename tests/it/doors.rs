//! What somebody at the doors must not get: all the seats, all the descriptors, or a word on whether a batch exists.

use crate::support::{
    Batch, Kind, World,
    check::{paid, right},
    claude,
    client::{Client, JSON, id},
    contract::{CONTRACT, Operation},
    gpt, nothing_is_left_behind, settles,
    teams::{client, named},
    until,
};
use futures_util::{Stream, StreamExt};
use reqwest::Method;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

async fn three_teams(env: &[(&str, &str)]) -> World {
    let mut world = World::empty(Kind::Ours, env).await;
    world.configure(&(named("rival", "") + &named("evals", "") + &named("ops", "role = \"admin\"")));
    world.start_gateway().await;
    world
}

/// Uploads that stand still hold their own team's share of the seats and no more; and they are as good as any other once
/// they go on.
#[tokio::test]
async fn slow_uploads_of_one_team_leave_a_seat_to_the_others() {
    let world = three_teams(&[("BATCHGATE_MAX_UPLOADS", "3")]).await;
    let (rival, evals, ops) = (client(&world, "rival"), client(&world, "evals"), client(&world, "ops"));
    let slow = Batch::of([claude("slow 1"), gpt("slow 2")]).ndjson();
    let (kind, body) = slow.body();
    let head = format!(
        "POST /batches HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer bg_rival_key\r\ncontent-type: {kind}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let (begin, rest) = body.as_bytes().split_at(body.len() / 2);
    let mut uploads = Vec::new();
    for _ in 0..4 {
        let mut socket = TcpStream::connect(&world.gateways[0].address).await.expect("the gateway listens");
        socket.write_all(&[head.as_bytes(), begin].concat()).await.expect("it reads");
        uploads.push(socket);
    }
    until("the team to have its share", async || {
        let taken = ops.metric("batchgate_uploads_open").await;
        if taken == 2 { Ok(()) } else { Err(taken) }
    })
    .await;
    for quick in [Batch::of([claude("quick 1")]), Batch::of([gpt("quick 2")]).ndjson()] {
        let (kind, body) = quick.body();
        evals.post("/batches?dry_run=true", kind, body).await.ok();
        let object = quick.post(&evals).await.accepted();
        evals.ended(id(&object)).await;
        right(&quick, &evals.results(id(&object)).await);
    }
    assert_eq!(ops.metric("batchgate_uploads_open").await, 2, "the slow ones hold theirs all the time");
    for socket in &mut uploads {
        // Those that wait for a seat may have been told by now that there is none.
        let _ = socket.write_all(rest).await;
    }
    let mut accepted = 0;
    for mut socket in uploads {
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("an answer");
        let Some(id) = answer.lines().find_map(|line| line.strip_prefix("location: /batches/")) else {
            assert!(answer.contains("your team has 2 uploads under way"), "{answer}");
            continue;
        };
        accepted += 1;
        rival.ended(id).await;
        right(&slow, &rival.results(id).await);
    }
    assert!(accepted >= 2, "those that had a seat keep it");
    let mut bill = slow.bill();
    bill.extend(Batch::of([claude("quick 1"), gpt("quick 2")]).bill());
    assert_eq!(paid(&world).await, bill, "every question once");
}

/// A gateway that may have few descriptors raises what it can, gives half of them to those who connect, and works on with
/// the rest.
#[tokio::test]
async fn connections_take_no_descriptors_from_the_work() {
    const SOFT: u64 = 64;
    const HARD: u64 = 256;
    let mut world = World::empty(Kind::Ours, &[]).await;
    world.start_gateway_within(SOFT, HARD).await;
    let most = world.client().metric("batchgate_connections_max{listener=\"api\"}").await;
    assert_eq!(most, HARD / 2, "half of the hard limit");
    world.sim.take(1_000.0).await;
    let batch = Batch::of([claude("held"), claude("on")]).field("chunk", 1);
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 2).await;

    let mut idle = Vec::new();
    // More than the door has places for, and no more than the system lets wait for one (128).
    for _ in 0..most + 90 {
        let mut socket = TcpStream::connect(&world.gateways[0].address).await.expect("the system takes it in");
        socket.write_all(b"GET /batches HTTP/1.1\r\nhost: local").await.expect("the system takes it in");
        idle.push(socket);
    }
    until("the places to be taken", async || {
        let open = world.gateways[0].process.descriptors();
        if open as u64 >= most { Ok(()) } else { Err(open) }
    })
    .await;
    world.sim.advance(2_000.0).await;
    until("the results to be fetched meanwhile", async || {
        let calls = world.sim.calls("batches.results").await.len();
        if calls == 2 { Ok(()) } else { Err(calls) }
    })
    .await;
    let open = world.gateways[0].process.descriptors() as u64;
    assert!(open < most + 80, "{open} of {HARD} descriptors are open");
    assert!(!world.gateways[0].process.said().contains("Too many open files"));
    drop(idle);
    settles(&world, &batch, id(&object)).await;
}

/// What Redis is asked for a batch on every route that names one, with the batch's name taken out.
async fn asked_of_redis(
    world: &World,
    told: &mut (impl Stream<Item = String> + Unpin),
    client: &Client,
    id: &str,
) -> Vec<String> {
    let of_a_batch = |operation: &Operation| operation.path.contains("{id}");
    let mut requests: Vec<(Method, String)> = CONTRACT
        .operations()
        .filter(of_a_batch)
        .map(|operation| {
            let method = operation.method.to_uppercase().parse().expect("a method");
            (method, operation.path.replace("{id}", id))
        })
        .collect();
    assert!(requests.len() >= 6, "{requests:?}");
    for more in ["?wait=1", "/results?follow=true", "/results?limit=5&partial=true", "/chunks?offset=7"] {
        requests.push((Method::GET, format!("/batches/{id}{more}")));
    }
    for (method, path) in &requests {
        let request = client.request(method.clone(), path).header("content-type", JSON);
        let problem = client.send(request).await.refused(404, "not_found");
        assert_eq!(problem["detail"], "there is no such batch", "{method} {path}");
    }
    client.get(&format!("/batches?after={id}")).await.refused(422, "invalid_request");

    let end = format!("{{default}}:no-such-key-after-{id}");
    let _: Option<String> = world.redis.command(&["GET", &end]).await;
    let hex = id.strip_prefix("batch_").expect("a batch's id");
    let mut lines = Vec::new();
    loop {
        let line = told.next().await.expect("Redis goes on telling");
        if line.contains(&end) {
            break;
        }
        // Before the words stand the time and the connection.
        let words = line.split_once("] ").map_or(line.as_str(), |(_, words)| words);
        if words.contains(hex) {
            lines.push(words.replace(hex, "ID"));
        }
    }
    assert_eq!(lines.len(), requests.len() + 1, "one question for each request: {lines:#?}");
    lines
}

/// Whether a batch of another team exists is told by nothing, and so not by what is done to find out.
#[tokio::test]
async fn another_team_s_batch_costs_as_much_as_none() {
    let world = three_teams(&[]).await;
    let (rival, evals) = (client(&world, "rival"), client(&world, "evals"));
    let batch = Batch::of((0..20).map(|n| claude(&format!("secret {n}")))).field("metadata", json!({"a": "b"}));
    let object = batch.post(&evals).await.accepted();
    let object = evals.ended(id(&object)).await;
    right(&batch, &evals.results(id(&object)).await);
    nothing_is_left_behind(&world).await; // from here on nothing but requests asks for it

    let foreign = id(&object);
    let (kept, changed) = foreign.split_at(foreign.len() - 8);
    let missing = format!("{kept}{}", if changed == "00000000" { "11111111" } else { "00000000" });
    let mut told = world.redis.monitor().await;
    let of_none = asked_of_redis(&world, &mut told, &rival, &missing).await;
    let of_another = asked_of_redis(&world, &mut told, &rival, foreign).await;
    assert_eq!(of_another, of_none);
    assert!(of_none.iter().all(|words| words.starts_with("\"HGET\"")), "its team and no more: {of_none:#?}");
}
