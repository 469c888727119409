//! Waits for what others ask already. The prompts of a batch that met another chunk's mark stand in a chunk of their own,
//! which buys nothing: it finds out who answers each of them, registers with that chunk, and is served by its commit, in
//! the same transaction ([`serve`]).
//!
//! Whatever ends otherwise (the other chunk was cancelled, expired or set apart, bisected or asked again; its answers came
//! before the registration) leads back to one question for each prompt: is there an answer in the cache by now, does
//! somebody else answer it, or is it ours? What is ours is planned and asked as any other; what another answers is waited
//! for again. A mark is the only right to ask, so nothing is bought twice.

use super::{
    commit::{self, Brought, Sizes},
    dispatch::{After, Held, no_provider},
    outgoing,
    patience::insist,
    pause,
};
use crate::{
    clock::{self, Millis},
    domain::{
        account::{Reason, Waits},
        chunk::{ChunkState, Item, Standing},
        id::ChunkId,
        key::CacheKey,
        outcome::{Failure, Usage},
        settlement::Settlement,
    },
    store::{
        StoreError,
        chunks::{Chunk, GAVE, JOINS, Release, Step, joins_lane, lane_id},
        commit::{Delta, Stage, fragment_name},
        joins::{Registered, Served},
        marks::Answers,
    },
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

/// How long a registered chunk is left alone: it is woken when it is served. Only if that went wrong it looks by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// Before a prompt is looked at again that cannot be told yet: it is part of an upload, or its chunk takes no more waiters.
const LATER: Duration = Duration::from_secs(1);
/// Registered with none.
const NOBODY: ChunkState = ChunkState::Joining { owner: None };

/// One step of a chunk that waits. `owner`: the chunk it is registered with, or was about to be.
pub async fn wait(held: &Held<'_>, owner: Option<ChunkId>) -> Result<After, StoreError> {
    if let Some(ending) = held.ending {
        let items = held.gateway.store.items(held.chunk.id).await?;
        return commit::settle(held, Settlement::all(items, &ending.failure())).await;
    }
    match owner {
        Some(owner) => register(held, owner).await,
        None => find_out(held, Patience::Fresh).await,
    }
}

/// Others have taken over questions of this planned chunk: it waits for those, and asks the rest. Who waits for it looks
/// again, too.
pub async fn look_again(held: &Held<'_>) -> Result<After, StoreError> {
    let joins = [(GAVE, String::new()), (JOINS, "1".to_owned()), ("lane_id", joins_lane(&held.chunk.team))];
    let after = held.step(&["planned"], &NOBODY, joins.into(), Release::Hold).await?;
    held.gateway.store.wake_waiters(held.chunk.id).await?;
    Ok(after)
}

/// Whether the chunk has waited for another one already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Fresh,
    Over,
}

/// The owner is noted before the registration: whoever commits in between serves only those that know their owner.
async fn register(held: &Held<'_>, owner: ChunkId) -> Result<After, StoreError> {
    fail_point!("registering");
    match held.gateway.store.register(held.chunk.id, owner).await? {
        Registered::Done => {
            fail_point!("registered");
            registered(held, owner, Patience::Fresh).await
        }
        Registered::Again => registered(held, owner, Patience::Over).await,
        Registered::Later => stay(held, Some(owner), LATER).await,
        Registered::Moving => stay(held, None, LATER).await,
        Registered::Gone => held.step(&["joining"], &NOBODY, Vec::new(), Release::Hold).await,
    }
}

async fn registered(held: &Held<'_>, owner: ChunkId, patience: Patience) -> Result<After, StoreError> {
    match way(held, owner, patience).await? {
        Way::Free => match held.step(&["joining"], &NOBODY, Vec::new(), Release::Hold).await? {
            After::Continue => find_out(held, patience).await, // no commit serves it meanwhile
            finished @ After::Finished => Ok(finished),
        },
        Way::Soon => stay(held, Some(owner), LATER).await,
        Way::Taken => stay(held, Some(owner), PATIENCE.mul_f64(0.8 + 0.4 * rand::random::<f64>())).await,
    }
}

/// Whether a chunk that has what we want to know gives way to us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Free,
    /// It would, but a worker has it in hand.
    Soon,
    Taken,
}

