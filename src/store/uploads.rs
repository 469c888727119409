//! A batch on its way in: pages and chunks that belong to nobody until one script makes the batch exist.

use super::{Store, StoreError, batches, chunks::NewChunk, record::Frame, script};
use crate::{
    clock,
    domain::{id::BatchId, progress::Progress},
};
use bytes::Bytes;

/// An upload idle for longer than this lapses; what it wrote is removed.
pub const IDLE_MS: u64 = 10 * 60 * 1000;

/// How far an upload is: what must be removed if it breaks off. Written before what it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub raw: u32,
    pub pages: u32,
    pub chunks: u32,
    /// Questions of its pages are marked.
    pub marks: bool,
}

/// What became of an upload's last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    Done,
    /// The upload had lapsed: nothing exists.
    Lost,
    /// The Idempotency-Key's lock had lapsed and is somebody else's.
    Locked,
    /// Meanwhile so much was promised to others that there is no room.
    Full,
}

/// Room a batch is promised for what it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    pub bytes: u64,
    /// What may be promised in all; none: without bound.
    pub allowance: Option<u64>,
}

/// A batch as it begins.
pub struct First<'a> {
    pub progress: &'a Progress,
    /// All its chunks, also those that wait for others.
    pub chunks: u32,
}

/// The answer an Idempotency-Key will be given again, and the lock it replaces.
pub struct Remembered {
    pub record_key: String,
    pub lock: String,
    pub record: String,
    pub ttl_ms: u64,
}

impl Store {
    /// Opens an upload: from here on its pages are its own.
    pub async fn begin_upload(&self, batch: BatchId) -> Result<(), StoreError> {
        let now = clock::now_ms();
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.zadd(self.keys.uploads(), batch.hex(), now).ignore();
        pipe.zadd(self.keys.chores(), format!("upload:{}", batch.hex()), now + IDLE_MS).ignore();
        Ok(pipe.query_async(&mut self.main.clone()).await?)
    }

    /// Notes progress before it is made; false if the upload has lapsed.
    pub async fn extend_upload(&self, batch: BatchId, extent: Extent) -> Result<bool, StoreError> {
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.cmd("ZADD").arg(self.keys.uploads()).arg("XX").arg(clock::now_ms()).arg(batch.hex()).ignore();
        pipe.zscore(self.keys.uploads(), batch.hex());
        let Extent { raw, pages, chunks, marks } = extent;
        let fields = [("raw", raw), ("pages", pages), ("chunks", chunks), ("marks", u32::from(marks))];
        pipe.hset_multiple(self.keys.upload(batch), &fields).ignore();
        let (alive,): (Option<f64>,) = pipe.query_async(&mut self.main.clone()).await?;
        if alive.is_none() {
            self.unlink(&[self.keys.upload(batch)]).await?; // the sweeper has been here: nothing may be left
        }
        Ok(alive.is_some())
    }

    /// How far an upload came, as far as it noted.
    pub async fn upload_extent(&self, batch: BatchId) -> Result<Extent, StoreError> {
        let mut ask = redis::cmd("HMGET");
        ask.arg(self.keys.upload(batch)).arg(&["raw", "pages", "chunks", "marks"]);
        let [raw, pages, chunks, marks]: [Option<u32>; 4] = ask.query_async(&mut self.main.clone()).await?;
        let number = Option::unwrap_or_default;
        Ok(Extent { raw: number(raw), pages: number(pages), chunks: number(chunks), marks: marks == Some(1) })
    }

    pub async fn write_raw(&self, batch: BatchId, number: u32, frame: &Frame) -> Result<(), StoreError> {
        self.set(self.keys.raw(batch, number), frame.pack()).await
    }

