//! The contract: `openapi.yaml` against the router, both ways; its examples against its schemas and against a gateway;
//! its lists of codes against the product page and the code. That every answer of every story keeps to it is the
//! client's affair: `support::contract`.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{JSON, NDJSON, id, lines},
    contract::{CONTRACT, Operation, is_page},
    source::files,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The closed lists of the product page, as far as there is something behind them.
const CODES: [(&str, u16); 17] = [
    ("malformed_body", 400),
    ("unauthorized", 401),
    ("forbidden", 403),
    ("not_found", 404),
    ("batch_running", 409),
    ("batch_ended", 409),
    ("nothing_to_retry", 409),
    ("idempotency_in_progress", 409),
    ("body_too_large", 413),
    ("unsupported_media_type", 415),
    ("invalid_request", 422),
    ("idempotency_mismatch", 422),
    ("quota_exceeded", 429),
    ("storage_full", 429),
    ("unavailable", 503),
    ("draining", 503),
    ("upload_lost", 503),
];
const PROMPT_CODES: [&str; 13] = [
    "invalid_request",
    "too_large",
    "not_found",
    "rate_limited",
    "overloaded",
    "server_error",
    "timeout",
    "empty_answer",
    "missing",
    "not_cached",
    "quarantined",
    "canceled",
    "expired",
];

fn named(operation: Operation) -> String {
    format!("{} {}", operation.method.to_uppercase(), operation.path)
}

/// Routes as `src/http` declares them: `.route("/path", post(..).get(..))`.
fn routed() -> BTreeSet<String> {
    let mut routes = BTreeSet::new();
    for file in files().iter().filter(|file| file.module() == "http") {
        for (at, _) in file.text.match_indices(".route(\"") {
            let rest = &file.text[at + ".route(\"".len()..];
            let (path, handlers) = rest.split_once('"').expect("a path ends");
            let handlers = &handlers[..handlers.find("\n").unwrap_or(handlers.len())];
            for method in ["get", "post", "put", "delete", "patch"] {
                let routed = [" ", ".", "("].iter().any(|before| handlers.contains(&format!("{before}{method}(")));
                if routed && !is_page(path) {
                    routes.insert(format!("{} {path}", method.to_uppercase()));
                }
            }
        }
    }
    routes
}

#[test]
fn every_route_is_documented_and_every_documented_one_is_routed() {
    let documented: BTreeSet<String> = CONTRACT.operations().map(named).collect();
    assert!(documented.len() >= 11, "{documented:?}");
    assert_eq!(documented, routed(), "left: openapi.yaml, right: the router");
}

fn words(list: &Value) -> BTreeSet<&str> {
    list.as_array().expect("a list").iter().filter_map(Value::as_str).collect()
}

#[test]
fn the_codes_are_the_closed_lists() {
    let schemas = &CONTRACT.document["components"]["schemas"];
    let codes = CODES.map(|(code, _)| code).into();
    let prompt_codes = PROMPT_CODES.into();
    let documented = "left: openapi.yaml, right: the product page";
    assert_eq!(words(&schemas["Problem"]["properties"]["code"]["enum"]), codes, "{documented}");
    assert_eq!(words(&schemas["ResultError"]["properties"]["code"]["enum"]), prompt_codes, "{documented}");
    let owned = |codes: BTreeSet<&str>| codes.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let coded = "left: the code, right: the product page";
    assert_eq!(variants("http/error.rs", "enum Code {"), owned(codes), "{coded}");
    assert_eq!(variants("domain/outcome.rs", "enum FailureCode {"), owned(prompt_codes), "{coded}");
}

/// Names of an enum's unit variants, as serde's snake_case writes them.
fn variants(path: &str, start: &str) -> BTreeSet<String> {
    let files = files();
    let file = files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("{path} is there"));
    let body = file.code.split_once(start).and_then(|(_, rest)| rest.split_once('}')).expect("the enum is there").0;
    let snake = |name: &str| {
        let name = name.chars().flat_map(|c| c.is_uppercase().then_some('_').into_iter().chain(c.to_lowercase()));
        name.collect::<String>().trim_start_matches('_').to_owned()
    };
    body.split(',').map(|name| snake(name.trim())).filter(|name| !name.is_empty()).collect()
}

