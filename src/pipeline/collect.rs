//! Watches a running chunk and, once its provider batch has ended, reads what there is into a ledger.
//! Every terminal state goes the same way. Answers leave for Redis as lines arrive; the ledger holds no bodies.

use super::{
    account::{self, Move},
    budget,
    commit::{self, Brought, Sizes},
    dispatch::{After, Held, no_provider},
    group::Group,
    patience::insist,
};
use crate::{
    clock::{self, Millis},
    domain::{
        account::{Call, Reason},
        chunk::{Adopted, ChunkState, ClosedLedger, Item, Ledger, Recorded, Search, Verdict},
        identity::Kin,
        key::CacheKey,
        outcome::{Failure, FailureCode, Outcome},
        settlement::Settlement,
    },
    provider::{CallError, Ended, Line, LineFault, LineOutcome, Pressure, Refusal, RemoteId, RemoteStatus},
    store::{StoreError, chunks::Release, commit::Stage, record::Provenance},
};
use futures_util::StreamExt;
use std::{collections::HashMap, time::Duration};

/// Under whose keys nothing is said of what we bought. At another address of the same organisation it may be the same
/// account through a proxy: an id tells.
const ANOTHERS: &[Kin] = &[Kin::Another];

/// One look at a running chunk. However late it comes (all gateways may have been away), it is taken before the chunk is
/// given up: a batch that ended in time has its answers.
pub async fn poll(held: &Held<'_>, remote: &str, adopted: Option<&Adopted>) -> Result<After, StoreError> {
    let remote = RemoteId(remote.to_owned());
    let Some(provider) = held.provider() else {
        return no_provider(held).await;
    };
    if let Some(after) = account::left_alone(held, &**provider, ANOTHERS).await? {
        return Ok(after);
    }
    let passage = match account::enter(held, Call::Read).await? {
        Ok(passage) => passage,
        Err(after) => return Ok(after),
    };
    // An adopted batch may be another's: it is waited for, never cancelled.
    if held.ending.is_some() && !held.chunk.cancel_sent && adopted.is_none() && !held.gives_up() {
        // A Redis that lost its data has no batch that wants the answers, nor our claim: what is paid for goes on.
        if !held.gateway.store.holds(held.lease).await? {
            return Ok(After::Finished);
        }
        return match provider.cancel(&remote).await {
            Ok(()) | Err(CallError::NotFound { .. } | CallError::Refused { .. }) => {
                fail_point!("cancel_sent");
                passage.answered(held).await?;
                if let Some(after) = account::left_alone(held, &**provider, ANOTHERS).await? {
                    return Ok(after);
                }
                tracing::info!(chunk = %held.chunk.id, remote = %remote.0, "provider asked to cancel");
                let sent = vec![("cancel_sent", "1".to_owned())];
                let soon = Release::After(clock::millis(held.gateway.settings.poll_min));
                held.step(&["running"], &held.chunk.state.clone(), sent, soon).await
            }
            Err(error) => held.later(&error).await,
        };
    }
    let status = provider.status(&remote).await;
    if matches!(status, Ok(_) | Err(CallError::NotFound { .. } | CallError::Refused { .. })) {
        passage.answered(held).await?;
        if let Some(after) = account::left_alone(held, &**provider, ANOTHERS).await? {
            return Ok(after); // only now it is known whose key this is
        }
    }
    match status {
        Ok(RemoteStatus::Running { .. }) if held.gives_up() => held.give_up().await,
        Ok(RemoteStatus::Running { reported }) => still_running(held, reported).await,
        Ok(RemoteStatus::Ended(ended)) => {
            fail_point!("ended");
            let (remote, sources, adopted) = (ended.remote.0, ended.sources, adopted.cloned());
            let state = ChunkState::Harvested { remote, sources, looked: false, adopted };
            held.step(&["running"], &state, vec![("fails", "0".to_owned())], Release::Hold).await
        }
        Ok(RemoteStatus::Refused(refusal)) => refused(held, refusal).await,
        Err(CallError::NotFound { detail }) => not_found(held, detail).await,
        Err(error) => held.later(&error).await,
    }
}

