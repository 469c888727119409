//! Paused by hand: nothing new is sent, what runs comes home, and everybody goes on posting and reading.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{Client, Reply, id, waiting},
    for_both, gpt,
    local::{self, locals},
    nothing_is_left_behind, settles,
    teams::{client, named},
    until,
};
use reqwest::Method;
use serde_json::{Value, json};

for_both!(
    all_is_paused_and_goes_on,
    of_a_provider_and_of_a_team_nothing_new_is_sent,
    a_server_without_batches_is_left_alone_too,
);

async fn ask(client: &Client, method: Method, pause: &str) -> Reply {
    client.send(client.request(method, &format!("/pauses/{pause}"))).await
}

async fn pause(client: &Client, id: &str) -> Value {
    ask(client, Method::PUT, id).await.ok()
}

async fn resume(client: &Client, id: &str) -> Value {
    ask(client, Method::DELETE, id).await.ok()
}

/// What the batch says once all of it waits; `prompts`: how many wait.
async fn waits(client: &Client, id: &str, prompts: u64) -> String {
    let object = until("the batch to wait", async || {
        let object = client.batch(id).await;
        if waiting(&object) == [("account_paused".to_owned(), prompts)] { Ok(object) } else { Err(object) }
    })
    .await;
    object["waiting"][0]["detail"].as_str().unwrap_or_default().to_owned()
}

async fn sent(world: &World) -> usize {
    let mut calls = 0;
    for route in ["batches.create", "files.create"] {
        calls += world.sim.calls(route).await.len();
    }
    calls
}

async fn all_is_paused_and_goes_on(kind: Kind) {
    let mut world = World::new(kind).await;
    world.sim.take(1_000.0).await;
    let runs = Batch::of([claude("runs 1"), gpt("runs 2")]);
    let running = runs.post(world.client()).await.accepted();
    world.running(id(&running), 2).await;
    let told = pause(world.client(), "all").await;
    assert_eq!((&told["id"], &told["by"]), (&json!("all"), &json!("default")));
    assert_eq!(pause(world.client(), "all").await, told, "paused twice is paused once");
    assert_eq!(world.client().get("/pauses").await.ok(), json!({"data": [told]}));

    let before = sent(&world).await;
    let held =
        Batch::of((0..6).map(|n| if n % 2 == 0 { claude(&format!("held {n}")) } else { gpt(&format!("held {n}")) }))
            .field("chunk", 2);
    let object = held.post(world.client()).await.accepted();
    let detail = waits(world.client(), id(&object), 6).await;
    let since = told["since"].as_str().expect("a time");
    assert!(detail.contains(&format!("everything was paused by an operator at {since}")), "{detail}");
    // What runs comes home and is read meanwhile, by a gateway that was not there when it was told.
    world.kill_gateway();
    world.start_gateway().await;
    world.sim.take(0.1).await;
    world.sim.advance(2_000.0).await;
    world.client().ended(id(&running)).await;
    check::right(&runs, &world.client().results(id(&running)).await);
    waits(world.client(), id(&object), 6).await;
    assert_eq!(sent(&world).await, before, "nothing new was sent");
    let known = runs.post(world.client()).await.accepted();
    assert_eq!(known["status"], "ended", "what is known is answered");
    assert_eq!(world.client().metric("batchgate_pauses").await, 1);

    assert_eq!(resume(world.client(), "all").await, json!({"id": "all", "resumed": true}));
    assert_eq!(resume(world.client(), "all").await["resumed"], false);
    let answered = check::answered(&world, &held, id(&object)).await;
    check::again(&world, &held, &answered).await;
    let mut bill = held.bill();
    bill.extend(runs.bill());
    assert_eq!(check::paid(&world).await, bill, "every question once");
    nothing_is_left_behind(&world).await;
}

