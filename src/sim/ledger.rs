//! The witness: what was billed, what was called, and how many attempts and calls there were.
//!
//! Rows of a batch are not kept here but told by the batch (`batch::Done`), which holds their facts anyway.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    batch::Done,
    oracle::{Outcome, Reply},
    problem::{Problem, Provider, Trouble},
};

#[derive(Default)]
pub(crate) struct Ledger {
    /// Call numbers go on even through a reset, so that none is ever used twice.
    last_call: u64,
    attempts: HashMap<(String, [u8; 32]), u64>,
    pub(crate) online: Vec<Row>,
    pub(crate) http: Vec<Entry>,
    in_flight: HashMap<String, u64>,
    pub(crate) peak_in_flight: BTreeMap<String, u64>,
    minute: HashMap<String, (f64, u64)>,
}

impl Ledger {
    /// The same witness with nothing on record.
    pub(crate) fn wiped(&self) -> Self {
        Self { last_call: self.last_call, ..Self::default() }
    }

    pub(crate) fn next_call(&mut self) -> u64 {
        self.last_call += 1;
        self.last_call
    }

    /// Count an attempt at a flaky request; true for the first `times`.
    pub(crate) fn still_flaky(&mut self, account: &str, sha: [u8; 32], times: u64) -> bool {
        let attempts = self.attempts.entry((account.to_owned(), sha)).or_default();
        *attempts += 1;
        *attempts <= times
    }

    /// Count one request against an account's minute.
    pub(crate) fn spend_request(&mut self, account: &str, limit: Option<u64>, now: f64) -> Quota {
        let minute = self.minute.entry(account.to_owned()).or_insert((now, 0));
        if now - minute.0 >= 60.0 {
            *minute = (now, 0);
        }
        let exceeded = limit.is_some_and(|limit| minute.1 >= limit);
        minute.1 += u64::from(!exceeded);
        let limit = limit.unwrap_or(Quota::NONE.limit);
        Quota { limit, remaining: limit.saturating_sub(minute.1), reset_s: 60.0 - (now - minute.0), exceeded }
    }

    /// The call number of an online answer, now billed; an error if it has one.
    pub(crate) fn bill_online(
        &mut self,
        &Online { provider, account, endpoint }: &Online<'_>,
        reply: &Reply,
    ) -> Result<u64, Problem> {
        match (&reply.problem, reply.outcome()) {
            (Some(problem), _) => return Err(problem.clone()),
            (None, Outcome::Expire) => return Err(Problem::of(provider, Trouble::Timeout)),
            (None, Outcome::Flaky(times)) if self.still_flaky(account, reply.sha, times) => {
                return Err(Problem::of(provider, Trouble::Server));
            }
            (None, Outcome::Flaky(_) | Outcome::Ok | Outcome::Error) => {}
        }
        let call = self.next_call();
        self.online.push(Row {
            call,
            provider,
            account: account.into(),
            batch: None,
            custom_id: None,
            endpoint: Some(endpoint),
            sha: super::oracle::hex(&reply.sha),
            model: reply.model.clone(),
            input_tokens: reply.tokens.input,
            output_tokens: reply.tokens.output,
        });
        Ok(call)
    }

    pub(crate) fn enter(&mut self, name: &str) {
        let now = self.in_flight.entry(name.to_owned()).or_default();
        *now += 1;
        let peak = self.peak_in_flight.entry(name.to_owned()).or_default();
        *peak = (*peak).max(*now);
    }

    /// A call that began before a reset leaves a ledger that never saw it enter.
    pub(crate) fn leave(&mut self, name: &str) {
        if let Some(now) = self.in_flight.get_mut(name) {
            *now = now.saturating_sub(1);
        }
    }
}

pub(crate) struct Online<'a> {
    pub(crate) provider: Provider,
    pub(crate) account: &'a str,
    pub(crate) endpoint: &'static str,
}

/// What the rate-limit headers say.
#[derive(Clone, Copy)]
pub(crate) struct Quota {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_s: f64,
    pub(crate) exceeded: bool,
}

impl Quota {
    /// Of calls that are not counted.
    pub(crate) const NONE: Self = Self { limit: 10_000, remaining: 9_999, reset_s: 60.0, exceeded: false };
}

/// One paid answer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) call: u64,
    pub(crate) provider: Provider,
    pub(crate) account: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) custom_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<&'static str>,
    pub(crate) sha: String,
    pub(crate) model: String,
    pub(crate) input_tokens: u32,
    pub(crate) output_tokens: u32,
}

