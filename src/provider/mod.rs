//! DEVICE: the batch APIs, one folder a provider; and [`online`], for servers that have none. Knows nothing of Redis, of HTTP servers, or of the order of results.
//!
//! A provider batch is made in two steps so that the worker can write down what it is about to do before each:
//! [`BatchProvider::upload`] (harmless to lose) and [`BatchProvider::create`] (what is paid for, never retried blindly).

use crate::{
    clock::Millis,
    domain::{
        account::Call,
        identity::{Identity, Kin},
        limits::BatchLimits,
        outcome::Outcome,
        prompt::{ApiHeaders, Endpoint},
    },
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

pub mod anthropic;
mod download;
mod exchange;
mod faults;
mod harvest;
mod json;
mod keys;
mod lines;
mod listing;
mod measured;
pub mod online;
pub mod openai;
mod parcel;
mod rates;
pub mod registry;
pub mod secret;
mod transport;
mod verdict;

/// One configured provider account and its batch API.
#[async_trait]
pub trait BatchProvider: Send + Sync {
    /// The configured name, for ever: chunks remember it.
    fn account(&self) -> &str;

    /// What one batch may hold, for prompts of this endpoint.
    fn limits(&self, endpoint: Endpoint) -> BatchLimits;

    /// Puts the chunk's lines where `create` can refer to them; none where the create call itself carries them.
    async fn upload(&self, parcel: &Parcel) -> Result<Option<InputFile>, CallError>;

    /// Starts the batch. Never retried by the transport: an answer that was lost is [`CreateError::Unknown`].
    async fn create(&self, parcel: &Parcel, input: Option<&InputFile>) -> Result<Created, CreateError>;

    /// The batch's state at the provider.
    async fn status(&self, remote: &RemoteId) -> Result<RemoteStatus, CallError>;

    /// Everything the provider has to say of the batch's prompts, output and error files alike, in any order.
    /// A stream that ends without an `Err` was complete: a truncated download is an error, not an end.
    /// `endpoint`: what the batch's prompts asked, and so what an answer looks like.
    async fn results(
        &self,
        endpoint: Endpoint,
        ended: &Ended,
    ) -> Result<BoxStream<'static, Result<Line, CallError>>, CallError>;

    /// Asks the provider to stop. A batch that has ended meanwhile is no error.
    async fn cancel(&self, remote: &RemoteId) -> Result<(), CallError>;

    /// Batches that may be the one whose create answer was lost, newest first.
    async fn find(&self, doubt: &Doubt) -> Result<Vec<Candidate>, CallError>;

    /// The id and creation time of the newest batch the creating key sees: what `find` counts as "before" (Anthropic only).
    async fn newest(&self) -> Result<Option<Newest>, CallError>;

    /// True where a batch bears our label. Where none can, creates go one by one: see [`crate::domain::creates`].
    fn labels(&self) -> bool;

    /// Whose account the creating key reaches, as far as replies have said.
    fn identity(&self) -> Identity;

    /// Whether the account's keys reach where this was made, as far as replies have said. Makes no call.
    fn kin(&self, made: &Identity) -> Kin;

    /// A page of the account's batches, newest first, as far back as results are kept; one key's list after another's, for
    /// what one made may be invisible to the others. `from`: where the page before said it goes on.
    async fn list(&self, from: &Cursor) -> Result<Listing, CallError>;

    /// What the headers of replies have said since this was last asked.
    fn throttle(&self) -> Option<Throttle>;

    /// A name for the key that creates, kept with what it made: batches made with one key may be invisible to another.
    /// Says nothing of the key itself.
    fn credential(&self) -> String;

    /// Whether a key of this name is still among the account's.
    fn has_credential(&self, name: &str) -> bool;

    /// Removes what `upload` left, once the chunk is settled. Best effort.
    async fn discard(&self, input: &InputFile) -> Result<(), CallError>;
}

/// A chunk on its way out: everything a provider needs to build its batch.
#[derive(Clone)]
pub struct Parcel {
    pub chunk: String,
    pub deployment: String,
    pub attempt: u32,
    pub endpoint: Endpoint,
    pub model: String,
    pub headers: ApiHeaders,
    pub prompts: usize,
    /// Exact bytes of the file or body, as the plan computed them from [`BatchLimits`].
    pub wire_bytes: u64,
    /// Opens the prompts from the start; called once per upload or create.
    pub open: OpenLines,
    /// Asked as the last bytes of a create are about to leave: false, and they stay. A process that slept through its lease
    /// must not buy what another has taken over meanwhile; a body that is not whole is never acted upon.
    pub may_create: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Opens a stream of the chunk's prompts.
pub type OpenLines = Arc<dyn Fn() -> BoxStream<'static, Result<OutLine, ReadError>> + Send + Sync>;

/// Reading our own spool failed while sending; the source's text for the log.
#[derive(Debug, thiserror::Error)]
#[error("read the chunk's prompts: {0}")]
pub struct ReadError(pub String);

/// One prompt on its way out.
#[derive(Clone, Debug)]
pub struct OutLine {
    /// Our wire id (60 characters), made of chunk tag and cache key.
    pub custom_id: String,
    /// Compact JSON of the request body.
    pub body: Bytes,
}

/// One result line on its way in: its id and outcome came from one and the same JSON object.
#[derive(Clone, Debug)]
pub struct Line {
    pub custom_id: String,
    pub outcome: LineOutcome,
}

/// What a result line says.
#[derive(Clone, Debug, PartialEq)]
pub enum LineOutcome {
    /// The provider's word on this prompt.
    Final(Outcome),
    /// Not executed: the batch was cancelled.
    Canceled,
    /// Not executed: the provider's window closed.
    Expired,
}

/// The provider's id of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RemoteId(pub String);

/// The provider's id of an uploaded input file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InputFile(pub String);

/// A batch the provider accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    pub remote: RemoteId,
    /// Whose account took it.
    pub identity: Identity,
}

/// Where a batch is, in three words for every provider.
#[derive(Clone, Debug, PartialEq)]
pub enum RemoteStatus {
    /// Not ended; unknown status words mean this too (and a warning metric).
    Running {
        /// Prompts the provider says are done; for display only.
        reported: u64,
    },
    /// Nothing more will happen; what there is can be read.
    Ended(Ended),
    /// Refused as a whole after create (OpenAI `failed`).
    Refused(Refusal),
}

/// Where the results of an ended batch are. Serializable: the worker may die before reading them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub remote: RemoteId,
    /// Files or paths to read, all of them; may be empty.
    pub sources: Vec<String>,
}