async fn still_running(held: &Held<'_>, reported: u64) -> Result<After, StoreError> {
    let wait = held.poll_wait();
    let fields = vec![
        ("polls", (held.chunk.polls + 1).to_string()),
        ("fails", "0".to_owned()),
        ("reported", reported.min(held.chunk.prompts as u64).to_string()),
        ("unknown_since", String::new()),
    ];
    held.step(&["running"], &held.chunk.state.clone(), fields, Release::After(clock::millis(wait))).await
}

/// An id we stored and the provider does not know: patience, never a second submission. The batch's deadline is the end.
async fn not_found(held: &Held<'_>, detail: String) -> Result<After, StoreError> {
    if held.gives_up() {
        return held.give_up().await;
    }
    let since = held.chunk.unknown_since.unwrap_or(held.now);
    if held.now.saturating_sub(since) > 15 * 60 * 1000 {
        tracing::error!(chunk = %held.chunk.id, "the provider has not known this batch for 15 minutes");
    }
    let error = CallError::NotFound { detail };
    let fields = vec![("unknown_since", since.to_string()), ("fails", (held.chunk.fails + 1).to_string())];
    if let Some(detail) = invisible(held, since) {
        let state = &held.chunk.state;
        return account::unseen(held, detail, Move { from: state, to: state, fields }).await;
    }
    let wait = held.back_off(&error).max(clock::millis(held.gateway.settings.poll_min));
    held.step(&["running"], &held.chunk.state.clone(), fields, Release::After(wait)).await
}

/// What to tell of a batch no key sees: at once if its own key is gone, else once it cannot be too fresh any more.
fn invisible(held: &Held<'_>, since: Millis) -> Option<String> {
    let account = &held.chunk.lane.account;
    let made_with = held.chunk.credential.as_deref();
    let gone = made_with.zip(held.provider()).is_some_and(|(name, provider)| !provider.has_credential(name));
    if gone {
        return Some(format!(
            "{account} shows none of its configured keys a batch that was made with another: \
             put that key back behind the new one in api_key_env"
        ));
    }
    let late = held.now.saturating_sub(since) > clock::millis(held.gateway.settings.poll_max);
    late.then(|| format!("{account} has not known a batch it took since {}", clock::rfc3339(since)))
}

