//! Turns a complete open page into a sealed one: results in the client's order, written once, never changed again.

use super::{
    Gateway,
    line::ResultLine,
    open_page::{Looked, OpenPage},
};
use crate::{
    domain::{
        chunk::Lane,
        id::{BatchId, Token},
        key::CacheKey,
        outcome::Failure,
    },
    store::{
        Store, StoreError,
        pages::FrameWriter,
        record::{Again, Entry, Known, Unanswered},
        seal::{PageClaim, Sealed, WrittenPage},
    },
};
use bytes::Bytes;
use std::collections::HashMap;

/// Seals the next touched page, if there is one and it is complete. True if there was something to look at.
pub async fn seal_next(gateway: &Gateway, token: &Token) -> Result<bool, StoreError> {
    let store = &gateway.store;
    let Some(claim) = store.take_page(gateway.settings.lease * 2).await? else { return Ok(false) };
    match seal_claimed(gateway, &claim, token).await {
        Err(error @ StoreError::Corrupt { .. }) => {
            // This page cannot be sealed; the others can. It comes again, ever more seldom.
            tracing::error!(batch = %claim.batch, page = claim.page, %error, "a page cannot be read");
            let what = format!("page:{}:{}", claim.batch.hex(), claim.page);
            let delay = store.note_unreadable(&what, gateway.settings.lease).await?;
            store.put_off_page(&claim, delay).await?;
        }
        other => other?,
    }
    Ok(true)
}

async fn seal_claimed(gateway: &Gateway, claim: &PageClaim, token: &Token) -> Result<(), StoreError> {
    let store = &gateway.store;
    match OpenPage::look(store, claim.batch, claim.page).await? {
        Some(page) if page.is_complete() => {
            fail_point!("page_complete");
            write(gateway, claim, page, token).await
        }
        // Not complete; or sealed already, perhaps by one who died before he tidied up.
        Some(_) | None => store.drop_page(claim).await,
    }
}

async fn write(gateway: &Gateway, claim: &PageClaim, mut page: OpenPage, token: &Token) -> Result<(), StoreError> {
    let began = std::time::Instant::now();
    let store = &gateway.store;
    let mut writer = FrameWriter::sealed(store, claim.batch, claim.page, token);
    let mut kept = Kept::new(store, claim, token, std::mem::take(&mut page.manifest.lanes));
    for entry in std::mem::take(&mut page.manifest.entries) {
        match page.known(store, &entry.key).await? {
            Looked::Known(known, source) => {
                if let Known::Failed(failure) = &*known
                    && !kept.keep(&entry, failure).await?
                {
                    return Ok(());
                }
                let line = ResultLine::known(&entry, &known, source);
                let (head, body) = line.to_record();
                writer.push(&head, body).await?;
            }
            Looked::Gone => return Ok(()), // another sealer was faster; what we wrote dies by itself
            Looked::Unknown => return Err(StoreError::corrupt("open page", "complete, and yet a result is unknown")),
        }
    }
    let written = WrittenPage { results: writer.finish().await?, unanswered: kept.writer.finish().await? };
    let settings = &gateway.settings;
    fail_point!("page_written");
    match store.seal_page(claim, &written, settings.retention, settings.lease * 3).await? {
        Sealed::Ended => ended(claim.batch, true),
        Sealed::EndedUnequal => ended(claim.batch, false),
        Sealed::Done => {}
        Sealed::NotOurs => return store.remove_open_page(claim.batch, claim.page).await,
        Sealed::Torn => return Ok(()),
    }
    fail_point!("page_sealed");
    metrics::histogram!("batchgate_seal_seconds").record(began.elapsed().as_secs_f64());
    metrics::counter!("batchgate_pages_sealed_total").increment(1);
    store.remove_open_page(claim.batch, claim.page).await
}

/// Counts a batch that ended. `conserved`: its outcomes add up to its total. If they do not it has ended all the same:
/// its pages are whole, and nobody is served by a batch that never ends.
pub fn ended(batch: BatchId, conserved: bool) {
    tracing::info!(%batch, "batch ended");
    metrics::counter!("batchgate_batches_ended_total").increment(1);
    if !conserved {
        tracing::error!(%batch, "a batch ended whose outcomes do not add up to its total");
        metrics::counter!("batchgate_conservation_violations_total").increment(1);
    }
}

/// What the page leaves unanswered, written beside its results while the spool still has the bodies.
struct Kept<'a> {
    store: &'a Store,
    claim: &'a PageClaim,
    lanes: Vec<Lane>,
    writer: FrameWriter<'a>,
    /// Read when the first failure is met: most pages have none.
    bodies: Option<HashMap<CacheKey, Bytes>>,
}

impl<'a> Kept<'a> {
    fn new(store: &'a Store, claim: &'a PageClaim, token: &Token, lanes: Vec<Lane>) -> Kept<'a> {
        let writer = FrameWriter::unanswered(store, claim.batch, claim.page, token);
        Kept { store, claim, lanes, writer, bodies: None }
    }

    /// False if another sealer was faster, and the bodies are gone.
    async fn keep(&mut self, entry: &Entry, failure: &Failure) -> Result<bool, StoreError> {
        let (again, body) = match entry.ask {
            // Nobody was to be asked: it failed at accept.
            None => (Again::Refused(failure.clone()), Bytes::new()),
            Some(ask) => {
                let bodies = match self.bodies.take() {
                    Some(bodies) => bodies,
                    None => match self.store.spool(self.claim.batch, self.claim.page).await {
                        Ok(bodies) => bodies,
                        Err(error @ StoreError::Corrupt { .. }) => {
                            if self.store.manifest(self.claim.batch, self.claim.page).await?.is_none() {
                                return Ok(false);
                            }
                            tracing::error!(batch = %self.claim.batch, page = self.claim.page, %error, "nobody can ask these prompts again");
                            HashMap::new()
                        }
                        Err(away) => return Err(away),
                    },
                };
                let body = bodies.get(&entry.key).cloned();
                self.bodies = Some(bodies);
                let lane = self.lanes.get(ask.lane as usize).cloned();
                let lane = lane.ok_or_else(|| StoreError::corrupt("open page", "lacks the lane of an entry"))?;
                // Whose body is lost has its outcome all the same; only a retry cannot ask it.
                body.map_or_else(|| (Again::Refused(failure.clone()), Bytes::new()), |body| (Again::Ask(lane), body))
            }
        };
        let Entry { index, sample, custom_id, key, .. } = entry.clone();
        self.writer.push(&Unanswered { index, sample, custom_id, key, again }.head(), &body).await?;
        Ok(true)
    }
}
