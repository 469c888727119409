//! What a batch would be, were it created now: the way of a submission without its last step, and without writing pages
//! or chunks. What it counts, it counts with the very code that accepts.

use super::{
    Gateway,
    page::{Page, What, Wire},
    plan::{Planned, Planner, Question},
    submit::{MAX_CHUNKS, too_many_chunks},
};
use crate::{
    domain::{
        chunk::{By, Place},
        estimate, json,
        key::CacheKey,
        problem::Problems,
        progress::Counts,
    },
    store::record::Known,
};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What would come of a body. Prompts with problems count in `total` alone.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    /// Results.
    pub total: u64,
    pub cached: u64,
    /// Results that others are asking for at this moment.
    pub joined: u64,
    pub repeats: u64,
    /// Questions that would be asked; a shared one once.
    pub to_buy: u64,
    /// Chunks by account.
    pub chunks: BTreeMap<String, u64>,
    /// Of what would be bought; an estimate.
    pub input_tokens: u64,
    /// Bytes in Redis of the results and of new cache entries; an estimate.
    pub storage_bytes: u64,
    /// All that is wrong, whatever the batch says of `on_invalid`.
    pub problems: Problems,
}

impl Forecast {
    /// A body of which nothing can be told but what is wrong with it.
    pub fn of_problems(problems: Problems) -> Forecast {
        Forecast { problems, ..Forecast::default() }
    }
}

/// Counts a batch's pages instead of writing them.
pub(super) struct Forecaster {
    planner: Planner,
    max_prompts: usize,
    told: Forecast,
}

impl Forecaster {
    pub(super) fn new(max_prompts: usize, share: bool) -> Forecaster {
        Forecaster { planner: Planner::new(max_prompts, share), max_prompts, told: Forecast::default() }
    }

    /// `joined`: questions of the page that others ask already.
    pub(super) fn take(&mut self, gateway: &Gateway, page: &Page, joined: &HashSet<CacheKey>) {
        let mut wires: HashMap<CacheKey, &Wire> = HashMap::new();
        let mut questions = Vec::new();
        for one in &page.asked {
            match (page.known.get(&one.key), &one.what) {
                (Some(Known::Answered(answer)), _) => {
                    self.told.storage_bytes += estimate::result_bytes(answer.body.len() as u64);
                }
                (Some(Known::Failed(_)), _) | (None, What::Refused(_)) => {
                    self.told.storage_bytes += estimate::result_bytes(0);
                }
                (None, What::Question(wire)) if joined.contains(&one.key) => {
                    self.told.joined += 1;
                    self.told.storage_bytes += estimate::result_bytes(wire.answer_bytes);
                }
                (None, What::Question(wire)) => {
                    wires.entry(one.key).or_insert(wire);
                    questions.push(question(gateway, page.number, one.key, wire));
                    self.told.storage_bytes += estimate::result_bytes(wire.answer_bytes);
                }
            }
        }
        for key in self.planner.push_page(questions) {
            let Some(wire) = wires.get(&key) else { continue };
            self.told.input_tokens += estimate::input_tokens(&body(wire));
            if page.stores {
                self.told.storage_bytes += estimate::entry_bytes(wire.answer_bytes);
            }
        }
        let full = self.planner.take_full();
        self.tally(&full);
    }

    fn tally(&mut self, chunks: &[Planned]) {
        for chunk in chunks {
            *self.told.chunks.entry(chunk.lane.account.clone()).or_default() += 1;
            self.told.to_buy += chunk.items.len() as u64;
        }
    }

    pub(super) fn finish(mut self, counts: Counts, mut problems: Problems) -> Forecast {
        if self.planner.count() > MAX_CHUNKS {
            problems.push(too_many_chunks(self.max_prompts));
        }
        let rest = std::mem::replace(&mut self.planner, Planner::new(1, false)).finish();
        self.tally(&rest);
        let Counts { total, cached, repeats, .. } = counts;
        Forecast { total, cached, repeats, problems, ..self.told }
    }
}

fn question<'a>(gateway: &Gateway, page: u32, key: CacheKey, wire: &'a Wire) -> Question<'a> {
    Question {
        key,
        lane: &wire.lane,
        by: By::Us,
        limits: gateway.limits(&wire.lane.account, wire.lane.endpoint),
        wire_bytes: wire.wire_bytes,
        inputs: wire.inputs,
        place: Place { page, results: 1 },
    }
}

fn body(wire: &Wire) -> Map<String, Value> {
    match json::parse(&wire.body) {
        Ok(Value::Object(members)) => members,
        Ok(_) | Err(_) => Map::new(), // a body that was accepted is an object
    }
}
