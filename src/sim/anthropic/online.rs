//! Online messages: the same answers as in batches, at once.

use serde_json::Value;

use super::{
    check::{self, Where},
    results::shown_model,
    wire,
};
use crate::sim::{
    answers::{Paid, message},
    calls::Call,
    clock::real,
    delivery::Outgoing,
    json::truthy,
    ledger::Online,
    oracle::Reply,
    problem::{Problem, Provider, Trouble},
};

pub(crate) async fn answer(call: &mut Call) -> Result<Outgoing, Problem> {
    let version = wire::version(call)?;
    let body = call.read_body().await?;
    let params: Value = serde_json::from_slice(&body)
        .map_err(|error| Problem::invalid(format!("The request body is not valid JSON: {error}")))?;
    if let Some(message) = check::params(&params, Where::Online).or_else(|| check::version(&params, &version)) {
        return Err(Problem::invalid(message));
    }
    if truthy(&params["stream"]) {
        return Err(Problem::invalid("stream: streaming is not simulated"));
    }
    let common = {
        let world = call.sim.world();
        let model = params["model"].as_str().unwrap_or_default();
        if world.unknown_model(model) {
            return Err(Problem::of(Provider::Anthropic, Trouble::NotFound).message(format!("model: {model}")));
        }
        world.settings.common.clone()
    };
    tokio::time::sleep(real(common.online_latency)).await;
    let reply = Reply::to(Provider::Anthropic, &params, None, common.answers);
    let billed = Online { provider: Provider::Anthropic, account: &call.account, endpoint: "/v1/messages" };
    let number = call.sim.world().ledger.bill_online(&billed, &reply)?;
    call.entry.write().call = Some(number);
    let model = shown_model(&reply.model, &common);
    let paid = Paid { call: number, model: &model, created: call.now(), sim_call_in_usage: common.sim_call_in_usage };
    let answer = message(&params, &reply, paid, "standard");
    Ok(Outgoing::json(200, &answer).header("x-sim-call", number.to_string()))
}
