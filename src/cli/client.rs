//! The gateway's public API over HTTP, and nothing private: what the command line needs and lacks is a missing endpoint.
//! The only place of the command line that knows reqwest.

use super::{
    failure::{Failure, Problem},
    upload::Upload,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use reqwest::{
    Method, RequestBuilder, Response, StatusCode, Url,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, RETRY_AFTER},
};
use serde_json::Value;
use std::{net::IpAddr, time::Duration};

/// Patience with a gateway that is restarting: 0.5 s, 1 s, 2 s and 4 s, then it is unreachable.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A `Retry-After` beyond this is the caller's to wait for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Longest silence on an answer that should be flowing (a `follow` may be silent for hours: it has no such bound).
const STALL: Duration = Duration::from_secs(120);

/// A gateway, and who we are to it.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    key: Option<String>,
}

/// What a request that makes a batch was answered.
pub(crate) struct Accepted {
    pub(crate) batch: Value,
    /// The gateway had seen this Idempotency-Key before: this is its first answer again.
    pub(crate) replayed: bool,
}

/// Which results to read, and how.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Read {
    pub(crate) offset: u64,
    pub(crate) follow: bool,
    pub(crate) partial: bool,
    pub(crate) full: bool,
}

/// Which batches to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    pub(crate) limit: u32,
    pub(crate) after: Option<String>,
    pub(crate) status: Option<String>,
    pub(crate) run: Option<String>,
    pub(crate) since: Option<String>,
    /// Another team's; for admins.
    pub(crate) team: Option<String>,
    /// All of these labels.
    pub(crate) metadata: Vec<(String, String)>,
}

