//! The scripts that move chunks, against a model that is obviously right: any order of claims, renewals, steps, strikes,
//! commits, cancels, crashes and damage, by three workers whose leases run out and who may not know it. After each step
//! every chunk is in exactly one queue, has one owner at most, and is counted where it is; and the reconciler's look, which
//! knows nothing of the model, finds nothing wrong, or just the damage that was done.

use crate::support::{dir::Dir, redis::Redis};
use batchgate::{
    domain::{
        account::{Reason, Waits},
        batch::{CacheMode, Priority},
        chunk::{ChunkState, Item, Lane, Place, Search},
        id::{BatchId, ChunkId, Token, WireTag},
        key::CacheKey,
        progress::{ChunkCounts, Counts, Progress},
        prompt::{ApiHeaders, Endpoint},
    },
    pipeline::reconcile::{Finding, findings},
    store::{
        Store,
        batches::Canceled,
        chunks::{Lease, NewChunk, Release, Step, Stepped},
        commit::{Committed, Delta, Settled, Stage},
        pages::{FrameRow, FrameWriter},
        reconcile::Repair,
        uploads::{Accepted, Extent, First, Reservation},
    },
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::Index,
    test_runner::{Config, TestRunner},
};
use std::{collections::BTreeMap, time::Duration};

const WORKERS: usize = 3;
const ACCOUNTS: [&str; 2] = ["openai", "anthropic"];
/// Leases and delays end between two positions of the clock, which is moved by whole hundreds of seconds: the few
/// milliseconds that really pass decide nothing.
const LEASE: u64 = 250;

/// One thing that happens; numbers choose among what there is.
#[derive(Clone, Debug)]
enum Event {
    /// A worker claims what is most urgent, but nothing of this account.
    Claim(usize, Option<usize>),
    Renew(usize),
    /// It goes to another state, holds its claim or gives it back for so many seconds, and may wait for something.
    Step(usize, usize, Option<u64>, bool),
    Strike(usize, u32),
    /// It settles its chunk, and asks so many of its questions again.
    Commit(usize, usize),
    Crash(usize),
    /// So many hundreds of seconds pass.
    Pass(u64),
    Cancel,
    /// A live chunk falls out of its queue.
    Lose(Index),
    /// A live chunk stands in a second queue.
    Double(Index),
    /// A counter tells something else.
    Miscount(usize, i64),
}

fn event() -> impl Strategy<Value = Event> {
    let worker = 0..WORKERS;
    let delay = prop::option::of(prop_oneof![Just(0_u64), Just(150), Just(1_050)]);
    prop_oneof![
        8 => (worker.clone(), prop::option::weighted(0.2, 0..2_usize)).prop_map(|(worker, full)| Event::Claim(worker, full)),
        2 => worker.clone().prop_map(Event::Renew),
        10 => (worker.clone(), 0..8_usize, delay, prop::bool::weighted(0.2))
            .prop_map(|(worker, arrow, delay, waits)| Event::Step(worker, arrow, delay, waits)),
        1 => (worker.clone(), 1..4_u32).prop_map(|(worker, weight)| Event::Strike(worker, weight)),
        3 => (worker.clone(), 0..4_usize).prop_map(|(worker, again)| Event::Commit(worker, again)),
        1 => worker.prop_map(Event::Crash),
        4 => (1..12_u64).prop_map(Event::Pass),
        1 => Just(Event::Cancel),
        1 => any::<Index>().prop_map(Event::Lose),
        1 => any::<Index>().prop_map(Event::Double),
        1 => (0..4_usize, -3..4_i64).prop_map(|(counter, by)| Event::Miscount(counter, by)),
    ]
}

