//! The lives of a chunk, and the ledger its results are entered in.
//!
//! ```text
//!     planned --claim--> submitting --provider accepted--> running --provider ended--> harvested --MULTI--> settled
//!        ^                   |   \                            |
//!        |  refused, throttled|    \ answer lost               | 404, unknown status: still running, with patience
//!        +-------------------+     v                          v
//!        ^                      in doubt --found--> running   deadline passed: cancel, harvest what exists
//!        +---- not found, looked twice ----+
//!
//!     planned --Redis has been restarted since--> in doubt: it may have lost that the chunk was submitted
//!     in doubt --several may be it--> in doubt, until they end and their tags are read
//! ```
//!
//! Where a server has no batches a chunk goes `planned -> asking -> settled`: its prompts are asked one by one.
//!
//! Prompts that others ask already stand in a chunk of their own, which begins as `joining`: it is served by the commit of
//! the chunk that asks them, or takes over what that one leaves unanswered and is planned (`pipeline::join`). A planned chunk
//! that gave questions away before it was sent goes back to `joining` once, to look what is left to it.
//!
//! What a harvest leaves unanswered and is worth retrying becomes a new planned chunk; the rest are failures, per prompt.
//! There is no list of results here: a result belongs to a question, whichever line, file or retry it came in.

use super::{
    batch::Priority,
    id::{ChunkId, WireTag},
    key::CacheKey,
    outcome::{Failure, Usage},
    prompt::{ApiHeaders, Endpoint},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// What a provider batch may not mix: prompts of one lane travel together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lane {
    pub account: String,
    pub endpoint: Endpoint,
    /// None where a batch may mix models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default)]
    pub headers: ApiHeaders,
}

/// Where a chunk is in its life, with what is known there and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// Its prompts are asked by somebody else. `owner`: the chunk it is registered with; none until that is found.
    Joining {
        owner: Option<ChunkId>,
    },
    Planned,
    /// Its prompts are asked one by one; what was said of each is noted apart as it comes.
    Asking,
    /// The intent to create a provider batch is written; whether it was created is known to nobody yet.
    /// `newest_before`: the account's newest batch just before, as the adapter wrote it down for its own search.
    Submitting {
        newest_before: Option<String>,
    },
    /// The create's answer was lost, or its very intent.
    InDoubt(Search),
    /// `adopted`: found by size and time only; it may be another's, so it is never cancelled by us.
    Running {
        remote: String,
        adopted: Option<Adopted>,
    },
    /// The provider batch has ended; its results can be read. `looked`: once already, and lines were missing.
    Harvested {
        remote: String,
        sources: Vec<String>,
        looked: bool,
        adopted: Option<Adopted>,
    },
    Settled,
}

/// What decides which of two chunks, neither of them sent, asks what both want to know: the lesser one does. In the order of
/// their weight: pauses by hand, priorities, and how much each team has under way already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    pub paused: bool,
    pub priority: Priority,
    /// Prompts of its team; 0 for both where that does not count yet.
    pub under_way: u64,
}

impl Standing {
    /// True if a chunk in this standing leaves its questions to `other`. Of two that are paused neither does: nothing of
    /// either would be sent.
    pub fn gives_way_to(&self, other: &Standing) -> bool {
        !other.paused && other < self
    }
}

/// How far the search for the batch of a lost create is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// As in [`ChunkState::Submitting`].
    pub newest_before: Option<String>,
    /// How often the provider's list was searched in vain.
    pub looks: u32,
    /// Size and age prove nothing, for more creates than this one may be forgotten (Redis lost its last writes).
    pub by_tag: bool,
    /// Provider batches that may be it; which one, their tags tell as they end.
    pub candidates: Vec<String>,
}

/// What a doubt knew when it took a batch that may be another's: what it needs again if it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    pub newest_before: Option<String>,
}

impl ChunkState {
    /// The word in Redis, logs and metrics.
    pub fn word(&self) -> &'static str {
        match self {
            ChunkState::Joining { .. } => "joining",
            ChunkState::Planned => "planned",
            ChunkState::Asking => "asking",
            ChunkState::Submitting { .. } => "submitting",
            ChunkState::InDoubt(_) => "in_doubt",
            ChunkState::Running { .. } => "running",
            ChunkState::Harvested { .. } => "harvested",
            ChunkState::Settled => "settled",
        }
    }
}

