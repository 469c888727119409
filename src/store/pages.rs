//! A batch's result pages: open ones are a manifest (the client's order) and keyed fragments; sealed ones are written
//! once, in order, and never change. Here both are written and read, frame by frame; policy lives in `pipeline`.

use super::{
    Store, StoreError,
    record::{self, FRAME_BYTES, Frame, Known, ManifestPage},
    script,
};
use crate::domain::{
    id::{BatchId, ChunkId, Token},
    key::CacheKey,
};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};

/// A row of frames in Redis under one name, as the directories of a batch remember it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRow {
    pub name: String,
    pub frames: u32,
}

impl FrameRow {
    pub fn to_stored(&self) -> String {
        format!("{}:{}", self.name, self.frames)
    }

    pub fn from_stored(text: &str) -> Result<FrameRow, StoreError> {
        let parsed = text.rsplit_once(':').and_then(|(name, frames)| Some((name.to_owned(), frames.parse().ok()?)));
        let (name, frames) = parsed.ok_or_else(|| StoreError::corrupt("page directory", text))?;
        Ok(FrameRow { name, frames })
    }
}

/// Writes frames one by one as they fill, so that a page of huge answers never stands in memory whole.
pub struct FrameWriter<'a> {
    store: &'a Store,
    name_frame: Box<dyn Fn(u32) -> String + Send + Sync + 'a>,
    name: String,
    frame: Frame,
    written: u32,
    /// Frames die by themselves unless somebody makes them stay.
    ttl_ms: Option<u64>,
}

/// What accept names its frames: it is the only writer of a batch that does not exist yet.
pub(super) const ACCEPT: &str = "accept";
/// Where a fragment's answers came from, by the name its page's directory knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Accept found them in the cache.
    Accept,
    /// A chunk of the batch brought them; `cached`: out of the cache, for others had asked before it came to ask.
    Chunk { number: u32, cached: bool },
    /// Another batch's chunk brought them for one that waited.
    Joined { waiter: u32, owner: ChunkId },
    /// Nobody: they ended without an answer.
    Nobody,
}

impl Origin {
    pub(super) fn name(self) -> String {
        match self {
            Origin::Accept => ACCEPT.to_owned(),
            Origin::Chunk { number, cached: false } => number.to_string(),
            Origin::Chunk { number, cached: true } => format!("cached.{number}"),
            Origin::Joined { waiter, owner } => format!("joined.{waiter}.{owner}"),
            Origin::Nobody => CLOSED.to_owned(),
        }
    }

    fn parse(name: &str) -> Option<Origin> {
        if let Ok(number) = name.parse() {
            return Some(Origin::Chunk { number, cached: false });
        }
        match name.split_once('.') {
            None if name == ACCEPT => Some(Origin::Accept),
            None if name == CLOSED => Some(Origin::Nobody),
            Some(("cached", number)) => Some(Origin::Chunk { number: number.parse().ok()?, cached: true }),
            Some(("joined", rest)) => {
                let (waiter, owner) = rest.split_once('.')?;
                Some(Origin::Joined { waiter: waiter.parse().ok()?, owner: ChunkId::parse(owner)? })
            }
            Some(_) | None => None,
        }
    }
}

/// What the reconciler's script calls a fragment that closes a page.
const CLOSED: &str = "closed";
/// How long a harvest may take from its first fragment to the commit that makes them stay.
const HARVEST_MS: u64 = 24 * 60 * 60 * 1000;
/// How long a sealer may take from its first frame to the script that makes the frames stay.
const SEALING_MS: u64 = 60 * 60 * 1000;