/// The arrows of a chunk's life: where they may begin, where they end, whether they lead to a paid call.
fn arrows() -> [(&'static [&'static str], ChunkState, bool); 8] {
    let remote = || "batch_1".to_owned();
    [
        (&["planned"], ChunkState::Submitting { newest_before: None }, true),
        (&["submitting"], ChunkState::InDoubt(Search::default()), false),
        (&["submitting", "in_doubt"], ChunkState::Running { remote: remote(), adopted: None }, false),
        (&["submitting", "in_doubt", "running"], ChunkState::Planned, false),
        (&["running"], ChunkState::Running { remote: remote(), adopted: None }, false),
        (
            &["running"],
            ChunkState::Harvested { remote: remote(), sources: Vec::new(), looked: false, adopted: None },
            false,
        ),
        (&["planned"], ChunkState::Asking, true),
        (&["asking"], ChunkState::Asking, false),
    ]
}

fn counter(state: &str) -> &'static str {
    match state {
        "planned" => "c_planned",
        "submitting" | "in_doubt" => "c_submitting",
        "settled" => "c_settled",
        _ => "c_running",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Delayed { due: u64 },
    Ready,
    Claimed { expiry: u64 },
    None,
}

/// A chunk as the model has it.
#[derive(Clone, Debug)]
struct Own {
    account: usize,
    questions: usize,
    state: &'static str,
    queue: Queue,
    fence: Option<String>,
    settled_by: Option<String>,
    reclaims: u32,
    waits: bool,
}

struct Story<'a> {
    redis: redis::aio::MultiplexedConnection,
    store: &'a mut Store,
    batch: BatchId,
    chunks: Vec<Own>,
    hands: [Option<Lease>; WORKERS],
    /// Seconds by which the clock was moved.
    now: u64,
    canceled: bool,
    failed: u64,
    tokens: u8,
    /// Names of the two accounts' lanes.
    lanes: Vec<String>,
}

const LATER: Duration = Duration::from_secs(LEASE);
const TOTAL: u64 = 3 * 4;

