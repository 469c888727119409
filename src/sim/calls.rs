//! The path of every call to a provider: log, authenticate, pick the faults, handle, deliver.

use std::{sync::Arc, time::Instant};

use axum::{
    body::Body,
    extract::{ConnectInfo, Query, State},
    response::Response,
};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{Request, header, request::Parts};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    anthropic,
    batch::Birth,
    clock::real,
    delivery::{Flight, Outgoing, Terms, deliver},
    faults::{self, Fault, Moment},
    json::find_string,
    ledger::{Entry, Http, Quota},
    openai,
    problem::{Problem, Provider, Trouble},
    route::{self, Route},
    settings::TooLargeBody,
    wire::Wire,
    world::{Seeker, Sim},
};

/// The model is looked for in so much of a body.
const PEEK: usize = 1 << 16;
/// Bodies that are read into memory: all but uploads and Anthropic's batches.
const MAX_JSON_BYTES: usize = 64 << 20;

/// One call to a provider, and all that is known of it.
pub(crate) struct Call {
    pub(crate) sim: Arc<Sim>,
    pub(crate) parts: Parts,
    pub(crate) body: Body,
    pub(crate) provider: Provider,
    pub(crate) route: Route,
    /// The id in the path, if there is one.
    pub(crate) id: String,
    pub(crate) account: String,
    pub(crate) request_id: String,
    pub(crate) fault: Arc<Fault>,
    pub(crate) entry: Entry,
    pub(crate) quota: Quota,
    pub(crate) began: Instant,
}

/// Whatever is under a provider's base URL comes here.
pub(crate) async fn answer(
    State(sim): State<Arc<Sim>>,
    ConnectInfo(wire): ConnectInfo<Wire>,
    request: Request<Body>,
) -> Response {
    // In a task of its own, as a real server goes on with a create whose caller has hung up.
    let task = sim.calls.spawn(play(Arc::clone(&sim), wire, request));
    task.await.unwrap_or_else(|_| {
        let mut broken = Response::new(Body::from("a bug in the simulator: see its output"));
        *broken.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        broken
    })
}

async fn play(sim: Arc<Sim>, wire: Wire, request: Request<Body>) -> Response {
    let method = request.method().as_str().to_owned();
    let path = request.uri().path().to_owned();
    let Some(found) = route::find(&method, &path) else {
        let mut nothing = Response::new(Body::from("nothing here: try /openai/v1, /anthropic or /_sim"));
        *nothing.status_mut() = http::StatusCode::NOT_FOUND;
        return nothing;
    };
    let mut call = Call::begin(sim, &found, request);
    let name = format!("{}:{}", call.provider.name(), call.route.name());
    call.sim.world().ledger.enter(&name);
    let flight = Flight { sim: Arc::clone(&call.sim), entry: call.entry.clone(), name, began: call.began };

    let handled = call.handle().await.map_err(|problem| call.refuse(&problem));
    call.drain().await;
    tokio::time::sleep(real(call.fault.delay_after)).await;
    let mut out = match handled {
        Ok(Some(out)) | Err(out) if call.fault.reset != Some(Moment::After) => out,
        _ => {
            wire.reset();
            return Response::new(Body::empty());
        }
    };
    if call.fault.status.is_some() && call.fault.after {
        out = call.forced();
    }
    for (name, value) in call.provider_headers() {
        out = out.header(name, value);
    }
    let range = call.parts.headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    deliver(out, Terms { fault: &call.fault, range, wire, flight }).await
}

impl Call {
    fn begin(sim: Arc<Sim>, found: &route::Found<'_>, request: Request<Body>) -> Self {
        let (parts, body) = request.into_parts();
        let now = sim.clock.now();
        let (entry, number) = {
            let http = &mut sim.world().ledger.http;
            let number = http.len();
            let entry = Entry::new(Http {
                n: number,
                time: now,
                method: parts.method.to_string(),
                path: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
                provider: found.provider,
                route: found.route.name(),
                account: None,
                id: Some(found.id.to_owned()).filter(|id| !id.is_empty()),
                made: None,
                call: None,
                status: None,
                request_bytes: 0,
                response_bytes: 0,
                seconds: None,
                fault: Map::new(),
            });
            http.push(entry.clone());
            (entry, number)
        };
        let counted = entry.clone();
        let body = body.into_data_stream().inspect_ok(move |bytes| counted.write().request_bytes += bytes.len());
        Self {
            parts,
            body: Body::from_stream(body),
            provider: found.provider,
            route: found.route,
            id: found.id.to_owned(),
            account: "none".into(),
            request_id: match found.provider {
                Provider::OpenAi => format!("req_{number:024}"),
                Provider::Anthropic => format!("req_011{number:021}"),
            },
            fault: Arc::default(),
            entry,
            quota: Quota::NONE,
            began: Instant::now(),
            sim,
        }
    }

    /// The answer, or None if the connection is to be reset instead.
    async fn handle(&mut self) -> Result<Option<Outgoing>, Problem> {
        self.account = match self.provider {
            Provider::OpenAi => openai::wire::authenticate(&self.parts.headers, &self.sim.keys)?,
            Provider::Anthropic => anthropic::wire::authenticate(&self.parts.headers, &self.sim.keys)?,
        };
        self.entry.write().account = Some(self.account.clone());
        self.pick_fault().await?;
        tokio::time::sleep(real(self.fault.delay)).await;
        if self.fault.answers_early() {
            return Ok(Some(self.forced()));
        }
        if self.fault.reset == Some(Moment::Before) {
            self.drain().await;
            return Ok(None);
        }
        if self.route.is_rate_limited() {
            self.spend_request()?;
        }
        match self.provider {
            Provider::OpenAi => openai::handle(self).await.map(Some),
            Provider::Anthropic => anthropic::handle(self).await.map(Some),
        }
    }

