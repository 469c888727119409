//! A batch as a client writes it: fields, prompts, and which of the two bodies.

use super::{
    client::{Client, JSON, NDJSON, Reply},
    prompt::{CLAUDE, MAX_TOKENS, Prompt},
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) fields: Map<String, Value>,
    pub(crate) prompts: Vec<Prompt>,
    ndjson: bool,
}

impl Batch {
    pub(crate) fn of(prompts: impl IntoIterator<Item = Prompt>) -> Batch {
        let fields = json!({"model": CLAUDE, "max_tokens": MAX_TOKENS});
        let fields = fields.as_object().expect("it is one").clone();
        Batch { fields, prompts: prompts.into_iter().collect(), ndjson: false }
    }

    pub(crate) fn field(mut self, name: &str, value: impl Into<Value>) -> Batch {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Written as lines.
    pub(crate) fn ndjson(self) -> Batch {
        Batch { ndjson: true, ..self }
    }

    pub(crate) fn body(&self) -> (&'static str, String) {
        if self.ndjson {
            let header = json!({"batch": self.fields}).to_string();
            let lines = self.prompts.iter().map(|prompt| prompt.sent.to_string());
            (NDJSON, std::iter::once(header).chain(lines).map(|line| line + "\n").collect())
        } else {
            let mut body = self.fields.clone();
            body.insert("prompts".into(), self.prompts.iter().map(|prompt| prompt.sent.clone()).collect());
            (JSON, Value::Object(body).to_string())
        }
    }

    pub(crate) async fn post(&self, client: &Client) -> Reply {
        let (kind, body) = self.body();
        client.post("/batches", kind, body).await
    }

    pub(crate) fn samples(&self) -> u64 {
        self.fields.get("samples").and_then(Value::as_u64).unwrap_or(1)
    }

    pub(crate) fn shares(&self) -> bool {
        self.fields.get("repeats").is_some_and(|repeats| repeats == "share")
    }

    pub(crate) fn total(&self) -> u64 {
        self.prompts.len() as u64 * self.samples()
    }

    /// How often each body must have been paid for once this batch is answered: distinct (body, sample) pairs.
    pub(crate) fn bill(&self) -> BTreeMap<String, u64> {
        let mut bill = BTreeMap::new();
        for prompt in self.prompts.iter().filter(|prompt| prompt.is_billed()) {
            let asked = bill.entry(prompt.sha()).or_insert(0);
            *asked = if self.shares() { self.samples() } else { *asked + self.samples() };
        }
        bill
    }
}
