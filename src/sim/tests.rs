//! The simulator as its callers see it: on a port, over HTTP, with whole batches of both providers.

use std::{collections::BTreeMap, future::Future, time::Duration};

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{Answers, SimConfig, serve};

/// A simulator that runs for the length of one test, and a caller of it.
struct World {
    base: String,
    client: Client,
}

/// Run `story` against a simulator of its own.
async fn with_sim<F: Future<Output = ()>>(config: SimConfig, story: impl FnOnce(World) -> F) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("it is bound"));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, config, async move {
        let _ = stopped.await;
    }));
    story(World { base, client: Client::builder().no_proxy().build().expect("a client") }).await;
    drop(stop);
    server.await.expect("it does not panic").expect("it ends well");
}

impl World {
    fn call(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("{}{path}", self.base))
            .bearer_auth("sim-key")
            .header("anthropic-version", "2026-10-21")
            .timeout(Duration::from_secs(10))
    }

    async fn get(&self, path: &str) -> Value {
        read(self.call(Method::GET, path)).await.1
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = read(self.call(Method::POST, path).json(&body)).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
        answer
    }

    async fn advance(&self, seconds: f64) {
        self.post("/_sim/clock", json!({"advance_s": seconds})).await;
    }

    async fn fault(&self, route: &str, fault: Value) {
        self.post("/_sim/faults", json!({"match": {"route": route}, "fault": fault})).await;
    }

    async fn upload(&self, lines: &[Value]) -> String {
        let text: Vec<_> = lines.iter().map(Value::to_string).collect();
        let file = reqwest::multipart::Part::text(text.join("\n")).file_name("in.jsonl");
        let form = reqwest::multipart::Form::new().part("file", file).text("purpose", "batch");
        let (status, answer) = read(self.call(Method::POST, "/openai/v1/files").multipart(form)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        word(&answer["id"])
    }

    /// Result lines by id.
    async fn lines(&self, path: &str) -> BTreeMap<String, Value> {
        let answer = self.call(Method::GET, path).send().await.expect("an answer");
        let text = answer.text().await.expect("a whole body");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
        lines.map(|line| (word(&line["custom_id"]), line)).collect()
    }

    async fn oracle(&self, provider: &str, body: &Value) -> Value {
        self.post("/_sim/oracle", json!({"provider": provider, "body": body})).await["text"].clone()
    }
}

async fn read(call: RequestBuilder) -> (StatusCode, Value) {
    let answer = call.send().await.expect("an answer");
    let status = answer.status();
    (status, answer.json().await.expect("JSON"))
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn chat(id: usize, text: &str) -> Value {
    let body = json!({"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": text}]});
    json!({"custom_id": format!("r{id}"), "method": "POST", "url": "/v1/chat/completions", "body": body})
}

