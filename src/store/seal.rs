//! The seal queue: pages a commit touched. Entries are leased like chunks, and a page becomes sealed once.

use super::{Store, StoreError, pages::FrameRow, script};
use crate::{clock, domain::id::BatchId};
use std::time::Duration;

/// A page that may be complete, leased.
#[derive(Clone, Debug)]
pub struct PageClaim {
    pub batch: BatchId,
    pub page: u32,
    member: String,
    lease: String,
}

/// The frames a sealer wrote of a page, under its own name.
pub struct WrittenPage {
    /// All its results, in order.
    pub results: FrameRow,
    /// Those without an answer once more, with what is needed to ask again; no frames if there are none.
    pub unanswered: FrameRow,
}

/// What sealing a page did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    Done,
    /// It was the last page: the batch has ended.
    Ended,
    /// The same, and its outcomes do not add up to its total: something was lost or counted twice.
    EndedUnequal,
    /// Somebody else sealed it, or the batch is gone: what we wrote is nobody's, and dies by itself.
    NotOurs,
    /// A frame did not live long enough: the page stays open and in the queue.
    Torn,
}

impl Store {
    /// The next touched page, if any.
    pub async fn take_page(&self, lease: Duration) -> Result<Option<PageClaim>, StoreError> {
        let Some((member, lease)) = self.take(&self.keys.seal(), lease).await? else { return Ok(None) };
        let parsed = member.split_once(':').and_then(|(id, page)| Some((BatchId::from_hex(id)?, page.parse().ok()?)));
        let Some((batch, page)) = parsed else {
            self.dead_letter(&self.keys.seal(), &member).await?;
            return Ok(None);
        };
        Ok(Some(PageClaim { batch, page, member, lease }))
    }

    /// Puts a page back that is not complete: the last commit that touches it will queue it again.
    pub async fn drop_page(&self, claim: &PageClaim) -> Result<(), StoreError> {
        self.done(&self.keys.seal(), &claim.member, &claim.lease).await
    }

    /// Makes a page that could not be read due again after a while.
    pub async fn put_off_page(&self, claim: &PageClaim, delay: Duration) -> Result<(), StoreError> {
        self.postpone(&self.keys.seal(), &claim.member, &claim.lease, delay).await
    }

    /// Makes what was written the sealed page. The last page ends the batch, and leaves the spool to the sweeper.
    pub async fn seal_page(
        &self,
        claim: &PageClaim,
        page: &WrittenPage,
        retention: Duration,
        grace: Duration,
    ) -> Result<Sealed, StoreError> {
        let mut call = script!("seal").prepare_invoke();
        let keys = &self.keys;
        call.key(keys.batch(claim.batch)).key(keys.sealed_pages(claim.batch)).key(keys.seal());
        call.key(keys.open_batches()).key(keys.chores()).key(keys.unanswered_pages(claim.batch)).key(keys.reserved());
        let WrittenPage { results, unanswered } = page;
        for frame in 0..results.frames {
            call.key(keys.sealed(claim.batch, claim.page, &results.name, frame));
        }
        for frame in 0..unanswered.frames {
            call.key(keys.unanswered(claim.batch, claim.page, &unanswered.name, frame));
        }
        call.arg(claim.batch.hex()).arg(claim.page).arg(results.to_stored());
        call.arg(self.skew_ms).arg(clock::millis(retention)).arg(clock::millis(grace));
        call.arg(if unanswered.frames == 0 { String::new() } else { unanswered.to_stored() });
        call.arg(keys.prefix());
        read_sealed(&call.invoke_async::<String>(&mut self.main.clone()).await?)
    }

    /// Ends a batch whose pages are all sealed, if it did not end.
    pub async fn end_batch(&self, batch: BatchId, retention: Duration, grace: Duration) -> Result<Sealed, StoreError> {
        let (mut call, keys) = (script!("seal").prepare_invoke(), &self.keys);
        call.key(keys.batch(batch)).key(keys.sealed_pages(batch)).key(keys.seal());
        call.key(keys.open_batches()).key(keys.chores()).key(keys.unanswered_pages(batch)).key(keys.reserved());
        call.arg(batch.hex()).arg("").arg("").arg(self.skew_ms);
        call.arg(clock::millis(retention)).arg(clock::millis(grace)).arg("").arg(keys.prefix());
        read_sealed(&call.invoke_async::<String>(&mut self.main.clone()).await?)
    }

    pub(super) async fn remove_sealed(&self, batch: BatchId, page: u32, row: &FrameRow) -> Result<(), StoreError> {
        let frames: Vec<String> = (0..row.frames).map(|n| self.keys.sealed(batch, page, &row.name, n)).collect();
        self.unlink(&frames).await
    }
}

fn read_sealed(answer: &str) -> Result<Sealed, StoreError> {
    match answer {
        "sealed" => Ok(Sealed::Done),
        "ended" => Ok(Sealed::Ended),
        "unequal" => Ok(Sealed::EndedUnequal),
        "already" | "gone" => Ok(Sealed::NotOurs),
        "torn" => Ok(Sealed::Torn),
        other => Err(StoreError::corrupt("seal script's answer", other)),
    }
}
