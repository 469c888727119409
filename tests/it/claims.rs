//! The claim alone, on a real Redis: its work has a bound, however many models a team invents, and whose turn it is does not
//! change for that.

use crate::support::{dir::Dir, redis::Redis};
use batchgate::{
    clock,
    domain::{
        batch::{CacheMode, Priority},
        chunk::{Item, Lane, Place},
        id::{BatchId, ChunkId, Token, WireTag},
        key::CacheKey,
        progress::{ChunkCounts, Counts, Progress},
        prompt::{ApiHeaders, Endpoint},
    },
    store::{
        Store,
        chunks::NewChunk,
        queue::Claim,
        uploads::{Accepted, Extent, First, Reservation},
    },
};
use std::{collections::BTreeSet, time::Duration};

/// Chunks that become ready in one claim at most.
const AT_ONCE: u32 = 256;
/// A team that asks of each of so many models one thing.
const MODELS: u32 = 5_000;
/// Commands of a claim that finds nothing due, with those of the connection that counts them.
const COMMANDS: u64 = 100;

struct Scene {
    redis: Redis,
    store: Store,
    _dir: Dir,
}

impl Scene {
    async fn new() -> Scene {
        let dir = Dir::new();
        let redis = Redis::start(dir.path()).await;
        let store = Store::connect(&redis.url(), "default").await.expect("redis answers");
        redis.command::<()>(&["CONFIG", "SET", "appendonly", "no"]).await; // thousands of chunks: no need to survive
        Scene { redis, store, _dir: dir }
    }

    /// A batch of chunks of one question, each of a model of its own; the last is the most urgent.
    async fn accept(&self, team: &str, chunks: u32) -> BatchId {
        let batch = BatchId::new(clock::now_ms(), &rand::random());
        self.store.begin_upload(batch).await.expect("redis answers");
        let extent = Extent { chunks, pages: 1, ..Extent::default() };
        assert!(self.store.extend_upload(batch, extent).await.expect("redis answers"));
        let latest = clock::now_ms() + 1_000_000;
        let place = Place { page: 0, results: 1 };
        let item = Item { key: CacheKey::from_bytes([1; 32]), places: vec![place], attempts: 0, missed: false };
        let planned = |number: u32| NewChunk {
            id: ChunkId { batch, number },
            lane: Lane {
                account: "openai".into(),
                endpoint: Endpoint::ChatCompletions,
                model: Some(format!("{team}-{number}")),
                headers: ApiHeaders::default(),
            },
            mode: CacheMode::Off,
            fresh_since: None,
            tag: WireTag::new("test", "default", &[1; 9]),
            items: vec![item.clone()],
            wire_bytes: 1,
            reserved: 0,
            joins: false,
            deadline: latest - u64::from(number),
            team: team.into(),
            priority: Priority::Normal,
        };
        let all: Vec<NewChunk> = (0..chunks).map(planned).collect();
        for some in all.chunks(1_000) {
            self.store.write_chunks(some).await.expect("redis answers");
        }
        let counts = Counts { total: chunks.into(), ..Counts::default() };
        let own = ChunkCounts { planned: chunks.into(), ..ChunkCounts::default() };
        let progress = Progress { team: team.into(), counts, chunks: own, pages: 1, ..Progress::default() };
        let first = First { progress: &progress, chunks };
        let reservation = Reservation::default();
        let accepted = self.store.accept(batch, &first, None, reservation, 1_000).await.expect("redis answers");
        assert_eq!(accepted, Accepted::Done);
        batch
    }

    async fn claim(&self) -> Claim {
        let token = Token::new(&rand::random());
        let claimed = self.store.claim(token, Duration::from_secs(60), &[]).await.expect("redis answers");
        claimed.expect("there is something to be sent")
    }

    /// What Redis did for a claim, in commands.
    async fn commands_of_a_claim(&self) -> (Claim, u64) {
        self.redis.command::<()>(&["CONFIG", "RESETSTAT"]).await;
        let claim = self.claim().await;
        let told: String = self.redis.command(&["INFO", "commandstats"]).await;
        let calls =
            told.lines().filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok());
        (claim, calls.sum())
    }
}

#[tokio::test]
async fn thousands_of_models_make_no_claim_longer() {
    let scene = Scene::new().await;
    let few = scene.accept("few", 1).await;
    assert_eq!(scene.claim().await.lease.chunk.batch, few);
    let many = scene.accept("many", MODELS).await;
    let (claim, first) = scene.commands_of_a_claim().await;
    assert!(first < COMMANDS + u64::from(AT_ONCE) * 5, "{first} commands, of which some make chunks ready");
    let mut claimed = BTreeSet::from([claim.lease.chunk.number]);
    for _ in 1..MODELS.div_ceil(AT_ONCE) {
        claimed.insert(scene.claim().await.lease.chunk.number);
    }
    assert_eq!(scene.redis.command::<u64>(&["ZCARD", "{default}:delayed"]).await, 0, "all are ready");
    // By deadline, whatever the model.
    for _ in 0..3 {
        let (claim, commands) = scene.commands_of_a_claim().await;
        assert!(commands < COMMANDS, "{commands} commands");
        let urgent = (0..MODELS).rev().find(|number| !claimed.contains(number)).expect("there are more");
        assert_eq!(claim.lease.chunk, ChunkId { batch: many, number: urgent });
        claimed.insert(urgent);
    }
    // The other team has less under way.
    let few = scene.accept("few", 3).await;
    for number in [2, 1, 0] {
        let (claim, commands) = scene.commands_of_a_claim().await;
        assert!(commands < COMMANDS, "{commands} commands");
        assert_eq!(claim.lease.chunk, ChunkId { batch: few, number });
    }
}

/// They once stood in a lane for each model.
#[tokio::test]
async fn chunks_of_an_earlier_version_are_claimed_where_they_stand() {
    let scene = Scene::new().await;
    let batch = scene.accept("t", 2).await;
    let old = ChunkId { batch, number: 0 };
    let lane = "openai:nhJ0Lkq3cJ0x:t";
    scene.redis.command::<()>(&["HSET", &scene.store.keys.chunk(old), "lane_id", lane]).await;
    let mut claimed = Vec::new();
    for _ in 0..2 {
        let claim = scene.claim().await;
        assert_eq!(claim.account, "openai");
        claimed.push(claim.lease.chunk.number);
    }
    assert_eq!(claimed, [1, 0], "by deadline, across lanes of one team");
}
