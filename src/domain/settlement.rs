//! What becomes of each question of a chunk once its ledger is closed: answered, failed for good, or asked again.
//! Pure: the whole retry policy of prompts is this file.

use super::{
    chunk::{ClosedLedger, Item, Verdict},
    outcome::{Ending, Failure, FailureCode, Usage},
};

/// What the policy needs to know beside the ledger.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Calls a prompt may cost before its failure is final (`BATCHGATE_ATTEMPTS`).
    pub attempts: u8,
    /// Set once the batch wants no more answers: then nothing is asked again.
    pub ending: Option<Ending>,
}

/// The fate of every item of a chunk; each item stands in exactly one list.
#[derive(Debug, Default)]
pub struct Settlement {
    pub answered: Vec<(Item, Usage)>,
    pub failed: Vec<(Item, Failure)>,
    /// Each group becomes a new planned chunk.
    pub again: Vec<Vec<Item>>,
    /// Each group becomes a new chunk that waits for another batch's call.
    pub joins: Vec<Vec<Item>>,
    /// How many of `again` may have been billed already: a complete download lacked them.
    pub rebought: usize,
}

impl Settlement {
    /// Applies the retry policy to a closed ledger.
    pub fn of(items: Vec<Item>, ledger: &ClosedLedger, rules: Rules) -> Settlement {
        let mut settled = Settlement::default();
        let mut again = Vec::new();
        for item in items {
            let verdict = ledger.verdict(&item.key).unwrap_or(&Verdict::Missing);
            match (fate(&item, verdict, rules), verdict) {
                (Fate::Keep, Verdict::Answered(usage)) => settled.answered.push((item, *usage)),
                (Fate::Again(next), _) => {
                    settled.rebought += usize::from(*verdict == Verdict::Missing);
                    again.push(Item { attempts: next.attempts, missed: next.missed, ..item });
                }
                (Fate::Fail(failure), _) => settled.failed.push((item, failure)),
                (Fate::Keep, _) => unreachable!("only an answer is kept"),
            }
        }
        if !again.is_empty() {
            settled.again.push(again);
        }
        settled
    }

    /// A chunk refused whole with no line named: halves, until the poison prompt stands alone and fails.
    pub fn bisect(mut items: Vec<Item>, alone: &Failure, rules: Rules) -> Settlement {
        if let Some(ending) = rules.ending {
            return Settlement::all(items, &ending.failure());
        }
        if items.len() <= 1 {
            return Settlement::all(items, alone);
        }
        let right = items.split_off(items.len() / 2);
        Settlement { again: vec![items, right], ..Settlement::default() }
    }

    /// A chunk larger than the provider has room for: two chunks, and no attempt of its prompts.
    pub fn halves(mut items: Vec<Item>) -> Settlement {
        let right = items.split_off(items.len() / 2);
        let again = [items, right].into_iter().filter(|half| !half.is_empty()).collect();
        Settlement { again, ..Settlement::default() }
    }

    /// One failure for all.
    pub fn all(items: Vec<Item>, failure: &Failure) -> Settlement {
        let failed = items.into_iter().map(|item| (item, failure.clone())).collect();
        Settlement { failed, ..Settlement::default() }
    }
}

enum Fate {
    Keep,
    Again(Next),
    Fail(Failure),
}

struct Next {
    attempts: u8,
    missed: bool,
}

fn fate(item: &Item, verdict: &Verdict, rules: Rules) -> Fate {
    let again = |attempts, missed| Fate::Again(Next { attempts, missed });
    match verdict {
        Verdict::Answered(_) => Fate::Keep,
        Verdict::Failed(failure) if !failure.retryable => Fate::Fail(failure.clone()),
        Verdict::Failed(_) | Verdict::Canceled | Verdict::Expired | Verdict::Missing if rules.ending.is_some() => {
            Fate::Fail(rules.ending.expect("the guard saw it").failure())
        }
        Verdict::Failed(failure) if item.attempts + 1 >= rules.attempts => Fate::Fail(failure.clone()),
        Verdict::Failed(_) => again(item.attempts + 1, item.missed),
        // Neither a window that closed nor somebody else's cancel at the provider is an attempt of the prompt.
        Verdict::Expired | Verdict::Canceled => again(item.attempts, item.missed),
        Verdict::Missing if item.missed => {
            Fate::Fail(Failure::ours(FailureCode::Missing, "the provider's complete results lacked this prompt twice"))
        }
        Verdict::Missing => again(item.attempts, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{chunk::Place, key::CacheKey};

    fn item(n: u8, attempts: u8, missed: bool) -> Item {
        Item { key: CacheKey::from_bytes([n; 32]), places: vec![Place { page: 0, results: 1 }], attempts, missed }
    }

    fn failure(retryable: bool) -> Verdict {
        Verdict::Failed(Failure { retryable, ..Failure::ours(FailureCode::ServerError, "x") })
    }

    /// (answered, failed code, asked again) of one item.
    fn check(item: Item, verdict: &Verdict, ending: Option<Ending>, expect: (bool, Option<FailureCode>, bool)) {
        let ledger = ClosedLedger::unanimous(std::slice::from_ref(&item), verdict);
        let settled = Settlement::of(vec![item], &ledger, Rules { attempts: 3, ending });
        let code = settled.failed.first().map(|(_, failure)| failure.code);
        assert_eq!((!settled.answered.is_empty(), code, !settled.again.is_empty()), expect);
    }

    #[test]
    fn the_retry_policy() {
        use FailureCode::*;
        check(item(1, 0, false), &Verdict::Answered(Usage::default()), None, (true, None, false));
        check(item(1, 0, false), &Verdict::Answered(Usage::default()), Some(Ending::Canceled), (true, None, false));
        check(item(1, 0, false), &failure(false), None, (false, Some(ServerError), false));
        check(item(1, 0, false), &failure(true), None, (false, None, true));
        check(item(1, 2, false), &failure(true), None, (false, Some(ServerError), false));
        check(item(1, 0, false), &failure(true), Some(Ending::Canceled), (false, Some(Canceled), false));
        check(item(1, 2, false), &Verdict::Expired, None, (false, None, true));
        check(item(1, 0, false), &Verdict::Expired, Some(Ending::Expired), (false, Some(Expired), false));
        check(item(1, 0, false), &Verdict::Missing, None, (false, None, true));
        check(item(1, 0, true), &Verdict::Missing, None, (false, Some(Missing), false));
    }

    #[test]
    fn bisecting_ends_with_the_poison_prompt_alone() {
        let rules = Rules { attempts: 3, ending: None };
        let alone = Failure::ours(FailureCode::InvalidRequest, "bad");
        let halves = Settlement::bisect((0..5).map(|n| item(n, 0, false)).collect(), &alone, rules);
        assert_eq!(halves.again.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3]);
        let last = Settlement::bisect(vec![item(0, 0, false)], &alone, rules);
        assert_eq!(last.failed, [(item(0, 0, false), alone)]);
    }
}