/// Whose call answers a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    Us,
    /// A chunk of another batch; none: it is not known yet, or answered already.
    Another(Option<ChunkId>),
}

/// Where answers of one key are wanted: a result page of the batch, and how many of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub page: u32,
    pub results: u32,
}

/// One question of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub key: CacheKey,
    /// Never empty; the first is where the question stands in the spool. More than one only with `repeats: share`.
    pub places: Vec<Place>,
    /// Calls the provider failed, so far.
    pub attempts: u8,
    /// A complete download lacked this question once already.
    pub missed: bool,
}

impl Item {
    pub fn results(&self) -> u32 {
        self.places.iter().map(|place| place.results).sum()
    }
}

/// The wire id of a question in a chunk: tag, store mark, key; 60 characters of every provider's alphabet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireIds {
    tag: WireTag,
    may_enter_cache: bool,
}

impl WireIds {
    /// Characters of every wire id.
    pub const LEN: usize = WireTag::LEN + 1 + CacheKey::TEXT_LEN;

    pub fn new(tag: WireTag, may_enter_cache: bool) -> WireIds {
        WireIds { tag, may_enter_cache }
    }

    pub fn write(&self, key: &CacheKey) -> String {
        let mark = if self.may_enter_cache { '-' } else { '_' };
        format!("{}{mark}{key}", self.tag.as_str())
    }

    /// The key a wire id names, if it is one of this chunk's.
    pub fn read(&self, custom_id: &str) -> Option<CacheKey> {
        let rest = custom_id.strip_prefix(self.tag.as_str())?;
        CacheKey::parse(rest.strip_prefix(['-', '_'])?)
    }
}

/// What a wire id says to somebody who does not know its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireId {
    /// False with cache mode `off`.
    pub may_enter_cache: bool,
    pub key: CacheKey,
}

impl WireId {
    /// True of a wire id that begins with another tag than `home`: another deployment's or namespace's.
    pub fn is_anothers(custom_id: &str, home: &str) -> bool {
        WireId::read(custom_id, "").is_some() && !custom_id.starts_with(home)
    }

    /// None if it does not begin with `home` ([`WireTag::home`]), or is no wire id at all.
    pub fn read(custom_id: &str, home: &str) -> Option<WireId> {
        let (tag, rest) = custom_id.split_at_checked(WireTag::LEN)?;
        let (mark, key) = rest.split_at_checked(1)?;
        let may_enter_cache = match mark {
            "-" => true,
            "_" => false,
            _ => return None,
        };
        let key = CacheKey::parse(key)?;
        tag.starts_with(home).then_some(WireId { may_enter_cache, key })
    }
}

/// What a provider said of one question, without the answer's body: bodies are staged in Redis as they arrive.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Answered(Usage),
    Failed(Failure),
    /// Not executed because the provider batch was cancelled.
    Canceled,
    /// Not executed because the provider's window closed.
    Expired,
    /// Nothing was said.
    Missing,
}

/// What entering a line into the ledger meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The first word on this question: keep it.
    First,
    /// A success after a failure: it replaces what was there.
    Better,
    /// Nothing new: the first success stays.
    Repeat,
    /// Not one of this chunk's questions.
    Stray,
}

/// Every question of one submitted chunk, and what has been said of it. Opens once, closes once.
#[derive(Debug)]
pub struct Ledger {
    ids: WireIds,
    said: HashMap<CacheKey, Verdict>,
    /// Lines that name no question of ours.
    strays: u64,
}

impl Ledger {
    pub fn open(ids: WireIds, items: &[Item]) -> Ledger {
        Ledger { ids, said: items.iter().map(|item| (item.key, Verdict::Missing)).collect(), strays: 0 }
    }

    /// Enters what a line says; a success beats a failure whatever the order, and among successes the first stays.
    pub fn record(&mut self, custom_id: &str, verdict: Verdict) -> (Recorded, Option<CacheKey>) {
        let Some((key, entry)) =
            self.ids.read(custom_id).and_then(|key| self.said.get_mut(&key).map(|entry| (key, entry)))
        else {
            self.strays += 1;
            return (Recorded::Stray, None);
        };
        let recorded = match (&*entry, &verdict) {
            (Verdict::Missing, _) => Recorded::First,
            (Verdict::Answered(_), _) => Recorded::Repeat,
            (Verdict::Failed(_) | Verdict::Canceled | Verdict::Expired, Verdict::Answered(_)) => Recorded::Better,
            (Verdict::Failed(_) | Verdict::Canceled | Verdict::Expired, _) => Recorded::Repeat,
        };
        if matches!(recorded, Recorded::First | Recorded::Better) {
            *entry = verdict;
        }
        (recorded, Some(key))
    }

    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// True if not one line was ours although there were lines: the batch read was another's.
    pub fn is_foreign(&self) -> bool {
        self.strays > 0 && self.said.values().all(|verdict| *verdict == Verdict::Missing)
    }

