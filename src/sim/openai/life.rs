//! The life of an OpenAI batch.
//!
//! ```text
//! validating --> in_progress --> finalizing --> completed
//!     |  |            |   |           |  |
//!     |  +> failed    |   +> expired <+  |
//!     +---------------+------------------+--> cancelling --> cancelled
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{
    endpoint::{Endpoint, shown_model},
    file::{Content, Side, StoredFile},
    lines::Indexed,
    results::{Results, Sides},
};
use crate::sim::{
    batch::{Batch, Birth, Life, Stop, new_id},
    clock::{DAY, unix},
    problem::{Problem, Provider},
    settings::{OpenAi, Own, Verdict},
    world::World,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a create call asked for.
#[derive(Clone)]
pub(crate) struct Order {
    pub(crate) input_file_id: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) completion_window: String,
    pub(crate) metadata: Value,
    /// How long result files live; 30 days if not said.
    pub(crate) output_expires_s: Option<f64>,
}

/// Where the reading of the input file leaves what it found.
pub(crate) type Index = Arc<Mutex<Option<Indexed>>>;

pub(crate) struct OpenAiBatch {
    pub(crate) life: Life,
    pub(crate) own: Arc<Own<OpenAi>>,
    pub(crate) order: Order,
    /// None if there was nothing to read.
    pub(crate) index: Option<Index>,
    status: Status,
    /// When each status was entered.
    entered: BTreeMap<Status, f64>,
    errors: Vec<Value>,
    model: Option<String>,
    /// Is it on its way to `expired`?
    expiring: bool,
    output_file_id: Option<String>,
    error_file_id: Option<String>,
    usage: Value,
}

impl OpenAiBatch {
    pub(crate) fn new(birth: Birth, own: Own<OpenAi>, order: Order) -> Self {
        Self {
            life: Life::new(Provider::OpenAi, birth, &own.common),
            own: Arc::new(own),
            order,
            index: None,
            status: Status::Validating,
            entered: BTreeMap::new(),
            errors: Vec::new(),
            model: None,
            expiring: false,
            output_file_id: None,
            error_file_id: None,
            usage: Value::Null,
        }
    }

    /// Pass through every state that is over by `now`, each at its own time.
    pub(crate) fn settle(&mut self, now: f64, world: &mut World) {
        while let Some((next, at)) = self.next(now) {
            match next {
                Status::InProgress => self.validate(at, world),
                _ if self.status == Status::InProgress => {
                    self.life.stop(at, Stop::ByItself, &mut world.ledger);
                    self.enter(next, at, world);
                }
                _ => self.enter(next, at, world),
            }
        }
    }

    /// The status that follows and when, if that has come. What follows `validating` is for `validate` to say.
    fn next(&mut self, now: f64) -> Option<(Status, f64)> {
        let dwell = &self.own.special;
        let since = |status| self.entered.get(&status).copied().unwrap_or(self.life.created);
        let (next, at) = match self.status {
            Status::Validating => {
                let read = match &self.index {
                    None => self.life.created,
                    Some(index) => index.lock().expect("nothing panics while it holds the index").as_ref()?.at,
                };
                (Status::InProgress, read.max(self.life.created + dwell.validating_s))
            }
            Status::InProgress => {
                let ends = self.life.work.as_ref().map_or(f64::INFINITY, |work| work.ends());
                let at = ends.min(self.life.expires);
                if at > now {
                    return None;
                }
                self.expiring = ends > self.life.expires;
                let through = dwell.expired_via_finalizing || !self.expiring;
                (if through { Status::Finalizing } else { Status::Expired }, at)
            }
            Status::Finalizing if self.expiring => (Status::Expired, since(Status::Finalizing) + dwell.expiring_s),
            Status::Finalizing => {
                let at = since(Status::Finalizing) + dwell.finalizing_s;
                // The window may close over a batch that is only being finalized.
                if at > self.life.expires { (Status::Expired, self.life.expires) } else { (Status::Completed, at) }
            }
            Status::Cancelling => (Status::Cancelled, since(Status::Cancelling) + dwell.cancelling_s),
            Status::Failed | Status::Completed | Status::Expired | Status::Cancelled => return None,
        };
        (at <= now).then_some((next, at))
    }

