//! The contract: `openapi.yaml` against the router, both ways; the statuses a route answers against those it promises;
//! the lists of codes against the product page.

use crate::support::{
    Batch, Kind, World, check, claude,
    client::{JSON, id},
    source::{files, home},
};
use reqwest::Method;
use std::collections::{BTreeMap, BTreeSet};

/// The closed lists of the product page, as far as there is something behind them.
const CODES: [&str; 15] = [
    "malformed_body",
    "unauthorized",
    "forbidden",
    "not_found",
    "batch_running",
    "batch_ended",
    "nothing_to_retry",
    "idempotency_in_progress",
    "body_too_large",
    "unsupported_media_type",
    "invalid_request",
    "idempotency_mismatch",
    "unavailable",
    "draining",
    "upload_lost",
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

/// What the document promises: path and method, and the statuses of its answers.
type Operations = BTreeMap<(String, String), BTreeSet<u16>>;

fn document() -> String {
    std::fs::read_to_string(home().join("openapi.yaml")).expect("openapi.yaml is there")
}

/// Reads just as much YAML as our own file has: paths at two spaces, methods at four, statuses at eight.
fn documented(text: &str) -> Operations {
    let (mut operations, mut path, mut method) = (Operations::new(), String::new(), String::new());
    let paths = text.split_once("\npaths:\n").expect("there are paths").1;
    for line in paths.lines().take_while(|line| line.is_empty() || line.starts_with(' ')) {
        let indent = line.len() - line.trim_start().len();
        let Some(name) = line.trim().strip_suffix(':').or_else(|| line.trim().split_once(": ").map(|(name, _)| name))
        else {
            continue;
        };
        let name = name.trim_matches('"');
        match indent {
            2 => path = name.to_owned(),
            4 if ["get", "post", "put", "delete", "patch", "head"].contains(&name) => {
                method = name.to_uppercase();
                operations.insert((path.clone(), method.clone()), BTreeSet::new());
            }
            4 => method.clear(),
            8 if !method.is_empty() => {
                if let Ok(status) = name.parse() {
                    operations.get_mut(&(path.clone(), method.clone())).expect("an operation").insert(status);
                }
            }
            _ => {}
        }
    }
    operations
}

/// Routes as `src/http` declares them: `.route("/path", post(..).get(..))`.
fn routed() -> BTreeSet<(String, String)> {
    let mut routes = BTreeSet::new();
    for file in files().iter().filter(|file| file.module() == "http") {
        for (at, _) in file.text.match_indices(".route(\"") {
            let rest = &file.text[at + ".route(\"".len()..];
            let (path, handlers) = rest.split_once('"').expect("a path ends");
            let handlers = &handlers[..handlers.find("\n").unwrap_or(handlers.len())];
            for method in ["get", "post", "put", "delete", "patch"] {
                if handlers.contains(&format!(" {method}(")) || handlers.contains(&format!(".{method}(")) {
                    routes.insert((path.to_owned(), method.to_uppercase()));
                }
            }
        }
    }
    routes
}

#[test]
fn every_route_is_documented_and_every_documented_one_is_routed() {
    let documented: BTreeSet<(String, String)> = documented(&document()).into_keys().collect();
    assert!(documented.len() >= 9, "{documented:?}");
    assert_eq!(documented, routed(), "left: openapi.yaml, right: the router");
}

#[test]
fn the_codes_are_the_closed_lists() {
    let text = document();
    let listed = |near: &str, code: &str| -> BTreeSet<String> {
        let schema = text.split_once(&format!("\n    {near}:\n")).unwrap_or_else(|| panic!("a schema {near}")).1;
        let code = schema.split_once(code).expect("a member code").1;
        let list =
            code.split_once("enum: [").and_then(|(_, rest)| rest.split_once(']')).expect("an enum on one line").0;
        list.split(',').map(|word| word.trim().to_owned()).collect()
    };
    let expected = |codes: &[&str]| codes.iter().map(|code| (*code).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(listed("Problem", "        code:"), expected(&CODES), "left: openapi.yaml, right: the product page");
    assert_eq!(
        listed("ResultError", "        code:"),
        expected(&PROMPT_CODES),
        "left: openapi.yaml, right: the product page"
    );
    assert_eq!(variants("http/error.rs", "enum Code {"), expected(&CODES), "left: the code, right: the product page");
    assert_eq!(
        variants("domain/outcome.rs", "enum FailureCode {"),
        expected(&PROMPT_CODES),
        "left: the code, right: the product page"
    );
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

#[tokio::test]
async fn the_served_document_is_the_file() {
    let world = World::new(Kind::Ours).await;
    let reply = world.client().get("/openapi.yaml").await;
    assert_eq!((reply.status, reply.text), (200, document()));
}

/// Sends each operation what it takes, what it does not take, and what comes from strangers.
#[tokio::test]
async fn every_operation_answers_with_a_status_it_promises() {
    let hash = "sha256:".to_owned() + &sha256("secret");
    let open = World::new(Kind::Ours).await;
    let keyed = World::with(Kind::Ours, &[("BATCHGATE_KEY_HASHES", &hash)]).await;
    let made = check(&open, &Batch::of([claude("a")])).await;
    let mut wrong = Vec::new();
    for ((path, method), promised) in documented(&document()) {
        let verb: Method = method.parse().expect("a method");
        let send = async |world: &World, id: &str, query: &str, header: (&str, &str)| {
            let request =
                world.client().request(verb.clone(), &(path.replace("{id}", id) + query)).header(header.0, header.1);
            let body = if verb == Method::POST && path == "/batches" {
                Batch::of([claude("a")]).body().1
            } else {
                String::new()
            };
            world.client().send(request.header("content-type", JSON).body(body)).await
        };
        let (real, usual) = (id(&made.object).to_owned(), ("accept", "*/*"));
        let strange = "batch_0198f3a17d207c119d6f2f1f6f3b8a10";
        let mut answers = Vec::new();
        // Deleting comes last: the others need something to work on.
        if verb != Method::DELETE {
            answers.push(("as it should be", send(&open, &real, "", usual).await));
        }
        answers.push(("an unknown id", send(&open, strange, "", usual).await));
        answers.push(("an unknown parameter", send(&open, &real, "?strange=1", usual).await));
        answers.push(("from a foreign page", send(&open, &real, "", ("origin", "http://evil.example")).await));
        answers.push(("without a key", send(&keyed, &real, "", usual).await));
        for (what, reply) in answers {
            if reply.status == 405 || reply.text.contains("there is no such path") {
                wrong.push(format!("{method} {path} is not served: {}", reply.text));
            } else if !promised.contains(&reply.status) {
                wrong.push(format!("{method} {path}, {what}: {} is not promised ({promised:?})", reply.status));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn sha256(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
