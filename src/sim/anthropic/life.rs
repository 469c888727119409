//! The life of an Anthropic batch: `in_progress --> ended`, or `in_progress --> canceling --> ended`.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{intake::Intake, results::Results};
use crate::sim::{
    batch::{Birth, Life, Requests, Stop},
    clock::{DAY, rfc3339},
    ledger::Ledger,
    problem::{Problem, Provider},
    settings::{ArchivedUrl, ResultsUrl, Verdict},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    InProgress,
    Canceling,
    Ended,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Canceling => "canceling",
            Self::Ended => "ended",
        }
    }
}

pub(crate) struct AnthropicBatch {
    pub(crate) life: Life,
    intake: Intake,
    cancelled: Option<f64>,
    pub(crate) ended: Option<f64>,
    results: Option<Arc<Results>>,
}

impl AnthropicBatch {
    pub(crate) fn new(birth: Birth, intake: Intake, requests: Requests) -> Self {
        let mut life = Life::new(Provider::Anthropic, birth, &intake.own.common);
        life.start(requests, life.created, intake.own.special.in_progress_s);
        Self { life, intake, cancelled: None, ended: None, results: None }
    }

    fn status(&self) -> Status {
        match (self.ended, self.cancelled) {
            (Some(_), _) => Status::Ended,
            (None, Some(_)) => Status::Canceling,
            (None, None) => Status::InProgress,
        }
    }

    pub(crate) fn settle(&mut self, now: f64, ledger: &mut Ledger) {
        match (self.status(), self.cancelled) {
            (Status::InProgress, _) => {
                let ends = self.life.work.as_ref().map_or(f64::INFINITY, |work| work.ends()).min(self.life.expires);
                if ends <= now {
                    self.life.stop(ends, Stop::ByItself, ledger);
                    self.end(ends, Stop::ByItself);
                }
            }
            (Status::Canceling, Some(cancelled)) => {
                let ends = cancelled + self.intake.own.special.canceling_s;
                if ends <= now {
                    self.end(ends, Stop::Cancelled);
                }
            }
            (Status::Canceling | Status::Ended, _) => {}
        }
    }

    fn end(&mut self, at: f64, stop: Stop) {
        self.ended = Some(at);
        self.results = self.life.done.clone().map(|done| {
            let (intake, fault) = (self.intake.clone(), Arc::clone(&self.life.fault));
            Arc::new(Results { done, intake, fault, stop, written: OnceCell::new() })
        });
    }

    pub(crate) fn cancel(&mut self, now: f64, ledger: &mut Ledger) -> Result<(), Problem> {
        match self.status() {
            Status::InProgress => {
                self.life.stop(now, Stop::Cancelled, ledger);
                self.cancelled = Some(now);
                self.settle(now, ledger); // with nothing left to wait for it is over at once
                Ok(())
            }
            Status::Ended if self.intake.own.special.cancel_ended == Verdict::Reject => {
                let message = format!("Message batch {} has already ended and cannot be canceled.", self.life.id);
                Err(Problem::invalid(message))
            }
            Status::Ended | Status::Canceling => Ok(()),
        }
    }

    pub(crate) fn delete(&mut self) -> Result<(), Problem> {
        if self.ended.is_none() {
            let message =
                format!("Message batch {} is still processing. Cancel it before you delete it.", self.life.id);
            return Err(Problem::invalid(message));
        }
        self.life.deleted = true;
        Ok(())
    }

    /// When its results were put away, if they were.
    fn archived(&self, now: f64) -> Option<f64> {
        let at = self.life.created + self.intake.own.special.results_days * DAY;
        (self.ended.is_some() && now >= at).then_some(at)
    }

    /// The results of a batch that has ended, while they are to be had.
    pub(crate) fn results(&self, now: f64) -> Result<Arc<Results>, Problem> {
        let Some(ended) = self.ended else {
            let status = self.intake.own.special.results_before_end;
            let kind = if status == 404 { "not_found_error" } else { "invalid_request_error" };
            let message = format!("Message batch {} has no results yet: it has not ended.", self.life.id);
            return Err(Problem::new(status, kind, message));
        };
        let hidden = self.archived(now).is_some() || now < ended + self.life.fault.results_hidden_s;
        self.results.clone().filter(|_| !hidden).ok_or_else(|| Problem::new(404, "not_found_error", "Not found"))
    }

    /// `origin` is the scheme and host by which the caller reached us.
    pub(crate) fn render(&self, now: f64, origin: &str) -> Value {
        let size = self.life.size();
        let (archived, special) = (self.archived(now), &self.intake.own.special);
        let mut counts = json!({"processing": size, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0});
        let mut url = None;
        if self.ended.is_some() {
            let (succeeded, errored) = self.life.tally();
            counts["processing"] = 0.into();
            counts["succeeded"] = succeeded.into();
            counts["errored"] = errored.into();
            let rest = if self.cancelled.is_some() { "canceled" } else { "expired" };
            counts[rest] = (size - succeeded - errored).into();
            if archived.is_none() || special.archived_results_url == ArchivedUrl::Keep {
                let path = format!("/v1/messages/batches/{}/results", self.life.id);
                url = Some(match special.results_url {
                    ResultsUrl::Absolute => format!("{origin}/anthropic{path}"),
                    ResultsUrl::Path => path,
                });
            }
        }
        self.life.show(self.status().name(), json!({
            "id": self.life.id, "type": "message_batch", "processing_status": self.status().name(),
            "request_counts": counts, "created_at": rfc3339(self.life.created), "expires_at": rfc3339(self.life.expires),
            "ended_at": self.ended.map(rfc3339), "cancel_initiated_at": self.cancelled.map(rfc3339),
            "archived_at": archived.map(rfc3339), "results_url": url,
        }))
    }
}
