//! Teams: who may see what. Keys, isolation, what a team may ask, and a configuration that is read again while it runs.

use crate::support::{
    Batch, Kind, World, check,
    check::{paid, right},
    claude,
    client::{Client, JSON, id},
    contract::CONTRACT,
    gpt, local,
    teams::{hash, team},
    until,
};
use reqwest::Method;
use serde_json::Value;
use std::collections::BTreeSet;

const EVALS: &str = "bg_evals_key";
const DATA: &str = "bg_data_key";
const ADMIN: &str = "bg_ops_key";
const OLD: &str = "bg_evals_old";

/// Three teams; the key `OLD` of the first ended long ago.
fn three() -> String {
    let old = format!(
        "[teams.evals]\nkeys = [{{name = \"first\", hash = \"{}\"}}, {{name = \"old\", hash = \"{}\", expires = \"2026-01-01\"}}]\n",
        hash(EVALS),
        hash(OLD)
    );
    old + &team("data", DATA, "") + &team("ops", ADMIN, "role = \"admin\"")
}

async fn world(file: &str) -> World {
    let mut world = World::empty(Kind::Ours, &[]).await;
    world.configure(file);
    world.start_gateway().await;
    world
}

/// Submits, waits for the end and asks the oracle, as this client.
pub(crate) async fn answered(client: &Client, batch: &Batch) -> (Value, Vec<Value>) {
    let object = batch.post(client).await.accepted();
    let object = client.ended(id(&object)).await;
    let results = client.results(id(&object)).await;
    right(batch, &results);
    (object, results)
}

fn batch(name: &str) -> Batch {
    Batch::of([claude(&format!("{name} 1")), gpt(&format!("{name} 2"))])
}

/// Every operation of the contract, asked by everybody.
#[tokio::test]
async fn every_route_answers_each_asker_as_it_must() {
    let world = world(&three()).await;
    let client = world.client();
    let (evals, data, admin) = (client.with_key(EVALS), client.with_key(DATA), client.with_key(ADMIN));
    let (object, _) = answered(&evals, &batch("matrix")).await;
    let ask = async |client: &Client, operation: &crate::support::contract::Operation<'_>| {
        let path = operation.path.replace("{id}", id(&object)).replace("{pause}", "team:ops");
        let method: Method = operation.method.to_uppercase().parse().expect("a method");
        let body = if operation.said["requestBody"].is_null() { String::new() } else { batch("matrix").body().1 };
        client.send(client.request(method, &path).header("content-type", JSON).body(body)).await
    };
    let operations: Vec<_> = CONTRACT.operations().collect();
    let both = async |operation: &crate::support::contract::Operation<'_>| {
        let path = operation.path.replace("{id}", id(&object)).replace("{pause}", "team:ops");
        let method: Method = operation.method.to_uppercase().parse().expect("a method");
        client.send(evals.request(method, &path).header("x-api-key", DATA)).await
    };
    for operation in &operations {
        let (name, of_batch) = (format!("{} {}", operation.method, operation.path), operation.path.contains("{id}"));
        let reads = operation.method == "get";
        if !operation.said["security"].is_null() {
            assert_eq!(ask(client, operation).await.status, 200, "{name} asks for no key");
            continue;
        }
        for stranger in [client.clone(), client.with_key("wrong"), client.with_key(OLD)] {
            ask(&stranger, operation).await.refused(401, "unauthorized");
        }
        both(operation).await.refused(401, "unauthorized");
        let for_admins = ["/keys", "/metrics", "/pauses", "/pauses/{pause}"].contains(&operation.path);
        let (other, own, reader) = (ask(&data, operation).await, ask(&evals, operation), ask(&admin, operation).await);
        match (of_batch, for_admins) {
            (true, _) => {
                let told = other.refused(404, "not_found");
                let unknown =
                    data.get("/batches/batch_0198f3a17d207c119d6f2f1f6f3b8a10").await.refused(404, "not_found");
                assert_eq!(told["detail"], unknown["detail"], "{name}: another team's is as unknown as any");
                if reads {
                    assert_eq!(reader.status, 200, "{name}: {}", reader.text);
                } else {
                    reader.refused(403, "forbidden");
                }
            }
            (false, true) => {
                other.refused(403, "forbidden");
                assert_eq!(reader.status, 200, "{name}: {}", reader.text);
            }
            (false, false) => {
                assert!(other.status < 300 && reader.status < 300, "{name}: {} {}", other.text, reader.text);
            }
        }
        // The own team comes last: a DELETE leaves nothing for the others to miss.
        if operation.method != "delete" {
            let own = own.await;
            let fine = own.status < 300 || own.status == 409; // it has ended, and nothing of it failed
            assert_eq!(fine, !for_admins, "{name}: {} {}", own.status, own.text);
        }
    }
    evals.delete(id(&object)).await.ok();
}

