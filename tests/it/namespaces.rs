//! Namespaces: whose answers a team reads and where its own go. Private ones, shared ones, both in order; how long each
//! keeps what; teams that move, namespaces that nobody names any more; and all of it on a Redis Cluster.

use crate::{
    support::{
        Batch, Kind, Prompt, World, again,
        check::{Answered, check_once, paid},
        claude,
        client::{Client, count, id},
        for_both, gpt,
        teams::team,
        until,
    },
    teams::answered,
};
use serde_json::Value;
use std::collections::BTreeMap;

for_both!(
    a_private_namespace_is_its_teams_own,
    a_team_profits_without_publishing,
    what_is_read_first_answers,
    what_is_in_flight_elsewhere_is_not_waited_for,
    a_cluster_serves_namespaces_on_all_its_nodes,
);

/// A team's key.
fn key(name: &str) -> String {
    format!("bg_{name}_key")
}

/// Teams by name, with what their tables say beside their keys.
fn teams(tables: &[(&str, &str)]) -> String {
    tables.iter().map(|(name, rest)| team(name, &key(name), rest)).collect()
}

const BOTH: &str = "read = [\"own\", \"shared\"]\nwrite = \"own\"";

async fn world(kind: Kind, file: &str) -> World {
    let mut world = World::empty(kind, &[]).await;
    world.configure(file);
    world.start_gateway().await;
    world
}

fn of(world: &World, name: &str) -> Client {
    world.client().with_key(&key(name))
}

/// From here on the world's client is this team's.
fn be(world: &mut World, name: &str) {
    world.gateways[0].client = of(world, name);
}

fn sources(results: &[Value]) -> Vec<&str> {
    results.iter().map(|result| result["source"].as_str().unwrap_or_else(|| panic!("no source: {result}"))).collect()
}

/// Submits as this team, asks the oracle, and says where the answers came from and how many were bought.
async fn asked(world: &World, name: &str, batch: &Batch) -> (Vec<String>, u64) {
    let before: u64 = paid(world).await.values().sum();
    let (object, results) = answered(&of(world, name), batch).await;
    let told = sources(&results);
    assert_eq!(count(&object, "cached"), told.iter().filter(|source| **source == "cache").count() as u64, "{object}");
    assert_eq!(count(&object, "joined"), 0, "{object}");
    (told.into_iter().map(str::to_owned).collect(), paid(world).await.values().sum::<u64>() - before)
}

fn pair(name: &str) -> Batch {
    Batch::of([claude(&format!("{name} 1")), gpt(&format!("{name} 2"))])
}

const CACHE: [&str; 2] = ["cache"; 2];
const PROVIDER: [&str; 2] = ["provider"; 2];

/// The answers a namespace keeps, each with what it has left to live, in milliseconds.
async fn kept(world: &World, namespace: &str) -> BTreeMap<String, i64> {
    let prefix = format!("{{{namespace}}}:c:");
    world.redis.keys().await.into_iter().filter(|(key, _)| key.starts_with(&prefix)).collect()
}

async fn purge(world: &World, namespace: &str) {
    for key in kept(world, namespace).await.keys() {
        world.redis.command::<u64>(&["DEL", key]).await;
    }
}

async fn a_private_namespace_is_its_teams_own(kind: Kind) {
    let file = teams(&[("ann", "namespace = \"ann\""), ("bob", "namespace = \"bob\""), ("eve", ""), ("sam", "")]);
    let mut world = world(kind, &file).await;
    let batch = pair("private");
    for name in ["ann", "bob", "eve"] {
        assert_eq!(asked(&world, name, &batch).await, (PROVIDER.map(str::to_owned).to_vec(), 2), "{name}");
        assert_eq!(asked(&world, name, &batch).await, (CACHE.map(str::to_owned).to_vec(), 0), "{name} once more");
    }
    // A team that says nothing is in the namespace of all that say nothing.
    assert_eq!(asked(&world, "sam", &batch).await, (CACHE.map(str::to_owned).to_vec(), 0));
    for namespace in ["ann", "bob", "default"] {
        assert_eq!(kept(&world, namespace).await.len(), 2, "{namespace}");
    }
    be(&mut world, "ann");
    let first = check_once(&world, &batch).await;
    again(&world, &batch, &first).await;
    let path = format!("/batches/{}", id(&first.object));
    let unknown = of(&world, "bob").get("/batches/batch_0198f3a17d207c119d6f2f1f6f3b8a10").await;
    let (told, unknown) =
        (of(&world, "bob").get(&path).await.refused(404, "not_found"), unknown.refused(404, "not_found"));
    assert_eq!(told["detail"], unknown["detail"], "another namespace's is as unknown as any");
    for end in ["/results", "/chunks"] {
        of(&world, "bob").get(&format!("{path}{end}")).await.refused(404, "not_found");
    }
    of(&world, "bob").cancel(id(&first.object)).await.refused(404, "not_found");
}

