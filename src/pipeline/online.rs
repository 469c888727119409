//! Asks the prompts of a chunk one by one, where a server has no batches. The chunk is a group: small, and settled whole.
//!
//! What is said is noted in Redis as it comes ([`crate::store::said`]), so the next dispatch goes on where this one ended.
//! A request keeps its seat until its answer is noted: whatever kills the process costs at most as many answers as there
//! are seats. A request is made once per round; what is worth
//! asking again waits for the next round, and a server in trouble ends the round: nothing sleeps with a chunk in hand.

pub mod desk;
pub mod limit;

use super::{
    Gateway, Provider, account,
    account::{Move, Passage},
    commit::{self, Brought},
    dispatch::{After, Held, no_provider},
    outgoing::{Unread, open_lines},
    room,
};
use crate::{
    clock::{self, Millis},
    domain::{
        account::Call,
        chunk::{ChunkState, Item, Ledger, Verdict, WireIds},
        key::CacheKey,
        outcome::{Ending, Failure, FailureCode, Outcome},
        prompt::Endpoint,
        settlement::{Rules, Settlement},
    },
    provider::{CallError, OutLine, ReadError, online::Asked},
    store::{
        StoreError,
        chunks::{Chunk, Release},
        commit::Stage,
        record::{self, Provenance, StoredAnswer},
        said::{Saying, Word},
    },
};
use bytes::Bytes;
use desk::{Desk, Seat};
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use std::{collections::HashMap, future::Future, pin::Pin, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Prompts of a chunk, or as many as may be in the air: a million prompts make less than the ten thousand chunks a batch
/// may have, and what is answered shows soon.
pub const GROUP: usize = 128;
/// Answers that arrived while the last ones were noted are noted together, up to so many bytes.
const NOTE_BYTES: usize = 1 << 20;
/// How often a round looks whether its batch still wants answers.
const LOOK: Duration = Duration::from_secs(1);
/// How long what is in the air is waited for once nobody wants more: at a cancel or deadline, and when the process ends
/// (which waits 25 s). Then the requests are dropped; servers stop working on them.
const LAST_ANSWERS: Duration = Duration::from_secs(30);
const LAST_ANSWERS_IN_DRAIN: Duration = Duration::from_secs(20);
/// Wait between two tries to note what was said, while Redis is away or full: it is paid for.
const NOTE_AGAIN: Duration = Duration::from_secs(1);
const NOTE_TRIES: u32 = 600;
/// Answers of these bear this name in place of a provider batch's id.
const NO_BATCH: &str = "online";

/// Begins to ask. The chunk is planned.
pub async fn begin(held: &Held<'_>) -> Result<After, StoreError> {
    if let Some(ending) = held.ending {
        let items = held.gateway.store.items(held.chunk.id).await?;
        return commit::settle(held, Settlement::all(items, &ending.failure())).await;
    }
    let fields = vec![("attempt", (held.chunk.attempt + 1).to_string()), ("submitted_at", held.now.to_string())];
    held.step(&["planned"], &ChunkState::Asking, fields, Release::Hold).await
}

/// One round: asks what is not answered yet, and settles the chunk or gives it back. `seat`: the permit it was claimed
/// with. `drain`: resolves when the process is told to stop.
pub async fn ask(held: &Held<'_>, seat: Option<Seat>, drain: &CancellationToken) -> Result<After, StoreError> {
    let store = &held.gateway.store;
    let items = store.items(held.chunk.id).await?;
    let said = store.said(held.chunk.id).await?;
    // What is paid for is settled, whatever became of the server and its account.
    if held.ending.is_some() || is_answered(&items, &said) {
        return settle(held, items, &said, held.ending).await;
    }
    let Some(Provider::Online(desk)) = held.gateway.providers.get(&held.chunk.lane.account) else {
        return no_provider(held).await;
    };
    let passage = match account::enter(held, Call::Create).await? {
        Ok(passage) => passage,
        Err(after) => return Ok(after),
    };
    let mut left: Vec<Item> =
        items.iter().filter(|item| !said.get(&item.key).is_some_and(Word::is_last)).cloned().collect();
    // Another order each time: one prompt a server chokes on must not always be the first.
    let turn = rand::random_range(0..left.len().max(1));
    left.rotate_left(turn);
    let mut round = Round::new(held, desk, said, passage);
    let stop = round.run(&left, seat, drain).await?;
    let Round { said, heard, shut, .. } = round;
    match stop {
        Stop::Lost => Ok(After::Finished),
        Stop::Ending(ending) => settle(held, items, &said, Some(ending)).await,
        Stop::Done if is_answered(&items, &said) => settle(held, items, &said, None).await,

        Stop::Done => give_back(held, heard, retry_wait(held.gateway, &said)).await,
        Stop::Rest(wait) => match shut {
            Some(error) => {
                let state = &held.chunk.state;
                account::failed(held, Call::Create, &error, Move { from: state, to: state, fields: Vec::new() }).await
            }
            None => give_back(held, heard, wait).await,
        },
        Stop::Drain => {
            fail_point!("drained_round");
            give_back(held, heard, Duration::ZERO).await
        }
    }
}

/// Nothing is left to ask.
fn is_answered(items: &[Item], said: &HashMap<CacheKey, Word>) -> bool {
    items.iter().all(|item| said.get(&item.key).is_some_and(Word::is_last))
}

/// Settles the chunk with all that was said. With an `ending` the rest gets no answer any more.
async fn settle(
    held: &Held<'_>,
    items: Vec<Item>,
    said: &HashMap<CacheKey, Word>,
    ending: Option<Ending>,
) -> Result<After, StoreError> {
    commit::begin(held).await?;
    let ids = commit::wire_ids(held.chunk);
    let mut ledger = Ledger::open(ids.clone(), &items);
    let mut sizes = HashMap::new();
    for (key, word) in said {
        let verdict = match word {
            Word::Answered { usage, size } => {
                sizes.insert(*key, *size);
                Verdict::Answered(*usage)
            }
            // Its attempts are spent, or were of no use: it is not asked again.
            Word::Failed(failure) => Verdict::Failed(Failure { retryable: false, ..failure.clone() }),
            Word::Tried { .. } => continue,
        };
        ledger.record(&ids.write(key), verdict);
    }
    let rules = Rules { ending, ..held.rules() };
    let mut settlement = Settlement::of(items, &ledger.close(), rules);
    for (item, failure) in &mut settlement.failed {
        if let Some(Word::Failed(told)) = said.get(&item.key) {
            failure.retryable = told.retryable;
        }
    }
    // The batch was told of each as it came.
    let reported = said.values().filter(|word| word.is_last()).count() as u64;
    let chunk = Chunk { reported, ..held.chunk.clone() };
    let (held, stage) = (Held { chunk: &chunk, ending, ..*held }, Stage::Chunk(chunk.id));
    commit::settle_staged(&held, settlement, &stage, &sizes, Brought::ByNoBatch).await
}

async fn give_back(held: &Held<'_>, heard: bool, wait: Duration) -> Result<After, StoreError> {
    let left = held.chunk.deadline.saturating_sub(held.now).max(1_000);
    let fails = if heard { 0 } else { held.chunk.fails + 1 };
    let wait = Release::After(clock::millis(wait).min(left));
    held.step(&["asking"], &ChunkState::Asking, vec![("fails", fails.to_string())], wait).await
}

/// Before what failed is asked again: the shortest poll interval, doubled with each attempt, half of it jitter.
fn retry_wait(gateway: &Gateway, said: &HashMap<CacheKey, Word>) -> Duration {
    let tried = said.values().map(|word| if let Word::Tried { attempts } = word { *attempts } else { 0 }).max();
    let doubled = gateway.settings.poll_min.saturating_mul(1 << tried.unwrap_or(0).saturating_sub(1).min(16));
    doubled.min(gateway.settings.poll_max).mul_f64(0.5 + 0.5 * rand::random::<f64>())
}

/// Why a round ended.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// Everything was asked once.
    Done,
    /// The server is to be left alone.
    Rest(Duration),
    /// The batch wants no more.
    Ending(Ending),
    /// The process ends.
    Drain,
    /// Another dispatch has the chunk.
    Lost,
}

