//! Settles a chunk: writes its outcomes where its batch's pages will find them, plans what is asked again, and then
//! commits it all in one transaction. Everything before that transaction touches no key that anybody reads.

use super::{
    budget,
    dispatch::{After, Held},
    join, outgoing,
    patience::insist,
};
use crate::{
    domain::{
        batch::CacheMode,
        chunk::{ChunkState, WireIds},
        id::{BatchId, ChunkId, WireTag},
        key::CacheKey,
        outcome::{Ending, Failure, Usage},
        settlement::Settlement,
    },
    provider::InputFile,
    store::{
        Store, StoreError,
        chunks::{Chunk, NewChunk},
        commit::{Committed, Delta, Settled, Stage, fragment_name},
        joins::Served,
        pages::{FrameRow, FrameWriter},
        record::{FRAME_BYTES, Known},
        room::Tally,
        runs::Row,
    },
};
use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry};

/// Packed bytes of each staged answer.
pub type Sizes = HashMap<CacheKey, usize>;

/// No answer has more tokens; what a provider reports beyond is not counted. A million such stay within 63 bits.
const MAX_TOKENS: u64 = 1_000_000_000_000;

/// Times a commit is begun anew for chunks that came to wait for it, before it takes no more of them.
const NEWCOMERS: u32 = 5;

/// What brought a chunk's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought<'a> {
    /// Nothing, or a server that was asked one by one.
    ByNoBatch,
    /// A provider batch that was read to its end.
    ByBatch(&'a str),
    /// The cache: what is staged are copies.
    ByCache,
}

/// The wire ids of a chunk's questions.
pub fn wire_ids(chunk: &Chunk) -> WireIds {
    WireIds::new(chunk.tag.clone(), chunk.mode != CacheMode::Off)
}

/// Settles a chunk that brought no answers.
pub async fn settle(held: &Held<'_>, settlement: Settlement) -> Result<After, StoreError> {
    begin(held).await?;
    let stage = Stage::Dispatch(held.lease.token.clone());
    settle_staged(held, settlement, &stage, &Sizes::new(), Brought::ByNoBatch).await
}

/// Notes that answers are about to be staged, so that they are found if we die.
pub async fn begin(held: &Held<'_>) -> Result<(), StoreError> {
    let (store, patience) = (&held.gateway.store, held.gateway.settings.lease * 2);
    insist(held, "begin to stage", || store.begin_staging(held.lease, patience)).await
}