async fn a_team_profits_without_publishing(kind: Kind) {
    let world = world(kind, &teams(&[("own", BOTH), ("pub", "namespace = \"shared\"")])).await;
    let (known, secret) = (claude("known"), gpt("secret"));
    let one = |prompt: &Prompt| Batch::of([prompt.clone()]);
    asked(&world, "pub", &one(&known)).await;
    for key in kept(&world, "shared").await.keys() {
        world.redis.command::<u64>(&["PEXPIRE", key, "1000000"]).await;
    }
    let both = Batch::of([known.clone(), secret.clone()]);
    let (kind_of_body, body) = both.body();
    let forecast = of(&world, "own").post("/batches?dry_run=true", kind_of_body, body).await.ok();
    assert_eq!((&forecast["cached"], &forecast["to_buy"]), (&1.into(), &1.into()), "{forecast}");
    assert_eq!(asked(&world, "own", &both).await, (vec!["cache".to_owned(), "provider".to_owned()], 1));
    assert_eq!(asked(&world, "own", &both).await, (CACHE.map(str::to_owned).to_vec(), 0), "the oracle, twice");
    assert_eq!(asked(&world, "pub", &one(&secret)).await.1, 1, "nothing of it was published");
    assert_eq!(asked(&world, "own", &one(&known).field("cache", "only")).await.1, 0);

    // A copy is the batch's alone: nothing was written across, and nothing lives longer for it.
    assert_eq!(kept(&world, "own").await.len(), 1, "what was only read is not kept");
    let shared = kept(&world, "shared").await;
    assert_eq!(shared.len(), 2);
    assert_eq!(shared.values().filter(|left| **left <= 1_000_000).count(), 1, "{shared:?}");
    // Asked anew on purpose, the answer is its own.
    assert_eq!(asked(&world, "own", &one(&known).field("cache", "refresh")).await.1, 1);
    assert_eq!(kept(&world, "own").await.len(), 2);
    assert_eq!(kept(&world, "shared").await.len(), 2);
    assert_eq!(asked(&world, "own", &one(&known).field("cache", "bypass")).await.1, 1, "bypass reads nowhere");
}

/// Two namespaces hold two answers to one question; bodies have ids of their own.
async fn what_is_read_first_answers(kind: Kind) {
    let reads = |list: &str| format!("read = [{list}]\nwrite = \"w\"");
    let file = teams(&[
        ("a", "namespace = \"a\""),
        ("b", "namespace = \"b\""),
        ("ab", &reads("\"a\", \"b\", \"w\"")),
        ("ba", &reads("\"b\", \"w\", \"a\"")),
        ("w", "namespace = \"w\""),
    ]);
    let world = world(kind, &file).await;
    let batch = Batch::of([claude("order")]);
    let body = async |name: &str, bought: u64| {
        let before: u64 = paid(&world).await.values().sum();
        let (object, _) = answered(&of(&world, name), &batch).await;
        assert_eq!(paid(&world).await.values().sum::<u64>() - before, bought, "{name}");
        let results = of(&world, name).lines(&format!("/batches/{}/results?response=full", id(&object))).await;
        let body = results[0]["response"]["id"].as_str().unwrap_or_else(|| panic!("no id: {results:?}")).to_owned();
        (body, id(&object).to_owned())
    };
    let ((a, _), (b, _)) = (body("a", 1).await, body("b", 1).await);
    assert_ne!(a, b);
    assert_eq!(body("ab", 0).await.0, a);
    let (first, batch_id) = body("ba", 0).await;
    assert_eq!(first, b);
    let (w, _) = body("w", 1).await;
    assert_eq!(body("ab", 0).await.0, w, "the one it writes is looked in first, wherever it stands");
    assert_eq!(body("ba", 0).await.0, w);

    // What was copied stays, whatever becomes of where it came from.
    for namespace in ["a", "b", "w"] {
        purge(&world, namespace).await;
    }
    let results = of(&world, "ba").lines(&format!("/batches/{batch_id}/results?response=full")).await;
    assert_eq!(results[0]["response"]["id"], b.as_str(), "{results:?}");
}

