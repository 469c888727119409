//! What the reconciler sees of a batch, all of it at one moment, and the steps with which it puts things right. Each step
//! looks once more whether something is wrong, so it may come late, or twice. What is wrong is decided in `pipeline`.

use super::{Store, StoreError, pages::FrameRow, script};
use crate::{
    clock,
    domain::{
        id::{BatchId, ChunkId},
        outcome::Ending,
    },
};
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};

/// Chunks one look takes in at most, for Redis stands still while it looks. A larger batch is looked at in slices, each at
/// a moment of its own: then only its chunks' places are known, not what they add up to.
pub const LOOK: u32 = 1_000;
/// Findings of a kind that one look tells at most; the rest come with the next pass.
const TOLD: u32 = 200;
/// Keys one look over the whole keyspace asks for at once, and how often it asks in a pass.
const SCAN_COUNT: u32 = 1_000;
const SCANS: u32 = 50;
/// Open batches whose promises are added up in one look: some milliseconds of Redis. Where there are more, nothing is told.
const PROMISED: u32 = 10_000;
/// How long a place to go on at is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// A batch at one moment. Where it is gone, ended or unreadable the rest is empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Look {
    pub exists: bool,
    /// Its hash, or its directory of sealed pages, is not what any version wrote.
    pub unreadable: bool,
    pub ended: bool,
    /// It stands among the open batches, of all and of its team.
    pub open: bool,
    /// There is a chore that removes it at the end of its retention.
    pub chore: bool,
    /// The number after the last chunk looked at.
    pub next: u32,
    /// All its chunks were looked at; else only `told` is known.
    pub whole: bool,
    pub cancel: bool,
    /// Milliseconds since its deadline; below zero before.
    pub overdue: i64,
    /// Results without an outcome by its own counts; below zero if these exceed its total.
    pub pending: i64,
    /// Results its live chunks will bring; none if a chunk does not say.
    pub results: Option<i64>,
    /// Chunks that are not settled.
    pub live: u64,
    /// All its pages are sealed.
    pub sealed: bool,
    /// Counters that differ from the chunks' states: as stored, and as they should be.
    pub wrong: BTreeMap<String, (i64, i64)>,
    pub told: Told,
}

/// Chunks and pages, by number, that are not where they should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Told {
    /// Live and in no queue.
    pub lost: Vec<u32>,
    /// Live and in several queues.
    pub twice: Vec<u32>,
    /// Ready, and its lane is not among the lanes.
    pub laneless: Vec<u32>,
    /// Not what any version wrote.
    pub unreadable: Vec<u32>,
    /// Open pages that no live chunk touches any more, and that no sealer will look at.
    pub page: Vec<u32>,
}

/// One thing to be put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair<'a> {
    /// Queues a chunk that is in no queue: due now, or claimed if a worker still holds it.
    Chunk(u32),
    Twice(u32),
    Lane(u32),
    Page(u32),
    Counter {
        name: &'a str,
        stored: i64,
        actual: i64,
    },
    Open(bool),
    Chore,
}

/// Where the last pass ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Rank among the open batches.
    pub rank: u64,
    /// Redis's own cursor over all keys.
    pub cursor: u64,
}

impl Store {
    /// Looks at a batch, at most at [`LOOK`] of its chunks from a number on.
    pub async fn look(&self, batch: BatchId, from: u32) -> Result<Look, StoreError> {
        let mut call = script!("look").prepare_invoke();
        for key in self.reconciled(batch) {
            call.key(key);
        }
        call.arg(batch.hex()).arg(self.keys.prefix()).arg(from).arg(LOOK).arg(TOLD).arg(self.skew_ms);
        let told: String = call.invoke_async(&mut self.main.clone()).await?;
        serde_json::from_str(&told).map_err(|why| StoreError::corrupt("look script's answer", why))
    }

    /// Puts one thing right; false if nothing was wrong any more.
    pub async fn put_right(&self, batch: BatchId, repair: &Repair<'_>, lease: Duration) -> Result<bool, StoreError> {
        let mut call = script!("put_right").prepare_invoke();
        for key in self.reconciled(batch) {
            call.key(key);
        }
        call.arg(batch.hex()).arg(self.keys.prefix()).arg(self.skew_ms);
        let chunk = |number: &u32| ChunkId { batch, number: *number }.to_string();
        match repair {
            Repair::Chunk(number) => call.arg("chunk").arg(chunk(number)).arg(clock::millis(lease)),
            Repair::Twice(number) => call.arg("twice").arg(chunk(number)),
            Repair::Lane(number) => call.arg("lane").arg(chunk(number)),
            Repair::Page(page) => call.arg("page").arg(*page),
            Repair::Counter { name, stored, actual } => call.arg("counter").arg(*name).arg(*stored).arg(*actual),
            Repair::Open(belongs) => call.arg("open").arg(u8::from(*belongs)),
            Repair::Chore => call.arg("chore"),
        };
        Ok(call.invoke_async::<u8>(&mut self.main.clone()).await? == 1)
    }

