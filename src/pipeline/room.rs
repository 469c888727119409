//! Room in Redis for what a batch will bring: reserved at accept, so that no harvest finds it full. Where there is none the
//! cache gives way first, and only then is a batch refused. An upload looks before each page it writes: what was promised to
//! others is not there for it to lie in.
//!
//! To a batch that is new the cache gives way by half of what it may take, and no further: a promise of any size can be had for a
//! few bytes and cancelled, so whoever asks for one could clear away what all teams paid for. A harvest may take it all.

use super::{Gateway, spaces::Spaces, submit::SubmitError};
use crate::{
    domain::room::Room,
    store::{
        StoreError,
        room::{CacheSize, Removed},
    },
};
use std::time::Duration;

/// Between two looks at the cache's size.
const LOOK: Duration = Duration::from_secs(10);
/// An estimate may be a fifth too low; where the cache is so near to being enough it is tried.
const ABOUT: u64 = 5;
/// What is made free at once where a write was refused: a fiftieth of all, at most this.
const MOST_AT_ONCE: u64 = 64 << 20;

/// Makes sure that so many bytes more can be promised or written; gives what may be promised in all, none without a bound.
pub async fn ensure(gateway: &Gateway, needed: u64) -> Result<Option<u64>, SubmitError> {
    let room = gateway.store.room().await?;
    let shortage = room.shortage(needed);
    if shortage == 0 {
        return Ok(room.allowance());
    }
    let cache = gateway.store.cache_size().await?;
    // Nothing goes where all that may go would not be enough: it would cost money and help nobody.
    if cache.bytes.saturating_sub(gateway.settings.cache_max.floor(room.max)) >= shortage {
        shrink(gateway, shortage, "reserve").await?;
    }
    fits(&gateway.store.room().await?, needed)
}

/// Looks whether so many bytes more can be written for a while. Nothing gives way to them.
pub async fn look(gateway: &Gateway, needed: u64) -> Result<(), SubmitError> {
    fits(&gateway.store.room().await?, needed).map(|_| ())
}

fn fits(room: &Room, needed: u64) -> Result<Option<u64>, SubmitError> {
    if room.shortage(needed) > 0 { Err(refused(room, needed)) } else { Ok(room.allowance()) }
}

/// What to tell of a write that was refused, or of room that others were faster to take.
pub async fn full(gateway: &Gateway, needed: u64) -> Result<SubmitError, StoreError> {
    Ok(refused(&gateway.store.room().await?, needed))
}

fn refused(room: &Room, needed: u64) -> SubmitError {
    metrics::counter!("batchgate_storage_full_total").increment(1);
    SubmitError::Full(room.full(needed))
}

/// Redis refused to keep something that is paid for: the cache gives way, as far as that helps.
pub async fn give_way(gateway: &Gateway) {
    let done = async {
        let room = gateway.store.room().await?;
        let lacking = room.used.saturating_sub(room.max) + (room.max / 50).min(MOST_AT_ONCE);
        let cache = gateway.store.cache_size().await?;
        if cache.bytes + cache.bytes / ABOUT < lacking {
            return Ok(());
        }
        shrink(gateway, lacking, "harvest").await
    };
    if let Err(error) = done.await {
        tracing::warn!(%error, "make room in redis");
    }
}

/// A job of the clock that one process does for all: keeps the caches of all namespaces together within
/// `BATCHGATE_CACHE_MAX`, in a cluster on each node.
pub async fn trim_cache(spaces: &Spaces) -> Result<(), StoreError> {
    match spaces.common().store.turn("cache", LOOK).await {
        Ok(false) => return Ok(()),
        Ok(true) => {}
        Err(error) if error.is_full() => {} // all the more reason
        Err(error) => return Err(error),
    }
    let (mut whole, mut done) = (CacheSize::default(), Ok(()));
    for gateway in spaces.one_per_node() {
        match trim_node(&gateway).await {
            Ok(CacheSize { entries, bytes }) => {
                whole = CacheSize { entries: whole.entries + entries, bytes: whole.bytes + bytes };
            }
            Err(error) => done = Err(error),
        }
    }
    metrics::gauge!("batchgate_cache_entries").set(whole.entries as f64);
    metrics::gauge!("batchgate_cache_bytes").set(whole.bytes as f64);
    done
}

/// How large the cache was.
async fn trim_node(gateway: &Gateway) -> Result<CacheSize, StoreError> {
    let size = gateway.store.cache_size().await?;
    let max = gateway.store.room().await?.max;
    if let Some(most) = gateway.settings.cache_max.bytes(max).filter(|most| size.bytes > *most) {
        // A little below, so that it does not begin anew with every answer.
        shrink(gateway, size.bytes - (most - most / 20), "max").await?;
    }
    Ok(size)
}

async fn shrink(gateway: &Gateway, bytes: u64, why: &'static str) -> Result<(), StoreError> {
    let Removed { entries, bytes: freed } = gateway.store.shrink_cache(bytes).await?;
    tracing::info!(entries, freed, wanted = bytes, why, "cached answers gave way");
    metrics::counter!("batchgate_cache_removed_total", "reason" => why).increment(entries);
    Ok(())
}
