//! Run numbers: which sample each asking of a question is, counted over all batches of one attempt.
//!
//! A number is held by every batch that drew it, until its outcome there is a failure; a success never lets go. What
//! nobody holds is free, and drawn first. So nothing has to be written when an answer comes, only when none does, and
//! that is part of the commit.
//!
//! What it costs, measured with Redis 7.0.15 and 50,000 prompts: 28 bytes a question, 23 a number under a `custom_id`, nothing
//! a number without one (1,000 questions, all named: 75 bytes each, buckets included). The questions of an attempt stand in
//! 256 buckets; one of more than 512 entries (about 65,000 named questions in all) is no listpack any more, and an entry
//! then costs about 80 bytes. While a batch is open, each of its results takes 33 to 50 bytes more: the note of what it drew.

use super::{Store, StoreError, script};
use crate::{
    clock,
    domain::{id::BatchId, run::Run},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use std::{collections::HashMap, fmt, time::Duration};

/// A batch may end half an hour after its deadline, and clocks differ: a record outlives every batch that draws from it.
const PATIENCE: Duration = Duration::from_secs(60 * 60);
/// Sent by text: inside a MULTI there is no second try for a script Redis has forgotten.
const GIVE_BACK_TEXT: &str = include_str!("scripts/give_back.lua");

/// The name of one attempt's record: of a team, and short whatever the run is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt(String);

impl Attempt {
    pub fn new(team: &str, run: &Run) -> Attempt {
        let digest = Sha256::digest([team, "\0", run.as_str()].concat());
        Attempt(URL_SAFE_NO_PAD.encode(&digest[..16]))
    }
}

/// A result's name among the draws of its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row {
    /// The prompt's position in the request.
    pub index: u32,
    /// Counts 0 .. samples-1 within the prompt.
    pub sample: u32,
}

impl Row {
    fn parse(text: &str) -> Option<Row> {
        let (index, sample) = text.split_once('.')?;
        Some(Row { index: index.parse().ok()?, sample: sample.parse().ok()? })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.sample)
    }
}

/// One asking of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    pub row: Row,
    /// Digest of the question without its sample number.
    pub question: [u8; 16],
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A new asking, whoever asks.
    Anew,
    /// Under a `custom_id`, which keeps its number; a digest of question and `custom_id`.
    Named([u8; 16]),
    /// Shares one answer: its number is its sample, and it draws none.
    Shared,
}

/// What a page drew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrawnPage {
    pub numbers: HashMap<Row, u32>,
    /// Prompts that begin on this page and whose question came before.
    pub repeats: u64,
}

/// Which record to draw from, and how long it must live.
#[derive(Clone, Debug)]
pub struct Draws {
    pub attempt: Attempt,
    /// From now to the end of the batch's asking, and its retention.
    pub kept: Duration,
}

impl Store {
    /// Draws the numbers of a page of an upload; `None` if the upload has lapsed. Drawing the same page again gives the
    /// same numbers. Every asking draws exactly one.
    pub async fn draw(
        &self,
        draws: &Draws,
        batch: BatchId,
        page: u32,
        askings: &[Asking],
    ) -> Result<Option<DrawnPage>, StoreError> {
        let mut call = script!("draw").prepare_invoke();
        call.key(self.keys.uploads()).key(self.keys.draws(batch, page));
        call.arg(batch.hex()).arg(self.keys.runs()).arg(&draws.attempt.0).arg(clock::millis(draws.kept + PATIENCE));
        for asking in askings {
            let (kind, name) = match &asking.kind {
                Kind::Anew => ("a", &[][..]),
                Kind::Named(digest) => ("c", &digest[..]),
                Kind::Shared => ("s", &[][..]),
            };
            call.arg(asking.row.to_string()).arg(kind).arg(&asking.question[..]).arg(name);
        }
        let Some(answer): Option<Vec<String>> = call.invoke_async(&mut self.main.clone()).await? else {
            return Ok(None);
        };
        let drawn = read_drawn(&answer).ok_or_else(|| StoreError::corrupt("draw script's answer", answer.join(" ")))?;
        match askings.iter().find(|asking| !drawn.numbers.contains_key(&asking.row)) {
            Some(asking) => Err(StoreError::corrupt("draw script's answer", format!("lacks {}", asking.row))),
            None => Ok(Some(drawn)),
        }
    }

    /// Notes results of a page that failed at accept: they give their numbers back once the batch exists.
    pub async fn note_failed(&self, batch: BatchId, page: u32, rows: &[Row]) -> Result<(), StoreError> {
        let mut hset = redis::cmd("HSET");
        hset.arg(self.keys.draws(batch, page));
        for row in rows {
            hset.arg(format!("!{row}")).arg("");
        }
        Ok(hset.query_async(&mut self.main.clone()).await?)
    }

    /// Of an accepted batch: gives back what failed at accept, and forgets the draws of a page that is sealed.
    pub async fn settle_draws(&self, batch: BatchId, page: u32) -> Result<(), StoreError> {
        self.give_back(batch, page, "failed").await?;
        fail_point!("numbers_given_back");
        Ok(())
    }

    /// Of an upload that broke, whose right to its pages the caller has taken: gives back all a page drew.
    pub(super) async fn undo_draws(&self, batch: BatchId, page: u32) -> Result<(), StoreError> {
        self.give_back(batch, page, "all").await
    }

    async fn give_back(&self, batch: BatchId, page: u32, what: &str) -> Result<(), StoreError> {
        let mut call = script!("give_back").prepare_invoke();
        call.key(self.keys.draws(batch, page)).key(self.keys.sealed_pages(batch));
        call.arg(self.keys.runs()).arg(what).arg(page);
        Ok(call.invoke_async(&mut self.main.clone()).await?)
    }

    /// Gives numbers back as part of a commit's MULTI.
    pub(super) fn give_back_call(&self, batch: BatchId, page: u32, rows: &[Row], pipe: &mut redis::Pipeline) {
        let call = pipe.cmd("EVAL").arg(GIVE_BACK_TEXT).arg(2);
        call.arg(self.keys.draws(batch, page)).arg(self.keys.sealed_pages(batch)).arg(self.keys.runs()).arg("these");
        for row in rows {
            call.arg(row.to_string());
        }
        call.ignore();
    }

    /// True if the batch belongs to a run.
    pub async fn draws_numbers(&self, batch: BatchId) -> Result<bool, StoreError> {
        let mut ask = redis::cmd("HEXISTS");
        ask.arg(self.keys.batch(batch)).arg("run");
        Ok(ask.query_async(&mut self.main.clone()).await?)
    }

    /// The chore that settles an accepted batch's draws, should accept not live to do it.
    pub(super) fn draws_chore(batch: BatchId) -> String {
        format!("draws:{}", batch.hex())
    }
}

fn read_drawn(answer: &[String]) -> Option<DrawnPage> {
    let (repeats, rest) = answer.split_first()?;
    let pair = |pair: &[String]| Some((Row::parse(&pair[0])?, pair.get(1)?.parse().ok()?));
    Some(DrawnPage { repeats: repeats.parse().ok()?, numbers: rest.chunks(2).map(pair).collect::<Option<_>>()? })
}
