//! Whether this Redis is the original or a copy, and how a copy is taken over. A gateway on a copy reads and does nothing
//! else: no loop runs, no provider is called, nothing is accepted.

use super::Gateway;
use crate::{
    domain::{
        chunk::ChunkState,
        home::{Home, Standing},
        id::{BatchId, ChunkId, Token},
    },
    store::{
        Store, StoreError,
        chunks::{Release, Step},
    },
};

/// Chunks whose facts are read together.
const LOOK: u32 = 500;

/// The states of a chunk that is known to a provider, or may be.
const UNDER_WAY: [&str; 5] = ["submitting", "in_doubt", "running", "harvested", "asking"];
/// Every state of a chunk of the batch's own but settled.
const UNSETTLED: [&str; 6] = ["planned", "submitting", "in_doubt", "running", "harvested", "asking"];

/// What this Redis is to us. `works`: we mean to work here, so a Redis that is nobody's becomes our home.
pub async fn standing(gateway: &Gateway, works: bool) -> Result<Standing, StoreError> {
    let (store, deployment) = (&gateway.store, &gateway.settings.deployment);
    let (mut home, mut mark) = store.home().await?;
    if works && home.is_none() && mark.is_none() {
        store.settle_in(deployment).await?;
        (home, mark) = store.home().await?;
    }
    let standing = Standing::judge(home.as_ref(), mark.as_ref(), deployment, &store.place);
    if works && standing == Standing::Original {
        store.note_at_work(deployment).await?;
    }
    Ok(standing)
}

/// What an adoption would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// It is no copy: there is nothing to do.
    AtHome,
    /// A gateway of this other deployment works here at this moment.
    InUse(String),
    /// Our own deployment goes on with everything that is under way.
    GoesOn { batches: usize, chunks: usize },
    /// Another deployment's: what is under way must not be touched, and has to be dropped.
    Foreign { home: String, batches: usize, chunks: usize },
}

/// Looks at what an adoption by this deployment would mean.
pub async fn consider(store: &Store, deployment: &str) -> Result<Adoption, StoreError> {
    let (home, mark) = store.home().await?;
    if Standing::judge(home.as_ref(), mark.as_ref(), deployment, &store.place) == Standing::Original && home.is_some() {
        return Ok(Adoption::AtHome);
    }
    let open = store.open_batches().await?;
    let mut chunks = 0;
    for batch in &open {
        chunks += under_way(store, *batch).await?.len();
    }
    let batches = open.len();
    match home.filter(|home| home.deployment != deployment) {
        None => Ok(Adoption::GoesOn { batches, chunks }),
        // A marked copy brought along who worked on its original.
        Some(Home { deployment: home, .. }) => match store.at_work().await?.filter(|_| mark.is_none()) {
            Some(busy) => Ok(Adoption::InUse(busy)),
            None => Ok(Adoption::Foreign { home, batches, chunks }),
        },
    }
}

/// Makes this Redis our home. Gateways that run on it begin to work within a second or two.
pub async fn adopt(store: &Store, deployment: &str) -> Result<(), StoreError> {
    let known = store.home().await?.0.is_some_and(|home| home.deployment == deployment);
    fail_point!("adopting");
    store.move_in(deployment, known).await
}

/// Cancels every open batch and forgets what its chunks left at the providers, where nothing is touched: once a worker runs
/// they end as canceled. For a copy that is not adopted yet; may be repeated.
pub async fn drop_running(store: &Store) -> Result<(), StoreError> {
    for batch in store.open_batches().await? {
        store.cancel(batch).await?;
        fail_point!("adopt_dropping");
        for chunk in under_way(store, batch).await? {
            let lease = store.seize(chunk, Token::new(&rand::random())).await?;
            // Without the input file's name nobody deletes it.
            let forget = ["input", "cancel_sent", "unknown_since"];
            let mut fields = forget.map(|name| (name, String::new())).to_vec();
            // As if written just now: what may have been sent of it elsewhere is not looked for.
            fields.push(("server", store.server().await?));
            let (to, release) = (&ChunkState::Planned, Release::After(0));
            store.step(&lease, &Step { from: &UNSETTLED, to, fields, release, asking: false, waits: None }).await?;
        }
    }
    Ok(())
}

/// Chunks of a batch that a provider knows, or may know.
async fn under_way(store: &Store, batch: BatchId) -> Result<Vec<ChunkId>, StoreError> {
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        let (told, end) = store.told_chunks(batch, from, LOOK).await?;
        let live = told.into_iter().map(|told| told.chunk).filter(|chunk| chunk.state != ChunkState::Settled);
        let away = live.filter(|chunk| UNDER_WAY.contains(&chunk.state.word()) || chunk.input.is_some());
        found.extend(away.map(|chunk| chunk.id));
        from = from.saturating_add(LOOK);
        if from >= end {
            return Ok(found);
        }
    }
}
