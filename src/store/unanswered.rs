//! What sealed pages left unanswered, kept until retention so that a retry can ask it again. Written with the page that
//! is sealed; here it is made known, read and removed. Whether it is asked again is decided in `pipeline`.

use super::{
    Store, StoreError,
    pages::FrameRow,
    record::{Frame, Unanswered},
};
use crate::domain::id::BatchId;
use bytes::Bytes;
use std::collections::BTreeMap;

impl Store {
    /// Makes known what a page sealed before its batch exists left unanswered.
    pub async fn publish_unanswered(&self, batch: BatchId, page: u32, row: &FrameRow) -> Result<(), StoreError> {
        let mut hset = redis::cmd("HSET");
        hset.arg(self.keys.unanswered_pages(batch)).arg(page).arg(row.to_stored());
        Ok(hset.query_async(&mut self.main.clone()).await?)
    }

    /// The sealed pages that left something unanswered, in order.
    pub async fn unanswered_pages(&self, batch: BatchId) -> Result<BTreeMap<u32, FrameRow>, StoreError> {
        self.directory(&self.keys.unanswered_pages(batch)).await
    }

    /// One frame of a page's unanswered results, in order, each with its prompt's body; `None` if it is gone, and its
    /// batch with it.
    pub async fn unanswered_frame(
        &self,
        batch: BatchId,
        page: u32,
        row: &FrameRow,
        frame: u32,
    ) -> Result<Option<Vec<(Unanswered, Bytes)>>, StoreError> {
        let Some(stored) = self.get(&self.keys.unanswered(batch, page, &row.name, frame)).await? else {
            return Ok(None);
        };
        let records = Frame::unpack(&stored)?.into_iter();
        records.map(|(head, body)| Ok((Unanswered::from_head(&head)?, body))).collect::<Result<_, _>>().map(Some)
    }

    /// Removes what the sealed pages of a batch left unanswered; frames go before the directory that names them.
    pub(super) async fn remove_unanswered(&self, batch: BatchId) -> Result<(), StoreError> {
        for (page, row) in self.unanswered_pages(batch).await? {
            let names: Vec<String> = (0..row.frames).map(|n| self.keys.unanswered(batch, page, &row.name, n)).collect();
            self.unlink(&names).await?;
        }
        self.unlink(&[self.keys.unanswered_pages(batch)]).await
    }
}