    /// Reads a page of raw prompts and removes it.
    pub async fn take_raw(&self, batch: BatchId, number: u32) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let name = self.keys.raw(batch, number);
        let stored = self.get(&name).await?.ok_or_else(|| StoreError::corrupt(&name, "absent"))?;
        let records = Frame::unpack(&stored)?;
        self.unlink(&[name]).await?;
        Ok(records)
    }

    /// Writes planned chunks; no queue knows them yet.
    pub async fn write_chunks(&self, chunks: &[NewChunk]) -> Result<(), StoreError> {
        self.server().await?;
        let mut pipe = redis::pipe();
        for chunk in chunks {
            chunk.write(self, &mut pipe);
        }
        Ok(pipe.query_async(&mut self.main.clone()).await?)
    }

    /// Makes the batch exist: facts, queue entries and the Idempotency-Key's answer together, or nothing.
    pub async fn accept(
        &self,
        batch: BatchId,
        First { progress: first, chunks }: &First<'_>,
        remembered: Option<&Remembered>,
        reservation: Reservation,
        retention_ms: u64,
    ) -> Result<Accepted, StoreError> {
        let mut call = script!("accept").prepare_invoke();
        let keys = &self.keys;
        call.key(keys.uploads()).key(keys.batch(batch)).key(keys.team(&first.team)).key(keys.open_batches());
        call.key(keys.delayed()).key(keys.chores());
        call.key(remembered.map_or_else(|| keys.upload(batch), |answer| answer.record_key.clone()));
        call.key(keys.upload(batch)).key(keys.reserved());
        call.arg(batch.hex()).arg(first.created_at).arg(*chunks);
        match remembered {
            Some(answer) => call.arg(&answer.record).arg(answer.ttl_ms).arg(&answer.lock),
            None => call.arg("").arg(0).arg(""),
        };
        call.arg(first.ended_at.map_or_else(String::new, |at| at.to_string())).arg(retention_ms);
        call.arg(first.run.as_ref().map_or_else(String::new, |_| Store::draws_chore(batch)));
        call.arg(reservation.bytes);
        call.arg(reservation.allowance.map_or_else(String::new, |allowance| allowance.to_string()));
        for (name, value) in batches::fields(first) {
            call.arg(name).arg(value);
        }
        fail_point!("accepting");
        let answer: String = call.invoke_async(&mut self.main.clone()).await?;
        fail_point!("accepted");
        match answer.as_str() {
            "ok" => Ok(Accepted::Done),
            "lost" => Ok(Accepted::Lost),
            "locked" => Ok(Accepted::Locked),
            "full" => Ok(Accepted::Full),
            other => Err(StoreError::corrupt("accept script's answer", other)),
        }
    }

    /// Gives up an upload and removes all it wrote. Repeatable; never touches a batch that exists.
    pub async fn abandon_upload(&self, batch: BatchId) -> Result<(), StoreError> {
        let mut zrem = redis::cmd("ZREM");
        zrem.arg(self.keys.uploads()).arg(batch.hex());
        let ours: u32 = zrem.query_async(&mut self.main.clone()).await?;
        if ours == 0 {
            return Ok(());
        }
        self.remove_upload(batch).await
    }

    /// Removes what an upload wrote, whose right to its pages the caller has taken.
    pub(super) async fn remove_upload(&self, batch: BatchId) -> Result<(), StoreError> {
        let extent = self.upload_extent(batch).await?;
        let raw: Vec<String> = (0..extent.raw).map(|n| self.keys.raw(batch, n)).collect();
        self.unlink(&raw).await?;
        for page in 0..extent.pages {
            self.undo_draws(batch, page).await?;
        }
        if extent.marks {
            self.unmark_upload(batch, extent.pages).await?;
        }
        fail_point!("upload_undone");
        self.remove_pages(batch, extent.pages).await?;
        self.remove_chunks(batch, extent.chunks).await?;
        self.unlink(&[self.keys.upload(batch)]).await?;
        let mut zrem = redis::cmd("ZREM");
        zrem.arg(self.keys.chores()).arg(format!("upload:{}", batch.hex()));
        Ok(zrem.query_async(&mut self.main.clone()).await?)
    }
}
