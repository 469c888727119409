//! What an operator sees: metrics that are all in the catalogue, a listener of their own, and logs without content.

use crate::support::{
    Batch, Kind, World, check,
    client::{Client, JSON},
    for_both,
    prompt::{claude, gpt},
    source,
};
use batchgate::telemetry::catalog::{Kind as MetricKind, METRICS, Metric};
use serde_json::{Value, json};
use std::collections::BTreeSet;

for_both!(logs_carry_ids_and_never_content);

fn named(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// The names that stand in the source behind `counter!(`, `gauge!(` or `histogram!(`.
fn used() -> BTreeSet<(String, &'static str)> {
    let mut used = BTreeSet::new();
    for file in source::files() {
        for (call, kind) in [("counter!(", "Counter"), ("gauge!(", "Gauge"), ("histogram!(", "Histogram")] {
            for (at, _) in file.text.match_indices(&format!("metrics::{call}")) {
                let rest = file.text[at + "metrics::".len() + call.len()..].trim_start();
                let Some(name) = rest.strip_prefix('"').and_then(|rest| rest.split('"').next()) else { continue };
                used.insert((name.to_owned(), kind));
            }
        }
    }
    used
}

#[test]
fn the_catalogue_lists_every_metric_of_the_code_and_no_other() {
    let listed: BTreeSet<(String, &str)> = METRICS
        .iter()
        .map(|metric| {
            let kind = match metric.kind {
                MetricKind::Counter => "Counter",
                MetricKind::Gauge => "Gauge",
                MetricKind::Histogram => "Histogram",
            };
            (metric.name.to_owned(), kind)
        })
        .collect();
    assert_eq!(listed.len(), METRICS.len(), "a metric is listed twice");
    let used = used();
    let unlisted: Vec<_> = used.difference(&listed).collect();
    let unused: Vec<_> = listed.difference(&used).collect();
    assert!(unlisted.is_empty() && unused.is_empty(), "not listed: {unlisted:?}; not used: {unused:?}");
}

/// Series of a metrics page: name and labels.
fn series(page: &str) -> Vec<(String, Vec<String>)> {
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let series = lines.map(|line| {
        let (name, rest) = line.split_at(line.find(['{', ' ']).expect("a name and a value"));
        // Every second piece between the quotes is a value, and may hold anything; the others name the labels.
        let names = rest.split('"').step_by(2).filter_map(|piece| piece.strip_suffix('='));
        (name.to_owned(), names.map(|name| name.trim_start_matches(['{', ',', ' ']).to_owned()).collect())
    });
    series.collect()
}

fn base(name: &str) -> &str {
    ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

#[tokio::test]
async fn metrics_have_their_own_listener_and_only_labels_of_the_catalogue() {
    let world = World::with(Kind::Ours, &[("BATCHGATE_METRICS_LISTEN", "127.0.0.1:0")]).await;
    check(&world, &Batch::of((0..6).flat_map(|n| [claude(&format!("m {n}")), gpt(&format!("m {n}"))]))).await;
    let said = world.gateways[0].process.said();
    let ready = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ready = ready.map(|line| line["fields"].clone()).find(|fields| fields["message"] == "ready");
    let address = ready.expect("it is ready")["metrics"].as_str().expect("the listener's address").to_owned();
    let own = Client::new(&address);
    let stranger = own.request(reqwest::Method::GET, "/metrics").header("host", "evil.example");
    own.send(stranger).await.refused(403, "forbidden");
    let page = own.get("/metrics").await;
    assert_eq!(page.status, 200);
    own.get("/elsewhere").await.refused(404, "not_found");
    let mut seen = BTreeSet::new();
    for (name, labels) in series(&page.text) {
        let metric = named(base(&name)).or_else(|| named(&name)).unwrap_or_else(|| panic!("{name} is not listed"));
        let told: Vec<&str> = labels.iter().map(String::as_str).filter(|label| *label != "le").collect();
        let (mut told, mut listed) = (told, metric.labels.to_vec());
        told.sort_unstable();
        listed.sort_unstable();
        assert_eq!(told, listed, "labels of {name}");
        seen.insert(metric.name);
    }
    for name in [
        "batchgate_queue_depth",
        "batchgate_queue_oldest_seconds",
        "batchgate_claims_total",
        "batchgate_steps_total",
        "batchgate_submits_total",
        "batchgate_provider_call_seconds",
        "batchgate_harvests_total",
        "batchgate_harvested_bytes_total",
        "batchgate_commit_answers",
        "batchgate_commit_seconds",
        "batchgate_fences_lost_total",
        "batchgate_cache_hits_total",
        "batchgate_loop_ticks_total",
        "batchgate_loop_last_tick_seconds",
        "batchgate_redis_memory_bytes",
        "batchgate_resident_memory_bytes",
        "batchgate_http_received_bytes_total",
        "batchgate_connections_open",
        "batchgate_connections_max",
    ] {
        assert!(seen.contains(name), "{name} is not on the page:\n{}", page.text);
    }
    // Both doors tell of the same process.
    let other = world.client().get("/metrics").await;
    assert_eq!(other.status, 200);
    for figure in ["batchgate_commits_total 2", "batchgate_batches_ended_total 2", "batchgate_cache_hits_total 12"] {
        assert!(other.text.contains(figure), "{figure} in\n{}", other.text);
    }
}

#[tokio::test]
async fn metrics_are_drawn_also_without_redis() {
    let mut world = World::new(Kind::Ours).await;
    world.redis.kill();
    let page = world.client().get("/metrics").await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains("batchgate_redis_up 0"), "{}", page.text);
}

/// Every fault that may quote a body back at us, with everything logged.
async fn logs_carry_ids_and_never_content(kind: Kind) {
    let secret_key = "sim-key"; // the providers' key of every world
    let world = World::with(kind, &[("BATCHGATE_LOG", "trace,hyper=info,h2=info")]).await;
    let word = "Xylophonquaste";
    let quoting = json!({"type": "error", "error": {"type": "invalid_request_error", "code": "invalid_value",
        "message": format!("messages: {word} is not allowed, said {secret_key}")}});

    let rules = json!([
        {"match": {"route": "batches.create"}, "fault": {"status": 500, "body": quoting}, "times": 2},
        {"match": {"route": "batches.create"}, "fault": {"status": 400, "body": quoting}, "times": 2},
        {"match": {"route": "batches.get"}, "fault": {"status": 429, "body": quoting}, "times": 1},
    ]);
    world.sim.fault(rules).await;
    let prompts = (0..6).flat_map(|n| [claude(&format!("{word} {n}")), gpt(&format!("{word} {n}"))]);
    let batch = Batch::of(prompts).field("metadata", json!({"note": word}));
    check(&world, &batch).await;
    // A body that is refused, and one that is no JSON.
    let refused = json!({"model": word, "prompts": [{"messages": word, word: word}]});
    world.client().post("/batches", JSON, refused.to_string()).await.refused(422, "invalid_request");
    world
        .client()
        .post("/batches", JSON, format!("{{\"model\": \"{word}\" {word}"))
        .await
        .refused(400, "malformed_body");
    let said = world.gateways[0].process.said();
    assert!(said.contains("chunk submitted") && said.lines().count() > 20, "this is the log: {said}");
    for content in [word, secret_key, "echo "] {
        let line = said.lines().find(|line| line.contains(content));
        assert_eq!(line, None, "{content} is in the log");
    }
    assert!(said.contains("\"verb\":\"submit\"") && said.contains("\"chunk\":"), "spans name the verb and its chunk");
}
