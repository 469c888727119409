//! The online endpoints: the same answers as in batches, at once.

use serde_json::Value;

use super::{batches::read_object, endpoint::Endpoint, wire::missing};
use crate::sim::{
    calls::Call,
    clock::real,
    delivery::Outgoing,
    json::truthy,
    ledger::Online,
    problem::{Problem, Provider, Trouble},
};

pub(crate) async fn answer(call: &mut Call, endpoint: Endpoint) -> Result<Outgoing, Problem> {
    let body = read_object(call).await?;
    let common = {
        let world = call.sim.world();
        check(&body, endpoint, |model| world.unknown_model(model))?;
        world.settings.common.clone()
    };
    tokio::time::sleep(real(common.online_latency)).await;
    let reply = endpoint.reply(&body, &common);
    let billed = Online { provider: Provider::OpenAi, account: &call.account, endpoint: endpoint.path() };
    let number = call.sim.world().ledger.bill_online(&billed, &reply)?;
    call.entry.write().call = Some(number);
    let answer = endpoint.answer(&body, &reply, number, call.now(), &common);
    Ok(Outgoing::json(200, &answer).header("x-sim-call", number.to_string()))
}

fn check(body: &Value, endpoint: Endpoint, unknown: impl Fn(&str) -> bool) -> Result<(), Problem> {
    let Some(model) = body["model"].as_str().filter(|model| !model.is_empty()) else {
        return Err(Problem::invalid("you must provide a model parameter"));
    };
    if body.get(endpoint.member()).is_none() {
        return Err(missing(endpoint.member()));
    }
    if truthy(&body["stream"]) {
        return Err(Problem::invalid("Streaming is not simulated.").param("stream").code("unsupported_value"));
    }
    if unknown(model) {
        let message = format!("The model `{model}` does not exist or you do not have access to it.");
        return Err(Problem::of(Provider::OpenAi, Trouble::NotFound).message(message));
    }
    Ok(())
}
