//! Holds every open batch against its chunks and pages, and puts right what damage, or a fault of ours, left behind: a
//! chunk or page in no queue, a counter that tells something else than the chunks do, a batch that should have ended.
//!
//! What is promised in all (`pipeline::room`) is held against the batches in the same way, once a pass.
//!
//! A look takes in a whole batch at one moment, so work in hand is never mistaken for damage; still nothing is touched
//! before a second look, a pause later, has found the very same. Each repair looks once more by itself. It queues, counts
//! and ends; it never plans a prompt and never asks a provider. What cannot be put right that way (a chunk whose record is
//! gone: its prompts may be in a provider's hands, and to ask them anew might be to pay twice) is told by log and metric,
//! pass after pass. Only once its batch was cancelled or is past its deadline, and no chunk of it lives, do prompts end
//! without an answer here, as they would have in the hands of their chunk.

use super::{Gateway, open_page::OpenPage, seal};
use crate::{
    domain::{
        id::{BatchId, ChunkId},
        outcome::Ending,
    },
    store::{
        StoreError,
        pages::FrameWriter,
        reconcile::{LOOK, Look, Place, Repair},
        record::Known,
        seal::Sealed,
    },
};
use std::time::Duration;

/// Open batches looked at in a pass; the next goes on behind them.
const BATCHES: u64 = 200;
/// Longest pause between two looks.
const PAUSE: Duration = Duration::from_secs(2);
/// How long after its deadline a batch's last answers are waited for before its lost prompts end: longer than any chunk's
/// own patience with a provider.
const PATIENCE_MS: i64 = 60 * 60 * 1000;

/// What the reconciler may do (`BATCHGATE_RECONCILE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    Off,
    /// Look, count and log; change nothing.
    Report,
    #[default]
    Repair,
}

impl Mode {
    /// # Errors
    /// None of the three words.
    pub fn parse(text: &str) -> Result<Mode, String> {
        match text {
            "off" => Ok(Mode::Off),
            "report" => Ok(Mode::Report),
            "repair" => Ok(Mode::Repair),
            _ => Err(format!("{text:?} is none of off, report, repair")),
        }
    }
}

/// Something that is not as it should be. The same at two looks is damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A live chunk in no queue.
    ChunkLost(u32),
    /// A live chunk in several.
    ChunkTwice(u32),
    /// A ready chunk whose lane nobody looks at.
    LaneLost(u32),
    /// A chunk nobody can read.
    ChunkUnreadable(u32),
    /// A complete page no sealer will look at.
    PageLost(u32),
    Counter {
        name: String,
        stored: i64,
        actual: i64,
    },
    /// Results without an outcome that no live chunk will bring one (or, `live` above `pending`, outcomes counted twice).
    Pending {
        pending: i64,
        live: i64,
    },
    /// A page lacks outcomes that nobody will bring, in a batch that wants no more answers.
    PageAbandoned(u32, Ending),
    /// All pages are sealed, and the batch did not end.
    NotEnded,
    /// It stands among the open batches and does not belong there, or belongs there and does not stand there.
    OpenEntry {
        belongs: bool,
    },
    /// An ended batch that nobody will remove.
    ChoreLost,
    /// Its own facts cannot be read.
    BatchUnreadable,
}

impl Finding {
    /// The word in logs and metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Finding::ChunkLost(_) => "chunk_lost",
            Finding::ChunkTwice(_) => "chunk_twice",
            Finding::LaneLost(_) => "lane_lost",
            Finding::ChunkUnreadable(_) => "chunk_unreadable",
            Finding::PageLost(_) => "page_lost",
            Finding::Counter { .. } => "counter",
            Finding::Pending { .. } => "pending",
            Finding::PageAbandoned(..) => "page_abandoned",
            Finding::NotEnded => "not_ended",
            Finding::OpenEntry { .. } => "open_entry",
            Finding::ChoreLost => "chore_lost",
            Finding::BatchUnreadable => "batch_unreadable",
        }
    }
}

