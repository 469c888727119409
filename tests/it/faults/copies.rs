//! A backup brought back elsewhere only reads, until it is adopted: production and its copy never pay for the same work,
//! and the copy takes nothing from production.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{count, id},
    dir::Dir,
    for_both,
    gateway::{Env, Gateway, configured},
    gpt, nothing_is_left_behind,
    redis::Redis,
    settles,
    source::home,
    until,
};
use serde_json::{Value, json};
use std::{path::Path, process::Command};

for_both!(
    a_copy_reads_while_production_runs_and_goes_on_once_adopted,
    a_copy_under_another_name_drops_what_it_would_take_from_production,
    a_redis_that_becomes_a_copy_under_a_gateway_stops_it,
);

pub(super) const SHORT: [(&str, &str); 2] = [("BATCHGATE_LEASE", "1s"), ("BATCHGATE_STALL", "500ms")];

pub(super) fn env(more: &[(&str, &str)]) -> Env {
    SHORT.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Runs a script of ours; what it said on standard error, if it ended as expected.
fn script(name: &str, words: &[&str], url: &str, succeeds: bool) -> String {
    let mut command = Command::new(home().join("scripts").join(name));
    let done = command.args(words).env("BATCHGATE_REDIS_URL", url).output().expect("the script is there");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.success(), succeeds, "{name} {words:?}: {said}");
    said
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ASCII")
}

/// A copy of the world's Redis in this directory, by the two scripts.
pub(super) async fn copy(world: &World, dir: &Path) -> Redis {
    let (dump, data) = (dir.join("backup.rdb"), dir.join("data"));
    script("backup", &[text(&dump)], &world.redis.url(), true);
    script("restore", &[text(&dump), text(&data)], "", true);
    Redis::start(&data).await
}

/// `batchgate adopt` with these words: its exit code and all it said.
pub(super) fn adopt(redis: &Redis, world: &World, env: &Env, words: &[&str]) -> (Option<i32>, String) {
    let done = configured(redis, &world.sim, env).arg("adopt").args(words).output().expect("the binary is there");
    let said = [done.stdout, done.stderr].concat();
    (done.status.code(), String::from_utf8_lossy(&said).into_owned())
}

/// A batch whose chunks stay at the providers until their clock is moved on.
pub(super) async fn under_way(world: &World, name: &str) -> (Batch, Value) {
    world.sim.take(1_000.0).await;
    let batch = Batch::of((0..4).flat_map(|n| [claude(&format!("{name} {n}")), gpt(&format!("{name} {n}"))]));
    let batch = batch.field("chunk", 2);
    let object = batch.post(world.client()).await.accepted();
    world.running(id(&object), 4).await;
    (batch, object)
}

/// Everything the providers were asked so far.
async fn asked(world: &World) -> usize {
    world.sim.ledger().await["http"].as_array().expect("the ledger has calls").len()
}

