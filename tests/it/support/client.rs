//! A client of the public API. Checks what must hold at every read: counts add up, errors are problem documents, and
//! every answer is one that `openapi.yaml` promises.

use super::{contract::CONTRACT, wait};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Clone)]
pub(crate) struct Client {
    base: String,
    http: reqwest::Client,
    key: Option<String>,
}

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const NDJSON: &str = "application/x-ndjson";

impl Client {
    pub(crate) fn new(address: &str) -> Client {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(90)).build().expect("a client can be built");
        Client { base: format!("http://{address}"), http, key: None }
    }

    /// The same gateway, asked with this key.
    pub(crate) fn with_key(&self, key: &str) -> Client {
        Client { key: Some(key.to_owned()), ..self.clone() }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends and reads to the end; `Err` if there is no whole answer.
    pub(crate) async fn try_send(&self, request: reqwest::RequestBuilder) -> Result<Reply, reqwest::Error> {
        let request = request.build()?;
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let reply = self.http.execute(request).await?;
        let (status, headers) = (reply.status().as_u16(), reply.headers().clone());
        let reply = Reply { status, headers, text: reply.text().await? };
        if status >= 400 {
            reply.is_a_problem_document();
        }
        CONTRACT.hold(&method, &path, &reply);
        Ok(reply)
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Reply {
        self.try_send(request).await.unwrap_or_else(|error| panic!("no whole answer: {error:?}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, kind: &str, body: impl Into<reqwest::Body>) -> Reply {
        self.send(self.request(Method::POST, path).header("content-type", kind).body(body)).await
    }

    /// The batch object as it is now.
    pub(crate) async fn batch(&self, id: &str) -> Value {
        let object = self.get(&format!("/batches/{id}")).await.ok();
        adds_up(&object);
        object
    }

    /// Looks until the batch has ended; the counts must add up at every look.
    pub(crate) async fn ended(&self, id: &str) -> Value {
        wait::until("the batch to end", async || {
            let object = self.get(&format!("/batches/{id}?wait=1")).await.ok();
            adds_up(&object);
            if object["status"] == "ended" { Ok(object) } else { Err(object) }
        })
        .await
    }

    pub(crate) async fn cancel(&self, id: &str) -> Reply {
        self.send(self.request(Method::POST, &format!("/batches/{id}/cancel"))).await
    }

    pub(crate) async fn retry(&self, id: &str) -> Reply {
        self.send(self.request(Method::POST, &format!("/batches/{id}/retry"))).await
    }

    /// Makes an ended batch unknown.
    pub(crate) async fn delete(&self, id: &str) -> Reply {
        self.send(self.request(Method::DELETE, &format!("/batches/{id}"))).await
    }

    /// All results of an ended batch, from the stream of lines.
    pub(crate) async fn results(&self, id: &str) -> Vec<Value> {
        self.lines(&format!("/batches/{id}/results")).await
    }

    /// What a metric's series of this label's value counts, 0 if there is none: `name{label="value"}`.
    pub(crate) async fn metric(&self, series: &str) -> u64 {
        let page = self.get("/metrics").await;
        let value = page.text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |text| text.parse().unwrap_or_else(|error| panic!("{series} {text}: {error}")))
    }

    /// A stream of lines that ends properly.
    pub(crate) async fn lines(&self, path: &str) -> Vec<Value> {
        let reply = self.get(path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        assert_eq!(reply.header("content-type"), NDJSON, "{path}");
        lines(&reply.text)
    }
}

/// Lines of JSON, each ended by one `\n`.
pub(crate) fn lines(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line has no end: {text}");
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.split_terminator('\n').map(parse).collect()
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{}: {error}: {}", self.status, self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a header of ASCII"))
    }

    /// 200 and its body.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// 202, `Location`, and the batch object.
    pub(crate) fn accepted(&self) -> Value {
        assert_eq!(self.status, 202, "{}", self.text);
        let object = self.json();
        adds_up(&object);
        assert_eq!(self.header("location"), format!("/batches/{}", id(&object)), "Location");
        object
    }

    /// An error of this status and code.
    pub(crate) fn refused(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "want {code}: {}", self.text);
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        problem
    }

    /// What every error must be: RFC 9457, with the request's id, and never a plain 500.
    fn is_a_problem_document(&self) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{} {}", self.status, self.text);
        assert_ne!(self.status, 500, "{}", self.text);
        let problem = self.json();
        assert_eq!(problem["status"], json!(self.status), "{problem}");
        assert_eq!(problem["request_id"], self.header("x-request-id"), "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        if self.status == 503 {
            assert_ne!(self.header("retry-after"), "", "a 503 says when to come back: {problem}");
        }
    }
}

pub(crate) fn id(object: &Value) -> &str {
    object["id"].as_str().unwrap_or_else(|| panic!("no id: {object}"))
}

/// One count of a batch object.
pub(crate) fn count(object: &Value, name: &str) -> u64 {
    object["counts"][name].as_u64().unwrap_or_else(|| panic!("no count of {name}: {object}"))
}

/// What a batch says it waits for: reason and prompts.
pub(crate) fn waiting(object: &Value) -> Vec<(String, u64)> {
    let told = object["waiting"].as_array().unwrap_or_else(|| panic!("no list of what it waits for: {object}"));
    let one = |waiting: &Value| {
        assert!(waiting["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{object}");
        assert!(waiting["since"].as_str().is_some_and(|since| since.starts_with("20")), "{object}");
        (waiting["reason"].as_str().unwrap_or_default().to_owned(), waiting["prompts"].as_u64().unwrap_or_default())
    };
    told.iter().map(one).collect()
}

/// Conservation: nothing is lost and nothing counted twice, at every read.
pub(crate) fn adds_up(object: &Value) {
    let sum: u64 =
        ["pending", "succeeded", "failed", "canceled", "expired"].map(|name| count(object, name)).iter().sum();
    assert_eq!(count(object, "total"), sum, "counts do not add up: {object}");
    assert!(count(object, "cached") + count(object, "joined") <= count(object, "succeeded"), "{object}");
    let ended = object["status"] == "ended";
    assert_eq!(ended, !object["ended_at"].is_null(), "{object}");
    assert!(!ended || count(object, "pending") == 0, "ended with something pending: {object}");
    assert!(!ended || object["waiting"] == json!([]), "ended and waiting: {object}");
    let small = count(object, "total") <= 1_000;
    assert_eq!(object["results"].is_array(), ended && small, "results come with small ended batches: {object}");
}
