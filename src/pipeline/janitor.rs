//! Looks after what was paid for and nobody reads: provider batches of ours whose chunk is gone (a Redis that came up
//! empty, or from an older snapshot), or was settled without them (the deadline and its patience were over, a create's
//! answer was lost for good). Their answers enter the cache, so that who asks again does not pay again.
//!
//! Per account it walks the provider's list of batches, newest first. It creates, cancels and deletes nothing there,
//! changes no chunk and no batch, and reads no results of a batch that bears another deployment's tag; where a provider
//! keeps no labels, the first line of the results tells, once. A batch whose chunk has it in hand is its worker's.
//!
//! Everything here may be done twice, and may break off anywhere: what was read whole is noted at its end, and only then.

use super::{
    Gateway, Provider,
    account::{Caller, Passage},
    group::Group,
};
use crate::{
    clock::{self, Millis},
    domain::{
        account::Call,
        chunk::{ChunkState, WireId},
        id::{ChunkId, Token, WireTag},
        outcome::Outcome,
        prompt::Endpoint,
    },
    provider::{BatchProvider, CallError, Cursor, Ended, Label, LineOutcome, Listed, Listing, RemoteId, RemoteStatus},
    store::{StoreError, chunks::Chunk, janitor::Noted, record::Provenance},
};
use futures_util::StreamExt;
use std::{sync::Arc, time::Duration, time::Instant};

/// Pages of an account's list in one pass; the next pass goes on behind them.
const PAGES: usize = 20;
/// Reads that may fail in one pass: the provider has a trouble of its own then.
const FAILURES: u32 = 3;
/// Results that are not there may be late; after so long they are gone.
const LATE: Duration = Duration::from_secs(24 * 60 * 60);

/// Looks once at every account that has batches.
pub async fn pass(gateway: &Gateway) -> Result<(), StoreError> {
    let name = Token::new(&rand::random());
    for (account, provider) in &gateway.providers {
        let Provider::Batch(provider) = provider else { continue };
        let caller = Caller { gateway, account, name: name.as_str() };
        let home = WireTag::home(&gateway.settings.deployment, &gateway.settings.namespace);
        let walked = Walk { caller, provider, home, began: Instant::now(), failures: 0 }.run().await?;
        let labels = [("account", account.clone()), ("outcome", walked.word().to_owned())];
        metrics::counter!("batchgate_janitor_passes_total", &labels).increment(1);
    }
    Ok(())
}

/// How a pass over one account ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walked {
    /// At the end of the list; the next pass begins at its head.
    Through,
    /// In the midst of it, for this pass was long enough.
    Partly,
    /// The account is paused or held back.
    Shut,
    /// The provider failed again and again.
    Failed,
}

impl Walked {
    fn word(self) -> &'static str {
        match self {
            Walked::Through => "through",
            Walked::Partly => "partly",
            Walked::Shut => "shut",
            Walked::Failed => "failed",
        }
    }
}

/// One pass over one account.
struct Walk<'a> {
    caller: Caller<'a>,
    provider: &'a Arc<dyn BatchProvider>,
    /// What our wire ids begin with.
    home: String,
    began: Instant,
    failures: u32,
}

/// Why results could not be read to their end.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What a look into a batch's results said.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// Ours: so many answers, of which so many were new to the cache.
    Ours { answers: usize, kept: usize },
    /// Not a line was ours.
    Foreign,
    /// Older than the cache keeps answers.
    Old,
}

/// The chunk a provider's batch was made for.
struct Owner {
    id: ChunkId,
    /// None once it is gone.
    chunk: Option<Chunk>,
}

