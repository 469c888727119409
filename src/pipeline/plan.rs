//! Cuts the questions of a batch into chunks that fit a provider batch. Pure: takes items, gives chunks.

use crate::domain::{
    chunk::{By, Item, Lane, Place},
    key::CacheKey,
    limits::BatchLimits,
};
use std::collections::{BTreeMap, HashMap, hash_map::Entry};

/// A chunk-to-be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its place in the plan: the same batch planned again gets the same numbers.
    pub number: u32,
    pub lane: Lane,
    /// Who answers its questions; all of them the same.
    pub by: By,
    pub items: Vec<Item>,
    /// Exact bytes of the file or body that will carry it.
    pub wire_bytes: u64,
    /// Inputs of all its questions.
    pub inputs: u64,
}

/// A question to be planned.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    pub key: CacheKey,
    pub lane: &'a Lane,
    pub by: By,
    pub limits: BatchLimits,
    /// Bytes of its line on the wire.
    pub wire_bytes: u64,
    pub inputs: u64,
    pub place: Place,
}

/// Plans one batch. Chunks are handed out as they fill, except where a later question may still belong to one.
pub struct Planner {
    max_prompts: usize,
    /// `repeats: share`, for every lane.
    share: bool,
    chunks: Vec<Option<Planned>>,
    asking: usize,
    open: BTreeMap<By, BTreeMap<Lane, usize>>,
    /// Chunk and item of each question of a lane that shares.
    planned: HashMap<CacheKey, (usize, usize)>,
    full: Vec<usize>,
}

impl Planner {
    /// `max_prompts`: the batch's `chunk`, or `BATCHGATE_CHUNK`; a provider's own limit holds in any case.
    pub fn new(max_prompts: usize, share: bool) -> Planner {
        let (open, planned) = Default::default();
        Planner { max_prompts, share, chunks: Vec::new(), asking: 0, open, planned, full: Vec::new() }
    }

    /// Chunks so far, full ones and open ones.
    pub fn count(&self) -> usize {
        self.chunks.len()
    }

    /// Those of them whose questions are ours to ask.
    pub fn asking(&self) -> usize {
        self.asking
    }

