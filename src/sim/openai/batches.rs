//! The batch calls. A create is checked for its own form only; the file is read after it was answered.

use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};

use super::{
    endpoint::Endpoint,
    life::{OpenAiBatch, Order, cannot_find},
    lines::{self, Indexed},
    page::{Length, Paging, list as list_answer},
    wire::{bad_value, missing, whole_number, wrong_type},
};
use crate::sim::{
    batch::{Batch, Requests},
    calls::Call,
    delivery::Outgoing,
    problem::{Problem, Provider},
    settings::{MissingFile, Own},
};

const REQUIRED: [&str; 3] = ["input_file_id", "endpoint", "completion_window"];
const OPTIONAL: [&str; 2] = ["metadata", "output_expires_after"];

pub(crate) async fn create(call: &mut Call) -> Result<Outgoing, Problem> {
    let body = read_object(call).await?;
    let now = call.now();
    let (batch, input) = {
        let mut world = call.sim.world();
        let order = check_order(&body, world.settings.common.reject_unknown_fields)?;
        let lost = world.find_file(&call.account, &order.input_file_id, now).is_none();
        if lost && world.settings.openai.missing_file == MissingFile::Reject {
            return Err(Problem::invalid(cannot_find(&order.input_file_id, &call.account)).param("input_file_id"));
        }
        let own = Own::new(&world.settings.common, &world.settings.openai, &call.fault.settings)
            .map_err(|error| Problem::invalid(format!("fault settings: {error}")))?;
        let upload = world.file(&order.input_file_id).filter(|file| file.account == call.account);
        let input = upload.and_then(|file| file.upload_path());
        (OpenAiBatch::new(call.birth(), own, order), input)
    };
    call.made(&batch.life.id);
    let rendered = batch.render(now);
    let batch = match input {
        Some(path) => index(call, batch, path),
        None => batch,
    };
    call.sim.world().add_batch(Batch::OpenAi(Box::new(batch)));
    Ok(Outgoing::json(200, &rendered))
}

/// Start to read the input file; what it says shows once `validating` is over.
fn index(call: &Call, mut batch: OpenAiBatch, path: std::path::PathBuf) -> OpenAiBatch {
    let index = Arc::new(Mutex::new(None));
    batch.index = Some(Arc::clone(&index));
    let (sim, own, endpoint) = (Arc::clone(&call.sim), Arc::clone(&batch.own), batch.order.endpoint);
    call.sim.background.spawn_blocking(move || {
        let (requests, errors, model) = lines::read(&path, endpoint, &own).unwrap_or_else(|error| {
            let error = serde_json::json!({
                "code": "internal_error", "message": format!("the simulator failed: {error}"), "param": null, "line": null,
            });
            (Requests::new(path), vec![error], None)
        });
        let indexed = Indexed { requests, errors, model, at: sim.clock.now() };
        *index.lock().expect("nothing panics while it holds the index") = Some(indexed);
    });
    batch
}

pub(crate) async fn read_object(call: &mut Call) -> Result<Value, Problem> {
    let body = call.read_body().await?;
    let value: Option<Value> = serde_json::from_slice(&body).ok();
    value.filter(Value::is_object).ok_or_else(|| Problem::invalid("We could not parse the JSON body of your request."))
}

fn check_order(body: &Value, reject_unknown: bool) -> Result<Order, Problem> {
    for name in REQUIRED {
        match &body[name] {
            Value::Null => return Err(missing(name)),
            Value::String(_) => {}
            other => return Err(wrong_type(name, "a string", other)),
        }
    }
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let endpoint = Endpoint::of_path(&text("endpoint"))
        .ok_or_else(|| bad_value("endpoint", &text("endpoint"), Endpoint::ALL.map(Endpoint::path)))?;
    if body["completion_window"] != "24h" {
        return Err(bad_value("completion_window", &text("completion_window"), ["24h"]));
    }
    let known = |name: &&String| REQUIRED.contains(&name.as_str()) || OPTIONAL.contains(&name.as_str());
    let unknown = body.as_object().into_iter().flat_map(Map::keys).find(|name| !known(name));
    if let Some(name) = unknown.filter(|_| reject_unknown) {
        return Err(Problem::invalid(format!("Unknown parameter: '{name}'.")).param(name).code("unknown_parameter"));
    }
    check_metadata(&body["metadata"])?;
    Ok(Order {
        input_file_id: text("input_file_id"),
        endpoint,
        completion_window: text("completion_window"),
        metadata: body["metadata"].clone(),
        output_expires_s: check_expiry(&body["output_expires_after"])?,
    })
}

