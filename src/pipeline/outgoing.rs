//! A chunk on its way out: its prompts, read from the spool page by page while they are sent.

use super::{Gateway, commit, dispatch::Held};
use crate::{
    domain::{chunk::Item, key::CacheKey},
    provider::{OpenLines, OutLine, Parcel, ReadError},
    store::{StoreError, chunks::Chunk},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Why the bodies of a chunk could not be read while they were sent. To a provider's call that is a body that broke off:
/// whoever made the call asks here whose fault it was.
#[derive(Clone, Debug, Default)]
pub(super) struct Unread(Arc<Mutex<Option<StoreError>>>);

impl Unread {
    fn note(&self, error: StoreError) -> ReadError {
        let told = ReadError(error.to_string());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        told
    }

    /// What went wrong last, once.
    pub(super) fn take(&self) -> Option<StoreError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The same, if trying again will not help: then the chunk is to blame, and neither its provider nor Redis.
    pub(super) fn damage(&self) -> Option<StoreError> {
        self.take().filter(|error| matches!(error, StoreError::Corrupt { .. }))
    }
}

/// The chunk as the provider will see it; its prompts are read from the spool when they are sent.
pub(super) async fn parcel(held: &Held<'_>) -> Result<(Parcel, Unread), StoreError> {
    let chunk = held.chunk;
    let settings = &held.gateway.settings;
    let sure = held.lease.sure.clone();
    let (open, unread) = open_lines(held, &held.gateway.store.items(chunk.id).await?);
    let parcel = Parcel {
        chunk: chunk.id.to_string(),
        deployment: settings.deployment.clone(),
        attempt: chunk.attempt,
        endpoint: chunk.lane.endpoint,
        model: chunk.lane.model.clone().unwrap_or_default(),
        headers: chunk.lane.headers.clone(),
        prompts: chunk.prompts,
        wire_bytes: chunk.wire_bytes,
        open,
        may_create: Arc::new(move || sure.is_now()),
    };
    Ok((parcel, unread))
}

/// The way to the bodies of some of the chunk's questions, page by page of the spool.
pub(super) fn open_lines(held: &Held<'_>, items: &[Item]) -> (OpenLines, Unread) {
    let (chunk, ids) = (held.chunk, commit::wire_ids(held.chunk));
    let mut pages: Vec<(u32, Vec<CacheKey>)> = Vec::new();
    for item in items {
        let home = item.places[0].page;
        match pages.last_mut() {
            Some((page, keys)) if *page == home => keys.push(item.key),
            _ => pages.push((home, vec![item.key])),
        }
    }
    let (store, batch, pages) = (held.gateway.store.clone(), chunk.id.batch, Arc::new(pages));
    let unread = Unread::default();
    let noted = unread.clone();
    let open: OpenLines = Arc::new(move || {
        let (store, ids, pages, noted) = (store.clone(), ids.clone(), Arc::clone(&pages), noted.clone());
        let pages = (0..pages.len()).map(move |at| pages[at].clone());
        let read = move |(page, keys): (u32, Vec<CacheKey>)| {
            let (store, ids, noted) = (store.clone(), ids.clone(), noted.clone());
            async move {
                let mut bodies = store.spool(batch, page).await.map_err(|error| noted.note(error))?;
                let lacks = || StoreError::corrupt(format!("page {page} of {batch}"), "lacks a prompt of the chunk");
                let line = |key: CacheKey| match bodies.remove(&key) {
                    Some(body) => Ok(OutLine { custom_id: ids.write(&key), body }),
                    None => Err(noted.note(lacks())),
                };
                Ok::<_, ReadError>(stream::iter(keys.into_iter().map(line).collect::<Vec<_>>()))
            }
        };
        stream::iter(pages).then(read).try_flatten().boxed()
    });
    (open, unread)
}

/// Exact bytes of the file or body that carries some of a chunk's questions: their bodies are measured in the spool.
pub(super) async fn weigh(gateway: &Gateway, chunk: &Chunk, items: &[Item]) -> Result<u64, StoreError> {
    let limits = gateway.limits(&chunk.lane.account, chunk.lane.endpoint);
    let (mut total, mut homes) = (limits.fixed_bytes, BTreeMap::<u32, Vec<CacheKey>>::new());
    for item in items {
        homes.entry(item.places[0].page).or_default().push(item.key);
    }
    for (page, keys) in homes {
        let bodies = gateway.store.spool(chunk.id.batch, page).await?;
        let body =
            |key| bodies.get(key).ok_or_else(|| StoreError::corrupt("spool page", "lacks a prompt of the chunk"));
        for key in &keys {
            total += limits.weight(body(key)?.len());
        }
    }
    Ok(total)
}
