//! Who did what: each answer knows where it came from, and tells it to those who may know.

use crate::support::{
    Batch, Kind, World,
    check::{paid, right},
    claude,
    client::{id, lines},
    for_both, gpt,
    teams::{client, named},
};
use serde_json::Value;

for_both!(an_answer_knows_where_it_came_from);

const ANOTHERS: [&str; 4] = ["provider_batch_id", "request_id", "chunk", "team"];
const EVERYBODYS: [&str; 4] = ["provider", "model", "at", "key_version"];

async fn world(kind: Kind) -> World {
    let mut world = World::empty(kind, &[]).await;
    world.configure(&(named("evals", "") + &named("data", "") + &named("ops", "role = \"admin\"")));
    world.start_gateway().await;
    world
}

/// The results in full, by both ways to read them.
async fn full(world: &World, team: &str, batch: &str) -> Vec<Value> {
    let client = client(world, team);
    let streamed = lines(&client.get(&format!("/batches/{batch}/results?response=full")).await.text);
    let page = client.get(&format!("/batches/{batch}/results?response=full&limit=1000")).await.ok();
    assert_eq!(page["results"].as_array(), Some(&streamed));
    streamed
}

async fn an_answer_knows_where_it_came_from(kind: Kind) {
    let world = world(kind).await;
    let asked =
        Batch::of([claude("origin 1"), gpt("origin 2"), claude("[[error:invalid_request]]").fails("invalid_request")]);
    let mut ids = Vec::new();
    for team in ["evals", "data"] {
        let client = client(&world, team);
        let object = asked.post(&client).await.accepted();
        client.ended(id(&object)).await;
        let results = client.results(id(&object)).await;
        right(&asked, &results);
        assert!(results.iter().all(|result| result.get("provenance").is_none()), "only in full");
        ids.push(id(&object).to_owned());
    }
    assert_eq!(paid(&world).await, asked.bill(), "the second team read what the first one paid for");

    let chunks = client(&world, "evals").get(&format!("/batches/{}/chunks", ids[0])).await.ok();
    let own = full(&world, "evals", &ids[0]).await;
    for (result, provider) in own.iter().zip(["anthropic", "openai"]) {
        let from = &result["provenance"];
        assert_eq!((&from["provider"], &from["team"]), (&provider.into(), &"evals".into()), "{result}");
        assert_eq!((&from["model"], &from["key_version"]), (&result["model"], &"batchgate/1".into()), "{result}");
        let chunk = chunks["chunks"].as_array().expect("a list").iter().find(|chunk| chunk["id"] == from["chunk"]);
        let chunk = chunk.unwrap_or_else(|| panic!("its chunk is among the batch's: {from} {chunks}"));
        assert_eq!(chunk["provider_batch_id"], from["provider_batch_id"], "{chunk}");
        assert!(from["at"].as_str().is_some_and(|at| at >= chunk["submitted_at"].as_str().expect("it was")), "{from}");
    }
    assert!(own[1]["provenance"]["request_id"].is_string(), "openai gives each request an id: {}", own[1]);
    assert!(own[2]["provenance"].is_null(), "no answer, no origin: {}", own[2]);
    assert_eq!(full(&world, "ops", &ids[0]).await, own, "an admin sees what the team sees");

    let theirs = full(&world, "data", &ids[1]).await;
    for (result, whole) in theirs.iter().zip(&own).take(2) {
        let from = &result["provenance"];
        assert!(ANOTHERS.iter().all(|member| from[member].is_null()), "nothing that leads to who paid: {from}");
        assert!(EVERYBODYS.iter().all(|member| from[member] == whole["provenance"][member]), "{from} {whole}");
    }
    assert!(!theirs.iter().any(|result| result.to_string().contains("evals")), "{theirs:?}");
    let all = full(&world, "ops", &ids[1]).await;
    assert_eq!(all[0]["provenance"], own[0]["provenance"], "an admin sees who paid");
}

/// What a team reads before the batch has ended says the same as what it reads after.
#[tokio::test]
async fn an_open_page_tells_it_too() {
    let world = world(Kind::Ours).await;
    let client = client(&world, "evals");
    world.sim.settings(serde_json::json!({"openai": {"in_progress_s": 1_000.0}})).await;
    let asked = Batch::of([claude("open 1"), gpt("open 2")]);
    let object = asked.post(&client).await.accepted();
    let partial = format!("/batches/{}/results?response=full&partial=true", id(&object));
    let first = crate::support::until("the first answer", async || {
        let read = lines(&client.get(&partial).await.text);
        if read[0]["status"] == "succeeded" { Ok(read[0].clone()) } else { Err(read) }
    })
    .await;
    assert_eq!(first["provenance"]["team"], "evals", "{first}");
    world.sim.settings(serde_json::json!({"openai": {"in_progress_s": 0.1}})).await;
    world.sim.advance(2_000.0).await;
    client.ended(id(&object)).await;
    assert_eq!(full(&world, "evals", id(&object)).await[0], first);
    right(&asked, &client.results(id(&object)).await);
}