/// Settles a chunk whose answers are staged, and serves the chunks that wait for it.
pub async fn settle_staged(
    held: &Held<'_>,
    settlement: Settlement,
    stage: &Stage,
    sizes: &Sizes,
    brought: Brought<'_>,
) -> Result<After, StoreError> {
    let store = &held.gateway.store;
    let mut tallies = BTreeMap::new();
    let (batch, name) = (held.chunk.id.batch, fragment_name(held.chunk.id, &held.lease.token));
    let fragments = write_fragments(held, (batch, &name), &settlement, stage, sizes, &mut tallies).await?;
    let follow_ups = follow_ups(held, &settlement).await?;
    let given_back = given_back(store, batch, &settlement).await?;
    fail_point!("fragments_written");
    let answered: Vec<CacheKey> = settlement.answered.iter().map(|(item, _)| item.key).collect();
    let failed: Vec<CacheKey> = settlement.failed.iter().map(|(item, _)| item.key).collect();
    let mut settled = Settled {
        lease: held.lease,
        counter: counter(&held.chunk.state),
        mode: held.chunk.mode,
        cached: brought == Brought::ByCache,
        stage,
        harvested: if let Brought::ByBatch(remote) = brought { Some(remote) } else { None },
        fresh_since: held.chunk.fresh_since,
        answered: &answered,
        failed: &failed,
        fragments: &fragments,
        follow_ups: &follow_ups,
        given_back: &given_back,
        served: BTreeMap::new(),
        delta: delta(held, &settlement, brought),
    };
    let began = std::time::Instant::now();
    let ttl = held.gateway.settings.cache_ttl;
    let mut rounds = 0;
    let committed = loop {
        serve_waiters(held, &settlement, stage, sizes, &mut settled.served).await?;
        match insist(held, "commit", || store.commit(&settled, ttl)).await? {
            Committed::Newcomers => rounds += 1,
            committed => break committed,
        }
        if rounds == NEWCOMERS {
            store.close_registration(held.lease).await?;
        }
    };
    match committed {
        Committed::Done => {
            metrics::histogram!("batchgate_commit_seconds").record(began.elapsed().as_secs_f64());
            metrics::counter!("batchgate_commits_total").increment(1);
            metrics::histogram!("batchgate_commit_answers").record(answered.len() as f64);
            metrics::counter!("batchgate_rebought_total").increment(settlement.rebought as u64);
            count_results(&settled.delta);
            count_joins(&settled.served);
            let again: usize = settlement.again.iter().map(Vec::len).sum();
            tracing::info!(chunk = %held.chunk.id, answered = answered.len(), failed = settlement.failed.len(), again, "chunk settled");
            held.gateway.wake.pages.notify_one();
            held.gateway.wake.chunks.notify_one();
            fail_point!("settled");
            budget::settled(held).await.unwrap_or_else(|error| {
                tracing::warn!(chunk = %held.chunk.id, %error, "give back the chunk's tokens");
            });
            discard_input(held).await;
            if let Err(error) = store.learn(held.chunk.lane.endpoint, &tallies).await {
                tracing::debug!(%error, "learn how large answers are");
            }
        }
        Committed::Lost | Committed::Newcomers => {
            metrics::counter!("batchgate_fences_lost_total").increment(1);
            tracing::warn!(chunk = %held.chunk.id, "lost the chunk before its commit; nothing was changed");
            // The chore that would have removed what we wrote may have run before we wrote it, and what tells where it lies
            // may be gone with its batch: it goes by the names we know. What is staged for the chunk is the next dispatch's.
            if let Stage::Dispatch(token) = stage {
                store.unstage(token, answered.iter()).await?;
            }
            store.remove_fragments(batch, &fragments).await?;
            for served in settled.served.values().flatten() {
                store.remove_fragments(served.waiter.batch, &served.fragments).await?;
            }
        }
    }
    Ok(After::Finished)
}

fn count_results(delta: &Delta) {
    let counts = [
        ("succeeded", delta.succeeded),
        ("failed", delta.failed),
        ("canceled", delta.canceled),
        ("expired", delta.expired),
    ];
    for (status, count) in counts {
        metrics::counter!("batchgate_results_total", "status" => status).increment(count);
    }
}

fn counter(state: &ChunkState) -> Option<&'static str> {
    match state {
        ChunkState::Joining { .. } => None,
        ChunkState::Planned => Some("c_planned"),
        ChunkState::Submitting { .. } | ChunkState::InDoubt(_) => Some("c_submitting"),
        ChunkState::Asking | ChunkState::Running { .. } | ChunkState::Harvested { .. } | ChunkState::Settled => {
            Some("c_running")
        }
    }
}

/// Prepares what the chunks get that wait for this one, as far as that is not done.
async fn serve_waiters(
    held: &Held<'_>,
    settlement: &Settlement,
    stage: &Stage,
    sizes: &Sizes,
    served: &mut BTreeMap<ChunkId, Option<Served>>,
) -> Result<(), StoreError> {
    let waiters = insist(held, "read who waits", || held.gateway.store.waiters(held.chunk.id)).await?;
    for waiter in waiters {
        if let Entry::Vacant(unserved) = served.entry(waiter) {
            unserved.insert(join::serve(held, waiter, settlement, stage, sizes).await?);
        }
    }
    Ok(())
}