/// A chunk gives way that was never sent and is held up where ours is not; that nobody has it in hand is asked again by who
/// takes it over. That its team has more under way counts after a while only: at first its turn may be about to come.
async fn way(held: &Held<'_>, owner: ChunkId, patience: Patience) -> Result<Way, StoreError> {
    let store = &held.gateway.store;
    let Some(chunk) = store.chunk(owner).await? else { return Ok(Way::Taken) };
    if chunk.state != ChunkState::Planned {
        return Ok(Way::Taken);
    }
    let pauses = store.pauses().await?;
    let [theirs, ours] = match patience {
        Patience::Fresh => [0, 0],
        Patience::Over => store.under_way([&chunk.team, &held.chunk.team]).await?,
    };
    let standing = |chunk: &Chunk, under_way| Standing {
        paused: pause::covering(&pauses, chunk).is_some(),
        priority: chunk.priority,
        under_way,
    };
    if !standing(&chunk, theirs).gives_way_to(&standing(held.chunk, ours)) {
        return Ok(Way::Taken);
    }
    Ok(if store.is_claimed(owner).await? { Way::Soon } else { Way::Free })
}

async fn stay(held: &Held<'_>, owner: Option<ChunkId>, wait: Duration) -> Result<After, StoreError> {
    let detail = match owner {
        Some(_) => "another batch asks these prompts; its answers are waited for",
        None => "another batch that asks these prompts is on its way in",
    };
    let waits = Waits { reason: Some(Reason::Joined), detail: detail.to_owned(), group: None };
    let (to, wait): (_, Millis) = (ChunkState::Joining { owner }, held.within_deadline(clock::millis(wait)));
    let (from, release) = (&["joining"], Release::After(wait));
    held.try_step(&Step { from, to: &to, fields: Vec::new(), release, asking: false, waits: Some(&waits) }).await
}

/// Who answers which of its prompts.
#[derive(Default)]
struct Found {
    /// By the cache; the bytes of each.
    hits: HashMap<CacheKey, usize>,
    /// Nobody else: they are ours to ask.
    ours: HashSet<CacheKey>,
    /// By chunks of other batches, or (none) by an upload that is no batch yet.
    others: BTreeMap<Option<ChunkId>, HashSet<CacheKey>>,
}

async fn find_out(held: &Held<'_>, patience: Patience) -> Result<After, StoreError> {
    if !held.gateway.providers.contains_key(&held.chunk.lane.account) {
        return no_provider(held).await;
    }
    let items = held.gateway.store.items(held.chunk.id).await?;
    let Some(found) = look(held, &items, patience).await? else { return Ok(After::Finished) };
    fail_point!("marks_taken");
    let alone = found.others.len() + usize::from(!found.ours.is_empty()) + usize::from(!found.hits.is_empty()) == 1;
    match found.others.keys().next() {
        _ if !alone => split(held, items, &found).await,
        Some(Some(owner)) => {
            let known = ChunkState::Joining { owner: Some(*owner) };
            held.step(&["joining"], &known, Vec::new(), Release::Hold).await
        }
        Some(None) => stay(held, None, LATER).await,
        None if found.hits.is_empty() => {
            let lane = lane_id(&held.chunk.lane.account, &held.chunk.team);
            let fields = vec![(JOINS, String::new()), ("lane_id", lane)];
            held.step(&["joining"], &ChunkState::Planned, fields, Release::After(0)).await
        }
        None => split(held, items, &found).await,
    }
}

/// Looks at the marks, and then in the cache for what is ours since: an answer enters it before its mark goes. None: another
/// dispatch has the chunk.
async fn look(held: &Held<'_>, items: &[Item], patience: Patience) -> Result<Option<Found>, StoreError> {
    let (store, lease) = (&held.gateway.store, held.lease);
    let keys: Vec<CacheKey> = items.iter().map(|item| item.key).collect();
    let Some(answers) = take_marks(held, &keys, patience).await? else { return Ok(None) };
    let mut ours: Vec<CacheKey> = keys.into_iter().filter(|key| answers.get(key) == Some(&Answers::Us)).collect();
    let mut hits = HashMap::new();
    if !ours.is_empty() {
        commit::begin(held).await?;
        let Some(found) = store.copy_hits(lease, &ours, held.chunk.fresh_since).await? else { return Ok(None) };
        hits = found;
        ours.retain(|key| !hits.contains_key(key));
    }
    let mut others: BTreeMap<Option<ChunkId>, HashSet<CacheKey>> = BTreeMap::new();
    for (key, answers) in answers {
        match answers {
            Answers::Us => {}
            Answers::Chunk(chunk) => drop(others.entry(Some(chunk)).or_default().insert(key)),
            Answers::Upload => drop(others.entry(None).or_default().insert(key)),
        }
    }
    Ok(Some(Found { hits, ours: ours.into_iter().collect(), others }))
}