/// Each error says which codes it may have, shows each of them once, and each under its own status.
#[test]
fn every_code_is_promised_and_shown_under_its_status() {
    let (statuses, mut promised) = (BTreeMap::from(CODES), BTreeSet::new());
    for operation in CONTRACT.operations() {
        for (status, response) in operation.said["responses"].as_object().expect("responses") {
            let content = &CONTRACT.resolve(response)["content"]["application/problem+json"];
            if status.starts_with('2') {
                assert!(content.is_null(), "{}: {status}", named(operation));
                continue;
            }
            let place = format!("{}, {status}", named(operation));
            let codes = words(&content["schema"]["properties"]["code"]["enum"]);
            let examples = content["examples"].as_object().unwrap_or_else(|| panic!("{place}: no examples"));
            let shown: BTreeSet<&str> = examples.keys().map(String::as_str).collect();
            assert_eq!(codes, shown, "{place}: left: the codes, right: the examples");
            for (code, example) in examples {
                let problem = &CONTRACT.resolve(example)["value"];
                assert_eq!(problem["code"], **code, "{place}");
                assert_eq!(problem["status"], statuses[&**code], "{place}: {code}");
                assert_eq!(problem["status"].to_string(), *status, "{place}: {code}");
            }
            promised.extend(codes);
        }
    }
    assert_eq!(promised, statuses.into_keys().collect(), "left: promised by an operation, right: the product page");
}

/// All examples below a media type, parameter or header: its own one and the named ones.
fn examples(holder: &Value) -> Vec<&Value> {
    let named = holder["examples"].as_object().into_iter().flat_map(|named| named.values());
    holder.get("example").into_iter().chain(named.map(|example| &CONTRACT.resolve(example)["value"])).collect()
}

