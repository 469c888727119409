//! Finds out what became of a create whose answer was lost. Only looking at the provider's list, twice, with a pause,
//! leads back to planned.
//!
//! Where batches bear our label (OpenAI) the label decides; of two the older is kept and the other cancelled. Where they
//! bear none (Anthropic) a batch of our size that is newer than the newest before the create, and nobody's as far as we
//! know, is taken for ours if it is the only one, and looked into when it has ended; of several, the tag in their first
//! lines tells which. A batch whose label or tag was not read is never cancelled.
//!
//! A Redis that comes back without its last writes may call a chunk planned that was sent. So one that was written at
//! another start of Redis ([`crate::store::Store::server`]) is looked for, once, before it is created: for the attempt after the
//! last one known and all that may have followed it. Where batches bear no label, every batch of its size counts that nobody
//! is known to own and that is not older than the chunk's own batch, less an hour for clocks that differ. (Not: newer than
//! the newest that was listed before some create. Whatever Redis kept of that, the next create writes over it before all
//! have looked.) There may be several of the same size, of several chunks, so even a single one is taken by its tag alone.

use super::{
    account::{self, Move, Passage},
    commit, creates,
    dispatch::{After, Held, no_provider, running},
};
use crate::{
    clock,
    domain::{
        account::{Call, Reason, Waits},
        chunk::{Adopted, ChunkState, Search},
        identity::{Identity, Kin},
    },
    provider::{BatchProvider, CallError, Candidate, Doubt, Evidence, InputFile, RemoteId, RemoteStatus},
    store::{StoreError, chunks::Release},
};
use futures_util::StreamExt;

/// Looks at the provider's list before a create counts as not made.
const LOOKS: u32 = 2;

/// What to tell of a chunk in doubt.
pub fn waits(search: &Search) -> Waits {
    let detail = match (search.candidates.len(), search.by_tag) {
        (0, false) => {
            "the answer to a create was lost; its batch is looked for before anything is sent again".to_owned()
        }
        (0, true) => {
            "Redis was restarted and may have lost that these were sent: they are looked for before they are".to_owned()
        }
        (several, _) => format!(
            "the answer to a create was lost, and {several} provider batches may be it: which one, each tells when it ends"
        ),
    };
    Waits { reason: Some(Reason::InDoubt), detail, group: None }
}

pub fn identity(identity: &Identity) -> (&'static str, String) {
    ("identity", serde_json::to_string(identity).expect("strings serialize"))
}

/// What is written down of the next attempt.
pub fn attempt(held: &Held<'_>, provider: &dyn BatchProvider) -> Vec<(&'static str, String)> {
    let number = ("attempt", (held.chunk.attempt + 1).to_string());
    vec![number, ("credential", provider.credential()), identity(&provider.identity())]
}

/// A dispatch before ours died between intent and id, or the answer was lost: look at the provider's list, soon.
pub async fn begin(held: &Held<'_>, newest_before: Option<String>) -> Result<After, StoreError> {
    let soon = clock::millis(held.gateway.settings.poll_min);
    let state = ChunkState::InDoubt(Search { newest_before, ..Search::default() });
    held.step(&["submitting"], &state, Vec::new(), Release::After(soon)).await
}

/// The chunk is planned, as a Redis says that has been restarted since it was written.
pub async fn after_restart(held: &Held<'_>, provider: &dyn BatchProvider) -> Result<After, StoreError> {
    tracing::info!(chunk = %held.chunk.id, "redis was restarted: the chunk is looked for before it is sent");
    let state = ChunkState::InDoubt(Search { by_tag: true, ..Search::default() });
    held.step(&["planned"], &state, attempt(held, provider), Release::Hold).await
}

/// Looks for the batch of a create whose answer was lost.
pub async fn look(held: &Held<'_>, search: &Search) -> Result<After, StoreError> {
    let Some(provider) = held.provider() else {
        creates::release(held).await;
        return no_provider(held).await;
    };
    if held.gives_up() {
        let after = held.give_up().await?;
        creates::release(held).await;
        return Ok(after);
    }
    if let Some(after) = left_alone(held, &**provider).await? {
        return Ok(after);
    }
    let passage = match account::enter(held, Call::Read).await? {
        Ok(passage) => passage,
        Err(after) => return Ok(after),
    };
    if !search.candidates.is_empty() {
        return read_tags(held, &**provider, passage, search).await;
    }
    if let Err(after) = creates::take(held, &**provider).await? {
        return Ok(after);
    }
    let server = held.gateway.store.server().await?;
    fail_point!("looking");
    let found = match provider.find(&question(held, search)).await {
        Ok(found) => found,
        Err(CallError::NotFound { .. }) => {
            passage.answered(held).await?;
            return match left_alone(held, &**provider).await? {
                Some(after) => Ok(after),
                None => keyless(held).await,
            };
        }
        Err(error) => return held.later(&error).await,
    };
    passage.answered(held).await?;
    if let Some(after) = left_alone(held, &**provider).await? {
        return Ok(after);
    }
    let candidates = possible(held, found).await?;
    decide(held, &**provider, search, candidates, server).await
}

