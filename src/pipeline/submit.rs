//! A POST body becomes a batch: frames in, pages and chunks out, and at the end one script that makes it all exist.
//!
//! Two passes where it must be: in a JSON body the batch's own fields may stand behind the prompts, so its prompts are
//! spooled as they come and read once more at the end. An NDJSON body says everything in its first line: one pass.
//! Nothing exists, and nothing is sent, before the last byte is read and everything in it is valid.

use super::{
    Gateway,
    commit::share,
    forecast::{Forecast, Forecaster},
    frames::Frame,
    number::{Key, Numbering},
    page::{Asked, PageBuilder, What, Wire},
    plan::{Planned, Planner, Question as PlanQuestion},
    room, seal,
};
use crate::{
    clock,
    domain::{
        batch::{CacheMode, FieldText, OnInvalid, Options, Repeats},
        chunk::{By, Item, Lane, Place},
        estimate::Learnt,
        id::{BatchId, ChunkId, WireTag},
        key::{CacheKey, Question},
        outcome::{Failure, FailureCode},
        problem::{self, Problem, Problems},
        progress::{ChunkCounts, Progress},
        prompt::{Endpoint, Prompt, PromptText},
        quota::{Bounds, Exceeded},
        room::Full,
        route::Routes,
        run::Run,
        team::Team,
    },
    store::{
        StoreError,
        chunks::NewChunk,
        idempotency::{FirstAnswer, Lock},
        marks::Marked,
        record::{self, Ask},
        runs::{Attempt, Draws},
        uploads::{Accepted, Extent, First, Reservation},
    },
};
use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

/// Raw prompts of a JSON body are spooled in pages of this many, or this many bytes.
const RAW_PROMPTS: usize = 500;
const RAW_BYTES: usize = 1 << 20;
/// While a body arrives its upload is noted alive at least this often.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Most chunks one batch may be cut into: they are queued in one script, and cancelled in one.
pub const MAX_CHUNKS: usize = 10_000;
/// Most different lanes (account, endpoint, model, headers) in one batch.
pub const MAX_LANES: usize = 1_000;
/// Planned chunks are written when their questions reach this many.
const WRITE_ITEMS: usize = 20_000;

/// Why a body became no batch. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Readable, not acceptable: what is wrong and where.
    #[error("the body has problems")]
    Invalid(Box<Problems>),
    /// The upload was idle for too long and has been removed.
    #[error("the upload was idle for too long")]
    Lost,
    /// Another request took the Idempotency-Key while this one was idle.
    #[error("the idempotency key was taken by another request")]
    Locked,
    /// Its team has enough in work.
    #[error("the team has enough in work")]
    Exceeded(Exceeded),
    /// Redis has no room for what would come of it.
    #[error("redis has no room")]
    Full(Full),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Which of the two bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    Json,
    Ndjson,
}

/// A batch on its way in.
pub struct Submission<'g> {
    gateway: &'g Gateway,
    pub batch: BatchId,
    team: String,
    /// What its team may have in work.
    bounds: Bounds,
    /// The cache mode of a batch that names none.
    cache: CacheMode,
    /// The accounts that may answer its team.
    pub(super) routes: Routes,
    kind: BodyKind,
    lock: Option<Lock>,
    /// Only a forecast is wanted: pages are counted, not written.
    forecasting: bool,
    created_at: u64,
    extent: Extent,
    fields: Vec<FieldText>,
    raw: record::Frame,
    raw_prompts: usize,
    /// Prompts of a JSON body, all pages.
    raw_total: u64,
    resolver: Option<Resolver>,
    /// The batch that is asked again, and the run that one was part of.
    retry_of: Option<BatchId>,
    problems: Problems,
    /// When the upload's progress was last noted.
    noted: Instant,
    /// How large answers turned out so far.
    learnt: Arc<Learnt>,
    /// Bytes promised to the chunks written so far.
    reserved: u64,
}

