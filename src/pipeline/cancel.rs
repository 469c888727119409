//! Asks a batch to stop: its status says so first, then the worker tells the providers. What finishes anyway is kept.

use super::Gateway;
use crate::{
    domain::id::BatchId,
    store::{StoreError, batches::Canceled},
};

/// Repeatable; a batch that ended without a cancel says so.
pub async fn cancel(gateway: &Gateway, batch: BatchId) -> Result<Canceled, StoreError> {
    let canceled = gateway.store.cancel(batch).await?;
    fail_point!("cancel_noted");
    if canceled == Canceled::Asked {
        tracing::info!(%batch, "batch cancel asked");
        gateway.wake.chunks.notify_one();
    }
    Ok(canceled)
}