/// The provider took the batch and then refused it as a whole.
async fn refused(held: &Held<'_>, refusal: Refusal) -> Result<After, StoreError> {
    let back_to_planned = |fields: Vec<(&'static str, String)>, what: &'static str| async move {
        let wait = back_pressure_wait(held);
        tracing::warn!(chunk = %held.chunk.id, what, wait_ms = wait, "the provider takes the chunk later");
        let fails = ("fails", (held.chunk.fails + 1).to_string());
        let fields = fields.into_iter().chain([fails]).collect();
        held.step(&["running"], &ChunkState::Planned, fields, Release::After(wait)).await
    };
    match refusal {
        Refusal::BackPressure { pressure, .. } => {
            let to_planned = || Move { from: &held.chunk.state, to: &ChunkState::Planned, fields: Vec::new() };
            if let Pressure::Tokens(limit) = pressure {
                return budget::refused(held, &held.chunk.state, limit).await;
            }
            budget::release(held).await?;
            match pressure {
                Pressure::Spent => {
                    let said = "that its quota is spent";
                    account::pause(held, Call::Create, Reason::AccountPaused, said, to_planned()).await
                }
                Pressure::Requests => account::hold_creates(held, back_pressure_wait(held), to_planned()).await,
                Pressure::Tokens(_) | Pressure::Trouble => back_to_planned(Vec::new(), "trouble of its own").await,
            }
        }
        Refusal::InputLost { .. } => {
            budget::release(held).await?;
            back_to_planned(vec![("input", String::new())], "its input file is gone").await
        }
        Refusal::Lines(faults) => {
            let items = held.gateway.store.items(held.chunk.id).await?;
            let first = faults.first().map(|fault| (fault.code.clone(), fault.message.clone()));
            let faults = by_key(&items, faults);
            if faults.is_empty() {
                // Lines that are not in the file say nothing of where the fault is.
                let (code, detail) = first.unwrap_or_default();
                return bisect(held, code, detail).await;
            }
            let ledger = ClosedLedger::faults(&items, &faults);
            commit::settle(held, Settlement::of(items, &ledger, held.rules())).await
        }
        Refusal::Whole { code, detail } => bisect(held, code, detail).await,
    }
}

async fn bisect(held: &Held<'_>, provider_code: Option<String>, message: String) -> Result<After, StoreError> {
    let items = held.gateway.store.items(held.chunk.id).await?;
    let alone = Failure { code: FailureCode::InvalidRequest, message, provider_code, retryable: false };
    commit::settle(held, Settlement::bisect(items, &alone, held.rules())).await
}

/// The shortest poll interval, doubled with every create so far (which only grow), at most ten minutes, with jitter.
fn back_pressure_wait(held: &Held<'_>) -> Millis {
    let doubled = held.gateway.settings.poll_min.saturating_mul(1 << held.chunk.attempt.saturating_sub(1).min(10));
    clock::millis(doubled.min(Duration::from_secs(600)).mul_f64(0.8 + 0.4 * rand::random::<f64>()))
}

/// Line n of an input file is the n-th item: the file was written from them, in this order.
fn by_key(items: &[Item], faults: Vec<LineFault>) -> HashMap<CacheKey, Failure> {
    let failure = |fault: LineFault| {
        let key = items.get(fault.line.checked_sub(1)?)?.key;
        let code = if fault.code.as_deref() == Some("model_not_found") {
            FailureCode::NotFound
        } else {
            FailureCode::InvalidRequest
        };
        Some((key, Failure { code, message: fault.message, provider_code: fault.code, retryable: false }))
    };
    faults.into_iter().filter_map(failure).collect()
}

/// A provider batch that has ended, as the chunk's state knows it.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    pub remote: &'a str,
    pub sources: &'a [String],
    /// Its results were read once already, and lines were missing.
    pub looked: bool,
    /// Found by size and time only.
    pub adopted: Option<&'a Adopted>,
}

/// Reads the results and settles the chunk.
pub async fn harvest(held: &Held<'_>, found: Found<'_>) -> Result<After, StoreError> {
    let Found { remote, sources, looked, adopted } = found;
    let Some(provider) = held.provider() else {
        return no_provider(held).await;
    };
    if let Some(after) = account::left_alone(held, &**provider, ANOTHERS).await? {
        return Ok(after);
    }
    let passage = match account::enter(held, Call::Read).await? {
        Ok(passage) => passage,
        Err(after) => return Ok(after),
    };
    let items = held.gateway.store.items(held.chunk.id).await?;
    let ended = Ended { remote: RemoteId(remote.to_owned()), sources: sources.to_vec() };
    let mut lines = match provider.results(held.chunk.lane.endpoint, &ended).await {
        Ok(lines) => lines,
        Err(error) => return held.later(&error).await,
    };
    commit::begin(held).await?;
    let mut harvest = Harvest::new(held, remote, &items);
    while let Some(line) = lines.next().await {
        match line {
            Ok(line) => {
                if harvest.take(line).await? == Staged::Lost {
                    return Ok(After::Finished);
                }
            }
            Err(error) => return held.later(&error).await, // truncated or stalled: an error to retry, not an end
        }
    }
    passage.answered(held).await?;
    let Some((ledger, sizes)) = harvest.finish().await? else { return Ok(After::Finished) };
    if ledger.strays() > 0 {
        metrics::counter!("batchgate_stray_lines_total").increment(ledger.strays());
        tracing::warn!(chunk = %held.chunk.id, remote, strays = ledger.strays(), "result lines that name no question of the chunk");
    }
    if let Some(adopted) = adopted.filter(|_| ledger.is_foreign()) {
        return foreign(held, remote, adopted).await;
    }
    let ledger = ledger.close();
    let outcome = if ledger.has_missing(&items) { "incomplete" } else { "complete" };
    metrics::counter!("batchgate_harvests_total", "outcome" => outcome).increment(1);
    if held.ending.is_none() && !looked && ledger.has_missing(&items) {
        let (remote, sources, adopted) = (remote.to_owned(), sources.to_vec(), adopted.cloned());
        let again = ChunkState::Harvested { remote, sources, looked: true, adopted };
        let wait = Release::After(clock::millis(held.gateway.settings.poll_min));
        return held.step(&["harvested"], &again, Vec::new(), wait).await;
    }
    let settlement = Settlement::of(items, &ledger, held.rules());
    let stage = Stage::Dispatch(held.lease.token.clone());
    commit::settle_staged(held, settlement, &stage, &sizes, Brought::ByBatch(remote)).await
}