    fn enter(&mut self, status: Status, at: f64, world: &mut World) {
        self.status = status;
        self.entered.insert(status, at);
        match status {
            Status::Completed | Status::Expired | Status::Cancelled => self.publish(at, world),
            Status::Finalizing if self.own.special.file_ids_in_finalizing => self.publish(at, world),
            Status::Validating | Status::Failed | Status::InProgress | Status::Finalizing | Status::Cancelling => {}
        }
    }

    fn validate(&mut self, at: f64, world: &mut World) {
        let indexed =
            self.index.take().and_then(|index| index.lock().expect("nothing panics while it holds the index").take());
        let file_id = &self.order.input_file_id;
        let purpose = world.find_file(&self.life.account, file_id, at).map(|file| file.purpose.clone());
        self.model = indexed.as_ref().and_then(|indexed| indexed.model.clone());
        self.errors = match (purpose.as_deref(), &self.life.fault.validation_errors, &indexed) {
            (None, _, _) => vec![file_error(&cannot_find(file_id, &self.life.account))],
            (Some("batch"), Some(given), _) if given == "token_limit_exceeded" => vec![self.token_limit_error(90_000)],
            (Some("batch"), Some(given), _) => given.as_array().cloned().unwrap_or_else(|| vec![given.clone()]),
            (Some("batch"), None, Some(indexed)) if indexed.errors.is_empty() => {
                let wanted = indexed.requests.input_tokens();
                let limit = self.own.special.enqueued_token_limit;
                match limit.filter(|limit| self.enqueued_tokens(world) + wanted > *limit) {
                    Some(limit) => vec![self.token_limit_error(limit)],
                    None => Vec::new(),
                }
            }
            (Some("batch"), None, Some(indexed)) => indexed.errors.clone(),
            (Some(_), _, _) => vec![file_error(&format!("The file {file_id} was not uploaded with purpose 'batch'."))],
        };
        match indexed {
            Some(indexed) if self.errors.is_empty() => {
                self.life.start(indexed.requests, at, self.own.special.in_progress_s);
                self.enter(Status::InProgress, at, world);
            }
            _ => self.enter(Status::Failed, at, world),
        }
    }

    /// Input tokens of the account's other running batches of this model.
    fn enqueued_tokens(&self, world: &World) -> u64 {
        let same = |batch: &&OpenAiBatch| batch.life.account == self.life.account && batch.model == self.model;
        let running =
            |batch: &&OpenAiBatch| matches!(batch.status, Status::InProgress | Status::Finalizing | Status::Cancelling);
        let others = world.batches().filter_map(|batch| match batch {
            Batch::OpenAi(batch) => Some(&**batch),
            Batch::Anthropic(_) => None,
        });
        others
            .filter(same)
            .filter(running)
            .filter_map(|batch| Some(batch.life.work.as_ref()?.requests.input_tokens()))
            .sum()
    }

    fn token_limit_error(&self, limit: u64) -> Value {
        let message = format!(
            "Enqueued token limit reached for {} in organization org-{}. Limit: {limit} enqueued tokens. \
             Please try again once some in_progress batches have been completed.",
            self.model.as_deref().unwrap_or_default(),
            self.life.account
        );
        json!({"code": "token_limit_exceeded", "message": message, "param": null, "line": null})
    }

    pub(crate) fn cancel(&mut self, now: f64, world: &mut World) -> Result<(), Problem> {
        match self.status {
            Status::Expired if self.own.special.cancel_expired == Verdict::Accept => {}
            Status::Completed | Status::Failed | Status::Expired => {
                let message = format!("Cannot cancel a batch with status '{}'.", self.status.name());
                return Err(Problem::new(409, "invalid_request_error", message));
            }
            Status::InProgress => {
                self.life.stop(now, Stop::Cancelled, &mut world.ledger);
                self.enter(Status::Cancelling, now, world);
            }
            Status::Validating | Status::Finalizing => self.enter(Status::Cancelling, now, world),
            Status::Cancelling | Status::Cancelled => {}
        }
        Ok(())
    }

