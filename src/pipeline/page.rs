//! Builds a batch's pages at accept: looks the questions up, writes what is known, keeps what must be asked.
//! A page whose every result is known is written sealed at once; a batch never reads the cache after this.

use super::{Gateway, line::ResultLine, line::Source};
use crate::{
    clock::Millis,
    domain::{
        batch::CacheMode,
        chunk::Lane,
        id::BatchId,
        key::CacheKey,
        outcome::{Failure, FailureCode},
        progress::Counts,
    },
    store::{
        StoreError,
        pages::FrameWriter,
        record::{Ask, Entry, Frame, Known, ManifestPage},
    },
};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};

/// A page is full at this many results or this many bytes of prompts.
const MAX_RESULTS: usize = 500;
const MAX_BYTES: usize = 1 << 20;

/// One result to be: its place in the client's order and the prompt behind it.
pub struct Asked {
    pub index: u32,
    pub sample: u32,
    pub custom_id: Option<String>,
    pub key: CacheKey,
    pub what: What,
}

/// What is behind a result to be.
#[derive(Clone)]
pub enum What {
    Question(Wire),
    /// Nobody will be asked: the prompt could not be accepted, or no provider batch can carry it.
    Refused(Failure),
}

/// A question as it travels.
#[derive(Clone)]
pub struct Wire {
    pub lane: Lane,
    pub body: Bytes,
    /// Bytes of its line.
    pub wire_bytes: u64,
    pub inputs: u64,
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
    fn is_known(&self) -> bool {
        self.asked.iter().all(|one| self.known.contains_key(&one.key))
    }
}

/// Collects results into pages and writes them.
pub struct PageBuilder {
    pub batch: BatchId,
    mode: CacheMode,
    /// Answers from before this moment are not taken (`max_age`).
    pub fresh_since: Option<Millis>,
    asked: Vec<Asked>,
    bytes: usize,
    /// Index of the first result of each page written: where a reader finds an offset.
    pub starts: Vec<u32>,
    /// With `repeats: share`, questions of earlier pages that must be asked: their repeats wait for the same answer.
    asked_before: HashSet<CacheKey>,
    share: bool,
    /// Pages with something to ask, in order.
    pub open: Vec<u32>,
    pub counts: Counts,
}

impl PageBuilder {
    pub fn new(batch: BatchId, mode: CacheMode, fresh_since: Option<Millis>, share: bool) -> PageBuilder {
        let (asked, starts, open, counts, asked_before) = Default::default();
        PageBuilder { batch, mode, fresh_since, share, asked, bytes: 0, starts, asked_before, open, counts }
    }

    pub fn push(&mut self, asked: Asked) {
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

    /// Writes the collected results as the next page.
    pub async fn write(&mut self, gateway: &Gateway) -> Result<(), StoreError> {
        match self.close(gateway).await? {
            None => Ok(()),
            Some(page) if page.is_known() => self.write_sealed(gateway, page).await,
            Some(page) => self.write_open(gateway, page).await,
        }
    }

    /// Looks the collected results up and counts them as the next page, if there are any.
    pub async fn close(&mut self, gateway: &Gateway) -> Result<Option<Page>, StoreError> {
        if self.asked.is_empty() {
            return Ok(None);
        }
        let asked = std::mem::take(&mut self.asked);
        self.bytes = 0;
        let number = u32::try_from(self.starts.len()).expect("a batch has at most a million results");
        self.starts.push(u32::try_from(self.counts.total).expect("a batch has at most a million results"));
        let known = self.look_up(gateway, &asked).await?;
        self.count(&asked, &known);
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
            let hits = gateway.store.look_up(&wanted, self.fresh_since).await?;
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
        let mut writer = FrameWriter::sealed_at_accept(&gateway.store, self.batch, number);
        for one in asked {
            let outcome = &known[&one.key];
            let line = ResultLine::known(&entry(one, None), outcome, Source::Cache);
            let (head, body) = line.to_record();
            writer.push(&head, body).await?;
        }
        let row = writer.finish().await?;
        gateway.store.publish_sealed(self.batch, number, &row).await
    }

    async fn write_open(&self, gateway: &Gateway, page: Page) -> Result<(), StoreError> {
        let store = &gateway.store;
        let Page { number, asked, known, .. } = page;
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
                    if spooled.insert(one.key) {
                        spool.push(one.key.as_bytes(), &wire.body);
                    }
                    let lane = lane_number(&mut manifest.lanes, &wire.lane);
                    Some(Ask { lane, wire_bytes: wire.wire_bytes, inputs: wire.inputs })
                }
                What::Question(_) | What::Refused(_) => None,
            };
            manifest.entries.push(entry(one, ask));
        }
        store.write_spool(self.batch, number, &spool).await?;
        store.write_manifest(self.batch, number, &manifest).await
    }
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
