//! The scripts that draw and give back run numbers, against a model that is obviously right: any order of draws, lost
//! replies, broken uploads, failures and new attempts.

use crate::support::{dir::Dir, redis::Redis};
use batchgate::{
    domain::{id::BatchId, progress::Progress, run::Run},
    store::{
        Store,
        runs::{Asking, Attempt, DrawnPage, Draws, Kind, Row},
        uploads::{Accepted, Extent, First, Reservation},
    },
};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

/// One step; numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    /// One of two uploads draws a page: (question, name, samples, shared) per prompt.
    Draw(usize, Vec<(u8, Option<u8>, u32, bool)>),
    /// The reply to one of its pages was lost.
    Again(usize, usize),
    Break(usize),
    Accept(usize),
    /// Some results of an accepted batch fail: those whose turn the mask says.
    Fail(usize, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let prompt = (0..3_u8, prop::option::of(0..4_u8), 1..4_u32, prop::bool::weighted(0.1));
    prop_oneof![
        6 => (0..2_usize, vec(prompt, 1..6)).prop_map(|(upload, prompts)| Step::Draw(upload, prompts)),
        1 => (0..2_usize, 0..4_usize).prop_map(|(upload, page)| Step::Again(upload, page)),
        1 => (0..2_usize).prop_map(Step::Break),
        2 => (0..2_usize).prop_map(Step::Accept),
        2 => (0..4_usize, any::<u32>()).prop_map(|(batch, mask)| Step::Fail(batch, mask)),
    ]
}

/// What one question of the attempt is to the model.
#[derive(Default)]
struct Question {
    seen: u64,
    /// How many hold each number.
    holds: BTreeMap<u32, u32>,
    named: HashMap<([u8; 16], u32), u32>,
}

#[derive(Default)]
struct Model(HashMap<[u8; 16], Question>);

impl Model {
    fn draw(&mut self, askings: &[Asking]) -> DrawnPage {
        let mut drawn = DrawnPage::default();
        for asking in askings {
            let question = self.0.entry(asking.question).or_default();
            if asking.row.sample == 0 {
                drawn.repeats += u64::from(question.seen > 0);
                question.seen += 1;
            }
            let name = match asking.kind {
                Kind::Shared => {
                    drawn.numbers.insert(asking.row, asking.row.sample);
                    continue;
                }
                Kind::Named(name) => Some((name, asking.row.sample)),
                Kind::Anew => None,
            };
            let kept = name.and_then(|name| question.named.get(&name).copied());
            let number = kept.unwrap_or_else(|| (0..).find(|n| !question.holds.contains_key(n)).expect("endless"));
            *question.holds.entry(number).or_default() += 1;
            question.named.extend(name.map(|name| (name, number)));
            drawn.numbers.insert(asking.row, number);
        }
        drawn
    }

    fn give_back(&mut self, asking: &Asking, number: u32, unasked: bool) {
        let question = self.0.get_mut(&asking.question).expect("it was asked");
        question.seen -= u64::from(unasked && asking.row.sample == 0);
        if asking.kind == Kind::Shared {
            return;
        }
        let holds = question.holds.get_mut(&number).expect("it is held");
        *holds -= 1;
        if *holds == 0 {
            question.holds.remove(&number);
            question.named.retain(|_, named| *named != number);
        }
    }
}

/// A page as it was drawn.
struct Page {
    askings: Vec<Asking>,
    drawn: DrawnPage,
}

struct Upload {
    batch: BatchId,
    pages: Vec<Page>,
    prompts: u32,
    names: HashSet<u8>,
}

struct Story<'a> {
    store: &'a Store,
    draws: Draws,
    run: Run,
    model: Model,
    uploads: Vec<Upload>,
    accepted: Vec<Upload>,
}