impl Stop {
    /// How long what is in the air is waited for.
    fn patience(self) -> Option<Duration> {
        match self {
            Stop::Done | Stop::Rest(_) => None,
            Stop::Ending(_) => Some(LAST_ANSWERS),
            Stop::Drain => Some(LAST_ANSWERS_IN_DRAIN),
            Stop::Lost => Some(Duration::ZERO),
        }
    }
}

/// What a request brought: the wire id of its question, the outcome, and its seat.
struct Heard {
    id: String,
    asked: Asked,
    seat: Seat,
}

type Request = Pin<Box<dyn Future<Output = Heard> + Send>>;

struct Round<'a> {
    held: &'a Held<'a>,
    desk: &'a Arc<Desk>,
    ids: WireIds,
    said: HashMap<CacheKey, Word>,
    air: FuturesUnordered<Request>,
    /// To be noted, with the seats of their requests.
    group: Vec<Saying>,
    group_bytes: usize,
    seats: Vec<Seat>,
    stop: Option<Stop>,
    /// Set with `stop`: what is in the air then is dropped.
    give_up: Option<Instant>,
    /// Somebody answered in this round.
    heard: bool,
    /// The refusal that only an operator can cure: it pauses the account.
    shut: Option<CallError>,
    /// To tell the account that it works, at the first answer: a probe must not last as long as a slow round.
    passage: Option<Passage>,

    /// Until then the chunk is certainly ours: a process that was asleep for longer than its lease asks nothing more.
    sure_until: Instant,
}