/// Under another organisation's key, or at another address, nothing can be said of what was sent. The turn to create is
/// given back: what others make meanwhile is known by its id.
async fn left_alone(held: &Held<'_>, provider: &dyn BatchProvider) -> Result<Option<After>, StoreError> {
    let left = account::left_alone(held, provider, &[Kin::Another, Kin::Moved]).await?;
    if left.is_some() {
        creates::release(held).await;
    }
    Ok(left)
}

/// The key the create was sent with is not let in; what it made may be invisible to the others.
async fn keyless(held: &Held<'_>) -> Result<After, StoreError> {
    let detail = format!(
        "it is not certain whether {} took a chunk, for the key it was sent with is not let in any more: \
         put that key back behind the new one in api_key_env, or cancel the batch",
        held.chunk.lane.account
    );
    let state = &held.chunk.state;
    let after = account::unseen(held, detail, Move { from: state, to: state, fields: Vec::new() }).await?;
    creates::release(held).await;
    Ok(after)
}

fn question(held: &Held<'_>, search: &Search) -> Doubt {
    let chunk = held.chunk;
    Doubt {
        chunk: chunk.id.to_string(),
        deployment: held.gateway.settings.deployment.clone(),
        attempt: chunk.unaccounted.unwrap_or(chunk.attempt),
        prompts: chunk.prompts,
        input: chunk.input.clone().map(InputFile),
        credential: chunk.credential.clone(),
        identity: chunk.identity.clone(),
        not_before: chunk.id.batch.created_at(),
        newest_before: search.newest_before.as_deref().and_then(|text| serde_json::from_str(text).ok()),
    }
}

/// Oldest first, without those that are known to be another chunk's or were looked into in vain.
async fn possible(held: &Held<'_>, found: Vec<Candidate>) -> Result<Vec<Candidate>, StoreError> {
    let mut possible = Vec::new();
    for candidate in found.into_iter().rev() {
        if candidate.evidence == Evidence::Size {
            let tried = held.chunk.tried.contains(&candidate.remote.0);
            let (store, account, id) = (&held.gateway.store, &held.chunk.lane.account, held.chunk.id);
            if tried || store.is_anothers(account, &candidate.remote.0, id).await? {
                continue;
            }
        }
        possible.push(candidate);
    }
    Ok(possible)
}

async fn decide(
    held: &Held<'_>,
    provider: &dyn BatchProvider,
    search: &Search,
    candidates: Vec<Candidate>,
    server: String,
) -> Result<After, StoreError> {
    if let Some(kept) = candidates.iter().find(|one| one.evidence != Evidence::Size) {
        for other in candidates.iter().filter(|one| one.evidence == Evidence::Label && one.remote != kept.remote) {
            if let Err(error) = cancel_double(held, provider, &other.remote).await {
                return held.later(&error).await;
            }
        }
        return found(held, provider, &kept.remote, None).await;
    }
    match &candidates[..] {
        [] => not_found(held, search, server).await,
        [only] if !search.by_tag => {
            let adopted = Adopted { newest_before: search.newest_before.clone() };
            found(held, provider, &only.remote, Some(adopted)).await
        }
        several => {
            let candidates: Vec<String> = several.iter().map(|one| one.remote.0.clone()).collect();
            tracing::warn!(chunk = %held.chunk.id, ?candidates, "any of these may be it; their tags will tell");
            metrics::counter!("batchgate_doubts_total", "outcome" => "several").increment(1);
            let state = ChunkState::InDoubt(Search { candidates, looks: 0, ..search.clone() });
            let soon = Release::After(clock::millis(held.gateway.settings.poll_min));
            let after = held.step(&["in_doubt"], &state, vec![("polls", "0".to_owned())], soon).await?;
            creates::release(held).await;
            Ok(after)
        }
    }
}

/// A second batch with the same label, made by the same create or one that was thought lost.
async fn cancel_double(held: &Held<'_>, provider: &dyn BatchProvider, remote: &RemoteId) -> Result<(), CallError> {
    match provider.cancel(remote).await {
        Ok(()) | Err(CallError::NotFound { .. } | CallError::Refused { .. }) => {}
        Err(error) => return Err(error),
    }
    tracing::warn!(chunk = %held.chunk.id, remote = %remote.0, "a second provider batch of this chunk was cancelled");
    metrics::counter!("batchgate_duplicates_total", "outcome" => "cancelled").increment(1);
    Ok(())
}