/// Who answers each question; those are ours that nobody answers, or somebody who gives way to us.
async fn take_marks(
    held: &Held<'_>,
    keys: &[CacheKey],
    patience: Patience,
) -> Result<Option<HashMap<CacheKey, Answers>>, StoreError> {
    let (store, lease) = (&held.gateway.store, held.lease);
    let Some(mut answers) = store.take_marks(lease.chunk, &lease.token, keys, &[]).await? else { return Ok(None) };
    let owners: HashSet<ChunkId> = answers.values().filter_map(Answers::chunk).collect();
    let mut give_way = Vec::new();
    for owner in owners {
        if way(held, owner, patience).await? == Way::Free {
            give_way.push(owner);
        }
    }
    if !give_way.is_empty() {
        let theirs =
            |key: &CacheKey| answers.get(key).and_then(Answers::chunk).is_some_and(|of| give_way.contains(&of));
        let keys: Vec<CacheKey> = keys.iter().filter(|key| theirs(key)).copied().collect();
        let Some(taken) = store.take_marks(lease.chunk, &lease.token, &keys, &give_way).await? else { return Ok(None) };
        answers.extend(taken);
    }
    Ok(Some(answers))
}

/// Settles the chunk with what the cache had; each group of the rest goes on in a chunk of its own.
async fn split(held: &Held<'_>, items: Vec<Item>, found: &Found) -> Result<After, StoreError> {
    let mut settlement = Settlement::default();
    let (mut ours, mut others): (Vec<Item>, BTreeMap<Option<ChunkId>, Vec<Item>>) = Default::default();
    for item in items {
        if found.hits.contains_key(&item.key) {
            settlement.answered.push((item, Usage::default()));
        } else if found.ours.contains(&item.key) {
            ours.push(item);
        } else {
            let owner = found.others.iter().find(|(_, keys)| keys.contains(&item.key)).and_then(|(owner, _)| *owner);
            others.entry(owner).or_default().push(item);
        }
    }
    settlement.again.extend((!ours.is_empty()).then_some(ours));
    settlement.joins.extend(others.into_values());
    let stage = Stage::Dispatch(held.lease.token.clone());
    commit::settle_staged(held, settlement, &stage, &found.hits, Brought::ByCache).await
}

/// What the commit of the chunk in hand gives to one that waits for it, with the fragments for it written; none if that one
/// waits no more. It inherits answers, and that an answer was empty; everything else it finds out for itself.
pub(super) async fn serve(
    held: &Held<'_>,
    waiter: ChunkId,
    settlement: &Settlement,
    stage: &Stage,
    sizes: &Sizes,
) -> Result<Option<Served>, StoreError> {
    match prepare(held, waiter, settlement, stage, sizes).await {
        // Its own next step will meet it, too, and be held up by it; this commit is not.
        Err(StoreError::Corrupt { what, why }) => {
            tracing::error!(chunk = %waiter, %what, %why, "a chunk that waits cannot be served");
            Ok(None)
        }
        prepared => prepared,
    }
}

async fn prepare(
    held: &Held<'_>,
    waiter: ChunkId,
    settlement: &Settlement,
    stage: &Stage,
    sizes: &Sizes,
) -> Result<Option<Served>, StoreError> {
    let store = &held.gateway.store;
    let Some(chunk) = store.chunk(waiter).await? else { return Ok(None) };
    // Without its account nobody can say what would be left to send; it looks for its answers itself.
    let waits = held.gateway.providers.contains_key(&chunk.lane.account);
    if !waits || chunk.state != (ChunkState::Joining { owner: Some(held.chunk.id) }) {
        return Ok(None);
    }
    let answered: HashSet<CacheKey> = settlement.answered.iter().map(|(item, _)| item.key).collect();
    let last_words = settlement.failed.iter().filter(|(_, failure)| failure.is_final_word());
    let failed: HashMap<CacheKey, &Failure> = last_words.map(|(item, failure)| (item.key, failure)).collect();
    let (mut got, mut left, mut delta) = (Settlement::default(), Vec::new(), Delta::default());
    for item in store.items(waiter).await? {
        let results = u64::from(item.results());
        if answered.contains(&item.key) {
            delta.succeeded += results;
            delta.joined += results;
            got.answered.push((item, Usage::default()));
        } else if let Some(failure) = failed.get(&item.key) {
            delta.failed += results;
            got.failed.push((item, (*failure).clone()));
        } else {
            left.push(item);
        }
    }
    let name = fragment_name(waiter, &held.lease.token);
    let fragments =
        commit::write_fragments(held, (waiter.batch, &name), &got, stage, sizes, &mut BTreeMap::new()).await?;
    let given_back =
        insist(held, "look whose numbers go back", || commit::given_back(store, waiter.batch, &got)).await?;
    let left_bytes = insist(held, "weigh what is left", || outgoing::weigh(held.gateway, &chunk, &left)).await?;
    Ok(Some(Served { waiter, fragments, left, left_bytes, given_back, delta }))
}