/// What one look finds wrong.
pub fn findings(look: &Look) -> Vec<Finding> {
    if !look.exists || look.ended {
        let stray = look.open.then_some(Finding::OpenEntry { belongs: false });
        let chore = (look.exists && !look.chore).then_some(Finding::ChoreLost);
        return stray.into_iter().chain(chore).collect();
    }
    if look.unreadable {
        return vec![Finding::BatchUnreadable];
    }
    let mut found = Vec::new();
    if !look.open {
        found.push(Finding::OpenEntry { belongs: true });
    }
    let told = &look.told;
    found.extend(told.lost.iter().copied().map(Finding::ChunkLost));
    found.extend(told.twice.iter().copied().map(Finding::ChunkTwice));
    found.extend(told.laneless.iter().copied().map(Finding::LaneLost));
    found.extend(told.unreadable.iter().copied().map(Finding::ChunkUnreadable));
    if !look.whole {
        return found;
    }
    let page = |page: u32| abandoned(look).map_or(Finding::PageLost(page), |why| Finding::PageAbandoned(page, why));
    found.extend(told.page.iter().copied().map(page));
    let counter = |(name, (stored, actual)): (&String, &(i64, i64))| Finding::Counter {
        name: name.clone(),
        stored: *stored,
        actual: *actual,
    };
    found.extend(look.wrong.iter().map(counter));
    if let Some(live) = look.results.filter(|live| *live != look.pending) {
        found.push(Finding::Pending { pending: look.pending, live });
    }
    if look.sealed {
        found.push(Finding::NotEnded);
    }
    found
}

/// Why the batch's open results end without an answer, if it is time: nobody works on them any more.
fn abandoned(look: &Look) -> Option<Ending> {
    let nobody = look.live == 0 && look.results == Some(0) && look.pending > 0;
    let why = if look.cancel { Some(Ending::Canceled) } else { None };
    why.or((look.overdue > PATIENCE_MS).then_some(Ending::Expired)).filter(|_| nobody)
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    pub batches: u64,
    pub findings: u64,
    pub repairs: u64,
}

/// One pass: the next open batches, and the next keys of all for batches that nobody knows of any more.
pub async fn pass(gateway: &Gateway) -> Result<Pass, StoreError> {
    let store = &gateway.store;
    let place = store.reconciled_to().await?;
    let open = store.open_from(place.rank, BATCHES).await?;
    let rank = if (open.len() as u64) < BATCHES { 0 } else { place.rank + BATCHES };
    let (forgotten, cursor) = store.forgotten(place.cursor).await?;
    let mut suspects: Vec<(BatchId, Vec<Finding>)> = Vec::new();
    let mut pass = Pass::default();
    let astray = store.promised_astray().await?.filter(|astray| *astray != 0);
    for batch in open.into_iter().chain(forgotten) {
        pass.batches += 1;
        match look(gateway, batch).await {
            Ok(found) if found.is_empty() => {}
            Ok(found) => suspects.push((batch, found)),
            Err(error @ StoreError::Corrupt { .. }) => tracing::error!(%batch, %error, "cannot be looked at"),
            Err(away) => return Err(away),
        }
    }
    if !suspects.is_empty() || astray.is_some() {
        fail_point!("reconcile_looked");
        tokio::time::sleep((gateway.settings.reconcile_every / 4).min(PAUSE)).await;
    }
    for (batch, before) in suspects {
        let after = look(gateway, batch).await?;
        for finding in after.iter().filter(|finding| before.contains(finding)) {
            pass.findings += 1;
            pass.repairs += u64::from(found(gateway, batch, finding).await?);
            fail_point!("reconcile_repaired");
        }
    }
    if let Some(astray) = astray
        && store.promised_astray().await? == Some(astray)
    {
        pass.findings += 1;
        pass.repairs += u64::from(promised_astray(gateway, astray).await?);
    }
    store.reconcile_from(Place { rank, cursor }).await?;
    metrics::counter!("batchgate_reconciler_passes_total").increment(1);
    metrics::counter!("batchgate_reconciler_batches_total").increment(pass.batches);
    Ok(pass)
}