async fn what_is_in_flight_elsewhere_is_not_waited_for(kind: Kind) {
    let world = world(kind, &teams(&[("own", BOTH), ("pub", "namespace = \"shared\"")])).await;
    world.sim.take(1_000.0).await;
    let batch = pair("in flight");
    let asked_first = batch.post(&of(&world, "pub")).await.accepted();
    let asked_too = batch.post(&of(&world, "own")).await.accepted();
    for (name, object) in [("pub", &asked_first), ("own", &asked_too)] {
        until("both chunks to run", async || {
            let object = of(&world, name).batch(id(object)).await;
            if object["chunks"]["running"] == 2 { Ok(()) } else { Err(object) }
        })
        .await;
    }
    world.sim.advance(1_000.0).await;
    for (name, object) in [("pub", &asked_first), ("own", &asked_too)] {
        let ended = of(&world, name).ended(id(object)).await;
        assert_eq!((count(&ended, "succeeded"), count(&ended, "joined")), (2, 0), "{ended}");
        crate::support::check::right(&batch, &of(&world, name).results(id(object)).await);
    }
    assert_eq!(paid(&world).await.values().sum::<u64>(), 4, "each asked for itself");
    assert_eq!(asked(&world, "own", &batch).await, (CACHE.map(str::to_owned).to_vec(), 0));
    assert_eq!(kept(&world, "own").await.len(), 2);
}