async fn of_a_provider_and_of_a_team_nothing_new_is_sent(kind: Kind) {
    let mut world = World::empty(kind, &[]).await;
    world.configure(&(named("evals", "") + &named("data", "") + &named("ops", "role = \"admin\"")));
    world.start_gateway().await;
    let (evals, data, ops) = (client(&world, "evals"), client(&world, "data"), client(&world, "ops"));
    pause(&ops, "provider:anthropic").await;
    let (one, two) = (Batch::of([claude("paused provider"), gpt("open provider")]), Batch::of([gpt("paused team")]));
    let mixed = one.post(&evals).await.accepted();
    let detail = waits(&evals, id(&mixed), 1).await;
    assert!(detail.contains("provider anthropic was paused by an operator at 20"), "{detail}");
    until("the other provider to answer", async || {
        let object = evals.batch(id(&mixed)).await;
        if object["counts"]["succeeded"] == 1 { Ok(()) } else { Err(object) }
    })
    .await;
    pause(&ops, "team:data").await;
    let theirs = two.post(&data).await.accepted();
    let detail = waits(&data, id(&theirs), 1).await;
    assert!(detail.contains("team data was paused by an operator at 20"), "{detail}");
    let told = ops.get("/pauses").await.ok();
    let by: Vec<&Value> = told["data"].as_array().expect("a list").iter().map(|pause| &pause["by"]).collect();
    assert_eq!(by, ["ops", "ops"], "whose key it was an admin reads: {told}");
    for (team, object) in [(&evals, &mixed), (&data, &theirs)] {
        let told = team.batch(id(object)).await["waiting"].to_string();
        assert!(!told.contains("ops"), "and nobody else: {told}");
    }

    resume(&ops, "provider:anthropic").await;
    let third = Batch::of([claude("third")]);
    for (batch, object) in [(&one, mixed), (&third, third.post(&evals).await.accepted())] {
        evals.ended(id(&object)).await;
        check::right(batch, &evals.results(id(&object)).await);
    }
    waits(&data, id(&theirs), 1).await;
    resume(&ops, "team:data").await;
    data.ended(id(&theirs)).await;
    check::right(&two, &data.results(id(&theirs)).await);
    let bill = [&one, &two, &third].into_iter().flat_map(Batch::bill).collect();
    assert_eq!(check::paid(&world).await, bill, "every question once");
    for (team, batch) in [(&evals, &one), (&data, &two)] {
        let again = batch.post(team).await.accepted();
        check::right(batch, &team.results(id(&again)).await);
    }
    assert_eq!(check::paid(&world).await, bill, "and nothing the second time");
    // A slip of the pen is told, and opens nothing.
    for (wrong, status, code) in [
        ("provider:antropic", 422, "invalid_request"),
        ("team:nobody", 422, "invalid_request"),
        ("everything", 404, "not_found"),
        ("team:", 404, "not_found"),
    ] {
        ask(&ops, Method::PUT, wrong).await.refused(status, code);
    }
    evals.send(evals.request(Method::PUT, "/pauses/all")).await.refused(403, "forbidden");
    evals.get("/pauses").await.refused(403, "forbidden");
}

async fn a_server_without_batches_is_left_alone_too(kind: Kind) {
    let world = local::world(kind, "concurrency = 1", &[]).await;
    let batch = Batch::of(locals("left alone", 12));
    let client = world.client();
    world.sim.settings(json!({"common": {"online_latency": 0.4}})).await;
    let object = batch.post(client).await.accepted();
    until("some to be asked", async || {
        let asked = world.sim.calls("chat.completions").await.len();
        if asked > 0 { Ok(()) } else { Err(asked) }
    })
    .await;
    pause(client, "provider:local").await;
    waits(client, id(&object), 12).await;
    let asked = world.sim.calls("chat.completions").await.len();
    let other = Batch::of(locals("not begun", 2));
    let waiting = other.post(client).await.accepted();
    waits(client, id(&waiting), 2).await;
    assert_eq!(world.sim.calls("chat.completions").await.len(), asked, "nothing more is asked");
    assert!(asked < 12, "{asked} were asked before the pause held");
    resume(client, "provider:local").await;
    check::answered(&world, &batch, id(&object)).await;
    let answered = check::answered(&world, &other, id(&waiting)).await;
    check::again(&world, &other, &answered).await;
    let bill = batch.bill().into_iter().chain(other.bill()).collect();
    assert_eq!(check::paid(&world).await, bill, "every question once");
}

#[tokio::test]
async fn the_command_line_pauses_and_goes_on() {
    let world = World::new(Kind::Ours).await;
    let run = async |words: &[&str]| {
        let url = format!("http://{}", world.gateways[0].address);
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_batchgate"));
        let output = command.args(words).env_clear().env("BATCHGATE_URL", url).output().await.expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text)
    };
    assert_eq!(run(&["pause"]).await, (0, "nothing is paused\n".to_owned()));
    let (code, told) = run(&["pause", "--provider", "openai"]).await;
    assert!(code == 0 && told.starts_with("provider:openai  paused by default  since 20"), "{told}");
    let (code, told) = run(&["pause", "--json"]).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((code, &told["data"][0]["id"]), (0, &json!("provider:openai")));
    let batch = Batch::of([gpt("by hand")]);
    let object = batch.post(world.client()).await.accepted();
    waits(world.client(), id(&object), 1).await;
    assert_eq!(run(&["pause", "--team", "nobody"]).await.0, 1);
    assert_eq!(run(&["resume"]).await.0, 2);
    assert_eq!(run(&["resume", "--all", "--team", "default"]).await.0, 2);
    assert_eq!(run(&["resume", "--provider", "openai"]).await, (0, "provider:openai goes on\n".to_owned()));
    settles(&world, &batch, id(&object)).await;
    assert_eq!(run(&["resume", "--provider", "openai"]).await, (0, "provider:openai was not paused\n".to_owned()));
}
