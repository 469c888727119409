//! A commit whose reply is lost, whose Redis is full, read-only, restarted or forgetful, whose EXEC fails in one command,
//! or which somebody else makes, too: the same facts afterwards, and the cache has every answer.

use crate::support::{dir::Dir, redis::Redis};
use batchgate::{
    clock,
    domain::{
        batch::CacheMode,
        chunk::{Item, Lane, Place},
        id::{BatchId, ChunkId, Token, WireTag},
        key::CacheKey,
        outcome::{Reading, Usage},
        progress::{ChunkCounts, Counts, Progress},
        prompt::{ApiHeaders, Endpoint},
    },
    store::{
        Store, StoreError,
        chunks::{Lease, NewChunk},
        commit::{Committed, Delta, Settled, Stage, fragment_name},
        pages::{FrameRow, FrameWriter, Origin},
        record::{self, Known, ManifestPage, Provenance, StoredAnswer},
        uploads::{Accepted, Extent, First, Reservation},
    },
};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(3_600);
const LEASE: Duration = Duration::from_secs(30);
const ANSWERS: u32 = 5;
const PROMISED: u64 = 12_345;

/// One batch of one chunk, claimed, its answers staged and its fragment written.
struct Scene {
    redis: Redis,
    store: Store,
    keys: Vec<CacheKey>,
    held: Hand,
    _dir: Dir,
}

/// What one worker has in its hands.
struct Hand {
    lease: Lease,
    stage: Stage,
    fragments: Vec<(u32, FrameRow)>,
}

fn key(n: u32) -> CacheKey {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    CacheKey::from_bytes(bytes)
}

fn answer(key: &CacheKey, by: &str) -> StoredAnswer {
    let from = Provenance {
        provider_batch: by.to_owned(),
        request_id: None,
        chunk: "k".to_owned(),
        at: clock::now_ms(),
        team: "t".to_owned(),
    };
    StoredAnswer { reading: Reading::default(), from, body: format!("{{\"echo\":\"{key} by {by}\"}}").into() }
}

impl Scene {
    async fn new() -> Scene {
        Scene::of(ANSWERS).await
    }

    async fn of(answers: u32) -> Scene {
        let dir = Dir::new();
        let redis = Redis::start(dir.path()).await;
        let store = Store::connect(&redis.url(), "default").await.expect("redis answers");
        let batch = BatchId::new(clock::now_ms(), &rand::random());
        let keys: Vec<CacheKey> = (0..answers).map(key).collect();
        let item = |key: &CacheKey| Item {
            key: *key,
            places: vec![Place { page: 0, results: 1 }],
            attempts: 0,
            missed: false,
        };
        let lane =
            Lane { account: "a".into(), endpoint: Endpoint::Messages, model: None, headers: ApiHeaders::default() };
        let chunk = NewChunk {
            id: ChunkId { batch, number: 0 },
            lane,
            mode: CacheMode::Use,
            fresh_since: None,
            tag: WireTag::new("d", "default", &rand::random()),
            items: keys.iter().map(item).collect(),
            wire_bytes: 1_000,
            deadline: clock::now_ms() + 3_600_000,
            team: "t".into(),
            reserved: PROMISED,
            joins: false,
        };
        store.begin_upload(batch).await.expect("redis answers");
        assert!(
            store
                .extend_upload(batch, Extent { pages: 1, chunks: 1, ..Extent::default() })
                .await
                .expect("redis answers")
        );
        store.write_manifest(batch, 0, &ManifestPage::default()).await.expect("redis answers");
        store.write_chunks(&[chunk]).await.expect("redis answers");
        let first = Progress {
            team: "t".into(),
            created_at: clock::now_ms(),
            deadline: clock::now_ms() + 3_600_000,
            counts: Counts { total: u64::from(answers), ..Counts::default() },
            chunks: ChunkCounts { planned: 1, ..ChunkCounts::default() },
            pages: 1,
            ..Progress::default()
        };
        let promised = Reservation { bytes: PROMISED, allowance: Some(PROMISED) };
        let accepted = store
            .accept(batch, &First { progress: &first, chunks: 1 }, None, promised, 1_000)
            .await
            .expect("redis answers");
        assert_eq!(accepted, Accepted::Done);
        let held = Hand::take(&store, &keys, "first").await;
        Scene { redis, store, keys, held, _dir: dir }
    }

    async fn commit(&self, hand: &Hand) -> Result<Committed, StoreError> {
        let delta = Delta { succeeded: self.keys.len() as u64, ..Delta::default() };
        let settled = Settled {
            lease: &hand.lease,
            counter: Some("c_planned"),
            mode: CacheMode::Use,
            stage: &hand.stage,
            fresh_since: None,
            answered: &self.keys,
            failed: &[],
            cached: false,
            served: std::collections::BTreeMap::new(),
            fragments: &hand.fragments,
            follow_ups: &[],
            given_back: &[],
            harvested: None,
            delta: Delta { usage: Usage::default(), ..delta },
        };
        self.store.commit(&settled, TTL).await
    }