fn count_joins(served: &BTreeMap<ChunkId, Option<Served>>) {
    for served in served.values().flatten() {
        count_results(&served.delta);
        metrics::counter!("batchgate_results_joined_total").increment(served.delta.joined);
        tracing::info!(chunk = %served.waiter, joined = served.delta.joined, left = served.left.len(), "chunk served by another's call");
    }
}

/// The input file has served; what a provider does not delete now expires by itself.
async fn discard_input(held: &Held<'_>) {
    if let (Some(provider), Some(input)) = (held.provider(), &held.chunk.input)
        && let Err(error) = provider.discard(&InputFile(input.clone())).await
    {
        tracing::info!(chunk = %held.chunk.id, error = error.head(), "input file stays at the provider until it expires");
    }
}

/// What one page wants of a chunk.
#[derive(Default)]
struct Wanted<'a> {
    answered: Vec<CacheKey>,
    failed: Vec<(&'a CacheKey, &'a Failure)>,
}

/// One fragment of this name for every open page of a batch that wants some of these outcomes.
pub(super) async fn write_fragments(
    held: &Held<'_>,
    (batch, name): (BatchId, &str),
    settlement: &Settlement,
    stage: &Stage,
    sizes: &Sizes,
    tallies: &mut BTreeMap<String, Tally>,
) -> Result<Vec<(u32, FrameRow)>, StoreError> {
    let mut pages: BTreeMap<u32, Wanted<'_>> = BTreeMap::new();
    for (item, _) in &settlement.answered {
        for place in &item.places {
            pages.entry(place.page).or_default().answered.push(item.key);
        }
    }
    for (item, failure) in &settlement.failed {
        for place in &item.places {
            pages.entry(place.page).or_default().failed.push((&item.key, failure));
        }
    }
    let store = &held.gateway.store;
    let mut fragments = Vec::with_capacity(pages.len());
    for (page, wanted) in pages {
        // Begun anew it writes the same frames under the same names.
        let write = || {
            let writer = FrameWriter::fragment(store, batch, page, name);
            write_fragment(store, writer, &wanted, stage, sizes)
        };
        let (row, models) = insist(held, "write a fragment", write).await?;
        fragments.push((page, row));
        for (model, tally) in models {
            // Where a batch may not mix models, the asked name is the one the next asker will use.
            let all = tallies.entry(held.chunk.lane.model.clone().unwrap_or(model)).or_default();
            *all = Tally { answers: all.answers + tally.answers, bytes: all.bytes + tally.bytes };
        }
    }
    Ok(fragments)
}

async fn write_fragment(
    store: &Store,
    mut writer: FrameWriter<'_>,
    wanted: &Wanted<'_>,
    stage: &Stage,
    sizes: &Sizes,
) -> Result<(FrameRow, BTreeMap<String, Tally>), StoreError> {
    let mut models: BTreeMap<String, Tally> = BTreeMap::new();
    for slice in slices(&wanted.answered, sizes) {
        for (key, answer) in store.staged(stage, slice).await? {
            let tally = models.entry(answer.reading.model.clone().unwrap_or_default()).or_default();
            tally.answers += 1;
            tally.bytes += sizes.get(&key).copied().unwrap_or(0) as u64;
            writer.push_known(&key, &Known::Answered(answer)).await?;
        }
    }
    for (key, failure) in &wanted.failed {
        writer.push_known(key, &Known::Failed((*failure).clone())).await?;
    }
    Ok((writer.finish().await?, models))
}

