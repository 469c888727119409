//! Builds a batch's pages at accept: looks the questions up, writes what is known, keeps what must be asked.
//! A page whose every result is known is written sealed at once; a batch never reads the cache after this.

use super::{
    Gateway,
    line::{ResultLine, Source},
    number::{self, Key},
    room,
    submit::SubmitError,
};
use crate::{
    clock::Millis,
    domain::{
        batch::CacheMode,
        chunk::Lane,
        estimate,
        id::BatchId,
        key::CacheKey,
        limits::BatchLimits,
        outcome::{Failure, FailureCode},
        progress::Counts,
    },
    store::{
        StoreError,
        pages::FrameWriter,
        record::{Again, Ask, Entry, Frame, Known, ManifestPage, Unanswered},
        runs::{Asking, DrawnPage, Draws, Row},
    },
};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};

/// A page is full at this many results or this many bytes of prompts.
const MAX_RESULTS: usize = 500;
const MAX_BYTES: usize = 1 << 20;

/// One result to be: its place in the client's order and the prompt behind it. Its key is known once its page is written.
pub struct Asked<K = CacheKey> {
    pub index: u32,
    pub sample: u32,
    pub custom_id: Option<String>,
    pub key: K,
    pub what: What,
}

/// What is behind a result to be.
#[derive(Clone)]
pub enum What {
    Question(Wire),
    /// Nobody will be asked: the prompt could not be accepted, or no provider batch can carry it.
    Refused(Failure),
}

impl What {
    /// The question, unless no provider batch can carry it.
    pub fn new(wire: Wire, limits: &BatchLimits) -> What {
        let Wire { wire_bytes, inputs, .. } = wire;
        if limits.fixed_bytes + wire_bytes > limits.max_bytes {
            return What::Refused(too_large(wire_bytes, limits));
        }
        match limits.max_inputs {
            Some(most) if inputs > most => What::Refused(too_many_inputs(inputs, most)),
            _ => What::Question(wire),
        }
    }
}

/// A question as it travels.
#[derive(Clone)]
pub struct Wire {
    pub lane: Lane,
    pub body: Bytes,
    /// Bytes of its line.
    pub wire_bytes: u64,
    pub inputs: u64,
    /// What its answer is taken to have.
    pub answer_bytes: u64,
}

impl<K> Asked<K> {
    /// Its name among the draws of its page.
    pub fn row(&self) -> Row {
        Row { index: self.index, sample: self.sample }
    }

    fn with_key(self, key: CacheKey) -> Asked {
        let Asked { index, sample, custom_id, what, .. } = self;
        Asked { index, sample, custom_id, key, what }
    }
}

/// A page whose results are looked up and counted, and not written yet.
pub struct Page {
    pub number: u32,
    pub asked: Vec<Asked>,
    /// What is known before anybody is asked: hits, and failures.
    pub known: HashMap<CacheKey, Known>,
    /// What is bought for it may enter the cache.
    pub stores: bool,
}

impl Page {
    /// The questions nobody has an answer to yet; one may come several times.
    pub fn unknown(&self) -> Vec<CacheKey> {
        self.asked.iter().map(|one| one.key).filter(|key| !self.known.contains_key(key)).collect()
    }

    fn is_known(&self) -> bool {
        self.asked.iter().all(|one| self.known.contains_key(&one.key))
    }

    /// Bytes it takes in Redis once it is written, about: results that are known, and prompts that must be asked.
    fn bytes(&self) -> u64 {
        let bytes = self.asked.iter().map(|one| match (self.known.get(&one.key), &one.what) {
            (Some(Known::Answered(answer)), _) => estimate::result_bytes(answer.body.len() as u64),
            (None, What::Question(wire)) => estimate::result_bytes(0) + wire.body.len() as u64,
            (Some(Known::Failed(_)), _) | (None, What::Refused(_)) => estimate::result_bytes(0),
        });
        bytes.sum()
    }
}