impl Walk<'_> {
    async fn run(&mut self) -> Result<Walked, StoreError> {
        let (store, account) = (&self.caller.gateway.store, self.caller.account);
        let stored = store.walk(account).await?;
        let mut place: Cursor = stored.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        for _ in 0..PAGES {
            let listing = match self.page(&place).await? {
                Ok(listing) => listing,
                Err(walked) => return Ok(walked),
            };
            if let Some(walked) = self.look_at(listing.batches).await? {
                return Ok(walked);
            }
            let Some(next) = listing.next else {
                store.set_walk(account, None).await?;
                return Ok(Walked::Through);
            };
            let text = serde_json::to_string(&next).expect("a cursor serializes");
            store.set_walk(account, Some(&text)).await?;
            place = next;
        }
        Ok(Walked::Partly)
    }

    async fn page(&mut self, place: &Cursor) -> Result<Result<Listing, Walked>, StoreError> {
        let Some(passage) = self.caller.enter(Call::Read).await? else { return Ok(Err(Walked::Shut)) };
        let error = match self.provider.list(place).await {
            Ok(listing) => {
                passage.answered_to(&self.caller).await?;
                return Ok(Ok(listing));
            }
            Err(error) => error,
        };
        self.told(passage, &error).await?;
        tracing::warn!(account = self.caller.account, error = error.head(), "the janitor cannot list batches");
        if matches!(error, CallError::NotFound { .. } | CallError::Refused { .. }) {
            // The batch behind which the walk was to go on may have been deleted.
            self.caller.gateway.store.set_walk(self.caller.account, None).await?;
        }
        Ok(Err(Walked::Failed))
    }

    /// Reads what wants to be read of a page; why the pass ends there, if it does.
    async fn look_at(&mut self, mut batches: Vec<Listed>) -> Result<Option<Walked>, StoreError> {
        let (store, settings) = (&self.caller.gateway.store, &self.caller.gateway.settings);
        count("seen", batches.len());
        // A pass that ends within a page comes back to it; whatever held it up then stands at another place.
        let first = rand::random_range(0..batches.len().max(1));
        batches.rotate_left(first);
        let remotes: Vec<&str> = batches.iter().map(|batch| batch.remote.0.as_str()).collect();
        let noted = store.noted(&remotes).await?;
        for batch in &batches {
            let remote = batch.remote.0.as_str();
            match judge(batch, &settings.deployment, noted.get(remote).copied()) {
                Judged::Leave => continue,
                Judged::Foreign => {
                    count("foreign", 1);
                    continue;
                }
                Judged::Look(..) => {}
            }
            let owner = self.owner(batch).await?;
            let chunk = owner.as_ref().and_then(|owner| owner.chunk.as_ref());
            if chunk.is_some_and(|chunk| is_in_hand(&chunk.state, &batch.remote)) {
                continue;
            }
            // Its worker may have been faster: what a settled chunk harvested is noted with its end, so after this look.
            let known = store.noted(&[remote]).await?.remove(remote);
            let Judged::Look(ended, endpoint) = judge(batch, &settings.deployment, known) else { continue };
            if let Some(walked) = self.take(batch, (ended, endpoint), known, owner.as_ref()).await? {
                return Ok(Some(walked));
            }
            if self.began.elapsed() >= settings.janitor {
                return Ok(Some(Walked::Partly));
            }
        }
        Ok(None)
    }

    /// Reads a batch nobody reads, and notes what it was.
    async fn take(
        &mut self,
        batch: &Listed,
        from: (&Ended, Endpoint),
        known: Option<Noted>,
        owner: Option<&Owner>,
    ) -> Result<Option<Walked>, StoreError> {
        let (store, account, remote) = (&self.caller.gateway.store, self.caller.account, &batch.remote.0);
        let Some(passage) = self.caller.enter(Call::Read).await? else { return Ok(Some(Walked::Shut)) };
        fail_point!("janitor_found");
        let error = match self.read(batch, from, owner).await {
            Ok(look) => {
                passage.answered_to(&self.caller).await?;
                store.note(remote, self.report(batch, &look)).await?;
                fail_point!("janitor_noted");
                return Ok(None);
            }
            Err(Trouble::Store(error)) => return Err(error),
            Err(Trouble::Call(error)) => error,
        };
        self.told(passage, &error).await?;
        match error {
            CallError::NotFound { .. } | CallError::Refused { .. } => {
                let noted = absent(known, clock::now_ms());
                if noted == Noted::Gone {
                    tracing::warn!(account, remote, "the results of a batch nobody harvested are gone");
                }
                store.note(remote, noted).await?;
                Ok(None)
            }
            CallError::Again { .. } | CallError::Paused { .. } => {
                tracing::warn!(
                    account,
                    remote,
                    error = error.head(),
                    "the janitor could not read a batch; another time"
                );
                count("failed", 1);
                self.failures += 1;
                let stop = self.failures >= FAILURES || matches!(error, CallError::Paused { .. });
                Ok(stop.then_some(Walked::Failed))
            }
        }
    }

    /// Streams the results into the cache, where their places are free.
    async fn read(
        &self,
        batch: &Listed,
        (ended, endpoint): (&Ended, Endpoint),
        owner: Option<&Owner>,
    ) -> Result<Look, Trouble> {
        let (store, settings) = (&self.caller.gateway.store, &self.caller.gateway.settings);
        let now = clock::now_ms();
        // An answer is as old as its batch, however late it is found.
        let at = batch.ended_at.unwrap_or(now).min(now);
        let Some(ttl) = remaining(settings.cache_ttl, now - at) else { return Ok(Look::Old) };
        let mut lines = self.provider.results(endpoint, ended).await?;
        let mut group = Group::new(provenance(batch, owner, at));
        let (mut answers, mut kept, mut ours, mut strays) = (0, 0, false, 0);
        while let Some(line) = lines.next().await {
            let line = line?;
            let Some(id) = WireId::read(&line.custom_id, &self.home) else {
                if !ours && batch.label == Label::Unkept {
                    return Ok(Look::Foreign); // the first line tells, and no other is looked at
                }
                strays += 1;
                continue;
            };
            ours = true;
            if !id.may_enter_cache {
                return Ok(Look::Ours { answers: 0, kept: 0 }); // of a chunk all may, or none
            }
            let LineOutcome::Final(Outcome::Answered(answer)) = line.outcome else { continue };
            answers += 1;
            group.push(id.key, answer);
            if group.is_full() {
                kept += store.keep(&group.take(), ttl).await?;
            }
        }
        kept += store.keep(&group.take(), ttl).await?;
        fail_point!("janitor_kept", StoreError);
        metrics::counter!("batchgate_stray_lines_total").increment(strays);
        Ok(if ours || strays == 0 { Look::Ours { answers, kept } } else { Look::Foreign })
    }

    /// Says what was found, and gives what is remembered of it.
    fn report(&self, batch: &Listed, look: &Look) -> Noted {
        let (account, remote) = (self.caller.account, &batch.remote.0);
        match look {
            Look::Foreign => {
                count("foreign", 1);
                tracing::debug!(account, remote, "another deployment's batch, left alone from now on");
                Noted::Foreign
            }
            Look::Old => Noted::Gone,
            Look::Ours { answers, kept } => {
                count("adopted", 1);
                metrics::counter!("batchgate_janitor_answers_total").increment(*kept as u64);
                tracing::info!(account, remote, answers, kept, "kept the answers of a batch nobody had harvested");
                Noted::Kept
            }
        }
    }

    /// The chunk a batch was made for: by its create's own answer, else by the label.
    async fn owner(&self, batch: &Listed) -> Result<Option<Owner>, StoreError> {
        let store = &self.caller.gateway.store;
        let labelled = match &batch.label {
            Label::Says { chunk, .. } => ChunkId::parse(chunk),
            Label::Missing | Label::Unkept => None,
        };
        let Some(id) = store.remote_owner(&batch.remote.0).await?.or(labelled) else { return Ok(None) };
        match store.chunk(id).await {
            Ok(chunk) => Ok(Some(Owner { id, chunk })),
            // Nobody can work on a chunk that cannot be read: then nobody else reads its batch.
            Err(StoreError::Corrupt { .. }) => Ok(Some(Owner { id, chunk: None })),
            Err(away) => Err(away),
        }
    }

    /// Tells the account what a failed call says of it.
    async fn told(&self, passage: Passage, error: &CallError) -> Result<(), StoreError> {
        match error {
            CallError::NotFound { .. } | CallError::Refused { .. } => passage.answered_to(&self.caller).await,
            CallError::Again { .. } | CallError::Paused { .. } => passage.failed(&self.caller, error).await,
        }
    }
}

