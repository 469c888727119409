//! The output and error file of a batch, written together when either is first asked for.

use std::{io, path::PathBuf, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{endpoint::Endpoint, file::Side, wire::envelope};
use crate::sim::{
    batch::{Done, Fate, Stop, new_id},
    faults::{Fault, Spoil},
    problem::{Problem, Provider, Trouble},
    results::ResultFile,
    settings::{ErrorMember, OpenAi, Own},
    world::Sim,
};

pub(crate) struct Results {
    pub(crate) done: Arc<Done>,
    pub(crate) endpoint: Endpoint,
    pub(crate) own: Arc<Own<OpenAi>>,
    pub(crate) fault: Arc<Fault>,
    pub(crate) stop: Stop,
    /// Which of the two the batch shows; the other is written too, but unspoiled and unseen.
    pub(crate) sides: Sides,
    pub(crate) written: OnceCell<Written>,
}

#[derive(Clone, Copy)]
pub(crate) struct Sides {
    pub(crate) output: bool,
    pub(crate) error: bool,
}

#[derive(Clone)]
pub(crate) struct Written {
    output: PathBuf,
    error: PathBuf,
}

impl Results {
    pub(crate) async fn path(self: &Arc<Self>, sim: &Arc<Sim>, side: Side) -> io::Result<PathBuf> {
        let written = self.written.get_or_try_init(|| {
            let (results, sim_too) = (Arc::clone(self), Arc::clone(sim));
            sim.blocking(move || results.write(&sim_too))
        });
        let written = written.await?;
        Ok(match side {
            Side::Output => written.output.clone(),
            Side::Error => written.error.clone(),
        })
    }

    fn write(&self, sim: &Sim) -> io::Result<Written> {
        let spoil = |shown: bool| if shown { self.fault.results.clone() } else { Spoil::default() };
        let mut output = ResultFile::create(sim.spool.fresh(), spoil(self.sides.output))?;
        let mut error = ResultFile::create(sim.spool.fresh(), spoil(self.sides.error))?;
        let requests = &self.done.work.requests;
        let input = requests.open()?;
        for &index in &self.done.work.order {
            let line = requests.read(&input, index)?;
            let body = &line["body"];
            let reply = self.endpoint.reply(body, &self.own.common);
            let result = |response: Value, error: Value| json!({"id": new_id("batch_req_"), "custom_id": line["custom_id"], "response": response, "error": error});
            match self.done.fate(index, reply.problem.clone()) {
                Fate::Billed(call) => {
                    let body = self.endpoint.answer(body, &reply, call, self.done.work.started, &self.own.common);
                    let response = json!({"status_code": 200, "request_id": format!("req_{call:024x}"), "body": body});
                    let conflict = failure(&Problem::of(Provider::OpenAi, Trouble::Server));
                    output.add_with(result(response, Value::Null), Some(result(conflict, Value::Null)))?;
                }
                Fate::Failed(problem) => {
                    let problem = problem.unwrap_or_else(|| Problem::of(Provider::OpenAi, Trouble::Server));
                    let said = match self.own.special.error_member {
                        ErrorMember::Null => Value::Null,
                        ErrorMember::Filled => {
                            json!({"code": problem.code.unwrap_or(problem.kind), "message": problem.message})
                        }
                    };
                    let file = if self.fault.results.misfile { &mut output } else { &mut error };
                    file.add(result(failure(&problem), said))?;
                }
                Fate::Unfinished => error.add(result(Value::Null, self.unfinished()))?,
            }
        }
        Ok(Written { output: output.close()?, error: error.close()? })
    }

    fn unfinished(&self) -> Value {
        match self.stop {
            Stop::Cancelled => json!({
                "code": "batch_cancelled",
                "message": "This request was not executed because the batch was cancelled.",
            }),
            Stop::ByItself => json!({
                "code": "batch_expired",
                "message": "This request could not be executed before the completion window expired.",
            }),
        }
    }
}

/// The `response` of a request that the model endpoint refused.
fn failure(problem: &Problem) -> Value {
    json!({"status_code": problem.status, "request_id": new_id("req_"), "body": envelope(problem)})
}