impl<'g> Submission<'g> {
    /// Opens an upload. `lock` is the Idempotency-Key's, if there is one.
    pub async fn begin(
        gateway: &'g Gateway,
        team: &Team,
        kind: BodyKind,
        lock: Option<Lock>,
    ) -> Result<Submission<'g>, SubmitError> {
        let created_at = clock::now_ms();
        let batch = BatchId::new(created_at, &rand::random());
        let learnt = Arc::new(gateway.store.learnt().await?);
        match gateway.store.begin_upload(batch).await {
            Err(error) if error.is_full() => return Err(room::full(gateway, 0).await?),
            begun => begun?,
        }
        fail_point!("upload_entered", StoreError);
        Ok(Submission {
            gateway,
            batch,
            team: team.name.clone(),
            bounds: team.bounds,
            cache: team.cache,
            routes: team.routes(&gateway.routes),
            kind,
            lock,
            forecasting: false,
            created_at,
            extent: Extent::default(),
            fields: Vec::new(),
            raw: record::Frame::default(),
            raw_prompts: 0,
            raw_total: 0,
            resolver: None,
            retry_of: None,
            problems: Problems::default(),
            noted: Instant::now(),
            learnt,
            reserved: 0,
        })
    }

    /// Opens an upload that no body feeds: results of an earlier batch, one by one, through [`Submission::take_again`].
    pub(super) async fn again(
        gateway: &'g Gateway,
        team: &Team,
        of: BatchId,
        old: &Progress,
        lock: Option<Lock>,
    ) -> Result<Submission<'g>, SubmitError> {
        let mut submission = Submission::begin(gateway, team, BodyKind::Json, lock).await?;
        let deadline = Duration::from_millis(old.deadline.saturating_sub(old.created_at));
        let run = old.run.as_deref().and_then(Run::parse);
        let options = Options::again(&old.terms, run, old.metadata.clone(), deadline);
        submission.resolver = Some(submission.resolver(options));
        submission.retry_of = Some(of);
        Ok(submission)
    }

    /// Takes a result that is asked again. `repeat`: it begins a prompt whose question came before.
    pub(super) async fn take_again(&mut self, asked: Asked<Key>, repeat: bool) -> Result<(), SubmitError> {
        let resolver = self.resolver.as_mut().expect("made with the submission");
        resolver.pages.counts.repeats += u64::from(repeat);
        self.put(asked).await
    }

    /// What a prompt's answer is taken to have.
    pub(super) fn answer_bytes(&self, prompt: &Prompt) -> u64 {
        expected(&self.learnt, prompt)
    }

    /// The same for a body of which only a forecast is wanted.
    pub async fn begin_forecast(
        gateway: &'g Gateway,
        team: &Team,
        kind: BodyKind,
    ) -> Result<Submission<'g>, SubmitError> {
        Ok(Submission { forecasting: true, ..Submission::begin(gateway, team, kind, None).await? })
    }

    /// Takes a piece of the body.
    pub async fn take(&mut self, frame: Frame) -> Result<(), SubmitError> {
        let taken = self.take_frame(frame).await;
        self.explained(taken).await
    }

    async fn take_frame(&mut self, frame: Frame) -> Result<(), SubmitError> {
        match (frame, self.kind) {
            (Frame::Field(field), _) => {
                self.fields.push(field);
                Ok(())
            }
            (Frame::Prompt(text), BodyKind::Json) => self.spool_raw(&text).await,
            (Frame::Prompt(text), BodyKind::Ndjson) => {
                self.resolve_fields();
                self.take_prompt(&text).await
            }
        }
    }

    /// Something of the body arrived: the upload is alive, however slowly its pages fill.
    pub async fn keep_alive(&mut self) -> Result<(), SubmitError> {
        if self.noted.elapsed() < KEEP_ALIVE {
            return Ok(());
        }
        self.noted = Instant::now();
        self.note_extent().await
    }

    /// Gives the upload up and removes what it wrote.
    pub async fn abandon(self) -> Result<(), StoreError> {
        self.gateway.store.abandon_upload(self.batch).await
    }

    /// The last byte is read: makes the batch exist. `render` turns its first state into the answer that an
    /// Idempotency-Key is given again.
    pub async fn finish(
        mut self,
        request_digest: &str,
        render: impl Fn(BatchId, &Progress) -> String,
    ) -> Result<(BatchId, Progress), SubmitError> {
        let finished = self.finish_inner(request_digest, render).await;
        match self.explained(finished).await {
            Ok(progress) => Ok((self.batch, progress)),
            Err(error) => {
                // Best effort: what Redis cannot remove now, the sweeper will.
                if let Err(left) = self.gateway.store.abandon_upload(self.batch).await {
                    tracing::warn!(batch = %self.batch, error = %left, "abandon upload");
                }
                Err(error)
            }
        }
    }

    /// The last byte is read: says what [`Submission::finish`] would make of it, and removes what was written.
    pub async fn forecast(mut self) -> Result<Forecast, SubmitError> {
        let forecast = self.forecast_inner().await;
        if let Err(left) = self.gateway.store.abandon_upload(self.batch).await {
            tracing::warn!(batch = %self.batch, error = %left, "abandon a forecast's upload; the sweeper will remove it");
        }
        match forecast {
            Err(SubmitError::Invalid(problems)) => Ok(Forecast::of_problems(*problems)),
            other => other,
        }
    }

    async fn forecast_inner(&mut self) -> Result<Forecast, SubmitError> {
        self.resolve_fields();
        self.refuse_too_many()?;
        self.read_raw().await?;
        let mut resolver = self.resolver.take().expect("resolve_fields made one");
        self.extend(&resolver).await?;
        resolver.forecast_page(self.gateway).await?;
        let forecaster = resolver.forecaster.take().expect("a forecast was begun");
        Ok(forecaster.finish(resolver.pages.counts, std::mem::take(&mut self.problems)))
    }

    async fn finish_inner(
        &mut self,
        request_digest: &str,
        render: impl Fn(BatchId, &Progress) -> String,
    ) -> Result<Progress, SubmitError> {
        self.resolve_fields();
        self.refuse_too_many()?;
        self.read_raw().await?;
        let mut resolver = self.resolver.take().expect("resolve_fields made one");
        if !self.problems.is_empty() {
            return Err(SubmitError::Invalid(Box::new(std::mem::take(&mut self.problems))));
        }
        self.extend(&resolver).await?;
        resolver.pages.write(self.gateway).await?;
        self.gateway.store.write_starts(self.batch, &resolver.pages.starts).await?;
        let deadline = self.created_at + clock::millis(resolver.options.deadline);
        let chunks = self.plan(&resolver, deadline).await?;
        let progress = self.first_state(&resolver, &chunks, deadline);
        self.accept(&progress, chunks.all, request_digest, render).await?;
        self.settle_draws(&resolver).await;
        Ok(progress)
    }

    // First pass.

    async fn spool_raw(&mut self, text: &PromptText) -> Result<(), SubmitError> {
        self.raw.push(&text.position.to_be_bytes(), &text.bytes);
        self.raw_prompts += 1;
        self.raw_total += 1;
        if self.raw_prompts < RAW_PROMPTS && self.raw.len() < RAW_BYTES {
            return Ok(());
        }
        self.write_raw().await
    }

    async fn write_raw(&mut self) -> Result<(), SubmitError> {
        let number = self.extent.raw;
        self.extent.raw += 1;
        self.note_extent().await?;
        let needed = self.raw.len() as u64;
        match self.forecasting {
            false => room::ensure(self.gateway, needed).await.map(|_| ())?,
            true => room::look(self.gateway, needed).await?,
        }
        self.gateway.store.write_raw(self.batch, number, &std::mem::take(&mut self.raw)).await?;
        self.raw_prompts = 0;
        Ok(())
    }

    /// Second pass over the prompts of a JSON body, now that its fields are known.
    async fn read_raw(&mut self) -> Result<(), SubmitError> {
        for number in 0..self.extent.raw {
            let records = self.gateway.store.take_raw(self.batch, number).await?;
            self.take_records(records).await?;
        }
        let rest = std::mem::take(&mut self.raw);
        if rest.is_empty() { Ok(()) } else { self.take_records(rest.into_records()?).await }
    }

    /// The prompts of a JSON body are counted before the second pass: far too many are refused without their work.
    fn refuse_too_many(&mut self) -> Result<(), SubmitError> {
        let samples = self.resolver.as_ref().map_or(1, |resolver| resolver.options.samples);
        if self.raw_total.saturating_mul(samples) <= Options::MAX_RESULTS {
            return Ok(());
        }
        self.problems.push(Problem::new("/prompts", None, too_many_results()));
        Err(SubmitError::Invalid(Box::new(std::mem::take(&mut self.problems))))
    }

    async fn take_records(&mut self, records: Vec<(bytes::Bytes, bytes::Bytes)>) -> Result<(), SubmitError> {
        for (head, bytes) in records {
            let position = head[..].try_into().map(u64::from_be_bytes);
            let position = position.map_err(|why| StoreError::corrupt("raw prompt", why))?;
            self.take_prompt(&PromptText { position, line: None, bytes }).await?;
        }
        Ok(())
    }

    // What every prompt goes through.

    fn resolve_fields(&mut self) {
        if self.resolver.is_none() {
            let (options, problems) = Options::parse(&self.fields, self.cache);
            self.problems.extend(problems);
            let mut resolver = self.resolver(options);
            if self.forecasting {
                let share = resolver.options.repeats == Repeats::Share;
                resolver.forecaster = Some(Forecaster::new(most_prompts(self.gateway, &resolver.options), share));
            }
            self.resolver = Some(resolver);
        }
    }

    fn resolver(&self, options: Options) -> Resolver {
        let kept = options.deadline + self.gateway.settings.retention;
        let draws = |run| Draws { attempt: Attempt::new(&self.team, run), kept };
        let draws = options.run.as_ref().map(draws);
        Resolver::new(self.batch, options, self.created_at, draws, Arc::clone(&self.learnt))
    }

    async fn take_prompt(&mut self, text: &PromptText) -> Result<(), SubmitError> {
        let resolver = self.resolver.as_mut().expect("fields are resolved before the first prompt");
        resolver.take(self.gateway, &self.routes, text, &mut self.problems);
        if !self.problems.is_empty() && !self.forecasting {
            resolver.pages.clear(); // it will be refused: from here on only problems are looked for
            return Ok(());
        }
        while let Some(asked) = self.resolver.as_mut().and_then(Resolver::next) {
            self.put(asked).await?;
        }
        Ok(())
    }

    /// Puts a result on the page at hand, and writes the page if that fills it (or, for a forecast, only counts it).
    async fn put(&mut self, asked: Asked<Key>) -> Result<(), SubmitError> {
        let resolver = self.resolver.as_mut().expect("made before the first result");
        resolver.pages.push(asked);
        if resolver.pages.is_full() {
            self.extent.pages = page_count(resolver) + 1;
            note_extent(self.gateway, self.batch, self.extent, self.lock.as_ref()).await?;
            if self.forecasting {
                resolver.forecast_page(self.gateway).await?;
            } else {
                resolver.pages.write(self.gateway).await?;
            }
        }
        Ok(())
    }

    async fn extend(&mut self, resolver: &Resolver) -> Result<(), SubmitError> {
        self.extent.pages = page_count(resolver) + 1;
        self.note_extent().await
    }

    async fn note_extent(&self) -> Result<(), SubmitError> {
        note_extent(self.gateway, self.batch, self.extent, self.lock.as_ref()).await
    }

    /// A refusal of Redis for lack of memory, as its client may know it.
    async fn explained<T>(&self, done: Result<T, SubmitError>) -> Result<T, SubmitError> {
        match done {
            Err(SubmitError::Store(error)) if error.is_full() => {
                let reserved = self.resolver.as_ref().map_or(0, |resolver| resolver.pages.reserved);
                Err(room::full(self.gateway, reserved).await?)
            }
            other => other,
        }
    }

    // Planning.

    /// Plans the open pages' questions and writes the chunks; says how many there are.
    async fn plan(&mut self, resolver: &Resolver, deadline: u64) -> Result<Chunks, SubmitError> {
        let most = most_prompts(self.gateway, &resolver.options);
        let mut planner = Planner::new(most, resolver.options.repeats == Repeats::Share);
        let mut full: Vec<Planned> = Vec::new();
        for &page in &resolver.pages.open {
            room::ensure(self.gateway, resolver.pages.reserved).await?; // marks and chunks take room, too
            self.plan_page(resolver, &mut planner, page).await?;
            if planner.count() > MAX_CHUNKS {
                return Err(SubmitError::Invalid(Box::new(too_many_chunks(most).into())));
            }
            full.extend(planner.take_full());
            if full.iter().map(|chunk| chunk.items.len()).sum::<usize>() >= WRITE_ITEMS {
                self.write_chunks(resolver, &mut full, deadline).await?;
            }
        }
        let count = |chunks| u32::try_from(chunks).expect("bounded by MAX_CHUNKS");
        let chunks = Chunks { all: count(planner.count()), asking: count(planner.asking()) };
        full.extend(planner.finish());
        self.write_chunks(resolver, &mut full, deadline).await?;
        fail_point!("marked", StoreError);
        Ok(chunks)
    }

    async fn plan_page(&mut self, resolver: &Resolver, planner: &mut Planner, page: u32) -> Result<(), SubmitError> {
        let manifest = self.gateway.store.manifest(self.batch, page).await?;
        let manifest = manifest.ok_or_else(|| StoreError::corrupt("manifest page", "absent"))?;
        let keys = manifest.entries.iter().filter(|entry| entry.ask.is_some()).map(|entry| entry.key);
        let marked = self.mark(resolver, keys.collect()).await?;
        let question = |key, ask: Ask| {
            let lane = manifest.lanes.get(ask.lane as usize);
            let lane = lane.ok_or_else(|| StoreError::corrupt("manifest page", "names no lane"))?;
            let limits = self.gateway.limits(&lane.account, lane.endpoint);
            let Ask { wire_bytes, inputs, .. } = ask;
            let (by, place) = (marked.by(&key), Place { page, results: 1 });
            Ok(PlanQuestion { key, lane, by, limits, wire_bytes, inputs, place })
        };
        let asked = manifest.entries.iter().filter_map(|entry| Some(question(entry.key, entry.ask?)));
        planner.push_page(asked.collect::<Result<Vec<_>, StoreError>>()?);
        Ok(())
    }

    /// Marks a page's questions as ours. One that is another's already is joined, where the batch joins; and so is one
    /// whose answer entered the cache between the look-up and the mark.
    async fn mark(&mut self, resolver: &Resolver, mut keys: Vec<CacheKey>) -> Result<Marked, SubmitError> {
        let (store, mode) = (&self.gateway.store, resolver.options.cache);
        if !mode.marks() {
            return Ok(Marked::default());
        }
        if !self.extent.marks {
            self.extent.marks = true;
            self.note_extent().await?;
        }
        keys.sort_unstable();
        keys.dedup();
        let mut marked = store.mark(self.batch, &keys).await?.ok_or(SubmitError::Lost)?;
        if !mode.joins() {
            return Ok(Marked::default());
        }
        let late = store.look_up(&marked.ours, resolver.pages.fresh_since).await?;
        store.unmark(self.batch.hex(), late.keys()).await?;
        marked.others.extend(late.into_keys().map(|key| (key, None)));
        Ok(marked)
    }

    async fn write_chunks(
        &mut self,
        resolver: &Resolver,
        planned: &mut Vec<Planned>,
        deadline: u64,
    ) -> Result<(), SubmitError> {
        let Some(last) = planned.iter().map(|chunk| chunk.number + 1).max() else { return Ok(()) };
        self.extent.chunks = self.extent.chunks.max(last);
        self.note_extent().await?;
        let settings = &self.gateway.settings;
        let chunks: Vec<NewChunk> = planned
            .drain(..)
            .map(|chunk| NewChunk {
                id: ChunkId { batch: self.batch, number: chunk.number },
                lane: chunk.lane,
                mode: resolver.options.cache,
                fresh_since: resolver.pages.fresh_since,
                tag: WireTag::new(&settings.deployment, &settings.namespace, &rand::random()),
                reserved: share(resolver.pages.reserved, results(&chunk.items), resolver.pages.waiting),
                joins: chunk.by != By::Us,
                items: chunk.items,
                wire_bytes: chunk.wire_bytes,
                deadline,
                team: self.team.clone(),
                priority: resolver.options.priority,
            })
            .collect();
        self.reserved += chunks.iter().map(|chunk| chunk.reserved).sum::<u64>();
        if resolver.options.cache.marks() {
            self.gateway.store.still_marking(self.batch).await?;
            for chunk in chunks.iter().filter(|chunk| !chunk.joins) {
                self.gateway.store.point_marks(chunk.id, chunk.items.iter().map(|item| &item.key)).await?;
            }
        }
        Ok(self.gateway.store.write_chunks(&chunks).await?)
    }

    // The last step.

    fn first_state(&self, resolver: &Resolver, chunks: &Chunks, deadline: u64) -> Progress {
        let pages = page_count(resolver);
        let open = u32::try_from(resolver.pages.open.len()).expect("no more than pages");
        let ended_at = (open == 0).then(clock::now_ms);
        let retention = clock::millis(self.gateway.settings.retention);
        Progress {
            team: self.team.clone(),
            run: resolver.options.run.as_ref().map(ToString::to_string),
            created_at: self.created_at,
            deadline,
            ended_at,
            deleted_at: ended_at.map(|at| at + retention),
            counts: resolver.pages.counts,
            chunks: ChunkCounts { planned: u64::from(chunks.asking), ..ChunkCounts::default() },
            metadata: resolver.options.metadata.clone(),

            retry_of: self.retry_of,
            terms: resolver.options.terms(),
            pages,
            sealed: pages - open,
            ..Progress::default()
        }
    }

    async fn accept(
        &mut self,
        progress: &Progress,
        chunks: u32,
        request_digest: &str,
        render: impl Fn(BatchId, &Progress) -> String,
    ) -> Result<(), SubmitError> {
        let remembered = self.lock.as_ref().map(|lock| {
            lock.remember(&FirstAnswer {
                request: request_digest.to_owned(),
                batch: self.batch.to_string(),
                body: render(self.batch, progress),
                ended: progress.ended_at.is_some(),
            })
        });

        let retention = clock::millis(self.gateway.settings.retention);
        let store = &self.gateway.store;
        let allowance = room::ensure(self.gateway, self.reserved).await?;
        let reservation = Reservation { bytes: self.reserved, allowance, bounds: self.bounds };
        let first = First { progress, chunks };
        let accepted = match store.accept(self.batch, &first, remembered.as_ref(), reservation, retention).await {
            // The reply may have been lost, and not the batch: then it exists, and must not be asked for again.
            Err(StoreError::Away(_)) if store.progress(self.batch).await?.is_some() => Accepted::Done,
            other => other?,
        };
        match accepted {
            Accepted::Done => {
                metrics::counter!("batchgate_batches_accepted_total").increment(1);
                metrics::counter!("batchgate_prompts_accepted_total").increment(progress.counts.total);
                if progress.ended_at.is_some() {
                    seal::ended(self.batch, progress.counts.add_up());
                }

                self.gateway.wake.chunks.notify_one();
                Ok(())
            }
            Accepted::Lost => Err(SubmitError::Lost),
            Accepted::Locked => Err(SubmitError::Locked),
            Accepted::Exceeded(exceeded) => {
                metrics::counter!("batchgate_quota_exceeded_total", "what" => exceeded.what.word()).increment(1);
                Err(SubmitError::Exceeded(exceeded))
            }
            Accepted::Full => Err(room::full(self.gateway, self.reserved).await?),
        }
    }

    /// The batch exists: numbers whose results failed at once are free for the next batch of the run. If this breaks
    /// off, the sweeper does it.
    async fn settle_draws(&self, resolver: &Resolver) {
        for &page in &resolver.pages.to_give_back {
            if let Err(left) = self.gateway.store.settle_draws(self.batch, page).await {
                tracing::warn!(batch = %self.batch, error = %left, "give back run numbers; the sweeper will");
                return;
            }
        }
    }
}