/// One call to a provider. Shared, as it is written until the last byte of the answer has left.
#[derive(Clone)]
pub(crate) struct Entry(Arc<Mutex<Http>>);

impl Entry {
    pub(crate) fn new(http: Http) -> Self {
        Self(Arc::new(Mutex::new(http)))
    }

    pub(crate) fn write(&self) -> MutexGuard<'_, Http> {
        self.0.lock().expect("nothing panics while it writes an entry")
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Http {
    pub(crate) n: usize,
    pub(crate) time: f64,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) provider: Provider,
    pub(crate) route: &'static str,
    pub(crate) account: Option<String>,
    pub(crate) id: Option<String>,
    /// The id of what the call created, known here even when the caller never got the answer.
    pub(crate) made: Option<String>,
    pub(crate) call: Option<u64>,
    /// None when the connection was reset instead.
    pub(crate) status: Option<u16>,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: u64,
    pub(crate) seconds: Option<f64>,
    pub(crate) fault: Map<String, Value>,
}

/// What the ledger is asked for.
#[derive(Default)]
pub(crate) struct Question {
    pub(crate) batch: Option<String>,
    pub(crate) account: Option<String>,
    pub(crate) parts: Vec<String>,
}

/// Everything needed to answer without holding the world.
pub(crate) struct Report {
    pub(crate) done: Vec<Arc<Done>>,
    pub(crate) online: Vec<Row>,
    pub(crate) http: Vec<Entry>,
    pub(crate) batches: usize,
    pub(crate) peak_in_flight: BTreeMap<String, u64>,
}

impl Report {
    /// JSON with the parts that were asked for; rows are oldest first.
    pub(crate) fn answer(self, question: &Question) -> String {
        let wanted = |row: &Row| {
            question.batch.as_ref().is_none_or(|batch| row.batch.as_ref() == Some(batch))
                && question.account.as_ref().is_none_or(|account| row.account == *account)
        };
        let of_batches = self.done.iter().flat_map(|done| done.billed());
        let mut rows: Vec<_> = of_batches.chain(self.online).filter(wanted).collect();
        rows.sort_unstable_by_key(|row| row.call);
        let asks = |part: &str| question.parts.iter().any(|asked| asked == part);
        let answer = Answer {
            totals: asks("totals").then(|| totals(&rows, self.batches, &self.peak_in_flight)),
            billed: asks("billed").then_some(&rows),
            http: asks("http").then(|| self.http.iter().map(|entry| entry.write().clone()).collect()),
        };
        // Not by way of a `Value`, for the rows may be hundreds of thousands.
        serde_json::to_string(&answer).expect("rows and entries are plain JSON")
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    totals: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    billed: Option<&'a Vec<Row>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<Vec<Http>>,
}

fn totals(rows: &[Row], batches: usize, peak_in_flight: &BTreeMap<String, u64>) -> Value {
    let mut by_provider = BTreeMap::new();
    for row in rows {
        *by_provider.entry(row.provider.name()).or_insert(0u64) += 1;
    }
    let distinct: std::collections::HashSet<_> = rows.iter().map(|row| &row.sha).collect();
    serde_json::json!({
        "billed": rows.len(), "distinct_bodies": distinct.len(), "batches": batches,
        "input_tokens": rows.iter().map(|row| u64::from(row.input_tokens)).sum::<u64>(),
        "output_tokens": rows.iter().map(|row| u64::from(row.output_tokens)).sum::<u64>(),
        "by_provider": by_provider, "peak_in_flight": peak_in_flight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_so_many_requests() {
        let mut ledger = Ledger::default();
        let exceeded: Vec<_> =
            [0.0, 1.0, 2.0, 61.0].map(|now| ledger.spend_request("a", Some(2), now).exceeded).into_iter().collect();
        assert_eq!(exceeded, [false, false, true, false]);
        assert!(!ledger.spend_request("b", Some(2), 2.0).exceeded);
    }

    #[test]
    fn flaky_requests_fail_so_often_and_call_numbers_go_on() {
        let mut ledger = Ledger::default();
        let flaky: Vec<_> = (0..3).map(|_| ledger.still_flaky("a", [0; 32], 2)).collect();
        assert_eq!(flaky, [true, true, false]);
        assert_eq!((ledger.next_call(), ledger.wiped().next_call()), (1, 2));
    }
}