/// `adopted`: by its size alone.
async fn found(
    held: &Held<'_>,
    provider: &dyn BatchProvider,
    remote: &RemoteId,
    adopted: Option<Adopted>,
) -> Result<After, StoreError> {
    fail_point!("found");
    tracing::info!(chunk = %held.chunk.id, remote = %remote.0, certain = adopted.is_none(), "doubt settled: found");
    metrics::counter!("batchgate_doubts_total", "outcome" => "found").increment(1);
    if adopted.is_none() {
        creates::know(held, provider, remote).await?;
    }
    let after = running(held, &["in_doubt"], remote, adopted, Vec::new()).await?;
    creates::release(held).await;
    Ok(after)
}

/// `server`: which start of Redis answered before the list was read.
async fn not_found(held: &Held<'_>, search: &Search, server: String) -> Result<After, StoreError> {
    if search.looks + 1 < LOOKS {
        let pause = Release::After(clock::millis(held.gateway.settings.poll_max));
        let state = ChunkState::InDoubt(Search { looks: search.looks + 1, ..search.clone() });
        let after = held.step(&["in_doubt"], &state, Vec::new(), pause).await?;
        if search.by_tag {
            creates::release(held).await; // nothing of this chunk is in the air: others may look, and create, meanwhile
        }
        return Ok(after);
    }
    tracing::info!(chunk = %held.chunk.id, looks = LOOKS, "doubt settled: never created");
    metrics::counter!("batchgate_doubts_total", "outcome" => "not_found").increment(1);
    let unaccounted = held.chunk.unaccounted.unwrap_or(held.chunk.attempt);
    let fields = vec![("unaccounted", unaccounted.to_string()), ("server", server)];
    let after = held.step(&["in_doubt"], &ChunkState::Planned, fields, Release::After(0)).await?;
    creates::release(held).await;
    Ok(after)
}

/// Looks into those of the candidates that have ended.
async fn read_tags(
    held: &Held<'_>,
    provider: &dyn BatchProvider,
    passage: Passage,
    search: &Search,
) -> Result<After, StoreError> {
    let (mut ours, mut left, mut tried) = (Vec::new(), Vec::new(), held.chunk.tried.clone());
    for id in &search.candidates {
        match tag(held, provider, &RemoteId(id.clone())).await {
            Ok(Tag::Ours) => ours.push(id),
            Ok(Tag::Anothers) => tried.push(id.clone()),
            Ok(Tag::Later) => left.push(id.clone()),
            Ok(Tag::Gone) => {}
            Err(error) => return held.later(&error).await,
        }
    }
    passage.answered(held).await?;
    if let Some((kept, doubles)) = ours.split_first() {
        metrics::counter!("batchgate_duplicates_total", "outcome" => "ended").increment(doubles.len() as u64);
        return found(held, provider, &RemoteId((*kept).clone()), None).await;
    }
    let wait = if left.is_empty() { 0 } else { clock::millis(held.poll_wait()) };
    let state = ChunkState::InDoubt(Search { candidates: left, looks: 0, ..search.clone() });
    let tried = ("tried", serde_json::to_string(&tried).expect("strings serialize"));
    let polls = ("polls", (held.chunk.polls + 1).to_string());
    held.step(&["in_doubt"], &state, vec![tried, polls], Release::After(wait)).await
}

/// Whose batch it is.
enum Tag {
    Ours,
    Anothers,
    /// It has not ended, or its results are not there yet.
    Later,
    /// The provider does not know it any more. If it still is in the list, the next look finds it.
    Gone,
}

async fn tag(held: &Held<'_>, provider: &dyn BatchProvider, remote: &RemoteId) -> Result<Tag, CallError> {
    let ended = match provider.status(remote).await {
        Ok(RemoteStatus::Ended(ended)) => ended,
        Ok(RemoteStatus::Running { .. } | RemoteStatus::Refused(_)) => return Ok(Tag::Later),
        Err(CallError::NotFound { .. }) => return Ok(Tag::Gone),
        Err(error) => return Err(error),
    };
    let mut lines = match provider.results(held.chunk.lane.endpoint, &ended).await {
        Ok(lines) => lines,
        Err(CallError::NotFound { .. }) => return Ok(Tag::Later),
        Err(error) => return Err(error),
    };
    match lines.next().await {
        Some(Ok(line)) if commit::wire_ids(held.chunk).read(&line.custom_id).is_some() => Ok(Tag::Ours),
        Some(Ok(_)) | None => Ok(Tag::Anothers),
        Some(Err(CallError::NotFound { .. })) => Ok(Tag::Later),
        Some(Err(error)) => Err(error),
    }
}