/// Collects results into pages and writes them.
pub struct PageBuilder {
    pub batch: BatchId,
    mode: CacheMode,
    /// Where its numbers come from, if it belongs to a run.
    run: Option<Draws>,
    /// Answers from before this moment are not taken (`max_age`).
    pub fresh_since: Option<Millis>,
    asked: Vec<Asked<Key>>,
    bytes: usize,
    /// Index of the first result of each page written: where a reader finds an offset.
    pub starts: Vec<u32>,
    /// With `repeats: share`, questions of earlier pages that must be asked: their repeats wait for the same answer.
    asked_before: HashSet<CacheKey>,
    share: bool,
    /// Pages with something to ask, in order.
    pub open: Vec<u32>,
    /// Pages of a run's batch on which something failed at once.
    pub to_give_back: Vec<u32>,
    pub counts: Counts,
    /// Bytes in Redis that what must be asked is taken to need, and the results among it.
    pub reserved: u64,
    pub waiting: u64,
}

impl PageBuilder {
    pub fn new(
        batch: BatchId,
        mode: CacheMode,
        fresh_since: Option<Millis>,
        share: bool,
        run: Option<Draws>,
    ) -> PageBuilder {
        let (asked, starts, open, counts, asked_before, to_give_back) = Default::default();
        let (bytes, reserved, waiting) = (0, 0, 0);
        PageBuilder {
            batch,
            mode,
            fresh_since,
            share,
            run,
            asked,
            bytes,
            starts,
            asked_before,
            open,
            to_give_back,
            counts,
            reserved,
            waiting,
        }
    }

    pub fn push(&mut self, asked: Asked<Key>) {
        if let What::Question(wire) = &asked.what {
            self.bytes += wire.body.len();
        }
        self.asked.push(asked);
    }

    pub fn is_full(&self) -> bool {
        self.asked.len() >= MAX_RESULTS || self.bytes >= MAX_BYTES
    }

    /// Drops what has been collected: the batch will be refused.
    pub fn clear(&mut self) {
        self.asked.clear();
        self.bytes = 0;
    }

    /// Writes the collected results as the next page, if there is room for it beside what others were promised and what
    /// this batch will be.
    pub async fn write(&mut self, gateway: &Gateway) -> Result<(), SubmitError> {
        let Some(page) = self.close(gateway).await? else { return Ok(()) };
        room::ensure(gateway, self.reserved + page.bytes()).await?;
        if page.is_known() {
            self.write_sealed(gateway, page).await?;
        } else {
            self.write_open(gateway, page).await?;
        }
        Ok(())
    }

    /// Numbers the collected results, looks them up and counts them as the next page, if there are any.
    pub async fn close(&mut self, gateway: &Gateway) -> Result<Option<Page>, SubmitError> {
        if self.asked.is_empty() {
            return Ok(None);
        }
        let asked = std::mem::take(&mut self.asked);
        self.bytes = 0;
        let number = u32::try_from(self.starts.len()).expect("a batch has at most a million results");
        let asked = self.number(gateway, number, asked).await?;
        self.starts.push(u32::try_from(self.counts.total).expect("a batch has at most a million results"));
        let known = self.look_up(gateway, &asked).await?;
        self.count(&asked, &known);
        self.note_failed(gateway, number, &asked, &known).await?;
        let page = Page { number, asked, known, stores: self.mode != CacheMode::Off };
        if !page.is_known() {
            self.open.push(number);
        }
        if self.share {
            let Page { asked, known, .. } = &page;
            self.asked_before.extend(asked.iter().map(|one| one.key).filter(|key| !known.contains_key(key)));
        }
        Ok(Some(page))
    }