fn lived(object: &Value) -> u64 {
    let at = |name: &str| {
        let text = object[name].as_str().unwrap_or_else(|| panic!("no {name}: {object}"));
        batchgate::clock::parse_rfc3339(text).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    (at("deleted_at") - at("ended_at")) / 1_000
}

#[tokio::test]
async fn each_namespace_keeps_things_as_long_as_it_says() {
    let tables = |ttl: &str| {
        teams(&[("brief", "namespace = \"brief\""), ("long", "namespace = \"long\"")])
            + &format!("[namespaces.brief]\ncache_ttl = \"{ttl}\"\nretention = \"90m\"\n")
    };
    let mut world = world(Kind::Ours, &tables("1h")).await;
    let batch = pair("terms");
    let (brief, _) = answered(&of(&world, "brief"), &batch).await;
    let (long, _) = answered(&of(&world, "long"), &batch).await;
    const DAY: i64 = 24 * 3_600 * 1_000;
    assert!(kept(&world, "brief").await.values().all(|left| (3_000_000..=3_600_000).contains(left)));
    assert!(kept(&world, "long").await.values().all(|left| (29 * DAY..=30 * DAY).contains(left)));
    assert_eq!((lived(&brief), lived(&long)), (5_400, 30 * 86_400));
    let (cached, _) = answered(&of(&world, "brief"), &batch).await;
    assert_eq!(lived(&cached), 5_400, "also of what was answered at once");
    assert_eq!(paid(&world).await.values().sum::<u64>(), 4);

    reload(&mut world, &tables("2h")).await;
    answered(&of(&world, "brief"), &pair("later")).await;
    let left: Vec<i64> = kept(&world, "brief").await.into_values().collect();
    assert_eq!(left.iter().filter(|left| (6_600_000..=7_200_000).contains(*left)).count(), 2, "{left:?}");
}

/// Lets the first gateway read this file now.
async fn reload(world: &mut World, file: &str) {
    let count = |world: &World| world.gateways[0].process.said().matches("configuration read again").count();
    let before = count(world);
    world.configure(file);
    world.gateways[0].process.signal("HUP");
    until("the file to be read", async || if count(world) > before { Ok(()) } else { Err(()) }).await;
}

#[tokio::test]
async fn a_team_that_moves_keeps_its_batches() {
    let mut world = world(Kind::Ours, &teams(&[("mov", "namespace = \"old\""), ("stay", "namespace = \"old\"")])).await;
    let (mov, stay) = (of(&world, "mov"), of(&world, "stay"));
    let (first, _) = answered(&mov, &pair("done")).await;
    let (strangers, _) = answered(&stay, &pair("done")).await;
    world.sim.take(1_000.0).await;
    let (running, canceled) = (pair("running"), pair("canceled"));
    let (under_way, to_cancel) = (running.post(&mov).await.accepted(), canceled.post(&mov).await.accepted());
    for object in [&under_way, &to_cancel] {
        until("both chunks to run", async || {
            let object = mov.batch(id(object)).await;
            if object["chunks"]["running"] == 2 { Ok(()) } else { Err(object) }
        })
        .await;
    }

    // Nobody names the old one any more.
    let moved = teams(&[("mov", "namespace = \"new\""), ("stay", "namespace = \"else\""), ("ops", "role = \"admin\"")]);
    reload(&mut world, &moved).await;
    let ended = mov.get(&format!("/batches/{}", id(&first))).await.ok();
    assert_eq!(ended["results"], first["results"]);
    mov.get(&format!("/batches/{}", id(&strangers))).await.refused(404, "not_found");
    stay.get(&format!("/batches/{}", id(&first))).await.refused(404, "not_found");
    mov.cancel(id(&to_cancel)).await.ok();
    world.sim.advance(1_000.0).await;
    world.sim.take(0.1).await;
    let ended = mov.ended(id(&under_way)).await;
    assert_eq!(count(&ended, "succeeded"), 2, "{ended}");
    crate::support::check::right(&running, &mov.results(id(&under_way)).await);
    mov.ended(id(&to_cancel)).await;

    // The new one begins empty; a retry of an old batch is made in it, and lists tell of both.
    let before: u64 = paid(&world).await.values().sum();
    assert_eq!(asked(&world, "mov", &pair("done")).await, (PROVIDER.map(str::to_owned).to_vec(), 2));
    assert_eq!(asked(&world, "mov", &pair("done")).await, (CACHE.map(str::to_owned).to_vec(), 0));
    assert_eq!(paid(&world).await.values().sum::<u64>(), before + 2);
    let all = list(&mov, "").await;
    assert_eq!(all.len(), 5, "{all:?}");
    assert!(all.is_sorted_by(|one, next| one > next), "newest first: {all:?}");
    let mut paged = Vec::new();
    let mut after = String::new();
    loop {
        let page = mov.get(&format!("/batches?limit=2{after}")).await.ok();
        paged.extend(ids(&page));
        if page["has_more"] == false {
            break;
        }
        after = format!("&after={}", page["last_id"].as_str().expect("where to go on"));
    }
    assert_eq!(paged, all);
    assert_eq!(list(&of(&world, "ops"), "?team=mov").await, all, "an admin sees all of a team's");
    assert_eq!(list(&stay, "").await, [id(&strangers)]);

    let left = mov.results(id(&to_cancel)).await.iter().filter(|result| result["status"] == "canceled").count();
    if left > 0 {
        let retried = mov.retry(id(&to_cancel)).await.accepted();
        assert_eq!(count(&mov.ended(id(&retried)).await, "succeeded"), left as u64);
    } else {
        mov.retry(id(&to_cancel)).await.refused(409, "nothing_to_retry");
    }
    mov.delete(id(&first)).await.ok();
    mov.get(&format!("/batches/{}", id(&first))).await.refused(404, "not_found");
}

fn ids(page: &Value) -> Vec<String> {
    page["data"].as_array().expect("a list").iter().map(|object| id(object).to_owned()).collect()
}

async fn list(client: &Client, query: &str) -> Vec<String> {
    ids(&client.get(&format!("/batches{query}")).await.ok())
}

#[tokio::test]
async fn what_is_in_a_namespace_that_vanished_goes_on() {
    let mut world = world(Kind::Ours, &teams(&[("ann", "namespace = \"gone\"")])).await;
    world.sim.take(2.0).await;
    let batch = pair("vanished");
    let object = batch.post(&of(&world, "ann")).await.accepted();
    world.kill_gateway();
    world.configure(&teams(&[("ann", "namespace = \"here\""), ("ops", "role = \"admin\"")]));
    world.start_gateway().await;
    let ended = of(&world, "ops").ended(id(&object)).await;
    assert_eq!((&ended["team"], count(&ended, "succeeded")), (&"ann".into(), 2), "{ended}");
    crate::support::check::right(&batch, &of(&world, "ann").results(id(&object)).await);
    assert_eq!(paid(&world).await, batch.bill());
    assert_eq!(kept(&world, "gone").await.len(), 2, "where it was asked");
    let queue = of(&world, "ops").metric("batchgate_queue_depth{queue=\"open_batches\"}").await;
    assert_eq!(queue, 0, "all namespaces together");
}

/// A bad namespace changes nothing while it runs, and is told.
#[tokio::test]
async fn a_file_with_a_bad_namespace_is_refused() {
    let good = teams(&[("ann", "namespace = \"one\""), ("ops", "role = \"admin\"")]);
    let mut world = world(Kind::Ours, &good).await;
    world.configure(&teams(&[("ann", "read = [\"one\"]\nwrite = \"two\""), ("ops", "namespace = \"sys\"")]));
    world.gateways[0].process.signal("HUP");
    until("the file to be refused", async || {
        let refused = of(&world, "ops").metric("batchgate_config_refused").await;
        if refused == 1 { Ok(()) } else { Err(refused) }
    })
    .await;
    let said = world.gateways[0].process.said();
    for piece in ["not among read: add it there", "which is the gateway's own"] {
        assert!(said.contains(piece), "{piece}");
    }
    assert_eq!(asked(&world, "ann", &pair("stays")).await.1, 2);
    assert_eq!(kept(&world, "one").await.len(), 2);
}

// On a cluster.

/// Names of namespaces, one on each node.
async fn spread(world: &World) -> Vec<String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for n in 0.. {
        let name = format!("ns-{n}");
        found.entry(world.redis.owner(&format!("{{{name}}}:c:")).await).or_insert(name);
        if found.len() == world.redis.nodes().len() {
            break;
        }
    }
    found.into_values().collect()
}