/// Looks at all of a batch: at once, or, where that would hold up Redis for too long, at its chunks in slices.
async fn look(gateway: &Gateway, batch: BatchId) -> Result<Vec<Finding>, StoreError> {
    let mut look = gateway.store.look(batch, 0).await?;
    let mut found = findings(&look);
    while look.next > 0 && look.next % LOOK == 0 && !look.whole {
        look = gateway.store.look(batch, look.next).await?;
        found.extend(findings(&look).into_iter().filter(|finding| !matches!(finding, Finding::OpenEntry { .. })));
    }
    Ok(found)
}

/// Tells of a finding, and puts it right where that can be done and may. True if something was changed.
async fn found(gateway: &Gateway, batch: BatchId, finding: &Finding) -> Result<bool, StoreError> {
    let kind = finding.kind();
    tracing::error!(%batch, kind, ?finding, "the reconciler found this wrong at two looks");
    metrics::counter!("batchgate_reconciler_findings_total", "kind" => kind).increment(1);
    if gateway.settings.reconcile != Mode::Repair {
        return Ok(false);
    }
    let repaired = repair(gateway, batch, finding).await?;
    if repaired {
        tracing::warn!(%batch, kind, "put right");
        metrics::counter!("batchgate_reconciler_repairs_total", "kind" => kind).increment(1);
    }
    Ok(repaired)
}

/// What is promised in all is not what the open batches were promised: too much of it keeps new batches out for ever.
async fn promised_astray(gateway: &Gateway, astray: i64) -> Result<bool, StoreError> {
    let kind = "promises";
    tracing::error!(
        kind,
        bytes = astray,
        "the reconciler found so much more promised than to all open batches, at two looks"
    );
    metrics::counter!("batchgate_reconciler_findings_total", "kind" => kind).increment(1);
    let repaired = gateway.settings.reconcile == Mode::Repair && gateway.store.promise_anew(astray).await?;
    if repaired {
        tracing::warn!(kind, "put right");
        metrics::counter!("batchgate_reconciler_repairs_total", "kind" => kind).increment(1);
    }
    Ok(repaired)
}

async fn repair(gateway: &Gateway, batch: BatchId, finding: &Finding) -> Result<bool, StoreError> {
    let (store, settings) = (&gateway.store, &gateway.settings);
    let repair = match finding {
        Finding::ChunkLost(number) => {
            let chunk = ChunkId { batch, number: *number };
            tracing::warn!(%chunk, "a lost chunk is queued again");
            Repair::Chunk(*number)
        }
        Finding::ChunkTwice(number) => Repair::Twice(*number),
        Finding::LaneLost(number) => Repair::Lane(*number),
        Finding::PageLost(page) => Repair::Page(*page),
        Finding::PageAbandoned(page, why) => return close(gateway, batch, *page, *why).await,
        Finding::Counter { name, stored, actual } => Repair::Counter { name, stored: *stored, actual: *actual },
        Finding::OpenEntry { belongs } => Repair::Open(*belongs),
        Finding::ChoreLost => Repair::Chore,
        Finding::NotEnded => {
            let ended = store.end_batch(batch, settings.retention, settings.lease * 3).await?;
            match ended {
                Sealed::Ended => seal::ended(batch, true),
                Sealed::EndedUnequal => seal::ended(batch, false),
                Sealed::Done | Sealed::NotOurs | Sealed::Torn => return Ok(false),
            }
            return Ok(true);
        }
        Finding::Pending { .. } | Finding::ChunkUnreadable(_) | Finding::BatchUnreadable => return Ok(false),
    };
    let done = store.put_right(batch, &repair, settings.lease).await?;
    if done {
        gateway.wake.chunks.notify_one();
        gateway.wake.pages.notify_one();
    }
    Ok(done)
}