    /// Gives every result its key: in a run, of the number drawn for it.
    async fn number(
        &mut self,
        gateway: &Gateway,
        page: u32,
        asked: Vec<Asked<Key>>,
    ) -> Result<Vec<Asked>, SubmitError> {
        let askings: Vec<Asking> = asked.iter().filter_map(number::asking).collect();
        let drawn = match &self.run {
            Some(run) if !askings.is_empty() => {
                let drawn = gateway.store.draw(run, self.batch, page, &askings).await?;
                drawn.ok_or(SubmitError::Lost)?
            }
            _ => DrawnPage::default(),
        };
        self.counts.repeats += drawn.repeats;
        let keyed = asked.into_iter().map(|one| {
            let key = number::key(&one, &drawn);
            let key = key.ok_or_else(|| StoreError::corrupt("draws of a page", format!("lack {}", one.row())))?;
            Ok(one.with_key(key))
        });
        keyed.collect::<Result<_, StoreError>>().map_err(SubmitError::from)
    }

    /// A number whose result failed at once goes back as soon as the batch exists: until then the upload may break, and
    /// a later page must not draw it again.
    async fn note_failed(
        &mut self,
        gateway: &Gateway,
        page: u32,
        asked: &[Asked],
        known: &HashMap<CacheKey, Known>,
    ) -> Result<(), StoreError> {
        if self.run.is_none() {
            return Ok(());
        }
        let failed = asked.iter().filter(|one| matches!(known.get(&one.key), Some(Known::Failed(_))));
        let rows: Vec<Row> = failed.map(Asked::row).collect();
        if rows.is_empty() {
            return Ok(());
        }
        self.to_give_back.push(page);
        gateway.store.note_failed(self.batch, page, &rows).await
    }

    /// What is known before anybody is asked: hits, and prompts nobody will be asked.
    async fn look_up(&self, gateway: &Gateway, asked: &[Asked]) -> Result<HashMap<CacheKey, Known>, StoreError> {
        let refused = asked.iter().filter_map(|one| match &one.what {
            What::Question(_) => None,
            What::Refused(failure) => Some((one.key, Known::Failed(failure.clone()))),
        });
        let mut known: HashMap<CacheKey, Known> = refused.collect();
        let mut wanted: Vec<CacheKey> = asked
            .iter()
            .map(|one| one.key)
            .filter(|key| !known.contains_key(key) && !self.asked_before.contains(key))
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        if matches!(self.mode, CacheMode::Use | CacheMode::Only) {
            let hits = gateway.look_up(&wanted, self.fresh_since).await?;
            metrics::counter!("batchgate_cache_hits_total").increment(hits.len() as u64);
            metrics::counter!("batchgate_cache_misses_total").increment((wanted.len() - hits.len()) as u64);
            known.extend(hits.into_iter().map(|(key, answer)| (key, Known::Answered(answer))));
        }
        if self.mode == CacheMode::Only {
            let young = if self.fresh_since.is_some() { " within `max_age`" } else { "" };
            let message = format!("no cached answer{young}, and `cache: only` asks no provider");
            let miss = Failure::ours(FailureCode::NotCached, message);
            for key in wanted {
                known.entry(key).or_insert_with(|| Known::Failed(miss.clone()));
            }
        }
        Ok(known)
    }

    fn count(&mut self, asked: &[Asked], known: &HashMap<CacheKey, Known>) {
        self.counts.total += asked.len() as u64;
        for one in asked {
            match known.get(&one.key) {
                Some(Known::Answered(_)) => {
                    self.counts.succeeded += 1;
                    self.counts.cached += 1;
                }
                Some(Known::Failed(_)) => self.counts.failed += 1,
                None => {}
            }
        }
    }

