//! Where a check works: one provider's adapter, its simulator, and the short ways to send and to harvest.

use crate::support::sim::Sim;
use batchgate::{
    domain::{
        outcome::{Answer, Failure, Outcome},
        prompt::{ApiHeaders, Endpoint},
    },
    provider::{
        BatchProvider, CallError, CreateError, Created, Doubt, Ended, Line, LineOutcome, OutLine, Parcel, ReadError,
        RemoteId, RemoteStatus,
        registry::{Account, Kind},
        secret::Secret,
    },
};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub(super) struct Desk {
    pub sim: Arc<Sim>,
    pub kind: Kind,
    pub provider: Arc<dyn BatchProvider>,
}

/// Prompts and the parcel that carries them.
pub(super) struct Order {
    pub parcel: Parcel,
    /// By wire id.
    pub bodies: BTreeMap<String, Value>,
}

impl Desk {
    pub(super) fn new(sim: Arc<Sim>, kind: Kind) -> Desk {
        let provider = Desk::connect(&sim.base, kind, &["sim-key"], Duration::from_secs(15));
        Desk { sim, kind, provider }
    }

    /// Another adapter of the same provider.
    pub(super) fn provider_with(&self, keys: &[&str], stall: Duration) -> Arc<dyn BatchProvider> {
        Desk::connect(&self.sim.base, self.kind, keys, stall)
    }