    /// Counted once, in the cache whole with a time to live, readable by the batch, and nobody's work any more.
    async fn holds(&self, by: &str) {
        let (store, chunk) = (&self.store, self.held.lease.chunk);
        let progress = store.progress(chunk.batch).await.expect("redis answers").expect("it exists");
        assert_eq!((progress.counts.succeeded, progress.counts.pending()), (self.keys.len() as u64, 0));
        assert_eq!((progress.chunks.planned, progress.chunks.settled), (0, 1));
        let hits = store.look_up(&self.keys, None).await.expect("redis answers");
        for key in &self.keys {
            let body = hits.get(key).map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
            assert_eq!(body, Some(format!("{{\"echo\":\"{key} by {by}\"}}")), "the cache has every answer");
            let left: i64 = self.redis.command(&["PTTL", &store.keys.cached(key)]).await;
            assert!(left > 3_000_000, "{key} lives for {left} ms");
        }
        let rows = store.fragments(chunk.batch, 0).await.expect("redis answers");
        let [(source, row)] = &rows[..] else { panic!("one fragment: {rows:?}") };
        assert_eq!(*source, Origin::Chunk { number: 0, cached: false });
        let known = store.fragment_frame(chunk.batch, 0, row, 0).await.expect("redis answers").expect("it is there");
        assert_eq!(known.len(), self.keys.len());
        let owned: i64 = self.redis.command(&["EXISTS", &store.keys.fence(chunk)]).await;
        let queued: i64 = self.redis.command(&["ZCARD", &store.keys.seal()]).await;
        assert_eq!((owned, queued), (0, 1), "nobody holds the chunk, and its page is touched");
        assert_eq!(store.room().await.expect("redis answers").reserved, 0, "what was promised is there");
    }

    /// Nothing of the chunk is settled.
    async fn nothing_changed(&self) {
        let chunk = self.store.chunk(self.held.lease.chunk).await.expect("redis answers").expect("it exists");
        assert_eq!((chunk.state.word(), chunk.settled_by), ("planned", None));
        assert!(self.store.look_up(&self.keys, None).await.expect("redis answers").is_empty());
        let progress = self.store.progress(chunk.id.batch).await.expect("redis answers").expect("it exists");
        assert_eq!(progress.counts.succeeded, 0);
        assert_eq!(self.store.room().await.expect("redis answers").reserved, PROMISED);
    }

    /// All of them are gone between staging and EXEC, as under a policy that evicts.
    async fn lose(&self, keys: &[CacheKey]) {
        for key in keys {
            let staged = self.store.keys.staged(&self.held.lease.token, key);
            assert_eq!(self.redis.command::<i64>(&["DEL", &staged]).await, 1);
        }
    }
}

impl Hand {
    /// Claims the chunk that is due and does all that comes before the MULTI.
    async fn take(store: &Store, keys: &[CacheKey], by: &str) -> Hand {
        let token = Token::new(&rand::random());
        let claim = store.claim(token, LEASE, &[]).await.expect("redis answers").expect("a chunk is due");
        let lease = claim.lease;
        store.begin_staging(&lease, LEASE).await.expect("redis answers");
        for group in keys.chunks(500) {
            let packed: Vec<_> = group.iter().map(|key| (*key, record::pack_cached(key, &answer(key, by)))).collect();
            assert!(store.stage(&lease, &packed, TTL).await.expect("redis answers"));
        }
        let name = fragment_name(lease.chunk, &lease.token);
        let mut writer = FrameWriter::fragment(store, lease.chunk.batch, 0, &name);
        for key in keys {
            writer.push_known(key, &Known::Answered(answer(key, by))).await.expect("redis answers");
        }
        let row = writer.finish().await.expect("redis answers");
        Hand { stage: Stage::Dispatch(lease.token.clone()), fragments: vec![(0, row)], lease }
    }
}

#[tokio::test]
async fn a_commit_whose_reply_was_lost_is_done_once() {
    let scene = Scene::new().await;
    for _ in 0..3 {
        assert_eq!(scene.commit(&scene.held).await.expect("redis answers"), Committed::Done);
        scene.holds("first").await;
    }
}

#[tokio::test]
async fn two_at_one_commit_do_it_once() {
    let scene = Scene::new().await;
    let (one, other) = tokio::join!(scene.commit(&scene.held), scene.commit(&scene.held));
    assert_eq!((one.expect("redis answers"), other.expect("redis answers")), (Committed::Done, Committed::Done));
    scene.holds("first").await;
}

#[tokio::test]
async fn an_exec_that_failed_in_one_command_leaves_no_answer_out_of_the_cache() {
    let scene = Scene::new().await;
    scene.lose(&scene.keys[1..3]).await;
    assert_eq!(scene.commit(&scene.held).await.expect("it was applied"), Committed::Done);
    scene.holds("first").await;
}

#[tokio::test]
async fn nor_does_one_whose_reply_was_lost_beside() {
    let scene = Scene::new().await;
    assert_eq!(scene.commit(&scene.held).await.expect("redis answers"), Committed::Done);
    scene.redis.command::<i64>(&["DEL", &scene.store.keys.cached(&scene.keys[0])]).await;
    assert_eq!(scene.commit(&scene.held).await.expect("redis answers"), Committed::Done);
    scene.holds("first").await;
}

