//! The store alone, on a real Redis: the cache's size and what goes first, what is learnt of sizes, and a connection that
//! led to a node which is a replica now.

use crate::support::{dir::Dir, redis::Redis, until};
use batchgate::{
    domain::{key::CacheKey, prompt::Endpoint},
    store::{Store, room::Tally},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::net::{UnixListener, UnixStream};

async fn world() -> (Dir, Redis, Store) {
    let dir = Dir::new();
    let redis = Redis::start(dir.path()).await;
    let store = Store::connect(&redis.url(), "default").await.expect("redis answers");
    (dir, redis, store)
}

fn key(n: u32) -> CacheKey {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    CacheKey::from_bytes(bytes)
}

/// So many cache entries of a kilobyte, entry n idle for n seconds, and as many keys of another kind.
async fn fill(redis: &Redis, store: &Store, entries: u32) {
    let mut connection = redis.connect().await.expect("redis answers");
    let body = vec![7_u8; 1_000];
    redis::cmd("SET").arg("model").arg(&body).query_async::<()>(&mut connection).await.expect("redis answers");
    let dump: Vec<u8> = redis::cmd("DUMP").arg("model").query_async(&mut connection).await.expect("redis answers");
    redis.command::<()>(&["CONFIG", "SET", "appendonly", "no"]).await; // thousands of keys: no need to survive
    for from in (0..entries).step_by(100) {
        let mut pipe = redis::pipe();
        pipe.del("model").ignore();
        for n in from..entries.min(from + 100) {
            let restore = pipe.cmd("RESTORE").arg(store.keys.cached(&key(n))).arg(3_600_000).arg(&dump);
            restore.arg("IDLETIME").arg(n).ignore();
            pipe.set(format!("{{default}}:other:{n}"), &body).ignore();
        }
        pipe.query_async::<()>(&mut connection).await.expect("redis answers");
    }
}

#[tokio::test]
async fn the_cache_s_size_is_about_right() {
    let (_dir, redis, store) = world().await;
    assert_eq!(store.cache_size().await.expect("redis answers").bytes, 0);
    fill(&redis, &store, 4_000).await;
    let each: u64 = redis.command(&["MEMORY", "USAGE", &store.keys.cached(&key(1))]).await;
    let mut sum = (0, 0);
    for _ in 0..8 {
        let size = store.cache_size().await.expect("redis answers");
        sum = (sum.0 + size.entries, sum.1 + size.bytes);
    }
    let near = |told: u64, true_: u64| (true_ * 9 / 10..true_ * 11 / 10).contains(&(told / 8));
    assert!(near(sum.0, 4_000), "{} entries", sum.0 / 8);
    assert!(near(sum.1, 4_000 * each), "{} bytes of {}", sum.1 / 8, 4_000 * each);
}

#[tokio::test]
async fn what_is_idle_for_longest_goes_first() {
    let (_dir, redis, store) = world().await;
    fill(&redis, &store, 4_000).await;
    let each: u64 = redis.command(&["MEMORY", "USAGE", &store.keys.cached(&key(1))]).await;
    let mut removed = 0;
    while removed < 400 {
        // One call ends after two seconds, and the next goes on.
        removed += store.shrink_cache((400 - removed) * each).await.expect("redis answers").entries;
    }
    assert!(removed < 420, "{removed}");
    let mut gone = Vec::new();
    for n in 0..4_000 {
        if redis.command::<i64>(&["EXISTS", &store.keys.cached(&key(n))]).await == 0 {
            gone.push(n);
        }
    }
    assert_eq!(gone.len() as u64, removed);
    // A tenth goes: nearly all of it of the idlest fifth, and nothing that was used a moment ago.
    let of_the_idlest = gone.iter().filter(|n| **n >= 3_200).count();
    assert!(of_the_idlest * 10 >= gone.len() * 9, "{of_the_idlest} of {}", gone.len());
    assert!(gone.iter().all(|n| *n > 1_000), "{gone:?}");
    assert_eq!(redis.figure("evicted_keys").await, 0, "by us, not by redis");
    let others = redis.keys().await.keys().filter(|key| key.contains(":other:")).count();
    assert_eq!(others, 4_000, "nothing else is touched");
}

#[tokio::test]
async fn all_of_the_cache_can_go_and_an_empty_one_is_no_trouble() {
    let (_dir, redis, store) = world().await;
    fill(&redis, &store, 300).await;
    for _ in 0..20 {
        store.shrink_cache(u64::MAX).await.expect("redis answers");
    }
    assert_eq!(store.cache_size().await.expect("redis answers").entries, 0);
    redis.command::<()>(&["FLUSHALL"]).await;
    assert_eq!(store.shrink_cache(1).await.expect("redis answers").entries, 0);
}

#[tokio::test]
async fn sizes_are_learnt_as_a_running_mean() {
    let (_dir, redis, store) = world().await;
    let body = json!({"max_tokens": 100_000});
    let body = body.as_object().expect("it is one");
    let expected =
        async || store.learnt().await.expect("redis answers").answer_bytes(Endpoint::Messages, "claude-x", 1, body);
    assert_eq!(expected().await, 2_800, "the default");
    let tally = |answers, bytes| BTreeMap::from([("claude-x-20260101".to_owned(), Tally { answers, bytes })]);
    for (answers, bytes, mean) in [(1, 1_200, 1_200), (3, 6_000, 1_800), (1_000_000, 1_000_000_000, 1_000)] {
        store.learn(Endpoint::Messages, &tally(answers, bytes)).await.expect("redis answers");
        assert_eq!(expected().await, (mean - 200) * 2);
    }
    // It follows what changes, however much came before.
    store.learn(Endpoint::Messages, &tally(10_000, 50_000_000)).await.expect("redis answers");
    assert_eq!(expected().await, (3_000 - 200) * 2);
    store.learn(Endpoint::Embeddings, &tally(1, 5)).await.expect("redis answers");
    assert_eq!(redis.command::<i64>(&["HLEN", "{default}:sizes"]).await, 1, "of embeddings nothing is learnt");
    assert!(redis.command::<i64>(&["PTTL", "{default}:sizes"]).await > 0);
}

/// A name behind which one of two servers answers, as behind a failover.
struct Name(Arc<Mutex<PathBuf>>);

impl Name {
    fn new(at: &Path, leads_to: &Path) -> Name {
        let target = Arc::new(Mutex::new(leads_to.to_owned()));
        let (listener, name) = (UnixListener::bind(at).expect("the directory is writable"), Name(Arc::clone(&target)));
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let path = target.lock().expect("nobody panics with it").clone();
                tokio::spawn(async move {
                    if let Ok(mut far) = UnixStream::connect(path).await {
                        // An end of either is the end of both.
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        name
    }

    fn lead_to(&self, path: &Path) {
        *self.0.lock().expect("nobody panics with it") = path.to_owned();
    }
}

#[tokio::test]
async fn a_connection_to_what_is_a_replica_now_is_given_up() {
    let (old_home, new_home, dir) = (Dir::new(), Dir::new(), Dir::new());
    let (old, new) = (Redis::start(old_home.path()).await, Redis::start(new_home.path()).await);
    let (old_path, new_path) = (old_home.path().join("redis.sock"), new_home.path().join("redis.sock"));
    let at = dir.path().join("name.sock");
    let name = Name::new(&at, &old_path);
    let store = Store::connect(&format!("unix://{}", at.display()), "default").await.expect("the old one answers");
    assert!(store.turn("before", Duration::from_secs(60)).await.expect("it may be written to"));
    old.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    name.lead_to(&new_path);
    until("a write to reach the new one", async || store.turn("after", Duration::from_secs(60)).await.map(|_| ()))
        .await;
    assert_eq!(new.command::<i64>(&["EXISTS", "{default}:turn:after"]).await, 1);
    store.check().await.expect("it answers");
    assert_eq!(store.unfit(), None);
}