impl<'a> FrameWriter<'a> {
    /// A fragment of an open page, written by a harvest under a name of its own; its commit makes it stay.
    pub fn fragment(store: &'a Store, batch: BatchId, page: u32, name: &str) -> FrameWriter<'a> {
        let own = name.to_owned();
        let writer = FrameWriter::new(store, name, move |n| store.keys.fragment(batch, page, &own, n));
        FrameWriter { ttl_ms: Some(HARVEST_MS), ..writer }
    }

    /// A fragment of a batch that does not exist yet.
    pub fn fragment_at_accept(store: &'a Store, batch: BatchId, page: u32) -> FrameWriter<'a> {
        FrameWriter::new(store, ACCEPT, move |n| store.keys.fragment(batch, page, ACCEPT, n))
    }

    /// A page of hits only, of a batch that does not exist yet.
    pub fn sealed_at_accept(store: &'a Store, batch: BatchId, page: u32) -> FrameWriter<'a> {
        FrameWriter::new(store, ACCEPT, move |n| store.keys.sealed(batch, page, ACCEPT, n))
    }

    /// A sealed page; `token` keeps two sealers apart until one of them wins.
    pub fn sealed(store: &'a Store, batch: BatchId, page: u32, token: &Token) -> FrameWriter<'a> {
        let own = token.clone();
        let writer = FrameWriter::new(store, token.as_str(), move |n| store.keys.sealed(batch, page, own.as_str(), n));
        FrameWriter { ttl_ms: Some(SEALING_MS), ..writer }
    }

    /// What a page sealed at accept left unanswered.
    pub fn unanswered_at_accept(store: &'a Store, batch: BatchId, page: u32) -> FrameWriter<'a> {
        FrameWriter::new(store, ACCEPT, move |n| store.keys.unanswered(batch, page, ACCEPT, n))
    }

    /// What a page leaves unanswered, written beside [`FrameWriter::sealed`] under the same name.
    pub fn unanswered(store: &'a Store, batch: BatchId, page: u32, token: &Token) -> FrameWriter<'a> {
        let own = token.clone();
        let name = move |n| store.keys.unanswered(batch, page, own.as_str(), n);
        FrameWriter { ttl_ms: Some(SEALING_MS), ..FrameWriter::new(store, token.as_str(), name) }
    }

    fn new(store: &'a Store, name: &str, name_frame: impl Fn(u32) -> String + Send + Sync + 'a) -> FrameWriter<'a> {
        let (name, name_frame) = (name.to_owned(), Box::new(name_frame));
        FrameWriter { store, name_frame, name, frame: Frame::default(), written: 0, ttl_ms: None }
    }

    pub async fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), StoreError> {
        self.room_for(head.len() + body.len()).await?;
        self.frame.push(head, body);
        Ok(())
    }

    pub async fn push_known(&mut self, key: &CacheKey, known: &Known) -> Result<(), StoreError> {
        if let Known::Answered(answer) = known {
            self.room_for(answer.body.len()).await?;
        }
        record::push_known(&mut self.frame, key, known);
        Ok(())
    }

    async fn room_for(&mut self, bytes: usize) -> Result<(), StoreError> {
        if !self.frame.is_empty() && self.frame.len() + bytes > FRAME_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), StoreError> {
        let packed = std::mem::take(&mut self.frame).pack();
        if self.ttl_ms == Some(SEALING_MS) {
            let mut keep = script!("keep").prepare_invoke();
            keep.key((self.name_frame)(self.written)).arg(packed).arg(SEALING_MS);
            keep.invoke_async::<()>(&mut self.store.main.clone()).await?;
            self.written += 1;
            return Ok(());
        }
        let mut set = redis::cmd("SET");
        set.arg((self.name_frame)(self.written)).arg(packed);
        if let Some(ttl_ms) = self.ttl_ms {
            set.arg("PX").arg(ttl_ms);
        }
        set.query_async::<()>(&mut self.store.main.clone()).await?;
        self.written += 1;
        Ok(())
    }

    /// Writes what is left and says what was written.
    pub async fn finish(mut self) -> Result<FrameRow, StoreError> {
        if !self.frame.is_empty() {
            self.flush().await?;
        }
        Ok(FrameRow { name: self.name, frames: self.written })
    }
}

impl Store {
    pub async fn write_manifest(&self, batch: BatchId, page: u32, manifest: &ManifestPage) -> Result<(), StoreError> {
        self.set(self.keys.manifest(batch, page), record::pack_json(manifest)).await
    }

    /// The manifest of an open page; `None` once it is sealed.
    pub async fn manifest(&self, batch: BatchId, page: u32) -> Result<Option<ManifestPage>, StoreError> {
        let stored = self.get(&self.keys.manifest(batch, page)).await?;
        stored.map(|bytes| record::unpack_json(&bytes, "manifest page")).transpose()
    }

    pub async fn write_spool(&self, batch: BatchId, page: u32, frame: &Frame) -> Result<(), StoreError> {
        self.set(self.keys.spool(batch, page), frame.pack()).await
    }

    /// The bodies of a page's prompts that must be asked, by key.
    pub async fn spool(&self, batch: BatchId, page: u32) -> Result<HashMap<CacheKey, Bytes>, StoreError> {
        let name = self.keys.spool(batch, page);
        let stored = self.get(&name).await?.ok_or_else(|| StoreError::corrupt(&name, "absent"))?;
        let key =
            |head: &[u8]| head.try_into().map(CacheKey::from_bytes).map_err(|_| StoreError::corrupt(&name, "odd key"));
        Frame::unpack(&stored)?.into_iter().map(|(head, body)| Ok((key(&head)?, body))).collect()
    }

    /// Makes a fragment written before any batch exists a live one: accept's hits and refusals.
    pub async fn publish_fragment(&self, batch: BatchId, page: u32, row: &FrameRow) -> Result<(), StoreError> {
        let mut hset = redis::cmd("HSET");
        hset.arg(self.keys.fragments(batch, page)).arg(ACCEPT).arg(row.to_stored());
        Ok(hset.query_async(&mut self.main.clone()).await?)
    }

    /// Makes a page sealed before its batch exists: accept's pages of hits only.
    pub async fn publish_sealed(&self, batch: BatchId, page: u32, row: &FrameRow) -> Result<(), StoreError> {
        let mut hset = redis::cmd("HSET");
        hset.arg(self.keys.sealed_pages(batch)).arg(page).arg(row.to_stored());
        Ok(hset.query_async(&mut self.main.clone()).await?)
    }

    /// The live fragments of an open page, and where each came from.
    pub async fn fragments(&self, batch: BatchId, page: u32) -> Result<Vec<(Origin, FrameRow)>, StoreError> {
        let ask = self.keys.fragments(batch, page);
        let stored: HashMap<String, String> =
            redis::cmd("HGETALL").arg(ask).query_async(&mut self.main.clone()).await?;
        let origin = |name: &str| Origin::parse(name).ok_or_else(|| StoreError::corrupt("page directory", name));
        stored.into_iter().map(|(name, row)| Ok((origin(&name)?, FrameRow::from_stored(&row)?))).collect()
    }

    /// One frame of a fragment; `None` if it is gone (the page was sealed meanwhile).
    pub async fn fragment_frame(
        &self,
        batch: BatchId,
        page: u32,
        row: &FrameRow,
        frame: u32,
    ) -> Result<Option<Vec<(CacheKey, Known)>>, StoreError> {
        let Some(stored) = self.get(&self.keys.fragment(batch, page, &row.name, frame)).await? else { return Ok(None) };
        let records = Frame::unpack(&stored)?;
        records.into_iter().map(|(head, body)| record::read_known(&head, body)).collect::<Result<_, _>>().map(Some)
    }

    /// Which of these pages is sealed, and under which name.
    pub async fn sealed_row(&self, batch: BatchId, page: u32) -> Result<Option<FrameRow>, StoreError> {
        let mut hget = redis::cmd("HGET");
        hget.arg(self.keys.sealed_pages(batch)).arg(page);
        let stored: Option<String> = hget.query_async(&mut self.main.clone()).await?;
        stored.map(|text| FrameRow::from_stored(&text)).transpose()
    }

    /// One frame of a sealed page: result lines and bodies, in order.
    pub async fn sealed_frame(
        &self,
        batch: BatchId,
        page: u32,
        row: &FrameRow,
        frame: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let name = self.keys.sealed(batch, page, &row.name, frame);
        let stored = self.get(&name).await?.ok_or_else(|| StoreError::corrupt(&name, "absent"))?;
        Frame::unpack(&stored)
    }

    /// Writes where each page begins, in results.
    pub async fn write_starts(&self, batch: BatchId, starts: &[u32]) -> Result<(), StoreError> {
        self.set(self.keys.starts(batch), starts.iter().flat_map(|start| start.to_be_bytes()).collect()).await
    }

    /// The page that holds the result at `offset`, and the offset of that page's first result.
    pub async fn page_of(&self, batch: BatchId, offset: u32) -> Result<(u32, u32), StoreError> {
        if offset == 0 {
            return Ok((0, 0));
        }
        let name = self.keys.starts(batch);
        let stored = self.get(&name).await?.ok_or_else(|| StoreError::corrupt(&name, "absent"))?;
        let starts: Vec<u32> =
            stored.chunks_exact(4).map(|four| u32::from_be_bytes(four.try_into().expect("four bytes"))).collect();
        let page = starts.partition_point(|start| *start <= offset).saturating_sub(1);
        let start = *starts.get(page).ok_or_else(|| StoreError::corrupt(&name, "empty"))?;
        Ok((u32::try_from(page).expect("fewer pages than results"), start))
    }

    /// Removes what an open page needed, once it is sealed. Repeatable; frames go before the directory that names them.
    pub async fn remove_open_page(&self, batch: BatchId, page: u32) -> Result<(), StoreError> {
        let mut names = Vec::new();
        for (_, row) in self.fragments(batch, page).await? {
            names.extend(self.fragment_names(batch, page, &row));
        }
        names.extend([self.keys.manifest(batch, page), self.keys.spool(batch, page)]);
        self.unlink(&names).await?;
        self.unlink(&[self.keys.fragments(batch, page)]).await
    }

    /// The keys of a fragment's frames.
    pub(super) fn fragment_names(&self, batch: BatchId, page: u32, row: &FrameRow) -> Vec<String> {
        (0..row.frames).map(|frame| self.keys.fragment(batch, page, &row.name, frame)).collect()
    }

    /// A directory of pages: hash of page -> name and frame count.
    pub(super) async fn directory(&self, key: &str) -> Result<BTreeMap<u32, FrameRow>, StoreError> {
        let rows: HashMap<u32, String> = redis::cmd("HGETALL").arg(key).query_async(&mut self.main.clone()).await?;
        rows.into_iter().map(|(page, row)| Ok((page, FrameRow::from_stored(&row)?))).collect()
    }

    pub(super) async fn set(&self, key: String, value: Vec<u8>) -> Result<(), StoreError> {
        Ok(redis::cmd("SET").arg(key).arg(value).query_async(&mut self.main.clone()).await?)
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        Ok(redis::cmd("GET").arg(key).query_async(&mut self.main.clone()).await?)
    }

    /// Removes keys without blocking the server, some hundreds at a time.
    pub(super) async fn unlink(&self, keys: &[String]) -> Result<(), StoreError> {
        for slice in keys.chunks(500) {
            redis::cmd("UNLINK").arg(slice).query_async::<()>(&mut self.main.clone()).await?;
        }
        Ok(())
    }
}