fn message(id: usize, text: &str) -> Value {
    let turns = json!([{"role": "user", "content": text}]);
    json!({"custom_id": format!("r{id}"), "params": {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": turns}})
}

fn order(file: &str) -> Value {
    json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"})
}

#[tokio::test]
async fn an_openai_batch_answers_every_prompt_with_its_own_text() {
    with_sim(SimConfig::default(), |sim| async move {
        let asked = [chat(0, "one"), chat(1, "two"), chat(2, "[[error:context_length]]")];
        let file = sim.upload(&asked).await;
        let batch = sim.post("/openai/v1/batches", order(&file)).await;
        assert_eq!(batch["status"], "validating");
        sim.advance(5.0).await;
        let batch = sim.get(&format!("/openai/v1/batches/{}", word(&batch["id"]))).await;
        assert_eq!(batch["request_counts"], json!({"total": 3, "completed": 2, "failed": 1}), "{batch}");
        let answers = sim.lines(&format!("/openai/v1/files/{}/content", word(&batch["output_file_id"]))).await;
        for line in &asked[..2] {
            let said = &answers[&word(&line["custom_id"])]["response"]["body"]["choices"][0]["message"]["content"];
            assert_eq!(*said, sim.oracle("openai", &line["body"]).await);
        }
        let errors = sim.lines(&format!("/openai/v1/files/{}/content", word(&batch["error_file_id"]))).await;
        assert_eq!(errors["r2"]["response"]["body"]["error"]["code"], "context_length_exceeded");
        assert_eq!(sim.get("/_sim/ledger?parts=totals").await["totals"]["billed"], 2);
    })
    .await;
}

#[tokio::test]
async fn an_anthropic_batch_errs_the_one_bad_request() {
    with_sim(SimConfig::default(), |sim| async move {
        let mut bad = message(2, "warm");
        bad["params"]["temperature"] = json!(1.0);
        let asked = json!({"requests": [message(0, "one"), message(1, "two"), bad]});
        let batch = sim.post("/anthropic/v1/messages/batches", asked.clone()).await;
        assert_eq!(batch["request_counts"]["processing"], 3);
        sim.advance(5.0).await;
        let batch = sim.get(&format!("/anthropic/v1/messages/batches/{}", word(&batch["id"]))).await;
        assert_eq!((&batch["processing_status"], &batch["request_counts"]["errored"]), (&json!("ended"), &json!(1)));
        let url = word(&batch["results_url"]);
        let answers = sim.lines(url.strip_prefix(&sim.base).expect("an absolute address of ours")).await;
        for place in 0..2 {
            let said = &answers[&format!("r{place}")]["result"]["message"]["content"][0]["text"];
            assert_eq!(*said, sim.oracle("anthropic", &asked["requests"][place]["params"]).await);
        }
        assert_eq!(answers["r2"]["result"]["error"]["error"]["type"], "invalid_request_error");
    })
    .await;
}

#[tokio::test]
async fn cancelled_batches_keep_what_was_done() {
    with_sim(SimConfig::default(), |sim| async move {
        let slow = json!({"common": {"cancel_completes": 0.5}, "openai": {"in_progress_s": 100}, "anthropic": {"in_progress_s": 100}});
        sim.post("/_sim/settings", slow).await;
        let prompts: Vec<_> = (0..8).map(|id| chat(id, "x")).collect();
        let batch = sim.post("/openai/v1/batches", order(&sim.upload(&prompts).await)).await;
        let path = format!("/openai/v1/batches/{}", word(&batch["id"]));
        sim.advance(1.0).await;
        assert_eq!(sim.post(&format!("{path}/cancel"), json!({})).await["status"], "cancelling");
        sim.advance(1.0).await;
        let batch = sim.get(&path).await;
        assert_eq!((&batch["status"], &batch["request_counts"]["completed"]), (&json!("cancelled"), &json!(4)));
        let left = sim.lines(&format!("/openai/v1/files/{}/content", word(&batch["error_file_id"]))).await;
        assert!(left.len() == 4 && left.values().all(|line| line["error"]["code"] == "batch_cancelled"), "{left:?}");

        let requests: Vec<_> = (0..8).map(|id| message(id, "x")).collect();
        let batch = sim.post("/anthropic/v1/messages/batches", json!({"requests": requests})).await;
        let path = format!("/anthropic/v1/messages/batches/{}", word(&batch["id"]));
        assert_eq!(sim.post(&format!("{path}/cancel"), json!({})).await["processing_status"], "canceling");
        sim.advance(1.0).await;
        let counts = sim.get(&path).await["request_counts"].clone();
        assert_eq!(counts, json!({"processing": 0, "succeeded": 4, "errored": 0, "canceled": 4, "expired": 0}));

        let ended = sim.post("/openai/v1/batches", order("file-none")).await;
        sim.advance(1.0).await;
        let (status, _) = read(sim.call(Method::POST, &format!("/openai/v1/batches/{}/cancel", word(&ended["id"])))).await;
        assert_eq!(status, StatusCode::CONFLICT);
    })
    .await;
}

#[tokio::test]
async fn a_reset_loses_the_answer_but_not_the_batch() {
    with_sim(SimConfig::default(), |sim| async move {
        let create =
            || sim.call(Method::POST, "/anthropic/v1/messages/batches").json(&json!({"requests": [message(0, "x")]}));
        for (moment, batches) in [("before", 0), ("after", 1)] {
            sim.fault("batches.create", json!({"reset": moment})).await;
            create().send().await.expect_err("the connection is reset");
            let ledger = sim.get("/_sim/ledger").await;
            assert_eq!(ledger["totals"]["batches"], batches, "{moment}");
            let last = ledger["http"].as_array().and_then(|calls| calls.last()).cloned().unwrap_or_default();
            assert!(last["status"].is_null() && last["made"].is_string() == (batches == 1), "{last}");
        }
        let (status, _) = read(create()).await;
        assert_eq!(status, StatusCode::OK);
    })
    .await;
}

#[tokio::test]
async fn a_create_goes_on_when_its_caller_hangs_up() {
    with_sim(SimConfig::default(), |sim| async move {
        sim.fault("batches.create", json!({"delay": 0.3})).await;
        let create =
            sim.call(Method::POST, "/anthropic/v1/messages/batches").json(&json!({"requests": [message(0, "x")]}));
        create.timeout(Duration::from_millis(100)).send().await.expect_err("too slow for its caller");
        let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
        while sim.get("/_sim/ledger?parts=totals").await["totals"]["batches"] != 1 {
            assert!(tokio::time::Instant::now() < deadline, "the batch was never made");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn cut_results_end_early_and_faults_of_status_come_first() {
    with_sim(SimConfig::default(), |sim| async move {
        let batch =
            sim.post("/anthropic/v1/messages/batches", json!({"requests": [message(0, "x"), message(1, "y")]})).await;
        let path = format!("/anthropic/v1/messages/batches/{}/results", word(&batch["id"]));
        sim.advance(1.0).await;
        for framing in ["length", "chunked"] {
            sim.fault("batches.results", json!({"truncate": {"framing": framing, "at_line_end": true}})).await;
            let answer = sim.call(Method::GET, &path).send().await.expect("a head");
            answer.text().await.expect_err("a body without its end");
        }
        sim.fault("batches.results", json!({"truncate": {"framing": "close", "fraction": 0.6, "at_line_end": true}}))
            .await;
        assert_eq!(sim.lines(&path).await.len(), 1);
        sim.fault("batches.*", json!({"status": 529, "retry_after": 7})).await;
        let answer = sim.call(Method::GET, &path).send().await.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].as_bytes()), (529, &b"7"[..]));
        assert_eq!(sim.lines(&path).await.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn the_demo_hears_its_own_words() {
    let config =
        SimConfig { answers: Some(Answers::Echo), keys: vec![("a".into(), "sim-key".into())], ..SimConfig::default() };
    with_sim(config, |sim| async move {
        let body =
            json!({"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]});
        let answer = sim.post("/anthropic/v1/messages", body).await;
        assert_eq!((&answer["content"][0]["text"], &answer["usage"]["sim_call"]), (&json!("hello"), &json!(1)));
        let body = json!({"model": "gpt-4.1", "messages": [{"role": "user", "content": "hi"}]});
        let answer = sim.post("/openai/v1/chat/completions", body).await;
        assert_eq!(answer["choices"][0]["message"]["content"], "hi");
        sim.post("/_sim/reset", json!({})).await;
        assert_eq!(sim.get("/_sim/settings").await["common"]["answers"], "echo");
        assert_eq!(sim.get("/_sim/ledger").await["billed"], json!([]));
    })
    .await;
}
