//! Who goes first: a large batch does not starve small ones of other teams, and a team sets its own back if it likes.
//! Told by the order of creates at the provider, never by how long anything took.

use crate::support::{
    Batch, Kind, World,
    check::{paid, right},
    claude,
    client::{id, waiting},
    for_both, gpt, nothing_is_left_behind,
    prompt::Prompt,
    teams::{client, named},
    until,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

for_both!(
    ten_small_batches_do_not_wait_for_a_large_one,
    tokens_that_become_free_go_round,
    what_is_of_low_priority_goes_after_the_rest_of_its_team,
);

const SMALL_TEAMS: usize = 10;

fn small(n: usize) -> String {
    format!("small-{n}")
}

/// A world of a team `big` and ten small ones.
async fn world(kind: Kind, env: &[(&str, &str)]) -> World {
    let mut world = World::empty(kind, env).await;
    let teams: String = (0..SMALL_TEAMS).map(|n| named(&small(n), "")).collect();
    world.configure(&(named("big", "role = \"admin\"") + &teams));
    world.start_gateway().await;
    world
}

struct Posted {
    team: String,
    batch: Batch,
    id: String,
}

async fn post(world: &World, team: &str, batch: Batch) -> Posted {
    let object = batch.post(&client(world, team)).await.accepted();
    Posted { team: team.to_owned(), batch, id: id(&object).to_owned() }
}

fn batch(name: &str, prompt: fn(&str) -> Prompt, prompts: usize, chunk: usize) -> Batch {
    Batch::of((0..prompts).map(|n| prompt(&format!("{name} {n:04}")))).field("chunk", chunk)
}

async fn waits_for(world: &World, posted: &Posted, reason: &str) {
    until("the batch to wait", async || {
        let object = client(world, &posted.team).batch(&posted.id).await;
        if waiting(&object).iter().any(|(told, _)| told == reason) { Ok(()) } else { Err(object) }
    })
    .await;
}

/// Nothing is created until this fault is gone: all that is posted meanwhile is there when the first one goes.
async fn shut(world: &World) {
    world.sim.fault(json!({"match": {"route": "batches.create"}, "fault": {"status": 401}, "times": 1_000_000})).await;
}

/// The chunks of all batches in the order in which they were created: whose they are.
async fn order(world: &World, all: &[Posted]) -> Vec<usize> {
    let mut created: Vec<(String, usize)> = Vec::new();
    for (n, posted) in all.iter().enumerate() {
        let mut next = Some(format!("/batches/{}/chunks", posted.id));
        while let Some(path) = next {
            let page = client(world, &posted.team).get(&path).await.ok();
            let chunks = page["chunks"].as_array().expect("a list");
            let at = |chunk: &Value| chunk["submitted_at"].as_str().map(|at| (at.to_owned(), n));
            created.extend(chunks.iter().filter_map(at));
            next = page["next"].as_str().map(str::to_owned);
        }
    }
    created.sort();
    created.into_iter().map(|(_, n)| n).collect()
}

/// How many chunks of the first batch were created before the last one of the others.
fn before_the_last_of_the_others(order: &[usize]) -> usize {
    let last = order.iter().rposition(|n| *n != 0).expect("others were created");
    order[..last].iter().filter(|n| **n == 0).count()
}

/// All end with the right answers, each question bought once; asked again, nothing is bought.
async fn settled(world: &World, all: &[Posted]) {
    let mut bill: BTreeMap<String, u64> = BTreeMap::new();
    for round in ["bought", "again"] {
        for posted in all {
            let client = client(world, &posted.team);
            let of = if round == "bought" {
                posted.id.clone()
            } else {
                id(&posted.batch.post(&client).await.accepted()).to_owned()
            };
            client.ended(&of).await;
            right(&posted.batch, &client.results(&of).await);
            if round == "bought" {
                bill.extend(posted.batch.bill());
            }
        }
        assert_eq!(paid(world).await, bill, "{round}: every question once");
    }
}

/// The large one is 40 chunks, was there first, and has the earlier deadline; the others are two chunks each. At Anthropic
/// creates go one by one, whatever the workers.
async fn ten_small_batches_do_not_wait_for_a_large_one(kind: Kind) {
    let world = world(kind, &[("BATCHGATE_WORKERS", "2")]).await;
    shut(&world).await;
    let mut all = vec![post(&world, "big", batch("large", claude, 200, 5)).await];
    waits_for(&world, &all[0], "auth_failed").await;
    for n in 0..SMALL_TEAMS {
        all.push(post(&world, &small(n), batch(&small(n), claude, 10, 5)).await);
    }
    for posted in &all {
        waits_for(&world, posted, "auth_failed").await;
    }
    world.sim.take(1_000.0).await;
    world.sim.clear_faults().await;
    let created = until("the small ones to be created", async || {
        let order = order(&world, &all).await;
        if order.iter().filter(|n| **n != 0).count() == 2 * SMALL_TEAMS { Ok(order) } else { Err(order) }
    })
    .await;
    // By deadline alone these would be all 40; by turns two or three, and what the two workers had in hand.
    let large = before_the_last_of_the_others(&created);
    assert!(large <= 6, "{large} of the large batch's 40 chunks went before the last of the others: {created:?}");
    world.sim.take(0.1).await;
    world.sim.advance(2_000.0).await;
    settled(&world, &all).await;
    nothing_is_left_behind(&world).await;
}

/// The provider takes four chunks at a time, and four of the large batch are there when the others come.
async fn tokens_that_become_free_go_round(kind: Kind) {
    const PROMPT: u64 = 28;
    let world = world(kind, &[("BATCHGATE_WORKERS", "2")]).await;
    let limit = async |seconds: f64| {
        let settings = json!({"openai": {"enqueued_token_limit": 8 * PROMPT, "in_progress_s": seconds}});
        world.sim.settings(settings).await;
    };
    limit(1_000.0).await;
    let mut all = vec![post(&world, "big", batch("tokens", gpt, 80, 2)).await];
    waits_for(&world, &all[0], "token_limit").await;
    for n in 0..SMALL_TEAMS {
        all.push(post(&world, &small(n), batch(&small(n), gpt, 2, 2)).await);
    }
    for posted in &all {
        waits_for(&world, posted, "token_limit").await;
    }
    limit(0.2).await;
    world.sim.advance(2_000.0).await;
    settled(&world, &all).await;
    let large = before_the_last_of_the_others(&order(&world, &all).await);
    // Four were there; a chunk that looks by itself at the right moment may slip through. By deadline it would be 40.
    assert!(large <= 16, "{large} of the large batch's 40 chunks went before the last of the others");
    nothing_is_left_behind(&world).await;
}

async fn what_is_of_low_priority_goes_after_the_rest_of_its_team(kind: Kind) {
    let world = world(kind, &[("BATCHGATE_WORKERS", "1")]).await;
    shut(&world).await;
    let low = batch("low", claude, 20, 2).field("priority", "low");
    let all = [post(&world, "big", low).await, post(&world, "big", batch("normal", claude, 20, 2)).await];
    for (posted, priority) in all.iter().zip(["low", "normal"]) {
        waits_for(&world, posted, "auth_failed").await;
        assert_eq!(client(&world, "big").batch(&posted.id).await["priority"], priority);
    }
    world.sim.take(1_000.0).await;
    world.sim.clear_faults().await;
    let created = until("all to be created", async || {
        let order = order(&world, &all).await;
        if order.len() == 20 { Ok(order) } else { Err(order) }
    })
    .await;
    // Whoever probes whether the account works again is any of them.
    assert!(before_the_last_of_the_others(&created) <= 1, "the low ones last: {created:?}");
    world.sim.take(0.1).await;
    world.sim.advance(2_000.0).await;
    settled(&world, &all).await;
}
