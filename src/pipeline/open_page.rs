//! A page that is not sealed yet, as its readers and the sealer see it: the manifest's order and what is known by key.
//! Holds a few frames in memory, however large the answers are.

use super::line::Source;
use crate::{
    domain::{id::BatchId, key::CacheKey},
    store::{
        Store, StoreError,
        pages::{FrameRow, Origin},
        record::{Known, ManifestPage},
    },
};
use std::collections::{HashMap, VecDeque};

/// Frames kept unpacked; each holds at most 4 MiB, or one larger answer.
const FRAMES_KEPT: usize = 4;

/// What is known of an open page at one moment.
pub struct OpenPage {
    batch: BatchId,
    page: u32,
    pub manifest: ManifestPage,
    rows: Vec<(Source, FrameRow)>,
    /// Which row and frame holds a key's outcome.
    place: HashMap<CacheKey, (usize, u32)>,
    kept: VecDeque<((usize, u32), HashMap<CacheKey, Known>)>,
}

impl OpenPage {
    /// Looks at the page; `None` if it is not open any more: then it is sealed, or its batch is gone.
    pub async fn look(store: &Store, batch: BatchId, page: u32) -> Result<Option<OpenPage>, StoreError> {
        let Some(manifest) = store.manifest(batch, page).await? else { return Ok(None) };
        let fragments = store.fragments(batch, page).await?;
        let rows: Vec<(Source, FrameRow)> = fragments.into_iter().map(|(from, row)| (source(from), row)).collect();
        let (place, kept) = Default::default();
        let mut open = OpenPage { batch, page, manifest, rows, place, kept };
        for row in 0..open.rows.len() {
            for frame in 0..open.rows[row].1.frames {
                if !open.load(store, (row, frame)).await? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(open))
    }

    /// Every question of the page has an outcome.
    pub fn is_complete(&self) -> bool {
        self.manifest.entries.iter().all(|entry| self.place.contains_key(&entry.key))
    }

    /// The questions of its results without an outcome, once for each result.
    pub fn unknown(&self) -> impl Iterator<Item = &CacheKey> {
        self.manifest.entries.iter().map(|entry| &entry.key).filter(|key| !self.place.contains_key(key))
    }

    /// The outcome of a question, if it is known.
    pub async fn known(&mut self, store: &Store, key: &CacheKey) -> Result<Looked, StoreError> {
        let Some(&at) = self.place.get(key) else { return Ok(Looked::Unknown) };
        if !self.kept.iter().any(|(kept, _)| *kept == at) && !self.load(store, at).await? {
            return Ok(Looked::Gone);
        }
        let source = self.rows[at.0].0;
        let frame = self.kept.iter().find(|(kept, _)| *kept == at).map(|(_, frame)| frame);
        Ok(match frame.and_then(|frame| frame.get(key)) {
            Some(known) => Looked::Known(Box::new(known.clone()), source),
            None => Looked::Gone,
        })
    }

    async fn load(&mut self, store: &Store, at: (usize, u32)) -> Result<bool, StoreError> {
        let row = &self.rows[at.0].1;
        let Some(records) = store.fragment_frame(self.batch, self.page, row, at.1).await? else { return Ok(false) };
        for (key, _) in &records {
            self.place.entry(*key).or_insert(at);
        }
        if self.kept.len() == FRAMES_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((at, records.into_iter().collect()));
        Ok(true)
    }
}

fn source(origin: Origin) -> Source {
    match origin {
        Origin::Accept | Origin::Chunk { cached: true, .. } => Source::Cache,
        Origin::Joined { .. } => Source::Joined,
        Origin::Chunk { cached: false, .. } | Origin::Nobody => Source::Provider,
    }
}

/// What a look at one question found.
pub enum Looked {
    Known(Box<Known>, Source),
    Unknown,
    /// The page was sealed under our eyes: look there.
    Gone,
}