/// Not one line was ours: a batch adopted by its size and time is another's. Back to doubt, and not to this one again.
async fn foreign(held: &Held<'_>, remote: &str, adopted: &Adopted) -> Result<After, StoreError> {
    tracing::warn!(chunk = %held.chunk.id, remote, "the adopted provider batch is another's; in doubt again");
    let mut tried = held.chunk.tried.clone();
    tried.push(remote.to_owned());
    let tried = ("tried", serde_json::to_string(&tried).expect("strings serialize"));
    let newest_before = adopted.newest_before.clone();
    let state = ChunkState::InDoubt(Search { newest_before, ..Search::default() });
    held.step(&["harvested"], &state, vec![tried], Release::After(0)).await
}

/// What became of an answer on its way into Redis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Staged {
    Well,
    /// Another dispatch has the chunk; what was staged is gone again.
    Lost,
}

/// Enters lines into the ledger and stages answers in groups.
struct Harvest<'a> {
    held: &'a Held<'a>,
    ledger: Ledger,
    group: Group,
    sizes: Sizes,
}

impl<'a> Harvest<'a> {
    fn new(held: &'a Held<'a>, remote: &str, items: &[Item]) -> Harvest<'a> {
        let from = Provenance {
            provider_batch: remote.to_owned(),
            request_id: None,
            chunk: held.chunk.id.to_string(),
            at: clock::now_ms(),
            team: held.chunk.team.clone(),
        };
        let ledger = Ledger::open(commit::wire_ids(held.chunk), items);
        Harvest { held, ledger, group: Group::new(from), sizes: Sizes::new() }
    }

    async fn take(&mut self, line: Line) -> Result<Staged, StoreError> {
        let verdict = match &line.outcome {
            LineOutcome::Final(Outcome::Answered(answer)) => {
                Verdict::Answered(answer.reading.usage.unwrap_or_default())
            }
            LineOutcome::Final(Outcome::Failed(failure)) => Verdict::Failed(failure.clone()),
            LineOutcome::Canceled => Verdict::Canceled,
            LineOutcome::Expired => Verdict::Expired,
        };
        let (recorded, key) = self.ledger.record(&line.custom_id, verdict);
        let (Some(key), LineOutcome::Final(Outcome::Answered(answer))) = (key, line.outcome) else {
            return Ok(Staged::Well);
        };
        if !matches!(recorded, Recorded::First | Recorded::Better) {
            return Ok(Staged::Well);
        }
        self.sizes.insert(key, self.group.push(key, answer));
        if self.group.is_full() { self.flush().await } else { Ok(Staged::Well) }
    }

    /// Stages the group; what was staged before is taken back if the chunk was lost meanwhile.
    async fn flush(&mut self) -> Result<Staged, StoreError> {
        let group = self.group.take();
        let (gateway, lease) = (self.held.gateway, self.held.lease);
        if group.is_empty() {
            return Ok(Staged::Well);
        }
        let (store, ttl) = (&gateway.store, gateway.settings.cache_ttl);
        if insist(self.held, "stage answers", || store.stage(lease, &group, ttl)).await? {
            fail_point!("answers_staged");
            return Ok(Staged::Well);
        }
        tracing::warn!(chunk = %lease.chunk, "lost the chunk while reading its results; nothing was changed");
        gateway.store.unstage(&lease.token, self.sizes.keys()).await?;
        Ok(Staged::Lost)
    }

    /// `None` if the chunk was lost.
    async fn finish(mut self) -> Result<Option<(Ledger, Sizes)>, StoreError> {
        let staged = self.flush().await?;
        Ok((staged == Staged::Well).then_some((self.ledger, self.sizes)))
    }
}