async fn a_cluster_serves_namespaces_on_all_its_nodes(kind: Kind) {
    let mut world = World::clustered(kind).await;
    let names = spread(&world).await;
    let table = |name: &str| format!("namespace = \"{name}\"");
    let both = format!("read = [{:?}, {:?}]\nwrite = {:?}", names[0], names[1], names[0]);
    let tables: Vec<(&str, String)> = vec![
        ("ann", table(&names[0])),
        ("bob", table(&names[1])),
        ("cyd", table(&names[2])),
        ("both", both),
        ("ops", "role = \"admin\"".to_owned()),
    ];
    let tables: Vec<(&str, &str)> = tables.iter().map(|(name, rest)| (*name, rest.as_str())).collect();
    world.configure(&teams(&tables));
    world.start_gateway().await;
    for (nth, name) in ["ann", "bob", "cyd"].into_iter().enumerate() {
        be(&mut world, name);
        let prompts = (0..6).map(|n| if n % 2 == 0 { claude(&format!("{name} {n}")) } else { gpt(&format!("{n}")) });
        let batch = Batch::of(prompts).field("chunk", 2);
        let first = check_once(&world, &batch).await;
        again(&world, &batch, &first).await;
        assert_eq!(kept(&world, &names[nth]).await.len(), 6);
        a_run_counts(&world, name).await;
        a_cancelled_batch_comes_back(&world, name).await;
    }
    // A hit comes from another node.
    be(&mut world, "bob");
    let known = check_once(&world, &pair("across")).await;
    assert_eq!(asked(&world, "both", &pair("across")).await, (CACHE.map(str::to_owned).to_vec(), 0));
    of(&world, "ann").get(&format!("/batches/{}", id(&known.object))).await.refused(404, "not_found");
    let ops = of(&world, "ops");
    ops.get(&format!("/batches/{}", id(&known.object))).await.ok();
    let keys = until("the use of keys to be noted", async || {
        let keys = ops.get("/keys").await.ok();
        if keys.to_string().contains("last_used_at\":\"") { Ok(keys) } else { Err(keys) }
    });
    keys.await;
    assert_eq!(ops.get("/readyz").await.status, 200);
    assert_eq!(ops.metric("batchgate_redis_up").await, 1);

    // Killed in the middle of it, and up again.
    be(&mut world, "cyd");
    world.sim.take(2.0).await;
    let batch = pair("killed");
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 2).await;
    world.kill_gateway();
    world.start_gateway().await;
    be(&mut world, "cyd");
    let told: Answered = crate::support::check::answered(&world, &batch, id(&object)).await;
    world.sim.take(0.1).await;
    again(&world, &batch, &told).await;

    // Its namespace goes to another node.
    moves(&world, &names[2]).await;
    again(&world, &batch, &told).await;
    let later = Batch::of([claude("after the move"), gpt("after the move")]);
    let first = check_once(&world, &later).await;
    again(&world, &later, &first).await;
    assert!(paid(&world).await.values().all(|times| *times <= 3), "each question once in each namespace");
}