impl Client {
    pub(crate) fn new(url: &str, key: Option<String>) -> Result<Client, Failure> {
        let usage = |reason: &str| Failure::Usage(format!("BATCHGATE_URL / --url {url:?}: {reason}"));
        let base = Url::parse(url).map_err(|error| usage(&error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(usage("must begin with http:// or https://"));
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("batchgate/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .tcp_keepalive(Duration::from_secs(30))
            .redirect(reqwest::redirect::Policy::none());
        if is_loopback(&base) {
            builder = builder.no_proxy(); // a proxy for the outside world does not know our loopback
        }
        let http = builder.build().map_err(|error| Failure::Here(anyhow::Error::new(error).context("set up HTTP")))?;
        Ok(Client { http, base, key })
    }

    /// Sends a file as a batch. Repeats, always under the same key, while the gateway is away or busy with this key.
    pub(crate) async fn submit(
        &self,
        upload: &Upload,
        idempotency_key: &str,
        sent: impl Fn(u64) + Clone + Send + Sync + 'static,
    ) -> Result<Accepted, Failure> {
        let url = self.url(&["batches"]);
        let response = self
            .patiently(async || {
                let (sent, bytes) = (sent.clone(), upload.stream().await?);
                sent(0);
                let body = bytes.inspect(move |chunk| sent(chunk.as_ref().map_or(0, Bytes::len) as u64));
                let request = self
                    .request(Method::POST, url.clone())
                    .header("idempotency-key", idempotency_key)
                    .header(CONTENT_TYPE, upload.kind.media_type())
                    .header(CONTENT_LENGTH, upload.len())
                    .body(reqwest::Body::wrap_stream(body));
                self.send(request).await
            })
            .await
            .map_err(|failure| of_the_file(failure, upload))?;
        self.accepted(response).await
    }

    /// Asks once more what a batch left unanswered; repeats as [`Client::submit`] does.
    pub(crate) async fn retry(&self, id: &str, idempotency_key: &str) -> Result<Accepted, Failure> {
        let url = self.url(&["batches", id, "retry"]);
        let response = self
            .patiently(async || {
                let request = self.request(Method::POST, url.clone()).header("idempotency-key", idempotency_key);
                self.send(request).await
            })
            .await?;
        self.accepted(response).await
    }

    async fn accepted(&self, response: Response) -> Result<Accepted, Failure> {
        let replayed = response.headers().get("idempotency-replayed").is_some_and(|value| value == "true");
        Ok(Accepted { batch: self.json(response).await?, replayed })
    }

    /// What a file would become as a batch.
    pub(crate) async fn forecast(&self, upload: &Upload) -> Result<Value, Failure> {
        let mut url = self.url(&["batches"]);
        url.query_pairs_mut().append_pair("dry_run", "true");
        let response = self
            .patiently(async || {
                let request = self
                    .request(Method::POST, url.clone())
                    .header(CONTENT_TYPE, upload.kind.media_type())
                    .header(CONTENT_LENGTH, upload.len())
                    .body(reqwest::Body::wrap_stream(upload.stream().await?));
                self.send(request).await
            })
            .await
            .map_err(|failure| of_the_file(failure, upload))?;
        self.json(response).await
    }

    /// The batch object; with `wait`, as soon as the batch has ended or so many seconds (at most 60) have passed.
    pub(crate) async fn batch(&self, id: &str, wait: Option<u32>) -> Result<Value, Failure> {
        let mut url = self.url(&["batches", id]);
        if let Some(seconds) = wait {
            url.query_pairs_mut().append_pair("wait", &seconds.to_string());
        }
        self.get(url).await
    }

    /// Newest first.
    pub(crate) async fn list(&self, listing: &Listing) -> Result<Value, Failure> {
        let mut url = self.url(&["batches"]);
        url.query_pairs_mut().append_pair("limit", &listing.limit.to_string());
        let Listing { after, status, run, since, team, .. } = listing;
        for (name, value) in [("after", after), ("status", status), ("run", run), ("since", since), ("team", team)] {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        for (name, value) in &listing.metadata {
            url.query_pairs_mut().append_pair(&format!("metadata.{name}"), value);
        }
        self.get(url).await
    }

    pub(crate) async fn keys(&self) -> Result<Value, Failure> {
        self.get(self.url(&["keys"])).await
    }

    pub(crate) async fn pauses(&self) -> Result<Value, Failure> {
        self.get(self.url(&["pauses"])).await
    }

    /// Doing it twice is doing it once, so it is repeated like a read.
    pub(crate) async fn pause(&self, id: &str) -> Result<Value, Failure> {
        self.change(Method::PUT, &["pauses", id]).await
    }

    pub(crate) async fn resume(&self, id: &str) -> Result<Value, Failure> {
        self.change(Method::DELETE, &["pauses", id]).await
    }

    async fn change(&self, method: Method, path: &[&str]) -> Result<Value, Failure> {
        let url = self.url(path);
        let response = self.patiently(async || self.send(self.request(method.clone(), url.clone())).await).await?;
        self.json(response).await
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<Value, Failure> {
        let url = self.url(&["batches", id, "cancel"]);
        let response = self.patiently(async || self.send(self.request(Method::POST, url.clone())).await).await?;
        self.json(response).await
    }

    /// Results in order as NDJSON. An `Err` in the stream means it broke: read on from the last whole line.
    pub(crate) async fn results(
        &self,
        id: &str,
        read: Read,
    ) -> Result<BoxStream<'static, Result<Bytes, Failure>>, Failure> {
        let mut url = self.url(&["batches", id, "results"]);
        {
            let mut query = url.query_pairs_mut();
            for (name, value, wanted) in [
                ("offset", read.offset.to_string(), read.offset > 0),
                ("follow", "true".to_owned(), read.follow),
                ("partial", "true".to_owned(), read.partial),
                ("response", "full".to_owned(), read.full),
            ] {
                if wanted {
                    query.append_pair(name, &value);
                }
            }
        }
        if url.query() == Some("") {
            url.set_query(None);
        }
        let shown = url.to_string();
        let response = self.send(self.request(Method::GET, url).header("accept", "application/x-ndjson")).await?;
        let stall = (!read.follow).then_some(STALL);
        Ok(futures_util::stream::unfold(Some(response.bytes_stream().boxed()), move |bytes| {
            let shown = shown.clone();
            async move {
                let mut bytes = bytes?; // none after an error
                let next = match stall {
                    Some(limit) => tokio::time::timeout(limit, bytes.next()).await,
                    None => Ok(bytes.next().await),
                };
                match next {
                    Ok(None) => None,
                    Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some(bytes))),
                    Ok(Some(Err(error))) => Some((Err(unreachable(&shown, &error)), None)),
                    Err(_) => {
                        Some((Err(Failure::Unreachable { url: shown, reason: "the results stalled".to_owned() }), None))
                    }
                }
            }
        })
        .boxed())
    }

    /// The base URL, for people.
    pub(crate) fn shown(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Is the gateway ready to take work? One try, five seconds.
    pub(crate) async fn ready(&self) -> Result<(), Failure> {
        let request = self.request(Method::GET, self.url(&["readyz"])).timeout(Duration::from_secs(5));
        self.send(request).await.map(drop)
    }

    /// Is there a gateway? One try, five seconds.
    pub(crate) async fn alive(&self) -> Result<(), Failure> {
        let request = self.request(Method::GET, self.url(&["healthz"])).timeout(Duration::from_secs(5));
        self.json(self.send(request).await?).await.map(drop)
    }

    /// Any other JSON under the base URL.
    pub(crate) async fn get_path(&self, path: &[&str], query: &str) -> Result<Value, Failure> {
        let mut url = self.url(path);
        url.set_query(Some(query));
        self.get(url).await
    }

    async fn get(&self, url: Url) -> Result<Value, Failure> {
        let response = self
            .patiently(async || {
                self.send(self.request(Method::GET, url.clone()).timeout(Duration::from_secs(90))).await
            })
            .await?;
        self.json(response).await
    }

    /// The base with these path segments; an id is one segment whatever it holds.
    fn url(&self, segments: &[&str]) -> Url {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("new() refused URLs that cannot be a base").pop_if_empty().extend(segments);
        url.set_query(None);
        url.set_fragment(None);
        url
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.http.request(method, url);
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// One try. Anything but a 2xx is a refusal.
    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| unreachable(self.base.as_str(), &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers());
        let body = bounded(response).await;
        Err(Failure::Refused(Box::new(Problem::read(status.as_u16(), retry_after, &body))))
    }

    /// Tries again, with growing pauses, while nobody answers or the answer says "later".
    async fn patiently(&self, mut call: impl AsyncFnMut() -> Result<Response, Failure>) -> Result<Response, Failure> {
        let mut pause = FIRST_PAUSE;
        let mut tries = 1;
        loop {
            let failure = match call().await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let Some(wished) = worth_repeating(&failure).filter(|_| tries < TRIES) else { return Err(failure) };
            tokio::time::sleep(wished.unwrap_or(pause.mul_f64(rand::random_range(0.75..1.25))).min(LONGEST_PAUSE))
                .await;
            pause *= 2;
            tries += 1;
        }
    }

    async fn json(&self, response: Response) -> Result<Value, Failure> {
        let bytes = response.bytes().await.map_err(|error| unreachable(self.base.as_str(), &error))?;
        serde_json::from_slice(&bytes).map_err(|_| Failure::Unreachable {
            url: self.base.to_string(),
            reason: "what answers there is not a batchgate (its answer is not JSON)".to_owned(),
        })
    }
}

/// A refusal that names the lines of the file.
fn of_the_file(failure: Failure, upload: &Upload) -> Failure {
    match failure {
        Failure::Refused(problem) => Failure::Refused(Box::new(problem.shifted(upload.added_lines))),
        other => other,
    }
}

/// Whether to try again, and after how long if the answer said so.
fn worth_repeating(failure: &Failure) -> Option<Option<Duration>> {
    match failure {
        Failure::Unreachable { .. } => Some(None),
        Failure::Refused(problem) => {
            let later = matches!(problem.status, 502..=504) || problem.code == "idempotency_in_progress";
            (later && problem.retry_after.is_none_or(|after| after <= LONGEST_PAUSE)).then_some(problem.retry_after)
        }
        Failure::Usage(_) | Failure::Here(_) | Failure::Interrupted(_) | Failure::OutputClosed => None,
    }
}

/// The innermost cause says most: "connection refused", not "error sending request".
fn unreachable(url: &str, error: &reqwest::Error) -> Failure {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let reason = if error.is_timeout() { "no answer in time".to_owned() } else { cause.to_string() };
    Failure::Unreachable { url: url.trim_end_matches('/').to_owned(), reason }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// The first 256 KiB of an error body: more is nobody's explanation.
async fn bounded(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Ok(Some(chunk))) = tokio::time::timeout(Duration::from_secs(10), response.chunk()).await {
        body.extend_from_slice(&chunk);
        if body.len() > 256 << 10 {
            break;
        }
    }
    body
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host == "localhost" || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// True where a failed poll says only "not now": the batch goes on, and so may the watcher.
pub(crate) fn is_passing(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(problem) => {
            problem.status >= StatusCode::INTERNAL_SERVER_ERROR.as_u16()
                || problem.status == StatusCode::TOO_MANY_REQUESTS
        }
        Failure::Unreachable { .. } => true,
        Failure::Usage(_) | Failure::Here(_) | Failure::Interrupted(_) | Failure::OutputClosed => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::scripted::{Scripted, answer},
        *,
    };

    fn client(base: &str) -> Client {
        Client::new(base, None).expect("a good URL")
    }

    #[test]
    fn ids_stay_one_segment() {
        let client = client("http://127.0.0.1:8080/");
        assert_eq!(
            client.url(&["batches", "../../x?y#z"]).as_str(),
            "http://127.0.0.1:8080/batches/..%2F..%2Fx%3Fy%23z"
        );
        let below = Client::new("https://llm.example/gate", None).expect("a good URL");
        assert_eq!(below.url(&["batches"]).as_str(), "https://llm.example/gate/batches");
    }

    #[test]
    fn bad_urls_are_usage() {
        for url in ["", "127.0.0.1:8080", "ftp://x/", "mailto:x"] {
            assert!(matches!(Client::new(url, None), Err(Failure::Usage(_))), "{url}");
        }
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        let refused = |status, code: &str, after| {
            let body = serde_json::json!({"code": code}).to_string();
            Failure::Refused(Box::new(Problem::read(status, after, body.as_bytes())))
        };
        assert!(worth_repeating(&refused(422, "invalid_request", None)).is_none());
        assert!(worth_repeating(&refused(429, "quota_exceeded", None)).is_none());
        assert!(worth_repeating(&refused(409, "batch_running", None)).is_none());
        assert!(worth_repeating(&refused(503, "draining", Some(Duration::from_secs(3600)))).is_none());
        assert_eq!(
            worth_repeating(&refused(503, "draining", Some(Duration::from_secs(2)))),
            Some(Some(Duration::from_secs(2)))
        );
        assert_eq!(worth_repeating(&refused(409, "idempotency_in_progress", None)), Some(None));
    }

    #[tokio::test]
    async fn a_submit_is_repeated_under_its_key_and_with_its_whole_body() {
        let later = answer("503 Service Unavailable", "retry-after: 0\r\n", r#"{"code": "draining"}"#);
        let done = answer("202 Accepted", "idempotency-replayed: true\r\n", r#"{"id": "batch_1"}"#);
        let server = Scripted::new(&[&later, "", &done]).await; // busy; broken off; there
        let path = std::env::temp_dir().join(format!("batchgate-submit-{}.jsonl", uuid::Uuid::now_v7()));
        std::fs::write(&path, "\"Say 0\"\n\"Say 1\"\n").expect("a temp file");
        let upload = Upload::open(&path, &serde_json::Map::new()).expect("a file");
        let accepted = server.client.submit(&upload, "key-1", |_| {}).await.expect("the third try");
        std::fs::remove_file(&path).expect("our own file");
        assert!(accepted.replayed && accepted.batch["id"] == "batch_1");
        let asked = server.asked().await;
        assert_eq!(asked.len(), 3);
        for request in asked {
            assert!(request.starts_with("POST /batches HTTP/1.1\r\n"), "{request}");
            for line in
                ["idempotency-key: key-1", "content-type: application/x-ndjson", "authorization: Bearer bg_default_x"]
            {
                assert!(request.contains(&format!("\r\n{line}\r\n")), "{line} in {request}");
            }
            assert!(request.ends_with("\r\n\r\n\"Say 0\"\n\"Say 1\"\n"), "{request}");
        }
    }

    #[tokio::test]
    async fn a_forecast_is_asked_for_without_a_key() {
        let told = answer("200 OK", "", r#"{"object": "batch.forecast", "total": 2}"#);
        let server = Scripted::new(&[&told]).await;
        let path = std::env::temp_dir().join(format!("batchgate-forecast-{}.jsonl", uuid::Uuid::now_v7()));
        std::fs::write(&path, "\"Say 0\"\n\"Say 1\"\n").expect("a temp file");
        let upload = Upload::open(&path, &serde_json::Map::new()).expect("a file");
        let told = server.client.forecast(&upload).await.expect("a forecast");
        std::fs::remove_file(&path).expect("our own file");
        assert_eq!(told["total"], 2);
        let asked = server.asked().await;
        assert!(asked[0].starts_with("POST /batches?dry_run=true HTTP/1.1\r\n"), "{}", asked[0]);
        assert!(!asked[0].contains("idempotency-key") && asked[0].ends_with("\"Say 1\"\n"), "{}", asked[0]);
    }

    #[tokio::test]
    async fn a_refusal_names_the_line_of_the_file() {
        let body = r#"{"code": "invalid_request", "detail": "d", "errors": [{"line": 3, "message": "m"}]}"#;
        let server = Scripted::new(&[&answer("422 Unprocessable Content", "", body)]).await;
        let path = std::env::temp_dir().join(format!("batchgate-refused-{}.jsonl", uuid::Uuid::now_v7()));
        std::fs::write(&path, "\"a\"\n7\n").expect("a temp file");
        let options = serde_json::from_str(r#"{"chunk": 2}"#).expect("an object"); // a header line is put before
        let upload = Upload::open(&path, &options).expect("a file");
        let refused = server.client.submit(&upload, "key-1", |_| {}).await.err().expect("a refusal");
        std::fs::remove_file(&path).expect("our own file");
        assert!(refused.to_string().contains("line 2 - m"), "{refused}");
        assert_eq!(refused.exit_code(), 1);
    }

    #[tokio::test]
    async fn nobody_there_is_unreachable() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let failure = client(&format!("http://{address}")).ready().await.expect_err("nobody listens");
        assert!(failure.to_string().contains("refused"), "{failure}");
        assert_eq!(failure.exit_code(), 3);
    }
}
