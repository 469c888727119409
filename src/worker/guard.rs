//! The guard of a claim: owns its renewal, and says when the claim is lost. Dropping it stops the renewal.

use crate::{lifecycle::Tasks, pipeline::Gateway, store::chunks::Lease};
use std::sync::Arc;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(super) struct Guard {
    lost: CancellationToken,
    _renewing: DropGuard,
}

impl Guard {
    /// Renews at a third of the lease until dropped or refused.
    pub(super) fn hold(gateway: &Arc<Gateway>, tasks: &Tasks, lease: &Lease) -> Guard {
        let (lost, released) = (CancellationToken::new(), CancellationToken::new());
        let (gateway, lease) = (Arc::clone(gateway), lease.clone());
        let (tell, stop) = (lost.clone(), released.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = renew(&gateway, &lease) => tell.cancel(),
            }
        });
        Guard { lost, _renewing: released.drop_guard() }
    }

    /// Resolves once the claim is no longer ours.
    pub(super) async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

/// A chunk in hand, as the gauge counts it: however the task ends, by its end, a panic or an abort.
pub(super) struct Busy(());

impl Busy {
    pub(super) fn begin() -> Busy {
        metrics::gauge!("batchgate_workers_busy").increment(1);
        Busy(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        metrics::gauge!("batchgate_workers_busy").decrement(1);
    }
}

/// Ends when a renewal is refused of a claim we did not give back ourselves, or when Redis has not answered for so long that the lease has run out.
async fn renew(gateway: &Gateway, held: &Lease) {
    let lease = gateway.settings.lease;
    let mut renewed = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(lease / 3).await;
        let asked = tokio::time::Instant::now();
        match tokio::time::timeout(lease / 3, gateway.store.renew(held, lease)).await {
            Ok(Ok(true)) => renewed = asked,
            // The verb that let go of it may have something left to tidy up.
            Ok(Ok(false)) if held.sure.is_given_back() => std::future::pending().await,
            Ok(Ok(false)) => return,
            Ok(Err(_)) | Err(_) if renewed.elapsed() >= lease => return,
            Ok(Err(_)) | Err(_) => {}
        }
    }
}