/// How many chunks a batch is cut into.
struct Chunks {
    all: u32,
    /// Those whose questions are its own to ask; the others wait for other batches.
    asking: u32,
}

/// What a prompt's answer is taken to have.
fn expected(learnt: &Learnt, prompt: &Prompt) -> u64 {
    let nothing = serde_json::Map::new();
    let body = prompt.body.as_object().unwrap_or(&nothing); // a body that was accepted is an object
    learnt.answer_bytes(prompt.endpoint, &prompt.model, prompt.inputs(), body)
}

fn page_count(resolver: &Resolver) -> u32 {
    u32::try_from(resolver.pages.starts.len()).expect("a batch has at most a million results")
}

async fn note_extent(
    gateway: &Gateway,
    batch: BatchId,
    extent: Extent,
    lock: Option<&Lock>,
) -> Result<(), SubmitError> {
    if let Some(lock) = lock
        && !gateway.store.renew_key(lock).await?
    {
        return Err(SubmitError::Locked);
    }
    if gateway.store.extend_upload(batch, extent).await? { Ok(()) } else { Err(SubmitError::Lost) }
}

/// At most so many prompts a chunk: the batch's word, or `BATCHGATE_CHUNK`.
fn most_prompts(gateway: &Gateway, options: &Options) -> usize {
    options.chunk.and_then(|chunk| usize::try_from(chunk).ok()).unwrap_or(gateway.settings.chunk)
}