fn count(outcome: &'static str, batches: usize) {
    metrics::counter!("batchgate_janitor_batches_total", "outcome" => outcome).increment(batches as u64);
}

/// What the list alone says of a batch.
#[derive(Debug, PartialEq)]
enum Judged<'a> {
    /// It runs, made nothing, or is done with.
    Leave,
    /// It bears another's label, or none where ours have one.
    Foreign,
    /// Ended, ours or perhaps ours, and nobody has read it yet, unless its chunk is about to.
    Look(&'a Ended, Endpoint),
}

fn judge<'a>(batch: &'a Listed, deployment: &str, known: Option<Noted>) -> Judged<'a> {
    match &batch.label {
        Label::Says { deployment: whose, .. } if whose != deployment => return Judged::Foreign,
        Label::Missing => return Judged::Foreign,
        Label::Says { .. } | Label::Unkept => {}
    }
    match known {
        Some(Noted::Foreign) => return Judged::Foreign,
        Some(Noted::Harvested | Noted::Kept | Noted::Gone) => return Judged::Leave,
        Some(Noted::Missing { .. }) | None => {}
    }
    match (&batch.status, batch.endpoint) {
        (RemoteStatus::Ended(ended), Some(endpoint)) => Judged::Look(ended, endpoint),
        (RemoteStatus::Ended(_) | RemoteStatus::Running { .. } | RemoteStatus::Refused(_), _) => Judged::Leave,
    }
}

/// Whether its chunk will read this batch itself: it knows it, or is about to look for it.
fn is_in_hand(state: &ChunkState, batch: &RemoteId) -> bool {
    match state {
        ChunkState::Submitting { .. } | ChunkState::InDoubt { .. } => true,
        ChunkState::Running { remote, .. } | ChunkState::Harvested { remote, .. } => *remote == batch.0,
        ChunkState::Joining { .. } | ChunkState::Planned | ChunkState::Asking | ChunkState::Settled => false,
    }
}