    async fn write_sealed(&self, gateway: &Gateway, page: Page) -> Result<(), StoreError> {
        let Page { number, asked, known, .. } = page;
        let store = &gateway.store;
        let mut writer = FrameWriter::sealed_at_accept(store, self.batch, number);
        let mut unanswered = FrameWriter::unanswered_at_accept(store, self.batch, number);
        for one in asked {
            let outcome = &known[&one.key];
            if matches!(outcome, Known::Failed(_)) {
                let (one, body) = left(&one);
                unanswered.push(&one.head(), &body).await?;
            }
            let line = ResultLine::known(&entry(one, None), outcome, Source::Cache);
            let (head, body) = line.to_record();
            writer.push(&head, body).await?;
        }
        let (row, unanswered) = (writer.finish().await?, unanswered.finish().await?);
        if unanswered.frames > 0 {
            store.publish_unanswered(self.batch, number, &unanswered).await?;
        }
        store.publish_sealed(self.batch, number, &row).await
    }

    async fn write_open(&mut self, gateway: &Gateway, page: Page) -> Result<(), StoreError> {
        let store = &gateway.store;
        let Page { number, asked, known, stores } = page;
        if !known.is_empty() {
            let mut writer = FrameWriter::fragment_at_accept(store, self.batch, number);
            for (key, outcome) in &known {
                writer.push_known(key, outcome).await?;
            }
            let row = writer.finish().await?;
            store.publish_fragment(self.batch, number, &row).await?;
        }
        let mut spool = Frame::default();
        let mut spooled = HashSet::new();
        let mut manifest = ManifestPage::default();
        for one in asked {
            let ask = match &one.what {
                What::Question(wire) if !known.contains_key(&one.key) => {
                    self.waiting += 1;
                    self.reserved += estimate::result_bytes(wire.answer_bytes);
                    if spooled.insert(one.key) {
                        spool.push(one.key.as_bytes(), &wire.body);
                        self.reserved += if stores { estimate::entry_bytes(wire.answer_bytes) } else { 0 };
                    }
                    let lane = lane_number(&mut manifest.lanes, &wire.lane);
                    Some(Ask { lane, wire_bytes: wire.wire_bytes, inputs: wire.inputs })
                }
                What::Question(_) | What::Refused(_) => None,
            };
            manifest.entries.push(entry(one, ask));
        }
        store.write_spool(self.batch, number, &spool).await?;
        fail_point!("page_half_written");
        store.write_manifest(self.batch, number, &manifest).await
    }
}

/// What a retry needs of a result that failed at accept, and its prompt's body.
fn left(one: &Asked) -> (Unanswered, Bytes) {
    let (again, body) = match &one.what {
        What::Question(wire) => (Again::Ask(wire.lane.clone()), wire.body.clone()),
        What::Refused(failure) => (Again::Refused(failure.clone()), Bytes::new()),
    };
    let custom_id = one.custom_id.clone();
    (Unanswered { index: one.index, sample: one.sample, custom_id, key: one.key, again }, body)
}

fn entry(one: Asked, ask: Option<Ask>) -> Entry {
    Entry { index: one.index, sample: one.sample, custom_id: one.custom_id, key: one.key, ask }
}

fn lane_number(lanes: &mut Vec<Lane>, lane: &Lane) -> u32 {
    let at = lanes.iter().position(|known| known == lane).unwrap_or_else(|| {
        lanes.push(lane.clone());
        lanes.len() - 1
    });
    u32::try_from(at).expect("a page has at most some hundred lanes")
}

fn too_large(wire_bytes: u64, limits: &BatchLimits) -> Failure {
    let most = limits.max_bytes.saturating_sub(limits.fixed_bytes);
    let message = format!(
        "the prompt needs {wire_bytes} bytes on the wire and a provider batch takes at most {most}: \
         shorten it, send images by URL, or raise BATCHGATE_CHUNK_BYTES"
    );
    Failure::ours(FailureCode::TooLarge, message)
}

fn too_many_inputs(inputs: u64, most: u64) -> Failure {
    let message = format!("the prompt has {inputs} inputs and a provider batch takes at most {most}: split it");
    Failure::ours(FailureCode::TooLarge, message)
}