pub(super) fn too_many_chunks(chunk: usize) -> Problem {
    let message = format!(
        "at most {chunk} prompts a chunk would cut this batch into more than {MAX_CHUNKS} chunks: raise `chunk`"
    );
    Problem::new("/chunk", None, message)
}

/// Turns prompts into numbered, keyed results, page by page.
struct Resolver {
    options: Options,
    numbering: Numbering,
    lanes: HashSet<Lane>,
    pages: PageBuilder,
    /// Takes the pages instead of Redis where only a forecast is wanted; then every problem is told, and none refuses.
    forecaster: Option<Forecaster>,
    results: u64,
    learnt: Arc<Learnt>,
    /// Samples of the latest prompt still to be put on a page.
    waiting: Option<Waiting>,
}

struct Waiting {
    index: u32,
    custom_id: Option<String>,
    keys: Keys,
    what: What,
    next: u32,
}

/// Where the keys of a prompt's samples come from.
enum Keys {
    Question {
        question: Question,
        /// The number of its first sample.
        first: u32,
    },
    /// Its run has numbers for it, once its page is written. `shared`: the number is the sample's own.
    Run { question: Question, shared: bool },
    /// It asks nothing.
    Nothing(BatchId),
}

impl Resolver {
    fn new(batch: BatchId, options: Options, created_at: u64, run: Option<Draws>, learnt: Arc<Learnt>) -> Resolver {
        let fresh_since = options.max_age.map(|age| created_at.saturating_sub(clock::millis(age)));
        let samples = u32::try_from(options.samples).expect("bounded by MAX_SAMPLES");
        Resolver {
            numbering: Numbering::new(options.repeats, samples),
            pages: PageBuilder::new(batch, options.cache, fresh_since, options.repeats == Repeats::Share, run),
            forecaster: None,
            learnt,
            options,
            lanes: HashSet::new(),
            results: 0,
            waiting: None,
        }
    }