/// What to remember of results that are not there.
fn absent(known: Option<Noted>, now: Millis) -> Noted {
    match known {
        Some(Noted::Missing { since }) if now.saturating_sub(since) > clock::millis(LATE) => Noted::Gone,
        Some(Noted::Missing { since }) => Noted::Missing { since },
        _ => Noted::Missing { since: now },
    }
}

/// What is left of an answer's time in the cache; none once it is over.
fn remaining(cache_ttl: Duration, age: Millis) -> Option<Duration> {
    cache_ttl.checked_sub(Duration::from_millis(age)).filter(|left| !left.is_zero())
}

fn provenance(batch: &Listed, owner: Option<&Owner>, at: Millis) -> Provenance {
    Provenance {
        provider_batch: batch.remote.0.clone(),
        request_id: None,
        chunk: owner.map(|owner| owner.id.to_string()).unwrap_or_default(),
        at,
        team: owner.and_then(|owner| owner.chunk.as_ref()).map(|chunk| chunk.team.clone()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::chunk::Search;

    const HOUR: Millis = 60 * 60 * 1_000;

    fn ended() -> RemoteStatus {
        RemoteStatus::Ended(Ended { remote: RemoteId("b1".to_owned()), sources: vec!["f".to_owned()] })
    }

    fn listed(label: Label, status: RemoteStatus) -> Listed {
        let remote = RemoteId("b1".to_owned());
        Listed { remote, label, status, endpoint: Some(Endpoint::Messages), ended_at: Some(5) }
    }

    fn says(deployment: &str) -> Label {
        Label::Says { deployment: deployment.to_owned(), chunk: "c".to_owned() }
    }

    fn looks(judged: &Judged<'_>) -> bool {
        matches!(judged, Judged::Look(..))
    }

    #[test]
    fn only_what_may_be_ours_and_has_ended_is_looked_into() {
        for label in [says("ours"), Label::Unkept] {
            assert!(looks(&judge(&listed(label.clone(), ended()), "ours", None)), "{label:?}");
            let running = listed(label.clone(), RemoteStatus::Running { reported: 1 });
            assert_eq!(judge(&running, "ours", None), Judged::Leave);
            let unknown = Listed { endpoint: None, ..listed(label, ended()) };
            assert_eq!(judge(&unknown, "ours", None), Judged::Leave);
        }
        for label in [says("theirs"), says(""), Label::Missing] {
            assert_eq!(judge(&listed(label, ended()), "ours", None), Judged::Foreign);
        }
    }

    #[test]
    fn what_is_done_with_is_read_no_second_time() {
        let batch = listed(Label::Unkept, ended());
        for known in [Noted::Harvested, Noted::Kept, Noted::Gone] {
            assert_eq!(judge(&batch, "ours", Some(known)), Judged::Leave, "{known:?}");
        }
        assert_eq!(judge(&batch, "ours", Some(Noted::Foreign)), Judged::Foreign);
        assert!(looks(&judge(&batch, "ours", Some(Noted::Missing { since: 1 }))), "late results are asked for again");
    }

    #[test]
    fn a_chunk_that_has_the_batch_in_hand_reads_it_itself() {
        let batch = RemoteId("b1".to_owned());
        let running = |remote: &str| ChunkState::Running { remote: remote.to_owned(), adopted: None };
        let harvested = |remote: &str| ChunkState::Harvested {
            remote: remote.to_owned(),
            sources: Vec::new(),
            looked: true,
            adopted: None,
        };
        let in_hand = [
            ChunkState::Submitting { newest_before: None },
            ChunkState::InDoubt(Search::default()),
            running("b1"),
            harvested("b1"),
        ];
        for state in in_hand {
            assert!(is_in_hand(&state, &batch), "{state:?}");
        }
        // Sent again since, or settled without it: nobody will read this one.
        let left = [ChunkState::Planned, ChunkState::Asking, running("b2"), harvested("b2"), ChunkState::Settled];
        for state in left {
            assert!(!is_in_hand(&state, &batch), "{state:?}");
        }
    }

    #[test]
    fn missing_results_are_gone_after_a_day() {
        let since = Noted::Missing { since: 100 };
        assert_eq!(absent(None, 100), since);
        assert_eq!(absent(Some(since), 100 + 24 * HOUR), since);
        assert_eq!(absent(Some(since), 101 + 24 * HOUR), Noted::Gone);
    }

    #[test]
    fn an_answer_found_late_lives_no_longer_than_any_other() {
        let hours = |n: u64| Duration::from_secs(n * 60 * 60);
        assert_eq!(remaining(hours(24), 0), Some(hours(24)));
        assert_eq!(remaining(hours(24), 23 * HOUR), Some(hours(1)));
        for age in [24 * HOUR, 25 * HOUR] {
            assert_eq!(remaining(hours(24), age), None);
        }
    }
}
