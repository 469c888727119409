//! Asks once more what a batch left unanswered: its failed, canceled and expired results become a new batch, in their
//! order and under their old keys, so that an answer somebody else bought meanwhile is a hit.
//!
//! What is read is what the sealer kept, a frame at a time; from there on it is an upload like any other. The old batch is
//! only read: nothing here can change it, and once the new batch exists nothing that happens to the old one can hurt it.

use super::{
    Gateway,
    number::Key,
    page::{Asked, What, Wire},
    submit::{Submission, SubmitError},
};
use crate::{
    domain::{
        batch::{Repeats, Salt},
        chunk::Lane,
        id::BatchId,
        json,
        key::Question,
        problem::{Problem, Problems, quote},
        progress::Progress,
        prompt::Prompt,
        team::Team,
    },
    store::{
        Store, StoreError,
        idempotency::Lock,
        record::{Again, Unanswered},
    },
};
use bytes::Bytes;
use std::collections::HashSet;

/// Why a batch is not asked again. Nothing of a new one is left.
#[derive(Debug, thiserror::Error)]
pub enum RetryError {
    #[error("the batch has not ended")]
    Running,
    /// Every result has its answer, or nobody can be asked for those that lack one.
    #[error("nothing is left to ask")]
    Nothing,
    /// The batch was deleted while it was read.
    #[error("the batch is gone")]
    Gone,
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

impl From<StoreError> for RetryError {
    fn from(error: StoreError) -> RetryError {
        RetryError::Submit(error.into())
    }
}

/// A batch on its way in that is fed by an earlier one. Its submission must be finished or abandoned.
pub struct Retry<'g> {
    gateway: &'g Gateway,
    /// Where the old batch is: the team may have written elsewhere then.
    from: &'g Store,
    of: BatchId,
    /// Results that must be found.
    unanswered: u64,
    pub submission: Submission<'g>,
    /// In a run the numbers of its questions are drawn again.
    in_run: bool,
    salt: Option<Salt>,
    shares: bool,

    /// Questions seen so far, told apart by what is hashed into their keys.
    seen: HashSet<[u8; 16]>,
    /// Index of the latest prompt in the old batch, and in the new one.
    latest: Option<(u32, u32)>,
    taken: u64,
    /// How many of `taken` may bring an answer.
    asked: u64,
}

impl<'g> Retry<'g> {
    /// Opens an upload, if the batch has ended and something is unanswered.
    pub async fn begin(
        gateway: &'g Gateway,
        team: &Team,
        (from, of): (&'g Store, BatchId),
        old: &Progress,
        lock: Option<Lock>,
    ) -> Result<Retry<'g>, RetryError> {
        if old.ended_at.is_none() {
            return Err(RetryError::Running);
        }
        let unanswered = old.counts.unanswered();
        if unanswered == 0 {
            return Err(RetryError::Nothing);
        }
        let submission = Submission::again(gateway, team, of, old, lock).await?;
        let (in_run, salt, shares) = (old.run.is_some(), old.terms.salt.clone(), old.terms.repeats == Repeats::Share);
        let (seen, latest) = Default::default();
        Ok(Retry { gateway, from, of, unanswered, submission, in_run, salt, shares, seen, latest, taken: 0, asked: 0 })
    }

    /// Feeds the submission to its end.
    pub async fn fill(&mut self) -> Result<(), RetryError> {
        let store = self.from;
        for (page, row) in store.unanswered_pages(self.of).await? {
            for frame in 0..row.frames {
                let Some(records) = store.unanswered_frame(self.of, page, &row, frame).await? else {
                    return Err(self.lacking().await?);
                };
                for (one, body) in records {
                    self.take(one, body).await?;
                }
                fail_point!("retry_frame_read", StoreError);
            }
        }
        if self.taken != self.unanswered {
            return Err(self.lacking().await?);
        }
        if self.asked == 0 { Err(RetryError::Nothing) } else { Ok(()) }
    }

    /// Something is not there: the batch was deleted under our eyes, or what was stored is damaged.
    async fn lacking(&self) -> Result<RetryError, StoreError> {
        let gone = self.from.progress(self.of).await?.is_none();
        let why = format!("{} results lack an answer, {} were kept", self.unanswered, self.taken);
        Ok(if gone { RetryError::Gone } else { StoreError::corrupt(self.of.to_string(), why).into() })
    }

    async fn take(&mut self, one: Unanswered, body: Bytes) -> Result<(), RetryError> {
        let Unanswered { index: old_index, sample, custom_id, key, again } = one;
        // Samples of one prompt stay together under one index.
        let (index, is_new) = match self.latest {
            Some((old, new)) if old == old_index => (new, false),
            Some((_, new)) => (new + 1, true),
            None => (0, true),
        };
        self.latest = Some((old_index, index));
        self.taken += 1;
        let (key, what, repeat) = match again {
            Again::Refused(failure) => (Key::Known(key), What::Refused(failure), false),
            Again::Ask(lane) => {
                let shared = self.shares || !lane.endpoint.has_samples();
                let (question, what) = self.question(lane, body)?;
                // A number whose outcome was a failure was given back; drawn anew it is the lowest free one, the same.
                if self.in_run {
                    (Key::Drawn { question, shared }, what, false)
                } else {
                    let repeat = is_new && !self.seen.insert(question.digest());
                    (Key::Known(key), what, repeat)
                }
            }
        };
        self.asked += u64::from(matches!(what, What::Question(_)));
        Ok(self.submission.take_again(Asked { index, sample, custom_id, key, what }, repeat).await?)
    }

    /// The question, and how it travels.
    fn question(&self, lane: Lane, body: Bytes) -> Result<(Question, What), RetryError> {
        let Some(route) = self.submission.routes.iter().find(|route| route.account == lane.account) else {
            return Err(SubmitError::Invalid(Box::new(no_account(&lane.account))).into());
        };
        let corrupt = |why: &dyn std::fmt::Display| StoreError::corrupt("kept prompt", why);
        let prompt = Prompt {
            account: lane.account.clone(),
            who: route.who.clone(),
            endpoint: lane.endpoint,
            model: lane.model.clone().unwrap_or_default(),
            headers: lane.headers.clone(),
            custom_id: None,
            body: json::parse(&body).map_err(|fault| corrupt(&fault.message()))?,
        };
        let question = Question::new(&prompt, self.salt.as_ref()).map_err(|_| corrupt(&"a number out of range"))?;
        let limits = self.gateway.limits(&lane.account, lane.endpoint);
        let wire_bytes = limits.weight(body.len());
        let (inputs, answer_bytes) = (prompt.inputs(), self.submission.answer_bytes(&prompt));
        Ok((question, What::new(Wire { lane, body, wire_bytes, inputs, answer_bytes }, &limits)))
    }
}

fn no_account(account: &str) -> Problems {
    let mut problems = Problems::default();
    let account = quote(account);
    let message = format!(
        "its prompts belong to account {account}, which is no longer configured, or no longer open to your team: change that"
    );
    problems.push(Problem::new("", None, message));
    problems
}