    /// Make the file objects of a batch whose work has stopped: each is there only if it has a line.
    fn publish(&mut self, at: f64, world: &mut World) {
        let Some(done) =
            self.life.done.clone().filter(|_| self.output_file_id.is_none() && self.error_file_id.is_none())
        else {
            return;
        };
        if self.own.special.batch_usage {
            let [input, output, cached, reasoning] = done.usage();
            self.usage = json!({
                "input_tokens": input, "input_tokens_details": {"cached_tokens": cached}, "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": reasoning}, "total_tokens": input + output,
            });
        }
        let (failures, misfiled) = (!done.failed.is_empty(), self.life.fault.results.misfile);
        let sides = Sides {
            output: done.succeeded > 0 || (failures && misfiled),
            error: done.unfinished() > 0 || (failures && !misfiled) || self.own.special.always_error_file,
        };
        let stop = if self.entered.contains_key(&Status::Cancelling) { Stop::Cancelled } else { Stop::ByItself };
        let results = Arc::new(Results {
            done,
            endpoint: self.order.endpoint,
            own: Arc::clone(&self.own),
            fault: Arc::clone(&self.life.fault),
            stop,
            sides,
            written: OnceCell::new(),
        });
        if sides.output {
            self.output_file_id = Some(self.publish_side(Arc::clone(&results), Side::Output, at, world));
        }
        if sides.error {
            self.error_file_id = Some(self.publish_side(results, Side::Error, at, world));
        }
    }

    fn publish_side(&self, results: Arc<Results>, side: Side, at: f64, world: &mut World) -> String {
        let id = new_id("file-");
        let word = match side {
            Side::Output => "output",
            Side::Error => "error",
        };
        world.add_file(StoredFile {
            id: id.clone(),
            account: self.life.account.clone(),
            filename: format!("{}_{word}.jsonl", self.life.id),
            purpose: "batch_output".into(),
            created: at,
            expires: Some(at + self.order.output_expires_s.unwrap_or(30.0 * DAY)),
            visible: at + self.life.fault.results_hidden_s,
            processed: at,
            deleted: None,
            content: Content::Results(results, side),
        });
        id
    }

    fn counts(&self, now: f64) -> Value {
        let (mut completed, mut failed) = self.life.tally();
        if let (Status::InProgress, Some(work)) = (self.status, &self.life.work) {
            use crate::sim::oracle::Outcome;
            let done = &work.order[..work.done_by(now - self.own.special.count_lag_s)];
            let count = |outcome| done.iter().filter(|index| work.requests.lines[**index].outcome == outcome).count();
            failed = count(Outcome::Error);
            completed = done.len() - failed - count(Outcome::Expire);
        }
        json!({"total": self.life.size(), "completed": completed, "failed": failed})
    }

    pub(crate) fn render(&self, now: f64) -> Value {
        let at = |status| self.entered.get(&status).copied().map(unix);
        let model = self.model.as_deref().filter(|_| self.life.work.is_some());
        let errors = (!self.errors.is_empty()).then(|| json!({"object": "list", "data": self.errors}));
        self.life.show(self.status.name(), json!({
            "id": self.life.id, "object": "batch", "endpoint": self.order.endpoint.path(),
            "model": model.map(|model| shown_model(model, &self.own.common)), "errors": errors,
            "input_file_id": self.order.input_file_id, "completion_window": self.order.completion_window,
            "status": self.status.name(), "output_file_id": self.output_file_id, "error_file_id": self.error_file_id,
            "created_at": unix(self.life.created), "in_progress_at": at(Status::InProgress),
            "expires_at": unix(self.life.expires), "finalizing_at": at(Status::Finalizing),
            "completed_at": at(Status::Completed), "failed_at": at(Status::Failed), "expired_at": at(Status::Expired),
            "cancelling_at": at(Status::Cancelling), "cancelled_at": at(Status::Cancelled),
            "request_counts": self.counts(now), "usage": self.usage, "metadata": self.order.metadata,
        }))
    }
}

pub(crate) fn cannot_find(file_id: &str, account: &str) -> String {
    format!("Cannot find file {file_id}, or organization org-{account} does not have access to it.")
}

fn file_error(message: &str) -> Value {
    json!({"code": "invalid_request", "message": message, "param": "file_id", "line": null})
}