/// Why a provider refused a batch after it had accepted its creation.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// Enqueued-token limit and its kin: the same chunk again later, no prompt fails.
    BackPressure { pressure: Pressure, detail: String },
    /// These lines of the input (1-based) are at fault; the others are fine.
    Lines(Vec<LineFault>),
    /// The input file was not there yet, or is gone: upload and create again.
    InputLost { detail: String },
    /// Refused whole with no line named: bisect.
    Whole { code: Option<String>, detail: String },
}

/// What it is that a provider has enough of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    Tokens(TokenLimit),
    /// Quota or money: the whole account waits for an operator.
    Spent,
    /// Too many requests.
    Requests,
    /// It has a trouble of its own.
    Trouble,
}

/// The limit on tokens enqueued for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimit {
    /// The figure the provider named, in its own count.
    pub stated: Option<u64>,
}

/// An account wants to be left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Create: creates only. Read: every call.
    pub call: Call,
    /// None where a call was refused and nothing says for how long.
    pub wait: Option<Duration>,
    /// A call was refused; else the headers of a success say that nothing is left.
    pub refused: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LineFault {
    /// 1-based line of the input file.
    pub line: usize,
    pub code: Option<String>,
    pub message: String,
}

/// What to look for when a create's answer was lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Doubt {
    pub chunk: String,
    pub deployment: String,
    /// The first attempt of which nobody knows what became; those after it may have been made, too.
    pub attempt: u32,
    pub prompts: usize,
    pub input: Option<InputFile>,
    /// The key the create was sent with, as [`BatchProvider::credential`] calls it.
    pub credential: Option<String>,
    /// Whose account it was sent to, as far as it is known.
    pub identity: Option<Identity>,
    /// Unix milliseconds before which it cannot have been made; an hour is granted to clocks that differ.
    pub not_before: Option<u64>,
    /// The newest batch listed just before the create (Anthropic); only newer ones are candidates.
    pub newest_before: Option<Newest>,
}

/// What the provider's clock and ours may differ.
const CLOCKS_DIFFER_SECONDS: u64 = 60 * 60;

impl Doubt {
    /// True of a batch that the provider made before it can have been asked to, in Unix seconds.
    fn is_older(&self, created_at: u64) -> bool {
        self.not_before.is_some_and(|at| created_at < (at / 1_000).saturating_sub(CLOCKS_DIFFER_SECONDS))
    }
}

/// A batch that was there before. The time, by the provider's clock, still tells older from newer when the batch itself
/// has been deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newest {
    pub remote: RemoteId,
    /// RFC 3339, as the provider wrote it.
    pub created_at: Option<String>,
}

/// A batch that may be ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub remote: RemoteId,
    pub evidence: Evidence,
}

/// Why a batch may be ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Its label names our deployment, chunk and attempt: no doubt is left (OpenAI).
    Label,
    /// It bears no label, and was made of our input file, which no other chunk has.
    InputFile,
    /// Its size and time fit (Anthropic). Only its custom_ids can tell.
    Size,
}