impl Story<'_> {
    async fn upload(&self) -> Upload {
        let batch = BatchId::new(1, &rand::random());
        self.store.begin_upload(batch).await.expect("redis answers");
        Upload { batch, pages: Vec::new(), prompts: 0, names: HashSet::new() }
    }

    async fn take(&mut self, step: &Step) {
        match step {
            Step::Draw(upload, prompts) => self.draw(*upload, prompts).await,
            Step::Again(upload, page) => self.draw_again(*upload, *page).await,
            Step::Break(upload) => self.give_up(*upload).await,
            Step::Accept(upload) => self.accept(*upload).await,
            Step::Fail(batch, mask) => self.fail(*batch, *mask).await,
        }
    }

    async fn draw(&mut self, upload: usize, prompts: &[(u8, Option<u8>, u32, bool)]) {
        let upload = &mut self.uploads[upload];
        let mut askings = Vec::new();
        for (question, name, samples, shared) in prompts {
            // A custom_id stands once in a batch.
            let name = name.filter(|name| upload.names.insert(*name));
            let kind = match name {
                _ if *shared => Kind::Shared,
                Some(name) => Kind::Named([name + 16 * question; 16]),
                None => Kind::Anew,
            };
            for sample in 0..*samples {
                askings.push(Asking { row: Row { index: upload.prompts, sample }, question: [*question; 16], kind });
            }
            upload.prompts += 1;
        }
        let page = u32::try_from(upload.pages.len()).expect("few");
        let extent = Extent { pages: page + 1, ..Extent::default() };
        assert!(self.store.extend_upload(upload.batch, extent).await.expect("redis answers"));
        let drawn = self.store.draw(&self.draws, upload.batch, page, &askings).await.expect("redis answers");
        let drawn = drawn.expect("the upload is alive");
        assert_eq!(drawn, self.model.draw(&askings), "{askings:?}");
        upload.pages.push(Page { askings, drawn });
    }

    async fn draw_again(&self, upload: usize, page: usize) {
        let upload = &self.uploads[upload];
        if let Some(Page { askings, drawn }) = upload.pages.get(page) {
            let page = u32::try_from(page).expect("few");
            let again = self.store.draw(&self.draws, upload.batch, page, askings).await.expect("redis answers");
            assert_eq!(again.as_ref(), Some(drawn), "the same page draws the same");
        }
    }

    async fn give_up(&mut self, upload: usize) {
        let fresh = self.upload().await;
        let broken = std::mem::replace(&mut self.uploads[upload], fresh);
        for _ in 0..2 {
            self.store.abandon_upload(broken.batch).await.expect("redis answers");
        }
        for page in &broken.pages {
            for asking in &page.askings {
                self.model.give_back(asking, page.drawn.numbers[&asking.row], true);
            }
            let late = self.store.draw(&self.draws, broken.batch, 0, &page.askings).await.expect("redis answers");
            assert_eq!(late, None, "an upload that is gone draws nothing");
        }
    }

    async fn accept(&mut self, upload: usize) {
        let fresh = self.upload().await;
        let whole = std::mem::replace(&mut self.uploads[upload], fresh);
        let progress = Progress { team: "t".into(), run: Some(self.run.to_string()), ..Progress::default() };
        let first = First { progress: &progress, chunks: 0 };
        let accepted =
            self.store.accept(whole.batch, &first, None, Reservation::default(), 1_000).await.expect("redis answers");
        assert_eq!(accepted, Accepted::Done);
        self.accepted.push(whole);
    }

    async fn fail(&mut self, batch: usize, mask: u32) {
        let Some(failing) = self.accepted.get_mut(batch) else { return };
        let mut turn = 0_u32;
        for (number, page) in failing.pages.iter_mut().enumerate() {
            let mut fails = |_: &Asking| {
                turn += 1;
                mask >> (turn % 32) & 1 == 1
            };
            let (failed, kept): (Vec<Asking>, Vec<Asking>) = page.askings.drain(..).partition(|one| fails(one));
            page.askings = kept;
            if failed.is_empty() {
                continue;
            }
            let rows: Vec<Row> = failed.iter().map(|asking| asking.row).collect();
            let number = u32::try_from(number).expect("few");
            self.store.note_failed(failing.batch, number, &rows).await.expect("redis answers");
            for _ in 0..2 {
                self.store.settle_draws(failing.batch, number).await.expect("redis answers");
            }
            for asking in failed {
                self.model.give_back(&asking, page.drawn.numbers[&asking.row], false);
            }
        }
    }

    /// Everything comes to nothing: all numbers are free, and where nobody asked nothing is left.
    async fn end(&mut self, redis: &Redis) {
        for upload in 0..self.uploads.len() {
            self.give_up(upload).await;
        }
        if self.accepted.is_empty() {
            let keys = redis.keys().await;
            assert!(!keys.keys().any(|key| key.contains(":n:")), "nobody asked anything: {keys:?}");
        }
        for batch in 0..self.accepted.len() {
            self.fail(batch, u32::MAX).await;
        }
        let anew: Vec<_> = (0..3).map(|question| (question, None, 3, false)).collect();
        self.draw(0, &anew).await;
        let numbers = &self.uploads[0].pages[0].drawn.numbers;
        assert!(numbers.iter().all(|(row, number)| row.sample == *number), "all were free: {numbers:?}");
    }
}

async fn tell(redis: &Redis, store: &Store, steps: &[Step]) {
    redis.command::<()>(&["FLUSHALL"]).await;
    let run = Run::parse("model~1").expect("a run");
    let draws = Draws { attempt: Attempt::new("t", &run), kept: Duration::from_secs(60) };
    let (model, uploads, accepted) = Default::default();
    let mut story = Story { store, draws, run, model, uploads, accepted };
    for _ in 0..2 {
        let upload = story.upload().await;
        story.uploads.push(upload);
    }
    for step in steps {
        story.take(step).await;
    }
    story.end(redis).await;
}

#[test]
fn numbers_are_drawn_and_given_back_as_in_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dir = Dir::new();
    let (redis, store) = runtime.block_on(async {
        let redis = Redis::start(dir.path()).await;
        let store = Store::connect(&redis.url(), "default").await.expect("redis answers");
        redis.command::<()>(&["CONFIG", "SET", "appendonly", "no"]).await; // hundreds of stories: no need to survive
        (redis, store)
    });
    let config = Config { cases: 60, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let told = TestRunner::new(config).run(&vec(step(), 1..30), |steps| {
        runtime.block_on(tell(&redis, &store, &steps));
        Ok(())
    });
    assert!(told.is_ok(), "{told:?}");
}