fn check_metadata(metadata: &Value) -> Result<(), Problem> {
    let pairs = match metadata {
        Value::Null => return Ok(()),
        Value::Object(pairs) => pairs,
        other => return Err(wrong_type("metadata", "an object", other)),
    };
    if pairs.len() > 16 {
        let message = format!("Invalid 'metadata': too many properties. Expected at most 16, but got {}.", pairs.len());
        return Err(Problem::invalid(message).param("metadata").code("object_above_max_properties"));
    }
    for (key, value) in pairs {
        let param = format!("metadata.{key}");
        let text = value.as_str().ok_or_else(|| wrong_type(&param, "a string", value))?;
        if key.chars().count() > 64 || text.chars().count() > 512 {
            let message = format!("Invalid '{param}': string too long.");
            return Err(Problem::invalid(message).param(param).code("string_above_max_length"));
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "30 days of seconds are exact")]
fn check_expiry(policy: &Value) -> Result<Option<f64>, Problem> {
    if policy.is_null() {
        return Ok(None);
    }
    if policy["anchor"] != "created_at" {
        let param = "output_expires_after.anchor";
        return Err(Problem::invalid(format!("Invalid '{param}'.")).param(param).code("invalid_value"));
    }
    let seconds = whole_number("output_expires_after.seconds", &policy["seconds"], 3600..=2_592_000)?;
    Ok(Some(seconds as f64))
}

pub(crate) fn list(call: &mut Call) -> Result<Outgoing, Problem> {
    let paging: Paging = call.query()?;
    let now = call.now();
    let mut world = call.sim.world();
    let batches = world.list_batches(Provider::OpenAi, &call.account, now);
    let (page, more) = paging.page(batches, |batch| &batch.life().id, Length { default: 20, most: 100 })?;
    let data: Vec<_> = page
        .into_iter()
        .filter_map(|batch| match batch {
            Batch::OpenAi(batch) => Some(batch.render(now)),
            Batch::Anthropic(_) => None,
        })
        .collect();
    Ok(list_answer(&data, more))
}

pub(crate) fn get(call: &mut Call) -> Result<Outgoing, Problem> {
    let now = call.now();
    let mut world = call.sim.world();
    match world.find_batch(call.seeker(now)) {
        Some(Batch::OpenAi(batch)) => Ok(Outgoing::json(200, &batch.render(now))),
        Some(Batch::Anthropic(_)) | None => Err(not_found(call)),
    }
}

pub(crate) fn cancel(call: &mut Call) -> Result<Outgoing, Problem> {
    let now = call.now();
    let mut world = call.sim.world();
    let rendered = world.with_batch(call.seeker(now), |batch, world| match batch {
        Batch::OpenAi(batch) => Some(batch.cancel(now, world).map(|()| batch.render(now))),
        Batch::Anthropic(_) => None,
    });
    let rendered = rendered.flatten().ok_or_else(|| not_found(call))??;
    Ok(Outgoing::json(200, &rendered))
}

fn not_found(call: &Call) -> Problem {
    Problem::new(404, "invalid_request_error", format!("No batch found with id '{}'.", call.id))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_create_is_checked_for_its_form() {
        let good = json!({"input_file_id": "f", "endpoint": "/v1/embeddings", "completion_window": "24h"});
        assert!(check_order(&good, true).is_ok());
        let check = |name: &str, value: Value, code: &str, param: &str| {
            let mut body = good.clone();
            body[name] = value;
            let problem = check_order(&body, true).err().expect("refused");
            assert_eq!((problem.code, problem.param.as_deref()), (Some(code), Some(param)), "{body}");
        };
        check("endpoint", json!("/v1/nothing"), "invalid_value", "endpoint");
        check("endpoint", json!(null), "missing_required_parameter", "endpoint");
        check("input_file_id", json!(7), "invalid_type", "input_file_id");
        check("completion_window", json!("1h"), "invalid_value", "completion_window");
        check("name", json!("x"), "unknown_parameter", "name");
        check("metadata", json!({"a": 1}), "invalid_type", "metadata.a");
        check("metadata", json!({"a": "x".repeat(513)}), "string_above_max_length", "metadata.a");
        let seconds = json!({"anchor": "created_at", "seconds": 60});
        check("output_expires_after", seconds, "integer_below_min_value", "output_expires_after.seconds");
    }
}
