//! Turns a complete open page into a sealed one: results in the client's order, written once, never changed again.

use super::{
    Gateway,
    line::ResultLine,
    open_page::{Looked, OpenPage},
};
use crate::{
    domain::id::Token,
    store::{
        StoreError,
        pages::FrameWriter,
        seal::{PageClaim, Sealed},
    },
};

/// Seals the next touched page, if there is one and it is complete. True if there was something to look at.
pub async fn seal_next(gateway: &Gateway, token: &Token) -> Result<bool, StoreError> {
    let store = &gateway.store;
    let Some(claim) = store.take_page(gateway.settings.lease * 2).await? else { return Ok(false) };
    let Some(page) = OpenPage::look(store, claim.batch, claim.page).await? else {
        // Sealed already, perhaps by one who died before he tidied up.
        store.drop_page(&claim).await?;
        return Ok(true);
    };
    if page.is_complete() {
        write(gateway, &claim, page, token).await?;
    } else {
        store.drop_page(&claim).await?;
    }
    Ok(true)
}

async fn write(gateway: &Gateway, claim: &PageClaim, mut page: OpenPage, token: &Token) -> Result<(), StoreError> {
    let began = std::time::Instant::now();
    let store = &gateway.store;
    let mut writer = FrameWriter::sealed(store, claim.batch, claim.page, token);
    for entry in std::mem::take(&mut page.manifest.entries) {
        match page.known(store, &entry.key).await? {
            Looked::Known(known, source) => {
                let line = ResultLine::known(&entry, &known, source);
                let (head, body) = line.to_record();
                writer.push(&head, body).await?;
            }
            Looked::Gone => return Ok(()), // another sealer was faster; what we wrote dies by itself
            Looked::Unknown => return Err(StoreError::corrupt("open page", "complete, and yet a result is unknown")),
        }
    }
    let row = writer.finish().await?;
    let settings = &gateway.settings;
    match store.seal_page(claim, &row, settings.retention, settings.lease * 3).await? {
        Sealed::Ended => {
            tracing::info!(batch = %claim.batch, "batch ended");
            metrics::counter!("batchgate_batches_ended_total").increment(1);
        }
        Sealed::Done => {}
        Sealed::NotOurs => return store.remove_open_page(claim.batch, claim.page).await,
        Sealed::Torn => return Ok(()),
    }
    metrics::histogram!("batchgate_seal_seconds").record(began.elapsed().as_secs_f64());
    metrics::counter!("batchgate_pages_sealed_total").increment(1);
    store.remove_open_page(claim.batch, claim.page).await
}