/// Cuts keys into slices whose packed answers together stay within one frame's bytes.
fn slices<'a>(keys: &'a [CacheKey], sizes: &Sizes) -> Vec<&'a [CacheKey]> {
    let mut slices = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, key) in keys.iter().enumerate() {
        let size = sizes.get(key).copied().unwrap_or(FRAME_BYTES);
        if at > start && bytes + size > FRAME_BYTES {
            slices.push(&keys[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    slices.push(&keys[start..]);
    slices
}

/// The results that failed for good, by page, if their batch draws numbers from a run.
pub(super) async fn given_back(
    store: &Store,
    batch: BatchId,
    settlement: &Settlement,
) -> Result<Vec<(u32, Vec<Row>)>, StoreError> {
    if settlement.failed.is_empty() || !store.draws_numbers(batch).await? {
        return Ok(Vec::new());
    }
    let mut pages: BTreeMap<u32, BTreeSet<CacheKey>> = BTreeMap::new();
    for (item, _) in &settlement.failed {
        for place in &item.places {
            pages.entry(place.page).or_default().insert(item.key);
        }
    }
    let mut given_back = Vec::with_capacity(pages.len());
    for (page, keys) in pages {
        // A page that is sealed has all its outcomes already; none of ours is among them.
        let Some(manifest) = store.manifest(batch, page).await? else { continue };
        let failed = manifest.entries.iter().filter(|entry| keys.contains(&entry.key));
        given_back.push((page, failed.map(|entry| Row { index: entry.index, sample: entry.sample }).collect()));
    }
    Ok(given_back)
}

/// New planned chunks for what is asked again.
async fn follow_ups(held: &Held<'_>, settlement: &Settlement) -> Result<Vec<NewChunk>, StoreError> {
    let groups = settlement.again.iter().map(|items| (items, false));
    let groups: Vec<_> = groups.chain(settlement.joins.iter().map(|items| (items, true))).collect();
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let (chunk, settings) = (held.chunk, &held.gateway.settings);
    let first = held.gateway.store.draw_chunk_numbers(chunk.id.batch, groups.len()).await?;
    let mut chunks = Vec::new();
    for (number, (items, joins)) in (first..).zip(groups) {
        chunks.push(NewChunk {
            id: ChunkId { batch: chunk.id.batch, number },
            lane: chunk.lane.clone(),
            mode: chunk.mode,
            fresh_since: chunk.fresh_since,
            tag: WireTag::new(&settings.deployment, &settings.namespace, &rand::random()),
            items: items.clone(),
            joins,
            wire_bytes: outgoing::weigh(held.gateway, chunk, items).await?,
            deadline: chunk.deadline,
            team: chunk.team.clone(),
            priority: chunk.priority,
            reserved: share(chunk.reserved, items.len() as u64, chunk.prompts as u64),
        });
    }
    Ok(chunks)
}

/// A part of what is reserved, rounded down.
pub(super) fn share(reserved: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(reserved) * u128::from(part.min(whole)) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(reserved)
}

/// What the batch's counts gain: results, where a question may have several; tokens once a question.
fn delta(held: &Held<'_>, settlement: &Settlement, brought: Brought<'_>) -> Delta {
    let mut delta = Delta::default();
    for (item, usage) in &settlement.answered {
        delta.succeeded += u64::from(item.results());
        delta.cached += if brought == Brought::ByCache { u64::from(item.results()) } else { 0 };
        let Usage { input_tokens, cached_input_tokens, output_tokens } = usage;
        let add = |sum: &mut u64, tokens: &u64| *sum += (*tokens).min(MAX_TOKENS);
        add(&mut delta.usage.input_tokens, input_tokens);
        add(&mut delta.usage.cached_input_tokens, cached_input_tokens);
        add(&mut delta.usage.output_tokens, output_tokens);
    }
    for (item, failure) in &settlement.failed {
        let count = match failure.code.ending() {
            Some(Ending::Canceled) => &mut delta.canceled,
            Some(Ending::Expired) => &mut delta.expired,
            None => &mut delta.failed,
        };
        *count += u64::from(item.results());
    }
    if matches!(held.chunk.state, ChunkState::Joining { .. }) {
        return delta; // no provider did anything for it
    }
    let done = settlement.answered.len() + settlement.failed.len();
    delta.reported = i64::try_from(done).unwrap_or(0) - i64::try_from(held.chunk.reported).unwrap_or(0);
    delta
}
