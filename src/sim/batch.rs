//! What batches of both providers have in common: the requests, the order of work, and its end.
//!
//! The life of a batch is worked out from the clock whenever somebody looks; nothing runs in between. The
//! states are each provider's own (`openai::life`, `anthropic::life`).

use std::{collections::HashMap, fs::File, io, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::Value;

use super::{
    anthropic::life::AnthropicBatch,
    faults::Fault,
    ledger::{Ledger, Row},
    openai::life::OpenAiBatch,
    oracle::{Outcome, Reply, Tokens, hex},
    problem::{Problem, Provider, Trouble},
    settings::Common,
    world::World,
};

pub(crate) enum Batch {
    OpenAi(Box<OpenAiBatch>),
    Anthropic(Box<AnthropicBatch>),
}

impl Batch {
    pub(crate) fn life(&self) -> &Life {
        match self {
            Self::OpenAi(batch) => &batch.life,
            Self::Anthropic(batch) => &batch.life,
        }
    }

    /// Pass through every state that is over by `now`.
    pub(crate) fn settle(&mut self, now: f64, world: &mut World) {
        match self {
            Self::OpenAi(batch) => batch.settle(now, world),
            Self::Anthropic(batch) => batch.settle(now, &mut world.ledger),
        }
    }
}

/// A request that a batch holds. Its bytes stay on disk; this is what polling and the ledger need.
pub(crate) struct Line {
    pub(crate) custom_id: Box<str>,
    /// One string for all lines that name the same model.
    pub(crate) model: Arc<str>,
    pub(crate) sha: [u8; 32],
    pub(crate) tokens: Tokens,
    pub(crate) outcome: Outcome,
    offset: u64,
    length: usize,
}

/// The requests of one batch, in the order they were given.
pub(crate) struct Requests {
    path: PathBuf,
    pub(crate) lines: Vec<Line>,
}

/// Where a request's bytes are.
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) length: usize,
}

impl Requests {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, lines: Vec::new() }
    }

    pub(crate) fn add(&mut self, custom_id: &str, span: &Span, reply: &Reply) {
        let same = self.lines.last().filter(|line| *line.model == *reply.model);
        self.lines.push(Line {
            custom_id: custom_id.into(),
            model: same.map_or_else(|| reply.model.as_str().into(), |line| Arc::clone(&line.model)),
            sha: reply.sha,
            tokens: reply.tokens,
            outcome: reply.outcome(),
            offset: span.offset,
            length: span.length,
        });
    }

    pub(crate) fn input_tokens(&self) -> u64 {
        self.lines.iter().map(|line| u64::from(line.tokens.input)).sum()
    }

    pub(crate) fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    /// The request as it was sent.
    pub(crate) fn read(&self, file: &File, index: usize) -> io::Result<Value> {
        let line = &self.lines[index];
        let mut bytes = vec![0; line.length];
        file.read_exact_at(&mut bytes, line.offset)?;
        Ok(serde_json::from_slice(&bytes)?)
    }
}

/// Work on the requests, from its start.
pub(crate) struct Work {
    pub(crate) requests: Requests,
    pub(crate) started: f64,
    /// Indexes of `requests` in the order they are worked on, which is also the order of the results.
    pub(crate) order: Vec<usize>,
    span_s: f64,
}

impl Work {
    /// When it ends by itself: never, if a request waits for the window to close.
    pub(crate) fn ends(&self) -> f64 {
        let waits = self.requests.lines.iter().any(|line| line.outcome == Outcome::Expire);
        if waits { f64::INFINITY } else { self.started + self.span_s }
    }

    /// How many of `order` are worked on by then; the work goes on evenly.
    pub(crate) fn done_by(&self, at: f64) -> usize {
        // A microsecond covers what is lost in adding up times.
        let share = if self.span_s > 0.0 { (at - self.started + 1e-6) / self.span_s } else { 1.0 };
        part(self.order.len(), share)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a count"
)]
fn part(count: usize, share: f64) -> usize {
    (count as f64 * share.clamp(0.0, 1.0)) as usize
}

/// Work that has ended, with the fate of every request.
pub(crate) struct Done {
    pub(crate) work: Arc<Work>,
    provider: Provider,
    account: String,
    batch: String,
    /// Call number of each billed request by index, 0 for the others.
    pub(crate) calls: Vec<u64>,
    /// Requests that ended in an error, and which if it is not their own.
    pub(crate) failed: HashMap<usize, Option<Trouble>>,
    pub(crate) succeeded: usize,
}

impl Done {
    pub(crate) fn unfinished(&self) -> usize {
        self.work.order.len() - self.succeeded - self.failed.len()
    }

    /// What the request of this index ended in.
    pub(crate) fn fate(&self, index: usize, own: Option<Problem>) -> Fate {
        match (self.calls[index], self.failed.get(&index)) {
            (0, Some(None)) => Fate::Failed(own),
            (0, Some(Some(trouble))) => Fate::Failed(Some(Problem::of(self.provider, *trouble))),
            (0, None) => Fate::Unfinished,
            (call, _) => Fate::Billed(call),
        }
    }