    /// Adds the questions of one page, in order; one that comes several times is planned once, with the number of its
    /// results. Gives back those that were not planned before.
    pub fn push_page<'a>(&mut self, questions: impl IntoIterator<Item = Question<'a>>) -> Vec<CacheKey> {
        let mut once: Vec<Question<'a>> = Vec::new();
        let mut at: HashMap<CacheKey, usize> = HashMap::new();
        for question in questions {
            match at.entry(question.key) {
                Entry::Occupied(before) => once[*before.get()].place.results += question.place.results,
                Entry::Vacant(free) => {
                    free.insert(once.len());
                    once.push(question);
                }
            }
        }
        once.iter().filter(|question| self.push(question)).map(|question| question.key).collect()
    }

    /// Adds a question; one asked already only gets one more place, and `false` says so.
    pub fn push(&mut self, question: &Question<'_>) -> bool {
        if let Some((chunk, item)) = self.planned.get(&question.key) {
            let chunk = self.chunks[*chunk].as_mut().expect("with share no chunk is handed out before the end");
            chunk.items[*item].places.push(question.place);
            return false;
        }
        let number = self.room_for(question);
        let shared = self.shares(question.lane);
        let chunk = self.chunks[number].as_mut().expect("an open chunk is here");
        if shared {
            self.planned.insert(question.key, (number, chunk.items.len()));
        }
        chunk.items.push(Item { key: question.key, places: vec![question.place], attempts: 0, missed: false });
        chunk.wire_bytes += question.wire_bytes;
        chunk.inputs += question.inputs;
        true
    }

    /// One question may be wanted on several pages, so none of the lane's chunks is finished before the last page.
    fn shares(&self, lane: &Lane) -> bool {
        self.share || !lane.endpoint.has_samples()
    }

    /// The lane's open chunk, or a new one if this question would not fit.
    fn room_for(&mut self, question: &Question<'_>) -> usize {
        let (limits, shares) = (question.limits, self.shares(question.lane));
        let open = self.open.entry(question.by).or_default();
        if let Some(&number) = open.get(question.lane) {
            let chunk = self.chunks[number].as_ref().expect("an open chunk is here");
            let most = self.max_prompts.min(limits.max_prompts);
            let fits = chunk.items.len() < most
                && chunk.wire_bytes + question.wire_bytes <= limits.max_bytes
                && limits.take_inputs(chunk.inputs + question.inputs);
            if fits {
                return number;
            }
            if !shares {
                self.full.push(number);
            }
        }
        let number = self.chunks.len();
        open.insert(question.lane.clone(), number);
        self.asking += usize::from(question.by == By::Us);
        self.chunks.push(Some(Planned {
            number: u32::try_from(number).expect("the caller bounds the number of chunks"),
            lane: question.lane.clone(),
            by: question.by,
            items: Vec::new(),
            wire_bytes: limits.fixed_bytes,
            inputs: 0,
        }));
        number
    }

    /// Chunks that will not change any more.
    pub fn take_full(&mut self) -> Vec<Planned> {
        let full = std::mem::take(&mut self.full);
        full.into_iter().filter_map(|number| self.chunks[number].take()).collect()
    }

    /// All that is left.
    pub fn finish(self) -> Vec<Planned> {
        self.chunks.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::prompt::{ApiHeaders, Endpoint};
    use proptest::prelude::*;

    const LIMITS: BatchLimits = BatchLimits {
        max_prompts: 4,
        max_inputs: Some(6),
        max_bytes: 100,
        fixed_bytes: 10,
        line_bytes: 5,
        mixes_models: false,
    };

    fn lane(model: &str) -> Lane {
        let model = Some(model.to_owned());
        Lane { account: "openai".into(), endpoint: Endpoint::ChatCompletions, model, headers: ApiHeaders::default() }
    }

    fn key(n: usize) -> CacheKey {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        CacheKey::from_bytes(bytes)
    }

    fn plan(questions: &[(usize, &str, u64)], max_prompts: usize, share: bool) -> Vec<Planned> {
        let asked: Vec<_> = questions.iter().map(|(n, model, bytes)| (*n, lane(model), *bytes, 1)).collect();
        plan_lanes(&asked, max_prompts, share)
    }

    /// Each question: number, lane, bytes, inputs.
    fn plan_lanes(questions: &[(usize, Lane, u64, u64)], max_prompts: usize, share: bool) -> Vec<Planned> {
        let mut planner = Planner::new(max_prompts, share);
        let mut chunks = Vec::new();
        for (n, lane, wire_bytes, inputs) in questions {
            let place = Place { page: 0, results: 1 };
            let (wire_bytes, inputs) = (*wire_bytes, *inputs);
            planner.push(&Question { key: key(*n), lane, by: By::Us, limits: LIMITS, wire_bytes, inputs, place });
            chunks.extend(planner.take_full());
        }
        chunks.extend(planner.finish());
        chunks.sort_by_key(|chunk| chunk.number);
        chunks
    }

    fn sizes(chunks: &[Planned]) -> Vec<usize> {
        chunks.iter().map(|chunk| chunk.items.len()).collect()
    }

    #[test]
    fn chunk_is_honoured_and_so_is_the_providers_limit() {
        let five: Vec<_> = (0..5).map(|n| (n, "m", 1)).collect();
        assert_eq!(sizes(&plan(&five, 2, false)), [2, 2, 1]);
        assert_eq!(sizes(&plan(&five, 1_000, false)), [4, 1]);
    }

    #[test]
    fn a_chunk_is_cut_where_the_next_line_would_not_fit_to_the_byte() {
        assert_eq!(sizes(&plan(&[(0, "m", 45), (1, "m", 45)], 9, false)), [2]);
        assert_eq!(sizes(&plan(&[(0, "m", 45), (1, "m", 46)], 9, false)), [1, 1]);
    }

    #[test]
    fn models_travel_apart() {
        assert_eq!(sizes(&plan(&[(0, "a", 1), (1, "b", 1), (2, "a", 1)], 9, false)), [2, 1]);
    }

    #[test]
    fn versions_and_betas_of_anthropic_travel_apart() {
        let asked = |version: &str, betas: &[&str]| Lane {
            account: "anthropic".into(),
            endpoint: Endpoint::Messages,
            model: None,
            headers: ApiHeaders {
                version: Some(version.into()),
                betas: betas.iter().map(|beta| (*beta).to_owned()).collect(),
            },
        };
        let kinds = [
            asked("2023-06-01", &[]),
            asked("2026-10-21", &[]),
            asked("2023-06-01", &["a"]),
            asked("2023-06-01", &["a", "b"]),
        ];
        let questions: Vec<_> = (0..12).map(|n| (n, kinds[n % 4].clone(), 1, 1)).collect();
        let chunks = plan_lanes(&questions, 9, false);
        assert_eq!(chunks.iter().map(|chunk| &chunk.lane).collect::<Vec<_>>(), kinds.iter().collect::<Vec<_>>());
        for (n, chunk) in chunks.iter().enumerate() {
            let keys: Vec<CacheKey> = chunk.items.iter().map(|item| item.key).collect();
            assert_eq!(keys, [key(n), key(n + 4), key(n + 8)]);
        }
    }

    #[test]
    fn a_chunk_is_cut_where_the_next_inputs_would_not_fit() {
        let questions = |inputs: &[u64]| -> Vec<_> {
            inputs.iter().enumerate().map(|(n, inputs)| (n, lane("m"), 1, *inputs)).collect()
        };
        let chunks = plan_lanes(&questions(&[4, 2, 1, 6, 6, 5]), 9, false);
        assert_eq!(chunks.iter().map(|chunk| chunk.inputs).collect::<Vec<_>>(), [6, 1, 6, 6, 5]);
        assert_eq!(sizes(&chunks), [2, 1, 1, 1, 1]);
    }

    #[test]
    fn embeddings_are_shared_whatever_the_batch_says_and_their_neighbours_are_not_held_back() {
        let vectors = Lane { endpoint: Endpoint::Embeddings, ..lane("e") };
        let questions: Vec<_> = [(0, &vectors), (1, &lane("m")), (2, &lane("m")), (3, &vectors), (0, &vectors)]
            .map(|(n, lane)| (n, lane.clone(), 1, 1))
            .into();
        let chunks = plan_lanes(&questions, 1, false);
        assert_eq!(sizes(&chunks), [1, 1, 1, 1]);
        assert_eq!(chunks[0].items[0].places.len(), 2);
        let mut planner = Planner::new(1, false);
        for (n, lane, wire_bytes, inputs) in &questions {
            let (place, wire_bytes, inputs) = (Place { page: 0, results: 1 }, *wire_bytes, *inputs);
            planner.push(&Question { key: key(*n), lane, by: By::Us, limits: LIMITS, wire_bytes, inputs, place });
        }
        assert!(planner.take_full().iter().all(|chunk| chunk.lane == lane("m")), "only these are finished early");
        assert_eq!(planner.finish().len(), 3);
    }

    #[test]
    fn a_question_of_a_page_is_planned_once_with_its_results() {
        let lanes = [lane("m"), Lane { endpoint: Endpoint::Embeddings, ..lane("e") }];
        let page = |page: u32, asked: &[(usize, usize)]| -> Vec<Question<'_>> {
            let place = Place { page, results: 1 };
            let question = |(n, at): &(usize, usize)| {
                let lane = if *at == 0 { &lanes[0] } else { &lanes[1] };
                Question { key: key(*n), lane, by: By::Us, limits: LIMITS, wire_bytes: 1, inputs: 1, place }
            };
            asked.iter().map(question).collect()
        };
        let mut planner = Planner::new(9, false);
        assert_eq!(planner.push_page(page(0, &[(1, 1), (0, 0), (1, 1)])), [key(1), key(0)]);
        assert_eq!(planner.push_page(page(1, &[(1, 1), (2, 1)])), [key(2)]);
        let places: Vec<Vec<Place>> = planner.finish().remove(0).items.into_iter().map(|item| item.places).collect();
        let at = |page, results| Place { page, results };
        assert_eq!(places, [vec![at(0, 2), at(1, 1)], vec![at(1, 1)]]);
    }

    #[test]
    fn a_shared_question_is_asked_once_for_all_its_places() {
        let chunks = plan(&[(0, "m", 1), (1, "m", 1), (0, "m", 1)], 1, true);
        assert_eq!(sizes(&chunks), [1, 1]);
        assert_eq!(chunks[0].items[0].places.len(), 2);
    }

    proptest! {
        /// Page by page, with repeats and lanes that share: each question is planned as often as it must be asked, every
        /// result has its place in exactly one chunk, and no chunk is over a limit or handed out before it is finished.
        #[test]
        fn every_result_has_one_place(
            pages in prop::collection::vec(prop::collection::vec((0usize..12, 1u64..91), 1..12), 1..8),
            max_prompts in 1usize..6,
            share in any::<bool>(),
        ) {
            let lanes = [lane("a"), Lane { endpoint: Endpoint::Embeddings, ..lane("b") }, lane("c")];
            let mut planner = Planner::new(max_prompts, share);
            let (mut chunks, mut wanted, mut asked) = (Vec::new(), BTreeMap::<(CacheKey, u32), u32>::new(), 0);
            for (page, questions) in (0u32..).zip(&pages) {
                let of = |(n, wire_bytes): &(usize, u64)| {
                    let place = Place { page, results: 1 };
                    Question { key: key(*n), lane: &lanes[n % 3], by: By::Us, limits: LIMITS, wire_bytes: *wire_bytes, inputs: 1, place }
                };
                for (n, _) in questions {
                    *wanted.entry((key(*n), page)).or_default() += 1;
                }
                asked += planner.push_page(questions.iter().map(of)).len();
                chunks.extend(planner.take_full());
            }
            chunks.extend(planner.finish());
            let items: Vec<_> = chunks.iter().flat_map(|chunk| &chunk.items).collect();
            prop_assert_eq!(items.len(), asked, "what was told as planned is in a chunk");
            let mut placed = BTreeMap::new();
            for (item, place) in items.iter().flat_map(|item| item.places.iter().map(move |place| (item, place))) {
                prop_assert_eq!(placed.insert((item.key, place.page), place.results), None, "one place a page");
            }
            prop_assert_eq!(placed, wanted);
            for n in 0..12 {
                let times = items.iter().filter(|item| item.key == key(n)).count();
                let shared = share || n % 3 == 1;
                prop_assert!(!shared || times <= 1, "a shared question is asked once");
            }
            let numbers: std::collections::BTreeSet<u32> = chunks.iter().map(|chunk| chunk.number).collect();
            prop_assert_eq!(numbers.len(), chunks.len(), "each number once");
            for chunk in &chunks {
                prop_assert!(!chunk.items.is_empty() && chunk.items.len() <= max_prompts.min(LIMITS.max_prompts));
                prop_assert!(chunk.wire_bytes <= LIMITS.max_bytes && LIMITS.take_inputs(chunk.inputs));
            }
        }

        /// Whatever comes: every question in exactly one chunk, in order within its lane, and no chunk over a limit.
        #[test]
        fn every_question_once_and_no_limit_broken(
            questions in prop::collection::vec((0usize..3, 1u64..91, 1u64..7), 1..60),
            max_prompts in 1usize..6,
        ) {
            let lanes = [lane("a"), Lane { endpoint: Endpoint::Embeddings, ..lane("b") }, lane("c")];
            let questions: Vec<_> = questions
                .iter()
                .enumerate()
                .map(|(n, (lane, bytes, inputs))| (n, lanes[*lane].clone(), *bytes, *inputs))
                .collect();
            let chunks = plan_lanes(&questions, max_prompts, false);
            let mut seen: Vec<CacheKey> = Vec::new();
            for chunk in &chunks {
                prop_assert!(chunk.items.len() <= max_prompts.min(LIMITS.max_prompts));
                prop_assert!(chunk.wire_bytes <= LIMITS.max_bytes);
                prop_assert!(LIMITS.take_inputs(chunk.inputs));
                prop_assert!(chunk.items.is_sorted_by_key(|item| item.key));
                seen.extend(chunk.items.iter().map(|item| item.key));
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..questions.len()).map(key).collect::<Vec<_>>());
        }
    }
}