    /// Total: every question of the chunk has a verdict, the unanswered ones [`Verdict::Missing`].
    pub fn close(self) -> ClosedLedger {
        ClosedLedger { said: self.said.into_iter().collect() }
    }
}

/// A ledger that takes no more lines; only from one of these can a chunk be settled.
#[derive(Debug)]
pub struct ClosedLedger {
    said: BTreeMap<CacheKey, Verdict>,
}

impl ClosedLedger {
    /// A ledger with one verdict for all questions: a chunk that never came to be read.
    pub fn unanimous(items: &[Item], verdict: &Verdict) -> ClosedLedger {
        ClosedLedger { said: items.iter().map(|item| (item.key, verdict.clone())).collect() }
    }

    /// Verdicts for some questions (an input file's faulty lines); the rest are to be asked again, at no cost of theirs.
    pub fn faults(items: &[Item], faults: &HashMap<CacheKey, Failure>) -> ClosedLedger {
        let verdict = |key| faults.get(key).map_or(Verdict::Expired, |failure| Verdict::Failed(failure.clone()));
        ClosedLedger { said: items.iter().map(|item| (item.key, verdict(&item.key))).collect() }
    }

    pub fn has_missing(&self, items: &[Item]) -> bool {
        items.iter().any(|item| !item.missed && self.said.get(&item.key) == Some(&Verdict::Missing))
    }

