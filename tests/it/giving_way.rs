//! What is held up holds up nobody else: whoever joins a chunk that was never sent, and comes before it, takes its questions
//! over. Each of them is bought once all the same, and whose they were finds them answered.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{Client, count, id, waiting},
    for_both, gpt, nothing_is_left_behind,
    prompt::Prompt,
    teams::{client, named},
    until,
};
use reqwest::Method;
use serde_json::{Value, json};

for_both!(a_paused_team_holds_up_nobody_else, what_is_of_low_priority_holds_up_nothing_normal,);
#[cfg(feature = "failpoints")]
for_both!(killed_while_it_takes_over);

async fn world(kind: Kind) -> World {
    let mut world = World::empty(kind, &[("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")]).await;
    world.configure(&(named("evals", "") + &named("data", "") + &named("ops", "role = \"admin\"")));
    world.start_gateway().await;
    world
}

async fn pauses(world: &World, method: Method) {
    let ops = client(world, "ops");
    ops.send(ops.request(method, "/pauses/team:data")).await.ok();
}

/// Prompts both teams ask, and some that one of them asks alone.
fn batch(own: &str) -> Batch {
    let shared = (0..12).flat_map(|n| [claude(&format!("shared {n}")), gpt(&format!("shared {n}"))]);
    let own = (0..3).map(|n| claude(&format!("{own} {n}")));
    Batch::of(shared.chain(own).collect::<Vec<Prompt>>()).field("chunk", 9)
}

async fn paused(data: &Client, object: &Value) {
    until("all of it to wait for the pause", async || {
        let told = data.batch(id(object)).await;
        if waiting(&told) == [("account_paused".to_owned(), 27)] { Ok(()) } else { Err(told) }
    })
    .await;
}

/// The right answers, to each of both twice; and each question was paid once.
async fn both_end(world: &World, asked: [(&str, &Batch, &Value); 2]) {
    for (team, batch, object) in asked {
        let client = client(world, team);
        let ended = client.ended(id(object)).await;
        assert_eq!(ended["counts"]["succeeded"], ended["counts"]["total"], "{ended}");
        check::right(batch, &client.results(id(object)).await);
    }
    let bill = asked.iter().flat_map(|(_, batch, _)| batch.bill()).collect();
    assert_eq!(check::paid(world).await, bill, "every question once");
    for (team, batch, _) in asked {
        let client = client(world, team);
        let again = batch.post(&client).await.accepted();
        check::right(batch, &client.results(id(&again)).await);
    }
    assert_eq!(check::paid(world).await, bill, "and nothing the second time");
    nothing_is_left_behind(world).await;
}

async fn a_paused_team_holds_up_nobody_else(kind: Kind) {
    let world = world(kind).await;
    pauses(&world, Method::PUT).await;
    let (data, evals) = (client(&world, "data"), client(&world, "evals"));
    let (first, second) = (batch("data"), batch("evals"));
    let theirs = first.post(&data).await.accepted();
    paused(&data, &theirs).await;
    let ours = second.post(&evals).await.accepted();
    let ended = evals.ended(id(&ours)).await;
    assert_eq!((count(&ended, "succeeded"), count(&ended, "joined")), (27, 0), "{ended}");
    // What others bought meanwhile is there for the paused team, too; only its own is not asked.
    until("all that is known to be told", async || {
        let told = data.batch(id(&theirs)).await;
        if count(&told, "succeeded") == 24 && count(&told, "pending") == 3 { Ok(()) } else { Err(told) }
    })
    .await;
    assert_eq!(check::paid(&world).await, second.bill(), "nothing of the paused team's own");
    pauses(&world, Method::DELETE).await;
    both_end(&world, [("data", &first, &theirs), ("evals", &second, &ours)]).await;
}

/// Of the same team: what it says is less urgent waits, and what is urgent does not wait for it.
async fn what_is_of_low_priority_holds_up_nothing_normal(kind: Kind) {
    let world = world(kind).await;
    let data = client(&world, "data");
    // Nobody calls the accounts until then, so nothing is in anybody's hands.
    let fault = json!({"status": 429, "retry_after": 8});
    for route in ["batches.create", "files.create"] {
        world.sim.fault(json!({"match": {"route": route}, "fault": fault, "times": 0})).await;
    }
    let (first, second) = (batch("low").field("priority", "low"), batch("normal"));
    let theirs = first.post(&data).await.accepted();
    until("both accounts to have said no", async || {
        let told = data.batch(id(&theirs)).await;
        let waiting: u64 = waiting(&told).iter().map(|(_, prompts)| prompts).sum();
        if waiting == 27 { Ok(()) } else { Err(told) }
    })
    .await;
    let ours = second.post(&data).await.accepted();
    until("the questions to be its own", async || {
        let told = data.batch(id(&ours)).await;
        let others = waiting(&told).iter().any(|(reason, _)| reason == "joined");
        if told["chunks"]["planned"].as_u64() >= Some(4) && !others { Ok(()) } else { Err(told) }
    })
    .await;
    world.sim.clear_faults().await;
    let ended = data.ended(id(&ours)).await;
    assert_eq!((count(&ended, "succeeded"), count(&ended, "joined")), (27, 0), "{ended}");
    both_end(&world, [("data", &first, &theirs), ("data", &second, &ours)]).await;
}

/// The marks are its own, and nothing says so but they.
#[cfg(feature = "failpoints")]
async fn killed_while_it_takes_over(kind: Kind) {
    let mut world = world(kind).await;
    pauses(&world, Method::PUT).await;
    let (first, second) = (batch("data"), batch("evals"));
    let theirs = first.post(&client(&world, "data")).await.accepted();
    paused(&client(&world, "data"), &theirs).await;
    world.kill_gateway();
    world.start_gateway_with(&[(batchgate::failpoint::VARIABLE, "marks_taken=exit")]).await;
    let ours = second.post(&client(&world, "evals")).await.accepted();
    until("the gateway to die", async || {
        let said = world.gateways[0].process.said();
        if said.contains("fail point tripped") { Ok(()) } else { Err(said) }
    })
    .await;
    world.kill_gateway();
    world.start_gateway().await;
    client(&world, "evals").ended(id(&ours)).await;
    pauses(&world, Method::DELETE).await;
    both_end(&world, [("data", &first, &theirs), ("evals", &second, &ours)]).await;
}