/// Waits until a gateway has looked at its Redis a few times more.
async fn looks_again(gateway: &Gateway) {
    let looks = async || {
        let page = gateway.client.get("/metrics").await.text;
        let line = page.lines().find(|line| line.starts_with("batchgate_loop_ticks_total{loop=\"home\"}"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let first = looks().await;
    until("the gateway to look at its Redis", async || {
        let now = looks().await;
        if now >= first + 3 { Ok(()) } else { Err(now) }
    })
    .await;
}

/// It answers reads as the original does, refuses everything else, and says why.
async fn only_reads(copy: &Gateway, done: &Value, results: &[Value], running: &Value) {
    let ready = copy.client.get("/readyz").await.ok();
    assert_eq!(ready["status"], "copy", "{ready}");
    let loops: Vec<&String> = ready["loops"].as_object().expect("loops").keys().collect();
    assert_eq!(loops, ["care", "home"], "Redis is looked after, and no worker runs: {ready}");
    assert!(copy.client.get("/metrics").await.text.contains("\nbatchgate_copy 1\n"));
    assert!(copy.process.said().contains("this redis is a copy"));
    assert_eq!(copy.client.batch(id(done)).await, *done);
    assert_eq!(copy.client.results(id(done)).await, results);
    assert_eq!(copy.client.batch(id(running)).await["chunks"]["running"], 4);
    let refused = [
        Batch::of([claude("to a copy")]).post(&copy.client).await,
        copy.client.cancel(id(running)).await,
        copy.client.retry(id(done)).await,
        copy.client.delete(id(done)).await,
    ];
    for reply in refused {
        let problem = reply.refused(503, "unavailable");
        let detail = problem["detail"].as_str().expect("a sentence");
        assert!(detail.contains("batchgate adopt") && detail.contains("restored from backup.rdb"), "{detail}");
    }
}

async fn a_copy_reads_while_production_runs_and_goes_on_once_adopted(kind: Kind) {
    let mut world = World::with(kind, &SHORT).await;
    let done = Batch::of([claude("done"), gpt("done")]);
    let first = check(&world, &done).await;
    world.sim.reset().await;
    let (batch, object) = under_way(&world, "goes on").await;
    let dir = Dir::new();
    let redis = copy(&world, dir.path()).await;
    let reader = Gateway::start("copy", &redis, &world.sim, &env(&[]), dir.path()).await;
    only_reads(&reader, &first.object, &first.results, &object).await;

    // Production goes on beside it; then it is gone, with the batch still at the providers.
    looks_again(&world.gateways[0]).await;
    assert_eq!(world.client().batch(id(&object)).await["chunks"]["running"], 4);
    world.kill_gateway();
    let before = asked(&world).await;
    looks_again(&reader).await;
    assert_eq!(asked(&world).await, before, "a copy asks providers nothing");

    let (code, said) = adopt(&redis, &world, &env(&[]), &["--drop-running"]);
    assert!(code == Some(1) && said.contains("another BATCHGATE_DEPLOYMENT"), "{said}");
    let (code, said) = adopt(&redis, &world, &env(&[]), &[]);
    assert!(code == Some(1) && said.contains("1 batches, 4 chunks") && said.contains("say --yes"), "{said}");
    looks_again(&reader).await;
    assert_eq!(asked(&world).await, before, "nothing was changed");
    let (code, said) = adopt(&redis, &world, &env(&[]), &["--yes"]);
    assert_eq!(code, Some(0), "{said}");

    // The same process begins to work.
    world.redis = redis;
    world.gateways.push(reader);
    until("the copy to be adopted", async || {
        let ready = world.client().get("/readyz").await.ok();
        if ready["status"] == "ready" { Ok(()) } else { Err(ready) }
    })
    .await;
    world.sim.advance(1_100.0).await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4, "found by their stored ids");
    assert_eq!(world.sim.calls("batches.cancel").await.len(), 0);
    nothing_is_left_behind(&world).await;
    let (code, said) = adopt(&world.redis, &world, &env(&[]), &["--yes"]);
    assert!(code == Some(0) && said.contains("nothing to adopt"), "{said}");
}

async fn a_copy_under_another_name_drops_what_it_would_take_from_production(kind: Kind) {
    let mut world = World::with(kind, &SHORT).await;
    let (batch, object) = under_way(&world, "production's").await;
    let dir = Dir::new();
    let redis = copy(&world, dir.path()).await;
    let staging = env(&[("BATCHGATE_DEPLOYMENT", "staging")]);
    let reader = Gateway::start("copy", &redis, &world.sim, &staging, dir.path()).await;

    let (code, said) = adopt(&redis, &world, &staging, &["--yes"]);
    assert!(
        code == Some(1) && said.contains("BATCHGATE_DEPLOYMENT=default") && said.contains("--drop-running"),
        "{said}"
    );
    // The original itself cannot be taken over while somebody works on it.
    let (code, said) = adopt(&world.redis, &world, &staging, &["--yes", "--drop-running"]);
    assert!(code == Some(1) && said.contains("works on this Redis"), "{said}");
    let (code, said) = adopt(&redis, &world, &staging, &["--yes", "--drop-running"]);
    assert_eq!(code, Some(0), "{said}");

    let dropped = reader.client.ended(id(&object)).await;
    assert_eq!((count(&dropped, "canceled"), count(&dropped, "total")), (8, 8), "{dropped}");
    for route in ["batches.cancel", "files.delete"] {
        assert_eq!(world.sim.calls(route).await.len(), 0, "production's batches and files are left alone: {route}");
    }
    world.sim.advance(1_100.0).await;
    settles(&world, &batch, id(&object)).await;
    assert_eq!(world.sim.calls("batches.create").await.len(), 4);

    // Staging works for itself from now on.
    world.kill_gateway();
    world.gateways.push(reader);
    world.redis = redis;
    world.sim.take(0.0).await;
    check(&world, &Batch::of([claude("staging's own"), gpt("staging's own")])).await;
    nothing_is_left_behind(&world).await;
}

/// Another name is a sign too; so is the mark when it appears while a gateway works.
async fn a_redis_that_becomes_a_copy_under_a_gateway_stops_it(kind: Kind) {
    let mut world = World::with(kind, &SHORT).await;
    let (batch, object) = under_way(&world, "renamed").await;
    let dir = Dir::new();
    let renamed = env(&[("BATCHGATE_DEPLOYMENT", "renamed")]);
    let stranger = Gateway::start("stranger", &world.redis, &world.sim, &renamed, dir.path()).await;
    let ready = stranger.client.get("/readyz").await.ok();
    assert!(ready["detail"].as_str().is_some_and(|why| why.contains("deployment \"default\"")), "{ready}");
    drop(stranger);
    // A Redis that was at home at a name and a port alone.
    world.redis.command::<()>(&["HDEL", "{sys}:home", "place:local"]).await;
    world.redis.command::<()>(&["HSET", "{sys}:home", "place:redis.prod:6379/0", "then"]).await;
    let process = &mut world.gateways[0].process;
    let status = until("the gateway to end", async || process.ended().ok_or("it runs")).await;
    assert_eq!(status.code(), Some(1), "{}", process.said());
    assert!(process.said().contains("became a copy") && process.said().contains("never at home at local"));
    world.kill_gateway();
    let gateway = world.start_gateway().await;
    assert_eq!(gateway.client.get("/readyz").await.ok()["status"], "copy");
    let (code, said) = adopt(&world.redis, &world, &env(&[]), &["--yes"]);
    assert_eq!(code, Some(0), "{said}");
    let places: Vec<String> = world.redis.command(&["HKEYS", "{sys}:home"]).await;
    assert!(places.contains(&"place:local".to_owned()) && places.contains(&"place:redis.prod:6379/0".to_owned()));
    world.sim.advance(1_100.0).await;
    settles(&world, &batch, id(&object)).await;
    nothing_is_left_behind(&world).await;
}

/// What is no backup, or no empty place, is refused before anything is touched; a server that runs is filled as well.
#[tokio::test]
async fn backups_and_restores_refuse_what_they_would_destroy() {
    let world = World::with(Kind::Ours, &SHORT).await;
    let done = Batch::of([claude("kept"), gpt("kept")]);
    let first = check(&world, &done).await;
    let dir = Dir::new();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let url = world.redis.url();
    assert!(script("backup", &[&path("one")], "", false).contains("BATCHGATE_REDIS_URL"));
    assert!(script("backup", &[&path("one")], "http://h", false).contains("redis://"));
    assert!(script("backup", &[&path("one")], "redis://127.0.0.1:1", false).contains("refused"));
    script("backup", &[&path("one")], &url, true);
    assert!(script("backup", &[&path("one")], &url, false).contains("is there already"));
    let whole = std::fs::read(path("one")).expect("a backup");
    std::fs::write(path("half"), &whole[..whole.len() / 2]).expect("writable");
    assert!(script("restore", &[&path("half"), &path("data")], "", false).contains("no whole dump"));
    assert!(script("restore", &[&path("none"), &path("data")], "", false).contains("cannot read"));
    assert!(script("restore", &[&path("one"), text(dir.path())], "", false).contains("not empty"));
    assert!(script("restore", &[&path("one"), &url], "", false).contains("not empty"));
    assert_eq!(std::fs::read(path("one")).expect("untouched"), whole);

    std::fs::create_dir(dir.path().join("live")).expect("writable");
    let live = Redis::start(&dir.path().join("live")).await;
    script("restore", &[&path("one"), &live.url()], "", true);
    let reader = Gateway::start("copy", &live, &world.sim, &env(&[]), dir.path()).await;
    assert_eq!(reader.client.get("/readyz").await.ok()["status"], "copy");
    assert_eq!(reader.client.results(id(&first.object)).await, first.results);
    assert_eq!(json!(reader.client.batch(id(&first.object)).await), first.object);
}