    /// Makes the outcomes of an open page known that no chunk will bring any more: a fragment of so many results, all of
    /// one ending. Only once a page; false if it was sealed or closed meanwhile.
    pub async fn close_page(
        &self,
        batch: BatchId,
        page: u32,
        row: &FrameRow,
        (ending, results): (Ending, u64),
    ) -> Result<bool, StoreError> {
        let (mut call, keys) = (script!("close_page").prepare_invoke(), &self.keys);
        call.key(keys.batch(batch)).key(keys.fragments(batch, page)).key(keys.seal()).key(keys.sealed_pages(batch));
        for frame in 0..row.frames {
            call.key(keys.fragment(batch, page, &row.name, frame));
        }
        let counter = match ending {
            Ending::Canceled => "canceled",
            Ending::Expired => "expired",
        };
        call.arg(batch.hex()).arg(page).arg(row.to_stored()).arg(counter).arg(results).arg(self.skew_ms);
        Ok(call.invoke_async::<u8>(&mut self.main.clone()).await? == 1)
    }

    /// By how many bytes more is promised in all than to the open batches together; below zero: less. None where there are
    /// too many batches to tell.
    pub async fn promised_astray(&self) -> Result<Option<i64>, StoreError> {
        self.promises(None).await
    }

    /// Promises in all what the open batches are promised, if what stands there is still astray by so much.
    pub async fn promise_anew(&self, astray: i64) -> Result<bool, StoreError> {
        Ok(self.promises(Some(astray)).await? == Some(0))
    }

    async fn promises(&self, astray: Option<i64>) -> Result<Option<i64>, StoreError> {
        let mut call = script!("promises").prepare_invoke();
        call.key(self.keys.open_batches()).key(self.keys.reserved());
        call.arg(self.keys.prefix()).arg(PROMISED).arg(astray.map(|bytes| bytes.to_string()).unwrap_or_default());
        let told: Option<String> = call.invoke_async(&mut self.main.clone()).await?;
        told.map(|text| text.parse().map_err(|why| StoreError::corrupt("promises script's answer", why))).transpose()
    }

    fn reconciled(&self, batch: BatchId) -> [String; 8] {
        let keys = &self.keys;
        let own = [keys.batch(batch), keys.delayed(), keys.claimed(), keys.lanes(), keys.seal()];
        let [batch_key, delayed, claimed, lanes, seal] = own;
        let rest = [keys.sealed_pages(batch), keys.open_batches(), keys.chores()];
        let [sealed, open, chores] = rest;
        [batch_key, delayed, claimed, lanes, seal, sealed, open, chores]
    }

    /// Open batches from a rank on, the oldest first.
    pub async fn open_from(&self, rank: u64, most: u64) -> Result<Vec<BatchId>, StoreError> {
        let mut range = redis::cmd("ZRANGE");
        range.arg(self.keys.open_batches()).arg(rank).arg(rank + most - 1);
        let found: Vec<String> = range.query_async(&mut self.main.clone()).await?;
        Ok(found.iter().filter_map(|id| BatchId::from_hex(id)).collect())
    }

    /// Batches that exist and that neither the open batches nor the chores know, among the next keys of all; and where to
    /// go on, 0 after the last.
    pub async fn forgotten(&self, mut cursor: u64) -> Result<(Vec<BatchId>, u64), StoreError> {
        let mut forgotten = Vec::new();
        for _ in 0..SCANS {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{}b:*", self.keys.prefix()));
            scan.arg("COUNT").arg(SCAN_COUNT).arg("TYPE").arg("hash");
            let (next, names): (u64, Vec<String>) = scan.query_async(&mut self.main.clone()).await?;
            let id = |name: &String| BatchId::from_hex(name.strip_prefix(self.keys.prefix())?.strip_prefix("b:")?);
            forgotten.extend(self.unknown(names.iter().filter_map(id).collect()).await?);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        Ok((forgotten, cursor))
    }

    async fn unknown(&self, batches: Vec<BatchId>) -> Result<Vec<BatchId>, StoreError> {
        if batches.is_empty() {
            return Ok(batches);
        }
        let mut pipe = redis::pipe();
        for batch in &batches {
            pipe.zscore(self.keys.open_batches(), batch.hex());
            pipe.zscore(self.keys.chores(), format!("batch:{}", batch.hex()));
        }
        let scores: Vec<Option<f64>> = pipe.query_async(&mut self.main.clone()).await?;
        let known = scores.chunks(2).map(|pair| pair.iter().any(Option::is_some));
        Ok(batches.into_iter().zip(known).filter(|(_, known)| !known).map(|(batch, _)| batch).collect())
    }

    /// Where the last pass ended; the beginning, if nobody remembers.
    pub async fn reconciled_to(&self) -> Result<Place, StoreError> {
        let mut ask = redis::cmd("HMGET");
        ask.arg(self.keys.reconciler()).arg(&["rank", "cursor"]);
        let (rank, cursor): (Option<u64>, Option<u64>) = ask.query_async(&mut self.main.clone()).await?;
        Ok(Place { rank: rank.unwrap_or(0), cursor: cursor.unwrap_or(0) })
    }

    /// Remembers where this pass ended.
    pub async fn reconcile_from(&self, place: Place) -> Result<(), StoreError> {
        let name = self.keys.reconciler();
        if place == Place::default() {
            return self.unlink(&[name]).await;
        }
        let mut pipe = redis::pipe();
        pipe.atomic().hset_multiple(&name, &[("rank", place.rank), ("cursor", place.cursor)]).ignore();
        pipe.cmd("PEXPIRE").arg(&name).arg(clock::millis(REMEMBERED)).ignore();
        Ok(pipe.query_async(&mut self.main.clone()).await?)
    }
}