    async fn pick_fault(&mut self) -> Result<(), Problem> {
        let need_model = self.sim.world().faults.need_model();
        let model = if need_model && self.parts.method == "POST" { self.peek_model().await? } else { None };
        let picked = self.sim.world().faults.pick(&faults::Call {
            provider: self.provider.name(),
            route: self.route.name(),
            account: &self.account,
            model: model.as_deref().unwrap_or_default(),
            id: &self.id,
        });
        self.entry.write().fault = picked.clone();
        let fault = serde_json::from_value(Value::Object(picked)).expect("each rule was checked when it was added");
        self.fault = Arc::new(fault);
        Ok(())
    }

    fn spend_request(&mut self) -> Result<(), Problem> {
        let now = self.sim.clock.now();
        let mut world = self.sim.world();
        let limit = world.settings.common.requests_per_minute;
        self.quota = world.ledger.spend_request(&self.account, limit, now);
        if self.quota.exceeded {
            let problem = Problem::of(self.provider, Trouble::RateLimit);
            return Err(problem.header("retry-after", format!("{:.0}", self.quota.reset_s)));
        }
        Ok(())
    }

    /// The model that a body names near its start, or, when a batch is made of a file, the file.
    async fn peek_model(&mut self) -> Result<Option<String>, Problem> {
        let content_type = self.parts.headers.get(header::CONTENT_TYPE);
        if content_type.is_some_and(|given| given.as_bytes().starts_with(b"multipart/")) {
            return Ok(None);
        }
        let mut rest = std::mem::take(&mut self.body).into_data_stream();
        let mut head = BytesMut::new();
        while head.len() < PEEK {
            let Some(bytes) = rest.next().await else { break };
            head.extend_from_slice(&bytes.map_err(|_| hung_up())?);
        }
        let head = head.freeze();
        self.body = Body::from_stream(stream::iter([Ok(head.clone())]).chain(rest));
        let upload = find_string(&head, "input_file_id").and_then(|id| self.sim.world().upload_path(id));
        let Some(path) = upload else { return Ok(find_string(&head, "model").map(str::to_owned)) };
        let head = openai::file::read_head(&path, PEEK).await?;
        Ok(find_string(&head, "model").map(str::to_owned))
    }

    /// The whole body, for calls that have a small one.
    pub(crate) async fn read_body(&mut self) -> Result<Bytes, Problem> {
        let mut body = std::mem::take(&mut self.body).into_data_stream();
        let mut whole = BytesMut::new();
        while let Some(bytes) = body.next().await {
            whole.extend_from_slice(&bytes.map_err(|_| hung_up())?);
            if whole.len() > MAX_JSON_BYTES {
                self.body = Body::from_stream(body);
                return Err(Problem::of(self.provider, Trouble::TooLarge));
            }
        }
        Ok(whole.freeze())
    }

    /// Read on to the end, so that the caller is done sending before it gets an answer.
    async fn drain(&mut self) {
        let mut rest = std::mem::take(&mut self.body).into_data_stream();
        while let Some(Ok(_)) = rest.next().await {}
    }

    pub(crate) fn query<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let query = Query::try_from_uri(&self.parts.uri).map_err(|error| Problem::invalid(error.to_string()))?;
        Ok(query.0)
    }

    pub(crate) fn now(&self) -> f64 {
        self.sim.clock.now()
    }

    /// This call as one that looks for the batch in its path.
    pub(crate) fn seeker(&self, now: f64) -> Seeker<'_> {
        Seeker { provider: self.provider, account: &self.account, id: &self.id, now }
    }

    /// A batch made by this call.
    pub(crate) fn birth(&self) -> Birth {
        Birth { account: self.account.clone(), at: self.now(), fault: Arc::clone(&self.fault) }
    }

    /// Put on record what this call made, whatever becomes of its answer.
    pub(crate) fn made(&self, id: &str) {
        self.entry.write().made = Some(id.to_owned());
    }

    fn refuse(&self, problem: &Problem) -> Outgoing {
        let html = self.sim.world().settings.anthropic.too_large_body == TooLargeBody::Html;
        if problem.status == 413 && self.provider == Provider::Anthropic && html {
            return Outgoing::html(413, "413 Request Entity Too Large");
        }
        let mut out = Outgoing::json(problem.status, &self.envelope(problem));
        for (name, value) in &problem.headers {
            out = out.header(name, value);
        }
        out
    }

    /// The answer that a `status` fault asks for.
    fn forced(&self) -> Outgoing {
        let status = self.fault.status.unwrap_or(500);
        let mut out = match &self.fault.body {
            _ if self.fault.html => Outgoing::html(status, &format!("{status} Error")),
            Some(Value::String(text)) => Outgoing::text(status, "application/json", text.clone()),
            Some(body) => Outgoing::json(status, body),
            None => Outgoing::json(status, &self.envelope(&Problem::of_status(self.provider, status))),
        };
        let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        for (name, value) in &self.fault.headers {
            out = out.header(name, plain(value));
        }
        match &self.fault.retry_after {
            Some(wait) => out.header("retry-after", plain(wait)),
            None => out,
        }
    }

    fn envelope(&self, problem: &Problem) -> Value {
        match self.provider {
            Provider::OpenAi => openai::wire::envelope(problem),
            Provider::Anthropic => anthropic::wire::envelope(problem, &self.request_id),
        }
    }

    fn provider_headers(&self) -> Vec<(&'static str, String)> {
        match self.provider {
            Provider::OpenAi => openai::wire::headers(self),
            Provider::Anthropic => anthropic::wire::headers(self),
        }
    }
}

/// Nobody will read it.
pub(crate) fn hung_up() -> Problem {
    Problem::invalid("the connection ended within the request")
}