/// The accounts, and what is the gateway's own, are on the other two nodes; so are two of the three namespaces.
#[tokio::test]
async fn a_node_that_hangs_holds_up_its_own_namespaces_alone() {
    let mut world = World::clustered(Kind::Ours).await;
    let names = spread(&world).await;
    let first = format!("redis://127.0.0.1:{}", world.redis.nodes()[0]);
    let (mut on_it, mut on_others) = (Vec::new(), Vec::new());
    for name in &names {
        let there = world.redis.owner(&format!("{{{name}}}:c:")).await == first;
        if there { on_it.push(name) } else { on_others.push(name) }
    }
    for tag in ["{sys}:", "{default}:", "{acct:anthropic}:", "{acct:openai}:"] {
        assert_ne!(world.redis.owner(tag).await, first, "{tag}");
    }
    let table = |name: &str| format!("namespace = {name:?}");
    let (hung, well) = (table(on_it[0]), table(on_others[0]));
    world.configure(&teams(&[("hung", &hung), ("well", &well)]));
    world.start_gateway().await;
    world.sim.take(2.0).await;
    let waits = pair("waits");
    let object = waits.post(&of(&world, "hung")).await.accepted();
    world.redis.signal_node(0, "STOP");
    for n in 0..3 {
        let batch = pair(&format!("goes on {n}"));
        answered(&of(&world, "well"), &batch).await;
        answered(&of(&world, "well"), &batch).await;
    }
    world.redis.signal_node(0, "CONT");
    let ended = of(&world, "hung").ended(id(&object)).await;
    assert_eq!(count(&ended, "succeeded"), 2, "{ended}");
    crate::support::check::right(&waits, &of(&world, "hung").results(id(&object)).await);
    world.sim.take(0.1).await;
    answered(&of(&world, "hung"), &waits).await;
    assert!(paid(&world).await.values().all(|times| *times == 1), "all of it bought once");
}

async fn a_run_counts(world: &World, name: &str) {
    let epoch = |attempt: &str| {
        Batch::of([claude(&format!("{name} epoch")), gpt(&format!("{name} epoch"))]).field("run", attempt.to_owned())
    };
    let before: u64 = paid(world).await.values().sum();
    for _ in 0..2 {
        check_once(world, &epoch("r~1")).await;
    }
    assert_eq!(paid(world).await.values().sum::<u64>(), before + 4, "samples of their own");
    for _ in 0..2 {
        check_once(world, &epoch("r~2")).await;
    }
    assert_eq!(paid(world).await.values().sum::<u64>(), before + 4, "and read again");
}

async fn a_cancelled_batch_comes_back(world: &World, name: &str) {
    world.sim.take(1_000.0).await;
    let batch = pair(&format!("{name} canceled"));
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 2).await;
    world.client().cancel(id(&object)).await.ok();
    let ended = world.client().ended(id(&object)).await;
    assert_eq!(count(&ended, "canceled"), 2, "{ended}");
    world.sim.take(0.1).await;
    let retried = world.client().retry(id(&object)).await.accepted();
    crate::support::check::answered(world, &batch, id(&retried)).await;
}

/// Gives the slot of a namespace to another node, with all that is in it.
async fn moves(world: &World, namespace: &str) {
    let key = format!("{{{namespace}}}:c:");
    let slot = world.redis.command::<u64>(&["CLUSTER", "KEYSLOT", &key]).await.to_string();
    let from = world.redis.owner(&key).await;
    let to = world.redis.nodes().iter().map(|port| format!("redis://127.0.0.1:{port}")).find(|url| *url != from);
    let to = to.expect("there are several");
    let (source, target) = (world.redis.at(&from, &["CLUSTER", "MYID"]), world.redis.at(&to, &["CLUSTER", "MYID"]));
    let (source, target): (String, String) = (source.await, target.await);
    world.redis.at::<String>(&to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await;
    world.redis.at::<String>(&from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await;
    let port = to.rsplit_once(':').expect("a port").1;
    // What the sweeper leaves there meanwhile goes along, too.
    loop {
        let keys: Vec<String> = world.redis.at(&from, &["CLUSTER", "GETKEYSINSLOT", &slot, "500"]).await;
        if keys.is_empty() {
            break;
        }
        let mut words = vec!["MIGRATE", "127.0.0.1", port, "", "0", "20000", "KEYS"];
        words.extend(keys.iter().map(String::as_str));
        world.redis.at::<String>(&from, &words).await;
    }
    for node in [&to, &from] {
        world.redis.at::<String>(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await;
    }
}