    pub(super) fn connect(base: &str, kind: Kind, keys: &[&str], stall: Duration) -> Arc<dyn BatchProvider> {
        let path = match kind {
            Kind::OpenAi => "/openai/v1",
            Kind::Anthropic => "/anthropic",
        };
        let account = Account {
            name: "main".to_owned(),
            kind,
            base_url: format!("{base}{path}"),
            api_keys: keys.iter().map(|key| Secret::new(*key)).collect(),
            stall,
            create_timeout: stall,
        };
        account.connect().expect("the account is usable")
    }

    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            Kind::OpenAi => "openai",
            Kind::Anthropic => "anthropic",
        }
    }

    pub(super) fn is_openai(&self) -> bool {
        self.kind == Kind::OpenAi
    }

    /// The route that results are read by.
    pub(super) fn results_route(&self) -> &'static str {
        if self.is_openai() { "files.content" } else { "batches.results" }
    }

    pub(super) fn body(&self, text: &str) -> Value {
        let messages = json!([{"role": "user", "content": text}]);
        match self.kind {
            Kind::OpenAi => json!({"model": "gpt-5-mini", "messages": messages}),
            Kind::Anthropic => json!({"model": "claude-haiku-4-5", "max_tokens": 100, "messages": messages}),
        }
    }

    /// A parcel of these texts, its size planned by the provider's own limits.
    pub(super) fn order(&self, chunk: &str, texts: &[&str]) -> Order {
        self.order_of(chunk, texts.iter().map(|text| self.body(text)).collect())
    }

    /// Where conversations go.
    fn endpoint(&self) -> Endpoint {
        if self.is_openai() { Endpoint::ChatCompletions } else { Endpoint::Messages }
    }

    pub(super) fn order_of(&self, chunk: &str, bodies: Vec<Value>) -> Order {
        self.order_at(self.endpoint(), chunk, bodies)
    }

    pub(super) fn order_at(&self, endpoint: Endpoint, chunk: &str, bodies: Vec<Value>) -> Order {
        let limits = self.provider.limits(endpoint);
        let bodies: BTreeMap<String, Value> = bodies
            .into_iter()
            .enumerate()
            .map(|(number, body)| (format!("{chunk:_>16}-{number:0>43}"), body))
            .collect();
        let lines: Vec<OutLine> = bodies
            .iter()
            .map(|(id, body)| OutLine { custom_id: id.clone(), body: Bytes::from(body.to_string()) })
            .collect();
        let parcel = Parcel {
            chunk: chunk.to_owned(),
            deployment: "suite".to_owned(),
            attempt: 1,
            endpoint,
            model: bodies.values().next().expect("an order has prompts")["model"].as_str().expect("a model").to_owned(),
            headers: ApiHeaders::default(),
            prompts: lines.len(),
            wire_bytes: limits.fixed_bytes + lines.iter().map(|line| limits.weight(line.body.len())).sum::<u64>(),
            open: Arc::new(move || stream::iter(lines.clone().into_iter().map(Ok::<_, ReadError>)).boxed()),
            may_create: Arc::new(|| true),
        };
        Order { parcel, bodies }
    }

    /// Upload and create.
    pub(super) async fn create(&self, order: &Order) -> Result<Created, CreateError> {
        let input = self.provider.upload(&order.parcel).await?;
        self.provider.create(&order.parcel, input.as_ref()).await
    }

    pub(super) async fn created(&self, order: &Order) -> RemoteId {
        self.create(order).await.expect("create").remote
    }

    pub(super) async fn status(&self, remote: &RemoteId) -> RemoteStatus {
        self.provider.status(remote).await.expect("status")
    }

    /// Lets time pass until the batch is no longer running.
    pub(super) async fn end(&self, remote: &RemoteId) -> Ended {
        match self.settled(remote).await {
            RemoteStatus::Ended(ended) => ended,
            other => panic!("{remote:?} is {other:?}"),
        }
    }

    pub(super) async fn settled(&self, remote: &RemoteId) -> RemoteStatus {
        for _ in 0..100 {
            let status = self.status(remote).await;
            if !matches!(status, RemoteStatus::Running { .. }) {
                return status;
            }
            self.sim.advance(1.0).await;
        }
        panic!("{remote:?} still runs after 100 seconds");
    }

    pub(super) async fn harvest(&self, ended: &Ended) -> Result<Vec<Line>, CallError> {
        self.harvest_with(&self.provider, ended).await
    }

    pub(super) async fn harvest_with(
        &self,
        provider: &Arc<dyn BatchProvider>,
        ended: &Ended,
    ) -> Result<Vec<Line>, CallError> {
        provider.results(self.endpoint(), ended).await?.try_collect().await
    }

    /// Create, wait, harvest.
    pub(super) async fn lines(&self, order: &Order) -> Vec<Line> {
        let ended = self.end(&self.created(order).await).await;
        let lines = self.provider.results(order.parcel.endpoint, &ended).await.expect("harvest");
        lines.try_collect().await.expect("harvest")
    }

    /// The same, one outcome per wire id; a repeat or a stray is a mistake.
    pub(super) async fn outcomes(&self, order: &Order) -> BTreeMap<String, LineOutcome> {
        by_id(order, self.lines(order).await)
    }

    /// Whether this line answers the prompt that has its id.
    pub(super) async fn check_answer(&self, order: &Order, id: &str, outcome: &LineOutcome) {
        let body = &order.bodies[id];
        let oracle = self.sim.oracle_at(self.name(), order.parcel.endpoint.path(), body).await;
        let answer = answer(outcome);
        assert_eq!(answer.reading.completion.as_deref(), oracle["text"].as_str(), "{id} answers {body}");
        assert_eq!(
            answer.reading.usage.expect("usage").input_tokens,
            oracle["input_tokens"].as_u64().expect("a count")
        );
    }

    pub(super) fn doubt(&self, order: &Order) -> Doubt {
        let Parcel { chunk, deployment, attempt, prompts, .. } = order.parcel.clone();
        Doubt {
            chunk,
            deployment,
            attempt,
            prompts,
            input: None,
            credential: None,
            identity: None,
            not_before: None,
            newest_before: None,
        }
    }
}

pub(super) fn by_id(order: &Order, lines: Vec<Line>) -> BTreeMap<String, LineOutcome> {
    let mut outcomes = BTreeMap::new();
    for line in lines {
        assert!(order.bodies.contains_key(&line.custom_id), "stray {}", line.custom_id);
        let repeat = outcomes.insert(line.custom_id.clone(), line.outcome);
        assert!(repeat.is_none(), "two lines for {}", line.custom_id);
    }
    outcomes
}

pub(super) fn answer(outcome: &LineOutcome) -> &Answer {
    match outcome {
        LineOutcome::Final(Outcome::Answered(answer)) => answer,
        other => panic!("no answer: {other:?}"),
    }
}

pub(super) fn failure(outcome: &LineOutcome) -> &Failure {
    match outcome {
        LineOutcome::Final(Outcome::Failed(failure)) => failure,
        other => panic!("no failure: {other:?}"),
    }
}