    /// Sums over all billed requests.
    pub(crate) fn usage(&self) -> [u64; 4] {
        let mut sums = [0; 4];
        for (line, _) in self.work.requests.lines.iter().zip(&self.calls).filter(|(_, call)| **call > 0) {
            let Tokens { input, output, cached, reasoning } = line.tokens;
            for (sum, tokens) in sums.iter_mut().zip([input, output, cached, reasoning]) {
                *sum += u64::from(tokens);
            }
        }
        sums
    }

    pub(crate) fn billed(&self) -> impl Iterator<Item = Row> {
        self.work.order.iter().filter(|index| self.calls[**index] > 0).map(|index| {
            let line = &self.work.requests.lines[*index];
            Row {
                call: self.calls[*index],
                provider: self.provider,
                account: self.account.clone(),
                batch: Some(self.batch.clone()),
                custom_id: Some(line.custom_id.to_string()),
                endpoint: None,
                sha: hex(&line.sha),
                model: line.model.to_string(),
                input_tokens: line.tokens.input,
                output_tokens: line.tokens.output,
            }
        })
    }
}

pub(crate) enum Fate {
    Billed(u64),
    /// With the problem, unless the request has none of its own to show.
    Failed(Option<Problem>),
    Unfinished,
}

/// How the work on a batch stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    ByItself,
    Cancelled,
}

/// The part of a batch that both providers share.
pub(crate) struct Life {
    pub(crate) provider: Provider,
    pub(crate) account: String,
    pub(crate) id: String,
    pub(crate) created: f64,
    pub(crate) expires: f64,
    pub(crate) fault: Arc<Fault>,
    common: Common,
    pub(crate) deleted: bool,
    pub(crate) work: Option<Arc<Work>>,
    pub(crate) done: Option<Arc<Done>>,
}

/// Who makes a batch, when, and under which fault.
pub(crate) struct Birth {
    pub(crate) account: String,
    pub(crate) at: f64,
    pub(crate) fault: Arc<Fault>,
}

impl Life {
    pub(crate) fn new(provider: Provider, birth: Birth, common: &Common) -> Self {
        let prefix = match provider {
            Provider::OpenAi => "batch_",
            Provider::Anthropic => "msgbatch_01",
        };
        Self {
            provider,
            account: birth.account,
            id: new_id(prefix),
            created: birth.at,
            expires: birth.at + common.window_s,
            fault: birth.fault,
            common: common.clone(),
            deleted: false,
            work: None,
            done: None,
        }
    }

    pub(crate) fn visible(&self, now: f64) -> bool {
        !self.deleted && now >= self.created + self.fault.hidden_s
    }

    pub(crate) fn listed(&self, now: f64) -> bool {
        self.visible(now) && now >= self.created + self.fault.list_hidden_s.max(self.common.list_delay_s)
    }

    /// Begin to work on `requests`, for `span_s` if nothing stops it.
    pub(crate) fn start(&mut self, requests: Requests, at: f64, span_s: f64) {
        let mut order: Vec<_> = (0..requests.lines.len()).collect();
        if self.common.shuffle {
            order.shuffle(&mut StdRng::from_os_rng());
        }
        self.work = Some(Arc::new(Work { requests, started: at, order, span_s }));
    }

    /// Stop the work: fix every outcome and bill what succeeded.
    pub(crate) fn stop(&mut self, at: f64, how: Stop, ledger: &mut Ledger) {
        let Some(work) = self.work.clone() else { return };
        let size = work.order.len();
        let mut cut = work.done_by(at);
        if how == Stop::Cancelled {
            cut += part(size - cut, self.common.cancel_completes);
        }
        let spoil = &self.fault.results;
        let mut done = Done {
            provider: self.provider,
            account: self.account.clone(),
            batch: self.id.clone(),
            calls: vec![0; size],
            failed: HashMap::new(),
            succeeded: 0,
            work: Arc::clone(&work),
        };
        for &index in &work.order[..cut] {
            let line = &work.requests.lines[index];
            let fate = match line.outcome {
                Outcome::Expire => continue,
                _ if done.failed.len() < spoil.fail => Some(Some(spoil.fail_kind.unwrap_or(Trouble::InvalidRequest))),
                Outcome::Error => Some(None),
                Outcome::Flaky(times) if ledger.still_flaky(&self.account, line.sha, times) => {
                    Some(Some(Trouble::Server))
                }
                Outcome::Flaky(_) | Outcome::Ok => None,
            };
            if let Some(failure) = fate {
                done.failed.insert(index, failure);
            } else {
                done.calls[index] = ledger.next_call();
                done.succeeded += 1;
            }
        }
        self.done = Some(Arc::new(done));
    }

    pub(crate) fn size(&self) -> usize {
        self.work.as_ref().map_or(0, |work| work.order.len())
    }

    /// How many succeeded and how many failed; none before the work has stopped.
    pub(crate) fn tally(&self) -> (usize, usize) {
        self.done.as_ref().map_or((0, 0), |done| (done.succeeded, done.failed.len()))
    }

    /// `rendered` with the members that the `show` fault puts in their place, always (`*`) or in this status.
    pub(crate) fn show(&self, status: &str, rendered: Value) -> Value {
        let Value::Object(mut shown) = rendered else { return rendered };
        for members in ["*", status].iter().filter_map(|key| self.fault.show.get(*key)) {
            shown.extend(members.clone());
        }
        Value::Object(shown)
    }
}

pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:024x}", rand::random::<u128>() >> 32)
}