#[test]
fn every_body_has_examples_and_every_example_fits_its_schema() {
    let mut wrong = Vec::new();
    let mut look = |place: &str, holder: &Value, is_body: bool| {
        let shown = examples(holder);
        if shown.is_empty() && is_body {
            wrong.push(format!("{place}: no example"));
        }
        for value in shown {
            wrong.extend(CONTRACT.violations(&holder["schema"], value).iter().map(|why| format!("{place}{why}")));
        }
    };
    let bodies = |holder: &Value| holder["content"].as_object().cloned().unwrap_or_default();
    for operation in CONTRACT.operations() {
        let place = named(operation);
        for (kind, body) in bodies(&operation.said["requestBody"]) {
            look(&format!("{place} {kind}"), &body, true);
        }
        for parameter in operation.said["parameters"].as_array().into_iter().flatten() {
            look(&format!("{place} {parameter}"), CONTRACT.resolve(parameter), false);
        }
        for (status, response) in operation.said["responses"].as_object().expect("responses") {
            let response = CONTRACT.resolve(response);
            for (kind, body) in bodies(response) {
                look(&format!("{place} {status} {kind}"), &body, true);
            }
            for (name, header) in response["headers"].as_object().into_iter().flatten() {
                look(&format!("{place} {status} {name}"), CONTRACT.resolve(header), true);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lines are text to a schema: here they are looked into.
#[test]
fn every_line_of_an_example_fits_the_schema_of_its_line() {
    let paths = &CONTRACT.document["paths"];
    let violations =
        |name: &str, line: &Value| CONTRACT.violations(&json!({"$ref": format!("#/components/schemas/{name}")}), line);
    for example in examples(&paths["/batches/{id}/results"]["get"]["responses"]["200"]["content"][NDJSON]) {
        for line in lines(example.as_str().expect("text")) {
            assert_eq!(violations("Result", &line), [""; 0], "{line}");
        }
    }
    for example in examples(&paths["/batches"]["post"]["requestBody"]["content"][NDJSON]) {
        for (n, line) in lines(example.as_str().expect("text")).iter().enumerate() {
            let name = if n == 0 && line.get("batch").is_some() { "BatchHeader" } else { "Prompt" };
            assert_eq!(violations(name, line), [""; 0], "{line}");
        }
    }
}

#[tokio::test]
async fn the_served_document_is_the_file() {
    let world = World::new(Kind::Ours).await;
    let reply = world.client().get("/openapi.yaml").await;
    assert_eq!((reply.status, &reply.text), (200, &CONTRACT.text));
}

/// What the document shows works as it stands, twice. Prompt n of each example asks to say n.
#[tokio::test]
async fn every_example_of_a_batch_is_answered_and_then_known() {
    let world = World::new(Kind::Ours).await;
    let content = &CONTRACT.document["paths"]["/batches"]["post"]["requestBody"]["content"];
    for (kind, body) in [JSON, NDJSON].map(|kind| (kind, &content[kind])) {
        for example in examples(body) {
            let text = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
            let mut told: Vec<Vec<Value>> = Vec::new();
            for time in ["first", "second"] {
                let before = world.sim.billed().await.len();
                let object = world.client().post("/batches", kind, text.clone()).await.accepted();
                world.client().ended(id(&object)).await;
                let results = world.client().results(id(&object)).await;
                for result in &results {
                    assert_eq!(result["status"], "succeeded", "{time}: {text}\n{result}");
                    let said = result["completion"].as_str();
                    let asked = format!("Say {}", result["index"]);
                    assert!(said.is_none_or(|said| said.ends_with(&asked)), "{time}: {text}\n{result}");
                }
                let bought = world.sim.billed().await.len() - before;
                let paid = results.iter().filter(|result| result["source"] == "provider").count();
                assert_eq!((bought, time == "second"), (paid, paid == 0), "{time}: {text}");
                let completion = |result: &Value| result["completion"].clone();
                told.push(results.iter().map(completion).collect());
            }
            assert_eq!(told[0], told[1], "{text}");
        }
    }
}

/// Sends each operation what it takes, what it does not take, and what comes from strangers; the client holds each
/// answer against the document.
#[tokio::test]
async fn every_operation_answers_with_a_status_it_promises() {
    let hash = "sha256:".to_owned() + &sha256("secret");
    let open = World::new(Kind::Ours).await;
    let keyed = World::with(Kind::Ours, &[("BATCHGATE_KEY_HASHES", &hash)]).await;
    let made = check(&open, &Batch::of([claude("a")])).await;
    for operation in CONTRACT.operations() {
        let verb: Method = operation.method.to_uppercase().parse().expect("a method");
        let send = async |world: &World, id: &str, query: &str, header: (&str, &str)| {
            let path = operation.path.replace("{id}", id) + query;
            let request = world.client().request(verb.clone(), &path).header(header.0, header.1);
            let body = if operation.said["requestBody"].is_null() { String::new() } else { made_again() };
            world.client().send(request.header("content-type", JSON).body(body)).await
        };
        let (real, usual) = (id(&made.object).to_owned(), ("accept", "*/*"));
        let strange = "batch_0198f3a17d207c119d6f2f1f6f3b8a10";
        // Deleting comes last: the others need something to work on.
        if verb != Method::DELETE {
            send(&open, &real, "", usual).await;
        }
        send(&open, strange, "", usual).await;
        send(&open, &real, "?strange=1", usual).await;
        send(&open, &real, "", ("origin", "http://evil.example")).await.refused(403, "forbidden");
        let asks_for_a_key = operation.said["security"].is_null();
        assert_eq!(send(&keyed, &real, "", usual).await.status == 401, asks_for_a_key, "{}", named(operation));
    }
}

fn made_again() -> String {
    Batch::of([claude("a")]).body().1
}

/// A method that no operation has is a 405 that says which there are.
#[tokio::test]
async fn other_methods_are_refused_with_those_there_are() {
    let world = World::new(Kind::Ours).await;
    for (path, expect) in [("/batches", "GET,HEAD,POST"), ("/batches/x", "DELETE,GET,HEAD"), ("/healthz", "GET,HEAD")] {
        let reply = world.client().send(world.client().request(Method::PATCH, path)).await;
        reply.refused(405, "not_found");
        let mut allowed: Vec<&str> = reply.header("allow").split(',').map(str::trim).collect();
        allowed.sort_unstable();
        assert_eq!(allowed.join(","), expect, "{path}");
    }
}

fn sha256(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
