//! The results of a batch, written when first asked for.

use std::{io, path::PathBuf, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{intake::Intake, wire::envelope};
use crate::sim::{
    answers::{Paid, message},
    batch::{Done, Fate, Stop, new_id},
    faults::Fault,
    oracle::dated,
    problem::{Problem, Provider, Trouble},
    results::ResultFile,
    settings::{Common, Framing},
    world::Sim,
};

pub(crate) struct Results {
    pub(crate) done: Arc<Done>,
    pub(crate) intake: Intake,
    pub(crate) fault: Arc<Fault>,
    pub(crate) stop: Stop,
    pub(crate) written: OnceCell<PathBuf>,
}

impl Results {
    pub(crate) fn framing(&self) -> Framing {
        self.intake.own.special.results_framing
    }

    pub(crate) async fn path(self: &Arc<Self>, sim: &Arc<Sim>) -> io::Result<PathBuf> {
        let written = self.written.get_or_try_init(|| {
            let (results, sim_too) = (Arc::clone(self), Arc::clone(sim));
            sim.blocking(move || results.write(&sim_too))
        });
        Ok(written.await?.clone())
    }

    fn write(&self, sim: &Sim) -> io::Result<PathBuf> {
        let mut file = ResultFile::create(sim.spool.fresh(), self.fault.results.clone())?;
        let requests = &self.done.work.requests;
        let input = requests.open()?;
        let unfinished = match self.stop {
            Stop::Cancelled => json!({"type": "canceled"}),
            Stop::ByItself => json!({"type": "expired"}),
        };
        for &index in &self.done.work.order {
            let item = requests.read(&input, index)?;
            let params = &item["params"];
            let reply = self.intake.reply(params, self.intake.own_problem(params));
            let line = |result: Value| json!({"custom_id": item["custom_id"], "result": result});
            match self.done.fate(index, reply.problem.clone()) {
                Fate::Billed(call) => {
                    let common = &self.intake.own.common;
                    let model = shown_model(&reply.model, common);
                    let created = self.done.work.started;
                    let paid = Paid { call, model: &model, created, sim_call_in_usage: common.sim_call_in_usage };
                    let succeeded = json!({"type": "succeeded", "message": message(params, &reply, paid, "batch")});
                    let conflict = errored(&Problem::of(Provider::Anthropic, Trouble::Server));
                    file.add_with(line(succeeded), Some(line(conflict)))?;
                }
                Fate::Failed(problem) => {
                    // A request without a problem of its own failed for its id alone.
                    let problem = problem.unwrap_or_else(|| {
                        Problem::invalid(format!("custom_id: {} is not unique in the batch", item["custom_id"]))
                    });
                    file.add(line(errored(&problem)))?;
                }
                Fate::Unfinished => file.add(line(unfinished.clone()))?,
            }
        }
        file.close()
    }
}

/// The name that an answer gives for a model.
pub(crate) fn shown_model(model: &str, common: &Common) -> String {
    if common.dated_models { dated(model, "-20251001") } else { model.to_owned() }
}

fn errored(problem: &Problem) -> Value {
    json!({"type": "errored", "error": envelope(problem, &new_id("req_011"))})
}