/// A page of the list of an account's batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    pub batches: Vec<Listed>,
    /// Where it goes on; none at the end of the last key's list.
    pub next: Option<Cursor>,
}

/// A place in the walk through an account's batches; the default is its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Which of the account's keys looks, from 0.
    key: usize,
    /// The last batch of the page before; none on a key's first page.
    after: Option<String>,
    /// When the newest batch this key sees was made, by the provider's clock.
    newest: Option<Millis>,
    /// A key before this one was let in.
    let_in: bool,
}

/// A batch as its account's list tells of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub remote: RemoteId,
    pub label: Label,
    pub status: RemoteStatus,
    /// What its prompts asked; none if it is nothing that we ask.
    pub endpoint: Option<Endpoint>,
    /// When it ended, by the provider's clock, if the list says so.
    pub ended_at: Option<Millis>,
}

/// What a list says of whose a batch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// Made by a gateway like this one, for this chunk of this deployment.
    Says { deployment: String, chunk: String },
    /// The provider keeps labels, and this batch has none of a gateway's.
    Missing,
    /// The provider keeps no labels: whose it is, the `custom_id`s of its results say.
    Unkept,
}

/// A call that may be repeated failed. The variants are what the caller does next.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Wait and call again (408, 409, 429, 5xx, 529, time-outs, resets).
    #[error("{detail}")]
    Again { after: Option<Duration>, detail: String },
    /// 401, 402, 403, quota and spend limits: nothing of this account will work until an operator acts.
    /// `auth`: it refuses the key.
    #[error("{detail}")]
    Paused { auth: bool, detail: String },
    /// 404: patience first (a fresh id may not be visible yet), loss later.
    #[error("{detail}")]
    NotFound { detail: String },
    /// 400, 413, 422 and anything else that repeating will not cure.
    #[error("{detail}")]
    Refused { status: u16, code: Option<String>, detail: String },
}

/// In an error's text, what stands before the provider's own words; they may quote a prompt.
const PROVIDER_SAYS: &str = ": the provider says: ";

impl CallError {
    /// The text without the provider's own words: what may be logged.
    pub fn head(&self) -> &str {
        head(self.detail())
    }

    /// The provider's own words, if it had any.
    pub fn said(&self) -> Option<&str> {
        self.detail().split_once(PROVIDER_SAYS).map(|(_, said)| said)
    }

    /// The limit on enqueued tokens, if that is what refused the call.
    pub fn token_limit(&self) -> Option<TokenLimit> {
        match self {
            CallError::Refused { code: Some(code), .. } if code == faults::TOKEN_LIMIT => {
                Some(TokenLimit { stated: self.said().and_then(faults::stated_limit) })
            }
            CallError::Again { .. }
            | CallError::Paused { .. }
            | CallError::NotFound { .. }
            | CallError::Refused { .. } => None,
        }
    }

    fn detail(&self) -> &str {
        let (CallError::Again { detail, .. }
        | CallError::Paused { detail, .. }
        | CallError::NotFound { detail }
        | CallError::Refused { detail, .. }) = self;
        detail
    }
}

impl CreateError {
    /// As [`CallError::head`].
    pub fn head(&self) -> &str {
        match self {
            CreateError::NotCreated(error) => error.head(),
            CreateError::Unknown { detail } => head(detail),
        }
    }
}

fn head(detail: &str) -> &str {
    detail.split(PROVIDER_SAYS).next().unwrap_or_default()
}

/// A create call failed.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Certainly not created: the provider said so, or the request never left.
    #[error(transparent)]
    NotCreated(#[from] CallError),
    /// Sent, and no readable answer: created or not, only looking will tell.
    #[error("{detail}")]
    Unknown { detail: String },
}

/// A status word nobody knew when this was written: the batch is taken as running, and somebody is told.
fn unknown_status(provider: &'static str, remote: &RemoteId, word: &str) {
    metrics::counter!("batchgate_unknown_status_total", "provider" => provider).increment(1);
    tracing::warn!(provider, remote = remote.0, word = json::shortened(word, 64), "unknown batch status");
}

/// The outcome of a cancel call: refused with 400 or 409 it is still well if the batch has ended by itself.
async fn canceled(
    provider: &dyn BatchProvider,
    remote: &RemoteId,
    call: Result<(), CallError>,
) -> Result<(), CallError> {
    match call {
        Err(error @ (CallError::Refused { status: 400, .. } | CallError::Again { .. })) => {
            match provider.status(remote).await {
                Ok(RemoteStatus::Ended(_) | RemoteStatus::Refused(_)) => Ok(()),
                Ok(RemoteStatus::Running { .. }) | Err(_) => Err(error),
            }
        }
        other => other,
    }
}