#[tokio::test]
async fn teams_share_answers_and_nothing_else() {
    let world = world(&three()).await;
    let (evals, data, admin) =
        (world.client().with_key(EVALS), world.client().with_key(DATA), world.client().with_key(ADMIN));
    let asked = batch("shared");
    let (first, _) = answered(&evals, &asked).await;
    assert_eq!(first["team"], "evals");
    let bought = paid(&world).await;
    assert_eq!(bought, asked.bill());
    let (second, results) = answered(&data, &asked).await;
    assert_eq!(second["team"], "data");
    assert!(results.iter().all(|result| result["source"] == "cache"), "{results:?}");
    assert_eq!(paid(&world).await, bought, "the other team reads what is paid for");

    let listed = async |client: &Client, query: &str| -> BTreeSet<String> {
        let page = client.get(&format!("/batches{query}")).await.ok();
        page["data"].as_array().expect("a list").iter().map(|object| id(object).to_owned()).collect()
    };
    let only = |object: &Value| BTreeSet::from([id(object).to_owned()]);
    assert_eq!(listed(&evals, "").await, only(&first));
    assert_eq!(listed(&data, "").await, only(&second));
    assert_eq!(listed(&data, "?team=data").await, only(&second));
    assert_eq!(listed(&admin, "").await, BTreeSet::new());
    assert_eq!(listed(&admin, "?team=evals").await, only(&first));
    data.get("/batches?team=evals").await.refused(403, "forbidden");
    data.get("/batches?team=nobody").await.refused(403, "forbidden");
    data.get(&format!("/batches?after={}", id(&first))).await.refused(422, "invalid_request");
}

#[tokio::test]
async fn an_idempotency_key_is_its_teams_own() {
    let world = world(&three()).await;
    let body = batch("idempotent").body().1;
    let post = async |key: &str| {
        let client = world.client().with_key(key);
        let request = client.request(Method::POST, "/batches").header("content-type", JSON);
        client.send(request.header("idempotency-key", "one").body(body.clone())).await.accepted()
    };
    let (evals, data) = (post(EVALS).await, post(DATA).await);
    assert_ne!(id(&evals), id(&data), "one key, two teams, two batches");
    assert_eq!(id(&post(EVALS).await), id(&evals));
    for (key, object) in [(EVALS, &evals), (DATA, &data)] {
        world.client().with_key(key).ended(id(object)).await;
    }
}

#[tokio::test]
async fn a_team_asks_only_whom_it_may_and_has_a_mode_of_its_own() {
    let file = team("evals", EVALS, "providers = [\"anthropic\"]") + &team("data", DATA, "cache = \"refresh\"");
    let world = world(&file).await;
    let (evals, data) = (world.client().with_key(EVALS), world.client().with_key(DATA));
    let problem = batch("whom").post(&evals).await.refused(422, "invalid_request");
    assert_eq!(problem["error_count"], 1, "only the prompt for the other provider: {problem}");
    assert!(!problem.to_string().contains("to openai"), "whom it may not ask is not told: {problem}");
    let asked = Batch::of([claude("mode")]);
    answered(&evals, &asked).await;
    answered(&evals, &asked).await;
    assert_eq!(paid(&world).await, asked.bill(), "its mode is `use`");
    answered(&data, &asked).await;
    let twice = asked.bill().into_iter().map(|(sha, times)| (sha, times * 2)).collect();
    assert_eq!(paid(&world).await, twice, "its mode is `refresh`");
    answered(&data, &asked.clone().field("cache", "use")).await;
    assert_eq!(paid(&world).await, twice, "what a batch says goes first");
}