    /// Reads one prompt; its samples are then drawn by [`Resolver::next`].
    fn take(&mut self, gateway: &Gateway, routes: &Routes, text: &PromptText, problems: &mut Problems) {
        self.waiting = None;
        self.results += self.options.samples;
        if self.results > Options::MAX_RESULTS && self.results - self.options.samples <= Options::MAX_RESULTS {
            problems.push(Problem::new(format!("/prompts/{}", text.position), text.line, too_many_results()));
        }
        match Prompt::parse(text, &self.options, routes) {
            Ok(prompt) => self.accept(gateway, text, prompt, problems),
            // No problem of its own: only at fault because of a batch field that is a problem already.
            Err(found) => self.reject(text, None, found, problems),
        }
        if self.results > Options::MAX_RESULTS {
            self.waiting = None;
        }
    }

    /// Counts the collected results as a page. What it draws from a run lies in Redis until the end.
    async fn forecast_page(&mut self, gateway: &Gateway) -> Result<(), SubmitError> {
        room::look(gateway, 0).await?;
        let page = self.pages.close(gateway).await?;
        if let (Some(page), Some(forecaster)) = (page, &mut self.forecaster) {
            let joined = match self.options.cache.joins() {
                true => gateway.store.marked(&page.unknown()).await?,
                false => HashSet::new(),
            };
            forecaster.take(gateway, &page, &joined);
        }
        Ok(())
    }