#[tokio::test]
async fn a_mended_answer_replaces_none() {
    let scene = Scene::new().await;
    scene.lose(&scene.keys).await;
    let older = record::pack_cached(&scene.keys[0], &answer(&scene.keys[0], "older"));
    let mut connection = scene.redis.connect().await.expect("redis answers");
    let mut set = redis::cmd("SET");
    set.arg(scene.store.keys.cached(&scene.keys[0])).arg(older).arg("PX").arg(60_000);
    set.query_async::<()>(&mut connection).await.expect("redis answers");
    assert_eq!(scene.commit(&scene.held).await.expect("it was applied"), Committed::Done);
    let hits = scene.store.look_up(&scene.keys, None).await.expect("redis answers");
    assert_eq!(hits.len(), scene.keys.len());
    assert_eq!(hits[&scene.keys[0]].from.provider_batch, "older", "the first answer stays");
    let left: i64 = scene.redis.command(&["PTTL", &scene.store.keys.cached(&scene.keys[0])]).await;
    assert!(left > 3_000_000, "and lives as long as a fresh one: {left} ms");
}

#[tokio::test]
async fn a_wrong_type_inside_exec_undoes_nothing() {
    let scene = Scene::new().await;
    let claimed = scene.store.keys.claimed();
    scene.redis.command::<()>(&["SET", &claimed, "not a set"]).await;
    assert_eq!(scene.commit(&scene.held).await.expect("it was applied"), Committed::Done);
    scene.redis.command::<i64>(&["DEL", &claimed]).await;
    scene.holds("first").await;
}

#[tokio::test]
async fn a_full_redis_refuses_it_whole_and_takes_it_later() {
    let scene = Scene::new().await;
    scene.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for _ in 0..2 {
        let refused = scene.commit(&scene.held).await.expect_err("there is no room");
        assert!(refused.is_full(), "{refused}");
    }
    scene.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    scene.nothing_changed().await;
    assert_eq!(scene.commit(&scene.held).await.expect("there is room"), Committed::Done);
    scene.holds("first").await;
}

#[tokio::test]
async fn a_read_only_redis_refuses_it_whole_and_takes_it_later() {
    let scene = Scene::new().await;
    scene.redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let refused = scene.commit(&scene.held).await.expect_err("it is a replica");
    assert!(!refused.is_full(), "{refused}");
    scene.redis.command::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    scene.nothing_changed().await;
    assert_eq!(scene.commit(&scene.held).await.expect("it is not"), Committed::Done);
    scene.holds("first").await;
}

#[tokio::test]
async fn a_restarted_redis_knows_no_script_and_takes_it_all_the_same() {
    let mut scene = Scene::new().await;
    scene.redis.restart().await;
    assert_eq!(scene.commit(&scene.held).await.expect("redis is back"), Committed::Done);
    scene.holds("first").await;
}

#[tokio::test]
async fn a_zombie_s_commit_changes_nothing_before_or_after_the_other_s() {
    for zombie_first in [true, false] {
        let mut scene = Scene::new().await;
        // Its claim has run out.
        let chunk = scene.held.lease.chunk.to_string();
        scene.redis.command::<i64>(&["ZADD", &scene.store.keys.claimed(), "1", &chunk]).await;
        let other = Hand::take(&scene.store, &scene.keys, "other").await;
        let zombie = std::mem::replace(&mut scene.held, other);
        if zombie_first {
            assert_eq!(scene.commit(&zombie).await.expect("redis answers"), Committed::Lost);
            scene.nothing_changed().await;
        }
        assert_eq!(scene.commit(&scene.held).await.expect("redis answers"), Committed::Done);
        assert_eq!(scene.commit(&zombie).await.expect("redis answers"), Committed::Lost);
        scene.holds("other").await;
    }
}

/// A figure of this process's memory, in MiB.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("no {name} in {status}")) >> 10
}

#[tokio::test]
async fn a_chunk_of_a_provider_s_size_commits_within_bounds() {
    let scene = Scene::of(100_000).await;
    let before = memory("VmRSS");
    // From here on the peak is counted anew.
    std::fs::write("/proc/self/clear_refs", "5").expect("it is our own process");
    let began = std::time::Instant::now();
    assert_eq!(scene.commit(&scene.held).await.expect("redis answers"), Committed::Done);
    let (took, peak) = (began.elapsed(), memory("VmHWM"));
    eprintln!("100,000 answers: {took:?}, {before} MiB before, {peak} MiB at the peak");
    assert!(peak - before.min(peak) < 256, "{before} MiB before, {peak} MiB at the peak");
    let chunk = scene.store.chunk(scene.held.lease.chunk).await.expect("redis answers").expect("it exists");
    assert_eq!(chunk.settled_by.as_deref(), Some(scene.held.lease.token.as_str()));
    let hits = scene.store.look_up(&scene.keys[99_990..], None).await.expect("redis answers");
    assert_eq!(hits.len(), 10);
    // Its reply lost: looking back costs no more.
    assert_eq!(scene.commit(&scene.held).await.expect("redis answers"), Committed::Done);
}