/// Ends the results of a page that have no outcome; if they all have one it only is to be sealed.
async fn close(gateway: &Gateway, batch: BatchId, page: u32, why: Ending) -> Result<bool, StoreError> {
    let store = &gateway.store;
    let Some(open) = OpenPage::look(store, batch, page).await? else { return Ok(false) };
    if open.is_complete() {
        return store.put_right(batch, &Repair::Page(page), gateway.settings.lease).await;
    }
    let failure = Known::Failed(why.failure());
    let name = format!("closed.{}", u64::from_be_bytes(rand::random())); // two passes that meet write side by side
    let mut writer = FrameWriter::fragment(store, batch, page, &name);
    let mut results = 0;
    for key in open.unknown() {
        results += 1;
        writer.push_known(key, &failure).await?;
    }
    let row = writer.finish().await?;
    tracing::error!(%batch, page, results, ?why, "these results end without an answer: what became of their chunk is not known");
    let closed = store.close_page(batch, page, &row, (why, results)).await?;
    // No chunk of it lives: who meets these marks is to ask.
    store.unmark(batch.hex(), open.unknown()).await?;
    gateway.wake.pages.notify_one();
    Ok(closed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::reconcile::Told;

    fn well() -> Look {
        Look { exists: true, open: true, whole: true, pending: 5, results: Some(5), live: 1, ..Look::default() }
    }

    fn check(look: &Look, expect: &[Finding]) {
        assert_eq!(findings(look), expect, "{look:?}");
    }

    #[test]
    fn nothing_is_wrong_with_what_is_as_it_should_be() {
        check(&well(), &[]);
        check(&Look { exists: true, ended: true, chore: true, ..Look::default() }, &[]);
        check(&Look::default(), &[]); // gone
        check(&Look { results: None, pending: 9, ..well() }, &[]); // chunks of a version that did not say
    }

    #[test]
    fn each_kind_of_damage_is_found() {
        let told = Told { lost: vec![1], twice: vec![2], laneless: vec![3], unreadable: vec![4], page: vec![5] };
        let chunks = [Finding::ChunkLost(1), Finding::ChunkTwice(2), Finding::LaneLost(3), Finding::ChunkUnreadable(4)];
        let all: Vec<Finding> = chunks.iter().cloned().chain([Finding::PageLost(5)]).collect();
        check(&Look { told: told.clone(), ..well() }, &all);
        // Of a part of the chunks only what each of them tells is known.
        check(&Look { told, whole: false, pending: 9, sealed: true, ..well() }, &chunks);
        let wrong = [("c_running".to_owned(), (2, 1))].into();
        check(&Look { wrong, ..well() }, &[Finding::Counter { name: "c_running".into(), stored: 2, actual: 1 }]);
        check(&Look { pending: 7, ..well() }, &[Finding::Pending { pending: 7, live: 5 }]);
        let lost = || Told { page: vec![6], ..Told::default() };
        let dead = || Look { live: 0, results: Some(0), told: lost(), ..well() };
        let pending = Finding::Pending { pending: 5, live: 0 };
        check(&dead(), &[Finding::PageLost(6), pending.clone()]);
        check(&Look { overdue: 60_000, ..dead() }, &[Finding::PageLost(6), pending.clone()]);
        for (look, why) in [
            (Look { cancel: true, ..dead() }, Ending::Canceled),
            (Look { overdue: 4_000_000, ..dead() }, Ending::Expired),
        ] {
            check(&look, &[Finding::PageAbandoned(6, why), pending.clone()]);
        }
        check(&Look { cancel: true, told: lost(), ..well() }, &[Finding::PageLost(6)]);
        check(&Look { sealed: true, ..well() }, &[Finding::NotEnded]);
        check(&Look { open: false, ..well() }, &[Finding::OpenEntry { belongs: true }]);
        check(&Look { open: true, ..Look::default() }, &[Finding::OpenEntry { belongs: false }]);
        check(&Look { exists: true, ended: true, ..Look::default() }, &[Finding::ChoreLost]);
        check(&Look { exists: true, unreadable: true, ..Look::default() }, &[Finding::BatchUnreadable]);
    }
}