impl Story<'_> {
    fn id(&self, number: usize) -> ChunkId {
        ChunkId { batch: self.batch, number: u32::try_from(number).expect("few") }
    }

    fn new_chunk(&self, number: usize, account: usize, questions: usize) -> NewChunk {
        let key = |n: usize| CacheKey::from_bytes([u8::try_from(n).expect("few"); 32]);
        let item = |n| Item { key: key(n), places: vec![Place { page: 0, results: 1 }], attempts: 0, missed: false };
        NewChunk {
            id: self.id(number),
            lane: Lane {
                account: ACCOUNTS[account].into(),
                endpoint: Endpoint::ChatCompletions,
                model: Some(format!("m{number}")), // which makes no difference to where it stands
                headers: ApiHeaders::default(),
            },
            mode: CacheMode::Off,
            fresh_since: None,
            tag: WireTag::new("test", "default", &[1; 9]),
            items: (0..questions).map(item).collect(),
            wire_bytes: 1,
            reserved: 0,
            joins: false,
            deadline: 1_000 + number as u64, // no two alike: it is clear which is more urgent
            team: "t".into(),
            priority: Priority::Normal,
        }
    }

    fn fresh(account: usize, questions: usize) -> Own {
        let (state, queue) = ("planned", Queue::Delayed { due: 0 });
        Own { account, questions, state, queue, fence: None, settled_by: None, reclaims: 0, waits: false }
    }

    async fn begin(&mut self) {
        self.store.begin_upload(self.batch).await.expect("redis answers");
        let extent = Extent { chunks: 3, pages: 1, ..Extent::default() };
        assert!(self.store.extend_upload(self.batch, extent).await.expect("redis answers"));
        let chunks: Vec<NewChunk> = (0..3).map(|n| self.new_chunk(n, n % 2, 4)).collect();
        self.store.write_chunks(&chunks).await.expect("redis answers");
        let counts = Counts { total: TOTAL, ..Counts::default() };
        let planned = ChunkCounts { planned: 3, ..ChunkCounts::default() };
        let progress = Progress { team: "t".into(), counts, chunks: planned, pages: 1, ..Progress::default() };
        let first = First { progress: &progress, chunks: 3 };
        assert_eq!(
            self.store.accept(self.batch, &first, None, Reservation::default(), 1_000).await.expect("redis answers"),
            Accepted::Done
        );
        self.chunks = (0..3).map(|n| Story::fresh(n % 2, 4)).collect();
        let mut ask = redis::pipe();
        for n in 0..2 {
            ask.hget(format!("{{default}}:k:{}", self.id(n)), "lane_id");
        }
        self.lanes = ask.query_async(&mut self.redis).await.expect("redis answers");
    }

    async fn take(&mut self, event: &Event) {
        match event {
            Event::Claim(worker, full) => self.claim(*worker, *full).await,
            Event::Renew(worker) => self.renew(*worker).await,
            Event::Step(worker, arrow, delay, waits) => self.step(*worker, *arrow, *delay, *waits).await,
            Event::Strike(worker, weight) => self.strike(*worker, *weight).await,
            Event::Commit(worker, again) => self.commit(*worker, *again).await,
            Event::Crash(worker) => self.hands[*worker] = None,
            Event::Pass(hundreds) => {
                self.now += hundreds * 100;
                self.store.skew_ms = self.now * 1_000;
            }
            Event::Cancel => self.cancel().await,
            Event::Lose(which) => self.lose(which).await,
            Event::Double(which) => self.double(which).await,
            Event::Miscount(counter, by) => self.miscount(*counter, *by).await,
        }
        self.compare(event).await;
    }

    async fn claim(&mut self, worker: usize, full: Option<usize>) {
        self.tokens += 1;
        let token = Token::new(&[self.tokens; 16]);
        for chunk in &mut self.chunks {
            match chunk.queue {
                Queue::Claimed { expiry } if expiry <= self.now => {
                    (chunk.queue, chunk.fence) = (Queue::Ready, None);
                    chunk.reclaims += 1;
                }
                Queue::Delayed { due } if due <= self.now => chunk.queue = Queue::Ready,
                _ => {}
            }
        }
        let may = |chunk: &Own| chunk.queue == Queue::Ready && full != Some(chunk.account);
        // By number, as deadlines grow: of those under way, or of those to be sent; the token says which go first.
        let under_way = self.chunks.iter().position(|chunk| may(chunk) && chunk.state != "planned");
        let to_send = self.chunks.iter().position(|chunk| may(chunk) && chunk.state == "planned");
        let sends = token.as_str().as_bytes()[0].is_multiple_of(4);
        let next = if sends { to_send.or(under_way) } else { under_way.or(to_send) };
        let full: Vec<String> = full.into_iter().map(|account| ACCOUNTS[account].to_owned()).collect();
        let claimed = self.store.claim(token.clone(), LATER, &full).await.expect("redis answers");
        let told = claimed.as_ref().map(|claim| (claim.lease.chunk, claim.reclaims, claim.account.as_str()));
        let expect = next.map(|n| (self.id(n), self.chunks[n].reclaims, ACCOUNTS[self.chunks[n].account]));
        assert_eq!(told, expect, "the most urgent chunk under way, or to be sent");
        if let Some(n) = next {
            self.chunks[n].queue = Queue::Claimed { expiry: self.now + LEASE };
            self.chunks[n].fence = Some(token.to_string());
            self.hands[worker] = claimed.map(|claim| claim.lease);
        }
    }

    /// The chunk in a worker's hand, as its lease says, and whether it still is its own.
    fn held(&self, worker: usize) -> Option<(Lease, usize, bool)> {
        let lease = self.hands[worker].clone()?;
        let n = lease.chunk.number as usize;
        let own = self.chunks[n].fence.as_deref() == Some(lease.token.as_str());
        Some((lease, n, own))
    }

    async fn renew(&mut self, worker: usize) {
        let Some((lease, n, own)) = self.held(worker) else { return };
        assert_eq!(self.store.renew(&lease, LATER).await.expect("redis answers"), own);
        assert_eq!(self.store.holds(&lease).await.expect("redis answers"), own);
        if own {
            self.chunks[n].queue = Queue::Claimed { expiry: self.now + LEASE };
        }
    }

    async fn step(&mut self, worker: usize, arrow: usize, delay: Option<u64>, waits: bool) {
        let Some((lease, n, own)) = self.held(worker) else { return };
        let (from, to, asking) = &arrows()[arrow];
        let why = Waits { reason: Some(Reason::RateLimited), detail: "later".into(), group: Some("g".into()) };
        let release = delay.map_or(Release::Hold, |seconds| Release::After(seconds * 1_000));
        let waits = waits && delay.is_some();
        let step = Step { from, to, fields: Vec::new(), release, asking: *asking, waits: waits.then_some(&why) };
        let stepped = self.store.step(&lease, &step).await.expect("redis answers");
        let chunk = &mut self.chunks[n];
        let expect = if !own {
            Stepped::Lost
        } else if !from.contains(&chunk.state) {
            Stepped::Elsewhere(chunk.state.to_owned())
        } else if *asking && self.canceled {
            Stepped::Ending
        } else {
            chunk.state = to.word();
            if let Some(delay) = delay {
                let at_once = self.canceled
                    && match chunk.state {
                        "planned" | "asking" => true,
                        "running" => !waits,
                        _ => false,
                    };
                chunk.queue = Queue::Delayed { due: if at_once { self.now } else { self.now + delay } };
                (chunk.fence, chunk.reclaims, chunk.waits) = (None, 0, waits);
            }
            Stepped::Done
        };
        assert_eq!(stepped, expect);
    }

    async fn strike(&mut self, worker: usize, weight: u32) {
        let Some((lease, n, own)) = self.held(worker) else { return };
        self.store.strike(&lease, weight).await.expect("redis answers");
        self.chunks[n].reclaims += if own { weight } else { 0 };
    }

    async fn commit(&mut self, worker: usize, again: usize) {
        let Some((lease, n, own)) = self.held(worker) else { return };
        let Own { account, questions, state, ref settled_by, .. } = self.chunks[n];
        let by_us = settled_by.as_deref() == Some(lease.token.as_str());
        let again = again.min(questions);
        let first = self.store.draw_chunk_numbers(self.batch, 1).await.expect("redis answers") as usize;
        let follow_ups: Vec<NewChunk> =
            (again > 0).then(|| self.new_chunk(first, account, again)).into_iter().collect();
        let row = FrameWriter::fragment(self.store, self.batch, 0, "x").finish().await.expect("nothing to write");
        let fragments: [(u32, FrameRow); 1] = [(0, row)];
        let failed = (questions - again) as u64;
        let lost = vec![CacheKey::from_bytes([0; 32]); questions];
        let settled = Settled {
            lease: &lease,
            counter: Some(counter(state)),
            mode: CacheMode::Off,
            stage: &Stage::Dispatch(lease.token.clone()),
            fresh_since: None,
            answered: &[],
            failed: &lost[..questions - again],
            cached: false,
            served: BTreeMap::new(),
            fragments: &fragments,
            follow_ups: &follow_ups,
            given_back: &[],
            harvested: None,
            delta: Delta { failed, ..Delta::default() },
        };
        let committed = self.store.commit(&settled, Duration::from_secs(60)).await.expect("redis answers");
        assert_eq!(committed, if own || by_us { Committed::Done } else { Committed::Lost });
        // A number that was drawn and not used is a gap.
        self.chunks.push(Own { state: "none", queue: Queue::None, ..Story::fresh(account, again) });
        assert_eq!(first + 1, self.chunks.len());
        if own {
            self.failed += failed;
            let chunk = &mut self.chunks[n];
            (chunk.state, chunk.queue, chunk.fence, chunk.waits) = ("settled", Queue::None, None, false);
            chunk.settled_by = Some(lease.token.to_string());
            if again > 0 {
                self.chunks[first] = Story::fresh(account, again);
            }
        }
    }

    async fn cancel(&mut self) {
        assert_eq!(self.store.cancel(self.batch).await.expect("redis answers"), Canceled::Asked);
        for chunk in self.chunks.iter_mut().filter(|chunk| !self.canceled && chunk.state != "in_doubt") {
            if let Queue::Delayed { due } = &mut chunk.queue {
                *due = 0;
            }
        }
        self.canceled = true;
    }

    // Damage, what the look says to it, and the repair.

    fn live(&self, which: &Index) -> Option<usize> {
        let live: Vec<usize> = (0..self.chunks.len()).filter(|n| self.chunks[*n].queue != Queue::None).collect();
        (!live.is_empty()).then(|| live[which.index(live.len())])
    }

    fn ready_key(&self, n: usize) -> String {
        format!("{{default}}:ready:{}", self.lanes[self.chunks[n].account])
    }

    async fn found(&self) -> Vec<Finding> {
        findings(&self.store.look(self.batch, 0).await.expect("redis answers"))
    }

    /// The damage is found, the first repair heals it, the second has nothing to do.
    async fn heal(&self, finding: Finding, repair: &Repair<'_>) {
        assert_eq!(self.found().await, [finding]);
        for expect in [true, false] {
            assert_eq!(self.store.put_right(self.batch, repair, LATER).await.expect("redis answers"), expect);
        }
    }

    async fn lose(&mut self, which: &Index) {
        let Some(n) = self.live(which) else { return };
        let (ready, id, number) = (self.ready_key(n), self.id(n).to_string(), self.id(n).number);
        for queue in ["{default}:delayed", "{default}:claimed", &ready] {
            redis::cmd("ZREM").arg(queue).arg(&id).query_async::<()>(&mut self.redis).await.expect("redis answers");
        }
        self.heal(Finding::ChunkLost(number), &Repair::Chunk(number)).await;
        let chunk = &mut self.chunks[n];
        chunk.queue = match chunk.fence {
            Some(_) => Queue::Claimed { expiry: self.now + LEASE },
            None => Queue::Delayed { due: self.now },
        };
    }

    async fn double(&mut self, which: &Index) {
        let Some(n) = self.live(which) else { return };
        let (ready, id, number) = (self.ready_key(n), self.id(n).to_string(), self.id(n).number);
        let second = if matches!(self.chunks[n].queue, Queue::Delayed { .. }) { &ready } else { "{default}:delayed" };
        // Among the ready ones it stands where a claim would have put it: what is under way far before what is to be sent.
        let front = if second == ready && self.chunks[n].state != "planned" { 10_000_000_000_000 } else { 0 };
        let mut add = redis::cmd("ZADD");
        add.arg(second)
            .arg(1_000 + i64::from(number) - front)
            .arg(&id)
            .query_async::<()>(&mut self.redis)
            .await
            .expect("redis answers");
        let found = self.found().await;
        assert!(found.contains(&Finding::ChunkTwice(number)), "{found:?}");
        if found.contains(&Finding::LaneLost(number)) {
            assert!(self.store.put_right(self.batch, &Repair::Lane(number), LATER).await.expect("redis answers"));
        }
        self.heal(Finding::ChunkTwice(number), &Repair::Twice(number)).await;
        if matches!(self.chunks[n].queue, Queue::Delayed { .. }) {
            self.chunks[n].queue = Queue::Ready;
        }
    }

    async fn miscount(&mut self, counter: usize, by: i64) {
        let name = ["c_planned", "c_submitting", "c_running", "w:rate_limited"][counter];
        let key = format!("{{default}}:b:{}", self.batch.hex());
        let before: Option<i64> =
            redis::cmd("HGET").arg(&key).arg(name).query_async(&mut self.redis).await.expect("one");
        let (actual, stored) = (before.unwrap_or(0), before.unwrap_or(0) + by);
        if by == 0 {
            return;
        }
        redis::cmd("HSET").arg(&key).arg(name).arg(stored).query_async::<()>(&mut self.redis).await.expect("one");
        let repair = Repair::Counter { name, stored, actual };
        self.heal(Finding::Counter { name: name.into(), stored, actual }, &repair).await;
    }

    // What must hold after each event.

    async fn compare(&mut self, event: &Event) {
        assert_eq!(self.found().await, [], "after {event:?}");
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        let mut ask = redis::pipe();
        for n in 0..self.chunks.len() {
            let (ready, id) = (self.ready_key(n), self.id(n).to_string());
            ask.zscore("{default}:delayed", &id).zscore(ready, &id).zscore("{default}:claimed", &id);
            ask.get(format!("{{default}}:k:{id}:fence"));
            ask.cmd("HMGET").arg(format!("{{default}}:k:{id}")).arg(&["state", "reclaims", "wait"]);
        }
        let told: Vec<redis::Value> = ask.query_async(&mut self.redis).await.expect("redis answers");
        for (n, (chunk, told)) in self.chunks.iter().zip(told.chunks(5)).enumerate() {
            type Told =
                (Option<f64>, Option<f64>, Option<f64>, Option<String>, (Option<String>, Option<u32>, Option<String>));
            let told = redis::from_redis_value::<Told>(redis::Value::Array(told.to_vec()));
            let (delayed, ready, claimed, fence, (state, reclaims, wait)) = told.expect("five answers");
            let state = state.unwrap_or_else(|| "none".to_owned()); // a number that was drawn and not used
            if chunk.state != "none" {
                *counts.entry(counter(chunk.state)).or_default() += 1;
            }
            let expect = match chunk.queue {
                Queue::Delayed { .. } => (true, false, false),
                Queue::Ready => (false, true, false),
                Queue::Claimed { .. } => (false, false, true),
                Queue::None => (false, false, false),
            };
            assert_eq!(
                (delayed.is_some(), ready.is_some(), claimed.is_some()),
                expect,
                "{n} after {event:?}: {chunk:?}"
            );
            assert_eq!((fence, state.as_str()), (chunk.fence.clone(), chunk.state), "{n} after {event:?}: {chunk:?}");
            assert_eq!(reclaims.unwrap_or(0), chunk.reclaims, "{n} after {event:?}: {chunk:?}");
            assert_eq!(wait.is_some_and(|wait| !wait.is_empty()), chunk.waits, "{n} after {event:?}: {chunk:?}");
        }
        let progress = self.store.progress(self.batch).await.expect("redis answers").expect("it exists");
        let ChunkCounts { planned, submitting, running, settled, .. } = progress.chunks;
        let told = BTreeMap::from([
            ("c_planned", planned),
            ("c_submitting", submitting),
            ("c_running", running),
            ("c_settled", settled),
        ]);
        let told: BTreeMap<&str, u64> = told.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(told, counts, "after {event:?}");
        assert_eq!((progress.counts.failed, progress.counts.total), (self.failed, TOTAL), "after {event:?}");
        let waiting: usize = self.chunks.iter().filter(|chunk| chunk.waits).map(|chunk| chunk.questions).sum();
        let told: u64 = progress.waiting.iter().map(|waiting| waiting.prompts).sum();
        assert_eq!(told, waiting as u64, "after {event:?}");
    }
}

async fn tell(redis: &Redis, store: &mut Store, events: &[Event]) {
    redis.command::<()>(&["FLUSHALL"]).await;
    store.skew_ms = 0;
    let batch = BatchId::new(1, &[3; 10]);
    let connection = redis.connect().await.expect("redis answers");
    let (chunks, hands, lanes) = Default::default();
    let mut story =
        Story { redis: connection, store, batch, chunks, hands, now: 0, canceled: false, failed: 0, tokens: 0, lanes };
    story.begin().await;
    for event in events {
        story.take(event).await;
    }
}

#[test]
fn chunks_live_as_in_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dir = Dir::new();
    let (redis, store) = runtime.block_on(async {
        let redis = Redis::start(dir.path()).await;
        let store = Store::connect(&redis.url(), "default").await.expect("redis answers");
        redis.command::<()>(&["CONFIG", "SET", "appendonly", "no"]).await; // hundreds of stories: no need to survive
        (redis, store)
    });
    let config = Config { cases: 40, failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
    let told = TestRunner::new(config).run(&vec(event(), 1..50), |events| {
        runtime.block_on(tell(&redis, &mut store.clone(), &events));
        Ok(())
    });
    assert!(told.is_ok(), "{told:?}");
}