    /// A prompt with problems, though perhaps readable: they are the batch's, or its own failure.
    fn reject(&mut self, text: &PromptText, read: Option<Prompt>, found: Vec<Problem>, problems: &mut Problems) {
        let forecasting = self.forecaster.is_some();
        if forecasting || self.options.on_invalid == OnInvalid::Fail {
            let custom_id = read.map_or_else(|| text.custom_id(), |prompt| prompt.custom_id);
            let message = problem::sentence(&text.pointer(), &found);
            let what = What::Refused(Failure::ours(FailureCode::InvalidRequest, message));
            let keys = Keys::Nothing(self.pages.batch);
            self.waiting = Some(Waiting { index: index(text), custom_id, keys, what, next: 0 });
        }
        if forecasting || self.options.on_invalid == OnInvalid::Refuse {
            problems.extend(found);
        }
    }

    fn accept(&mut self, gateway: &Gateway, text: &PromptText, prompt: Prompt, problems: &mut Problems) {
        let at = text.pointer();
        let index = index(text);
        if let Some(before) = prompt.custom_id.as_deref().and_then(|id| self.numbering.custom_id_before(id, index)) {
            let message = format!("prompt {before} has the same `custom_id`: give each prompt its own, or none");
            let problem = Problem::new(format!("{at}/custom_id"), text.line, message);
            return self.reject(text, Some(prompt), vec![problem], problems);
        }
        let limits = gateway.limits(&prompt.account, prompt.endpoint);
        let model = (!limits.mixes_models).then(|| prompt.model.clone());
        let lane =
            Lane { account: prompt.account.clone(), endpoint: prompt.endpoint, model, headers: prompt.headers.clone() };
        if self.lanes.insert(lane.clone()) && self.lanes.len() > MAX_LANES {
            let message =
                format!("more than {MAX_LANES} different models and headers in one batch: send several batches");
            problems.push(Problem::new(at, text.line, message));
            return;
        }
        let question = Question::new(&prompt, self.options.salt.as_ref()).expect("the parser has seen its numbers");

        let body = prompt.body_text();
        let wire_bytes = limits.weight(body.len());
        let inputs = prompt.inputs();
        let keys = self.keys(question, prompt.endpoint);
        let answer_bytes = expected(&self.learnt, &prompt);
        let what = What::new(Wire { lane, body, wire_bytes, inputs, answer_bytes }, &limits);
        self.waiting = Some(Waiting { index, custom_id: prompt.custom_id, keys, what, next: 0 });
    }