    pub fn verdict(&self, key: &CacheKey) -> Option<&Verdict> {
        self.said.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::FailureCode;
    use proptest::prelude::*;

    fn key(n: u8) -> CacheKey {
        CacheKey::from_bytes([n; 32])
    }

    #[test]
    fn who_is_held_up_gives_way() {
        let plain = Standing { paused: false, priority: Priority::Normal, under_way: 0 };
        let (paused, low) = (Standing { paused: true, ..plain }, Standing { priority: Priority::Low, ..plain });
        let busy = Standing { under_way: 5, ..plain };
        for held_up in [paused, low, busy] {
            assert!(held_up.gives_way_to(&plain) && !plain.gives_way_to(&held_up) && !held_up.gives_way_to(&held_up));
        }
        assert!(low.gives_way_to(&busy) && paused.gives_way_to(&low));
        assert!(!Standing { paused: true, ..low }.gives_way_to(&paused), "nothing of either would be sent");
    }

    fn items(count: u8) -> Vec<Item> {
        (0..count)
            .map(|n| Item { key: key(n), places: vec![Place { page: 0, results: 1 }], attempts: 0, missed: false })
            .collect()
    }

    fn ids() -> WireIds {
        WireIds::new(WireTag::new("test", "default", &[1; 9]), true)
    }

    fn failed() -> Verdict {
        Verdict::Failed(Failure::ours(FailureCode::ServerError, "no"))
    }

    #[test]
    fn a_wire_id_is_sixty_characters_of_every_providers_alphabet() {
        let id = ids().write(&key(9));
        assert_eq!(id.len(), WireIds::LEN);
        assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
        assert_eq!(ids().read(&id), Some(key(9)));
    }

    #[test]
    fn a_wire_id_tells_a_stranger_to_its_chunk_whose_it_is_and_whether_it_may_be_kept() {
        let home = WireTag::home("test", "default");
        for may_enter_cache in [true, false] {
            let id = WireIds::new(WireTag::new("test", "default", &[5; 9]), may_enter_cache).write(&key(9));
            assert_eq!(WireId::read(&id, &home), Some(WireId { may_enter_cache, key: key(9) }));
            assert_eq!(WireId::read(&id, &WireTag::home("test2", "default")), None);
            assert_eq!(WireId::read(&id, &WireTag::home("test", "other")), None);
            for odd in [&id[..59], &id.replace(['-', '_'], "x"), "", "request-1", "ääääääääääääääääääääääääääääää"]
            {
                assert_eq!(WireId::read(odd, &home), None, "{odd}");
            }
        }
    }

    #[test]
    fn a_line_of_another_chunk_is_a_stray() {
        let other = WireIds::new(WireTag::new("test", "default", &[2; 9]), true);
        let mut ledger = Ledger::open(ids(), &items(2));
        let (recorded, _) = ledger.record(&other.write(&key(0)), Verdict::Answered(Usage::default()));
        assert_eq!(recorded, Recorded::Stray);
        assert!(ledger.is_foreign());
    }

    #[test]
    fn a_success_beats_a_failure_whatever_the_order() {
        let answered = Verdict::Answered(Usage { input_tokens: 1, ..Usage::default() });
        for lines in [[failed(), answered.clone()], [answered.clone(), failed()]] {
            let mut ledger = Ledger::open(ids(), &items(1));
            for verdict in lines {
                ledger.record(&ids().write(&key(0)), verdict);
            }
            assert_eq!(ledger.close().verdict(&key(0)), Some(&answered));
        }
    }

    proptest! {
        /// Successes, failures, repeats, omissions and strangers' lines in any order: the first success stands, else the
        /// first word of any kind, else nothing was said; and every stranger is counted.
        #[test]
        fn a_ledger_is_the_first_success_or_the_first_word(lines in prop::collection::vec((0u8..11, 0u8..5), 0..60)) {
            let other = WireIds::new(WireTag::new("test", "default", &[2; 9]), true);
            let mut ledger = Ledger::open(ids(), &items(8));
            let (mut said, mut strays) = (BTreeMap::<u8, Verdict>::new(), 0);
            for (at, (n, word)) in lines.iter().enumerate() {
                let verdict = match word {
                    0 | 1 => Verdict::Answered(Usage { output_tokens: at as u64, ..Usage::default() }),
                    2 => failed(),
                    3 => Verdict::Canceled,
                    _ => Verdict::Expired,
                };
                let id = match n {
                    8 => other.write(&key(*word)),
                    9 => ids().write(&key(*n)), // ours, and not of this chunk
                    10 => String::from_utf8_lossy(&[b'x', *word]).into_owned(),
                    _ => ids().write(&key(*n)),
                };
                let (recorded, key_of_line) = ledger.record(&id, verdict.clone());
                if *n >= 8 {
                    strays += 1;
                    prop_assert_eq!((recorded, key_of_line), (Recorded::Stray, None));
                    continue;
                }
                prop_assert_eq!(key_of_line, Some(key(*n)));
                let is_answer = |verdict: &Verdict| matches!(verdict, Verdict::Answered(_));
                let expect = match said.get(n) {
                    None => Recorded::First,
                    Some(before) if !is_answer(before) && is_answer(&verdict) => Recorded::Better,
                    Some(_) => Recorded::Repeat,
                };
                prop_assert_eq!(recorded, expect);
                if recorded != Recorded::Repeat {
                    said.insert(*n, verdict);
                }
            }
            prop_assert_eq!(ledger.strays(), strays);
            prop_assert_eq!(ledger.is_foreign(), strays > 0 && said.is_empty());
            let closed = ledger.close();
            for n in 0..8 {
                prop_assert_eq!(closed.verdict(&key(n)), Some(said.get(&n).unwrap_or(&Verdict::Missing)));
            }
            prop_assert_eq!(closed.has_missing(&items(8)), said.len() < 8);
        }

        /// Any order, repetition and omission of lines: each question keeps its own answer, or is missing.
        #[test]
        fn every_question_keeps_its_own_answer(lines in prop::collection::vec(0u8..8, 0..40)) {
            let mut ledger = Ledger::open(ids(), &items(8));
            for n in &lines {
                let usage = Usage { input_tokens: u64::from(*n), ..Usage::default() };
                ledger.record(&ids().write(&key(*n)), Verdict::Answered(usage));
            }
            let closed = ledger.close();
            for n in 0..8 {
                let expected = if lines.contains(&n) {
                    Verdict::Answered(Usage { input_tokens: u64::from(n), ..Usage::default() })
                } else {
                    Verdict::Missing
                };
                prop_assert_eq!(closed.verdict(&key(n)), Some(&expected));
            }
        }
    }
}