#[tokio::test]
async fn keys_are_listed_with_their_last_use() {
    let world = world(&three()).await;
    let admin = world.client().with_key(ADMIN);
    world.client().with_key(DATA).get("/batches").await.ok();
    let list = until("the uses to be noted", async || {
        let list = admin.get("/keys").await.ok();
        let used =
            list["data"].as_array().expect("a list").iter().filter(|key| key["last_used_at"].is_string()).count();
        if used == 2 { Ok(list) } else { Err(list) }
    })
    .await;
    let keys = list["data"].as_array().expect("a list");
    let named = |team: &str, name: &str| {
        keys.iter()
            .find(|key| key["team"] == team && key["name"] == name)
            .unwrap_or_else(|| panic!("{team} {name}: {list}"))
    };
    assert_eq!(keys.len(), 4, "{list}");
    assert_eq!(named("evals", "old")["expires_at"], "2026-01-01T00:00:00.000Z");
    assert!(named("evals", "first")["last_used_at"].is_null(), "{list}");
    assert!(named("data", "first")["last_used_at"].is_string(), "{list}");
    assert_eq!(named("ops", "first")["role"], "admin");
    assert!(!list.to_string().contains("sha256") && !list.to_string().contains("_key"), "no key and no hash: {list}");
}

#[tokio::test]
async fn teams_are_read_again_on_sighup() {
    let mut world = world(&three()).await;
    let (evals, data) = (world.client().with_key(EVALS), world.client().with_key(DATA));
    let admin = world.client().with_key(ADMIN);
    let refused = async || {
        let page = admin.get("/metrics").await.text;
        page.lines().find_map(|line| line.strip_prefix("batchgate_config_refused ").map(str::to_owned))
    };
    let told = async |world: &mut World, file: &str, want: &str| {
        world.configure(file);
        world.gateways[0].process.signal("HUP");
        until("the file to be read", async || {
            let said = refused().await;
            let fits = said.as_deref() == Some(want);
            if fits && world.gateways[0].process.said().contains("configuration re") { Ok(()) } else { Err(said) }
        })
        .await;
    };
    let asked = Batch::of([claude("reload")]);
    world.sim.take(1.0).await;
    let object = asked.post(&data).await.accepted();

    told(&mut world, "[teams.evals]\nkeys = 5\n", "1").await;
    data.get("/batches").await.ok();
    told(&mut world, "", "1").await; // a file that has no keys any more opens nothing
    world.client().get("/batches").await.refused(401, "unauthorized");

    let without = team("evals", EVALS, "") + &team("ops", ADMIN, "role = \"admin\"");
    told(&mut world, &without, "0").await;
    until("the team to be gone", async || {
        let reply = data.get("/batches").await;
        if reply.status == 401 { Ok(()) } else { Err(reply) }
    })
    .await;
    evals.get("/batches").await.ok();
    admin.ended(id(&object)).await; // its batch goes on

    told(&mut world, &three(), "0").await;
    until("the team to be back", async || {
        let reply = data.get("/batches").await;
        if reply.status == 200 { Ok(()) } else { Err(reply) }
    })
    .await;
    right(&asked, &data.results(id(&object)).await);
    answered(&data, &asked).await;
    assert_eq!(paid(&world).await, asked.bill(), "all of it bought once");
}

#[tokio::test]
async fn what_models_a_provider_answers_is_read_again_on_sighup() {
    let mut world = World::empty(Kind::Ours, &[]).await;
    let url = world.sim.openai();
    let of = |world: &World, models: &str| local::file(world, &url, models, "");
    let none = of(&world, "\"other-*\"");
    world.configure(&none);
    world.start_gateway().await;
    let batch = Batch::of([claude("routed"), local::local("routed")]);
    batch.post(world.client()).await.refused(422, "invalid_request");

    let told = async |world: &mut World, file: &str, said: &str| {
        world.configure(file);
        world.gateways[0].process.signal("HUP");
        until("the file to be read", async || {
            let log = world.gateways[0].process.said();
            if log.contains(said) { Ok(()) } else { Err(log) }
        })
        .await;
    };
    let local = of(&world, "\"local-*\"");
    told(&mut world, &local, "its teams and routes hold from now on").await;
    check(&world, &batch).await;
    // One that is not connected answers nothing, whatever the rest of the file says.
    let more = none + &local.replace("\"anthropic\"", "\"more\"").replace("\"local\"", "\"new\"");
    told(&mut world, &more, "holds after a restart").await;
    check(&world, &batch).await;
}