    fn keys(&mut self, question: Question, endpoint: Endpoint) -> Keys {
        if self.options.run.is_some() {
            return Keys::Run { question, shared: self.numbering.shares(endpoint) };
        }
        let drawn = self.numbering.draw(&question, endpoint);
        self.pages.counts.repeats += u64::from(drawn.repeated);
        Keys::Question { question, first: drawn.first }
    }

    /// The next sample of the latest prompt, until all are drawn.
    fn next(&mut self) -> Option<Asked<Key>> {
        let waiting = self.waiting.as_mut()?;
        if u64::from(waiting.next) == self.options.samples {
            self.waiting = None;
            return None;
        }
        let sample = waiting.next;
        waiting.next += 1;
        let key = match &waiting.keys {
            Keys::Question { question, first } => Key::Known(question.sample(u64::from(first + sample))),
            Keys::Run { question, shared } => Key::Drawn { question: question.clone(), shared: *shared },
            Keys::Nothing(batch) => Key::Known(CacheKey::of_nothing(*batch, waiting.index)),
        };
        let Waiting { index, custom_id, what, .. } = waiting;
        Some(Asked { index: *index, sample, custom_id: custom_id.clone(), key, what: what.clone() })
    }
}

fn results(items: &[Item]) -> u64 {
    items.iter().map(|item| u64::from(item.results())).sum()
}

fn index(text: &PromptText) -> u32 {
    u32::try_from(text.position).expect("a batch has at most a million prompts")
}

fn too_many_results() -> String {
    format!("prompts times samples exceed {}: send several batches", Options::MAX_RESULTS)
}
