//! Reads a batch's results in the client's order, some at a time: sealed pages as they are, open ones through what is
//! known by key. Never reads the cache.

use super::{
    Gateway,
    line::ResultLine,
    open_page::{Looked, OpenPage},
};
use crate::{
    domain::{id::BatchId, progress::Progress},
    store::{StoreError, pages::FrameRow, record::FRAME_BYTES},
};
use std::{sync::Arc, time::Duration};

/// How results that are not known yet are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// As `pending` lines.
    Pending,
    /// Waited for, until the batch ends.
    Follow,
}

/// First and longest wait between two looks at a page that does not move.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// A reader of one batch's results, from an offset on.
pub struct Reader {
    gateway: Arc<Gateway>,
    batch: BatchId,
    pages: u32,
    unknown: Unknown,
    page: u32,
    /// Results of the page already read or skipped.
    within: usize,
    left: u64,
    look_after: Duration,
    sealed: Option<SealedPlace>,
}

/// Where in a sealed page the reader is.
struct SealedPlace {
    row: FrameRow,
    frame: u32,
    /// Results in the frames before.
    before: usize,
}

impl Reader {
    /// Reads at most `limit` results from `offset` on, which must lie within the batch.
    pub async fn open(
        gateway: Arc<Gateway>,
        batch: BatchId,
        progress: &Progress,
        unknown: Unknown,
        offset: u64,
        limit: u64,
    ) -> Result<Reader, StoreError> {
        let start = u32::try_from(offset.min(progress.counts.total)).expect("a batch has at most a million results");
        let (page, first) = gateway.store.page_of(batch, start).await?;
        let left = limit.min(progress.counts.total - u64::from(start));
        let within = (start - first) as usize;
        let (look_after, sealed) = (FIRST_LOOK, None);
        Ok(Reader { gateway, batch, pages: progress.pages, unknown, page, within, left, look_after, sealed })
    }

    /// The next results, at most a frame of them; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<ResultLine>>, StoreError> {
        while self.left > 0 && self.page < self.pages {
            let mut lines = match self.sealed_lines().await? {
                Some(lines) => lines,
                None => self.open_lines().await?,
            };
            if lines.is_empty() {
                continue;
            }
            lines.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= lines.len() as u64;
            self.look_after = FIRST_LOOK;
            return Ok(Some(lines));
        }
        Ok(None)
    }

    /// The rest of the sealed page's current frame; `None` if the page is not sealed.
    async fn sealed_lines(&mut self) -> Result<Option<Vec<ResultLine>>, StoreError> {
        let store = &self.gateway.store;
        if self.sealed.is_none() {
            let row = store.sealed_row(self.batch, self.page).await?;
            self.sealed = row.map(|row| SealedPlace { row, frame: 0, before: 0 });
        }
        let Some(place) = &mut self.sealed else { return Ok(None) };
        if place.frame >= place.row.frames {
            self.turn_page();
            return Ok(Some(Vec::new()));
        }
        let records = store.sealed_frame(self.batch, self.page, &place.row, place.frame).await?;
        let skip = self.within.saturating_sub(place.before);
        place.before += records.len();
        place.frame += 1;
        self.within = self.within.max(place.before);
        let lines = records.into_iter().skip(skip).map(|(head, body)| ResultLine::from_record(&head, body));
        Ok(Some(lines.collect()))
    }

    /// What is known of an open page from where the reader is; waits if it must.
    async fn open_lines(&mut self) -> Result<Vec<ResultLine>, StoreError> {
        let gateway = Arc::clone(&self.gateway);
        let Some(mut page) = OpenPage::look(&gateway.store, self.batch, self.page).await? else {
            // Sealed since we looked, or its batch was deleted under our eyes.
            if gateway.store.sealed_row(self.batch, self.page).await?.is_none() {
                return Err(StoreError::corrupt(
                    format!("page {} of {}", self.page, self.batch),
                    "neither open nor sealed",
                ));
            }
            return Ok(Vec::new());
        };
        let (mut lines, mut bytes) = (Vec::new(), 0);
        let entries = std::mem::take(&mut page.manifest.entries);
        for entry in &entries[self.within.min(entries.len())..] {
            let line = match (page.known(&gateway.store, &entry.key).await?, self.unknown) {
                (Looked::Known(known, source), _) => ResultLine::known(entry, &known, source),
                (Looked::Unknown, Unknown::Pending) => ResultLine::pending(entry),
                (Looked::Unknown, Unknown::Follow) | (Looked::Gone, _) => break,
            };
            bytes += line.text.len() + line.body.len();
            lines.push(line);
            if bytes > FRAME_BYTES {
                break;
            }
        }
        self.within += lines.len();
        if self.within >= entries.len() {
            self.turn_page();
        } else if lines.is_empty() {
            tokio::time::sleep(self.look_after).await;
            self.look_after = (self.look_after * 2).min(LAST_LOOK);
        }
        Ok(lines)
    }

    fn turn_page(&mut self) {
        self.page += 1;
        self.within = 0;
        self.sealed = None;
    }
}