impl<'a> Round<'a> {
    fn new(held: &'a Held<'a>, desk: &'a Arc<Desk>, said: HashMap<CacheKey, Word>, passage: Passage) -> Round<'a> {
        Round {
            held,
            desk,
            ids: commit::wire_ids(held.chunk),
            said,
            air: FuturesUnordered::new(),
            group: Vec::new(),
            group_bytes: 0,
            seats: Vec::new(),
            stop: None,
            give_up: None,
            heard: false,
            shut: None,
            passage: Some(passage),
            sure_until: Instant::now(),
        }
    }

    async fn run(
        &mut self,
        left: &[Item],
        mut seat: Option<Seat>,
        drain: &CancellationToken,
    ) -> Result<Stop, StoreError> {
        let (open, unread) = open_lines(self.held, left);
        let mut lines = open();
        let mut next = read(lines.next().await, &unread)?;
        let began = Instant::now();
        let mut look = tokio::time::interval_at(began + LOOK, LOOK);
        let far = began + Duration::from_secs(365 * 24 * 60 * 60);
        loop {
            let more = self.stop.is_none() && next.is_some();
            if !more {
                seat = None;
                // What this round leaves of the seats is for the next chunk.
                self.held.gateway.wake.chunks.notify_one();
            }
            if !more && self.air.is_empty() {
                break;
            }
            tokio::select! {
                Some(heard) = self.air.next() => {
                    fail_point!("answer_came");
                    self.take(heard)?;
                    while self.group_bytes < NOTE_BYTES && let Some(Some(heard)) = self.air.next().now_or_never() {
                        self.take(heard)?;
                    }
                    self.note().await?;
                }
                taken = take_seat(self.desk, &mut seat), if more => {
                    if self.may_ask().await? && let Some(line) = next.take() {
                        self.air.push(request(self.desk, self.held.chunk.lane.endpoint, line, taken));
                        next = read(lines.next().await, &unread)?;
                    }
                }
                _ = look.tick() => self.look(began).await?,
                () = drain.cancelled(), if !matches!(self.stop, Some(Stop::Ending(_) | Stop::Drain | Stop::Lost)) => {
                    self.stop_for(Stop::Drain);
                }
                () = sleep_until(self.give_up.unwrap_or(far)), if self.give_up.is_some() => break,
            }
        }
        let dropped = self.air.len();
        if dropped > 0 {
            tracing::warn!(chunk = %self.held.chunk.id, dropped, why = ?self.stop, "requests in the air were dropped");
            reasked(dropped as u64);
        }
        Ok(self.stop.unwrap_or(Stop::Done))
    }

    fn stop_for(&mut self, stop: Stop) {
        self.stop = Some(stop);
        self.give_up = stop.patience().map(|patience| Instant::now() + patience);
    }

    /// Is the server to be asked, and by us? If not, the round stops.
    async fn may_ask(&mut self) -> Result<bool, StoreError> {
        if let Some(wait) = self.desk.rest_left() {
            self.stop_for(Stop::Rest(wait));
        } else if self.sure_until < Instant::now() {
            let at = Instant::now();
            if self.held.gateway.store.holds(self.held.lease).await? {
                self.sure(at);
            } else {
                self.stop_for(Stop::Lost);
            }
        }
        Ok(self.stop.is_none())
    }

    /// The chunk was ours when Redis was asked, at `at`, and a claim outlives two thirds of a lease without its renewal.
    fn sure(&mut self, at: Instant) {
        self.sure_until = at + self.held.gateway.settings.lease / 2;
    }

    /// Does the batch still want answers?
    async fn look(&mut self, began: Instant) -> Result<(), StoreError> {
        if matches!(self.stop, Some(Stop::Ending(_) | Stop::Drain | Stop::Lost)) {
            return Ok(());
        }
        let now: Millis = self.held.now + clock::millis(began.elapsed());
        if let Some(ending) = self.held.gateway.ending(self.held.chunk, now).await? {
            self.stop_for(Stop::Ending(ending));
        }
        Ok(())
    }

    /// Enters what a request brought.
    fn take(&mut self, Heard { id, asked, seat }: Heard) -> Result<(), StoreError> {
        let Some(key) = self.ids.read(&id) else {
            return Err(StoreError::corrupt("a wire id of ours", "names no question"));
        };
        let (word, packed) = match asked {
            Asked::Said(Outcome::Answered(answer)) => {
                let usage = answer.reading.usage.unwrap_or_default();
                let from = self.provenance(answer.request_id);
                let stored = StoredAnswer { reading: answer.reading, from, body: answer.body };
                let packed = record::pack_cached(&key, &stored);
                (Word::Answered { usage, size: packed.len() }, Some(packed))
            }
            Asked::Said(Outcome::Failed(failure)) => (Word::Failed(failure), None),
            Asked::Again { failure, lost } => {
                if lost {
                    reasked(1);
                }
                (self.tried(&key, failure), None)
            }
            Asked::Trouble(error) => {
                self.trouble(error);
                return Ok(());
            }
        };
        self.heard |= word.is_last();
        self.group_bytes += packed.as_ref().map_or(0, Vec::len);
        self.said.insert(key, word.clone());
        self.group.push(Saying { key, word, packed });
        self.seats.push(seat);
        Ok(())
    }

    /// A failure worth asking again, until its attempts are spent.
    fn tried(&self, key: &CacheKey, failure: Failure) -> Word {
        let before = match self.said.get(key) {
            Some(Word::Tried { attempts }) => *attempts,
            Some(Word::Answered { .. } | Word::Failed(_)) | None => 0,
        };
        let attempts = before.saturating_add(1);
        if attempts >= self.held.gateway.settings.attempts { Word::Failed(failure) } else { Word::Tried { attempts } }
    }

    /// The server is to be left alone; what is in the air is waited for.
    fn trouble(&mut self, error: CallError) {
        let wait = match &error {
            CallError::Again { after, .. } => self.desk.rest(*after),
            CallError::Paused { .. } => Duration::ZERO, // the account's pause says when it is probed
            CallError::NotFound { .. } | CallError::Refused { .. } => {
                self.desk.rest(Some(self.held.gateway.settings.poll_max))
            }
        };
        let (chunk, account) = (self.held.chunk.id, &self.held.chunk.lane.account);
        tracing::warn!(%chunk, %account, error = error.head(), ?wait, "server in trouble; again later");
        metrics::counter!("batchgate_provider_call_failures_total", "account" => account.clone()).increment(1);
        if self.stop.is_none() || matches!(self.stop, Some(Stop::Rest(_))) {
            self.stop_for(Stop::Rest(wait));
        }
        if matches!(error, CallError::Paused { .. }) {
            self.shut = Some(error);
        }
    }

    /// Notes what was said, and leaves the seats. Redis away or full is waited for: what is in hand is paid for.
    async fn note(&mut self) -> Result<(), StoreError> {
        self.group_bytes = 0;
        let (group, seats) = (std::mem::take(&mut self.group), std::mem::take(&mut self.seats));
        if group.is_empty() || matches!(self.stop, Some(Stop::Lost)) {
            return Ok(());
        }
        fail_point!("noting");
        let mut tries = 0;
        let (at, noted) = loop {
            let at = Instant::now();
            match self.held.gateway.store.note_said(self.held.lease, &group).await {
                Err(error @ StoreError::Away(_)) if tries < NOTE_TRIES => {
                    tries += 1;
                    if error.is_full() {
                        metrics::counter!("batchgate_redis_full_total").increment(1);
                        room::give_way(self.held.gateway).await;
                    }
                    tracing::warn!(chunk = %self.held.chunk.id, %error, tries, "note answers; again shortly");
                    tokio::time::sleep(NOTE_AGAIN).await;
                }
                other => break (at, other?),
            }
        };
        if !noted {
            tracing::warn!(chunk = %self.held.chunk.id, "lost the chunk while its prompts were asked; nothing was changed");
            metrics::counter!("batchgate_fences_lost_total").increment(1);
            reasked(group.len() as u64);
            self.stop_for(Stop::Lost);
        }
        fail_point!("noted");
        self.sure(at);
        drop(seats);
        if let Some(passage) = self.passage.take_if(|_| self.heard) {
            passage.answered(self.held).await?;
        }
        Ok(())
    }

    fn provenance(&self, request_id: Option<String>) -> Provenance {
        Provenance {
            provider_batch: NO_BATCH.to_owned(),
            request_id,
            chunk: self.held.chunk.id.to_string(),
            at: clock::now_ms(),
            team: self.held.chunk.team.clone(),
        }
    }
}

fn read(line: Option<Result<OutLine, ReadError>>, unread: &Unread) -> Result<Option<OutLine>, StoreError> {
    let why = |error| unread.take().unwrap_or_else(|| StoreError::corrupt("the chunk's prompts", error));
    line.transpose().map_err(why)
}

/// The seat in hand, or the next that is left.
async fn take_seat(desk: &Arc<Desk>, seat: &mut Option<Seat>) -> Seat {
    match seat.take() {
        Some(seat) => seat,
        None => desk.seat().await,
    }
}

/// One request.
fn request(desk: &Arc<Desk>, endpoint: Endpoint, line: OutLine, seat: Seat) -> Request {
    let desk = Arc::clone(desk);
    Box::pin(async move {
        let OutLine { custom_id, body } = line;
        let asked = timed(&desk, endpoint, body).await;
        Heard { id: custom_id, asked, seat }
    })
}

async fn timed(desk: &Desk, endpoint: Endpoint, body: Bytes) -> Asked {
    let began = Instant::now();
    let asked = desk.provider.ask(endpoint, body).await;
    let outcome = match &asked {
        Asked::Said(Outcome::Answered(_)) => "answered",
        Asked::Said(Outcome::Failed(_)) => "failed",
        Asked::Again { .. } => "again",
        Asked::Trouble(_) => "trouble",
    };
    match &asked {
        Asked::Again { failure, .. } if failure.code == FailureCode::Timeout => desk.silent(),
        Asked::Said(_) | Asked::Again { .. } => desk.answered(began.elapsed()),
        Asked::Trouble(_) => {} // the round says for how long it is left alone
    }
    let account = desk.provider.account().to_owned();
    metrics::histogram!("batchgate_provider_call_seconds", "account" => account.clone(), "call" => "ask")
        .record(began.elapsed().as_secs_f64());
    metrics::counter!("batchgate_online_requests_total", "account" => account, "outcome" => outcome).increment(1);
    asked
}

/// Requests that may have been worked on, and whose answer nobody has.
fn reasked(requests: u64) {
    metrics::counter!("batchgate_online_reasked_total").increment(requests);
}
