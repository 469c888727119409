//! Anthropic Message Batches: one body creates, one stream answers, and nothing labels a batch.
//! The order of calls; their JSON is in [`wire`].

use super::{
    BatchProvider, CallError, Candidate, CreateError, Created, Cursor, Doubt, Ended, InputFile, Line, Listing, Newest,
    Parcel, RemoteId, RemoteStatus, Throttle,
    download::Download,
    exchange::Outgoing,
    faults::PauseSigns,
    harvest::{self, Read, Source},
    keys::{Key, Search},
    listing,
    parcel::{self, Means},
    transport::{Dialect, Transport, again, segment},
};
use crate::domain::{
    identity::{Identity, Kin},
    limits::BatchLimits,
    prompt::Endpoint,
};
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use reqwest::{Body, Method};
use std::sync::Arc;

mod answer;
pub mod wire;

pub(super) const DIALECT: Dialect = Dialect {
    provider: "anthropic",
    key_header: "x-api-key",
    key_prefix: "",
    headers: &[("anthropic-version", "2023-06-01")],
    identity: &["anthropic-organization-id", "anthropic-workspace-id"],
    pause: PauseSigns {
        codes: &[
            "billing_error",
            "enforced_spend_limit_reached",
            "contract_spend_limit_reached",
            "organization_on_hold",
            "cmek_key_disabled",
            "claude_code_key_creator_not_member",
            "workspace_human_review_disabled",
        ],
        // The wording is not documented; these are the pieces it has been seen in.
        phrases: &["credit balance", "api usage limits", "spend limit", "spending limit", "spend cap"],
    },
};

/// Pages of a hundred batches that `find` looks through where nothing says what was there before.
const MAX_PAGES: usize = 5;

#[derive(Clone)]
pub struct Anthropic {
    http: Arc<Transport>,
}

impl Anthropic {
    pub(super) fn new(http: Transport) -> Anthropic {
        Anthropic { http: Arc::new(http) }
    }

    async fn batch(&self, what: &str, remote: &RemoteId) -> Result<wire::Batch, CallError> {
        let reply = self.http.call(what, Method::GET, &path(remote)).await?;
        wire::Batch::read(&reply.body).ok_or_else(|| again(what, "the answer is no batch"))
    }

    /// The batches one key sees that may be the one in doubt, newest first.
    async fn list(&self, what: &str, key: &Key, doubt: &Doubt) -> Result<Vec<Candidate>, CallError> {
        let (mut found, mut after): (Vec<Candidate>, String) = (Vec::new(), String::new());
        for _ in 0..MAX_PAGES {
            let reply =
                self.http.call_with(key, what, Method::GET, &format!("/v1/messages/batches?limit=100{after}")).await?;
            let (batches, more) = wire::read_page(&reply.body).ok_or_else(|| again(what, "the answer is no list"))?;
            let Some(last) = batches.last() else { break };
            let next = format!("&after_id={}", segment(&last.remote.0));
            let newer: Vec<&wire::Batch> = batches.iter().take_while(|batch| !batch.was_before(doubt)).collect();
            let repeated = next == after;
            for candidate in newer.iter().filter_map(|batch| batch.may_be(doubt)) {
                if !found.contains(&candidate) {
                    found.push(candidate);
                }
            }
            if newer.len() < batches.len() || !more || repeated {
                break;
            }
            after = next;
        }
        Ok(found)
    }
}

fn path(remote: &RemoteId) -> String {
    format!("/v1/messages/batches/{}", segment(&remote.0))
}

#[async_trait]
impl BatchProvider for Anthropic {
    fn account(&self) -> &str {
        &self.http.account
    }

    fn limits(&self, _: Endpoint) -> BatchLimits {
        wire::limits()
    }

    async fn upload(&self, _: &Parcel) -> Result<Option<InputFile>, CallError> {
        Ok(None) // the create call itself carries the prompts
    }

    async fn create(&self, parcel: &Parcel, _: Option<&InputFile>) -> Result<Created, CreateError> {
        let what = format!("create batch of {}", parcel.chunk);
        let (pieces, progress) = parcel::stream(parcel, wire::frame(), Means::Create);
        let body = Outgoing { body: Body::wrap_stream(pieces), length: parcel.wire_bytes, progress };
        let reply = self.http.create(&what, "/v1/messages/batches", &wire::headers(&parcel.headers), body).await?;
        let batch = wire::Batch::read(&reply.body)
            .ok_or_else(|| CreateError::Unknown { detail: format!("{what}: the answer names no batch") })?;
        Ok(Created { remote: batch.remote, identity: self.http.identity() })
    }

    async fn status(&self, remote: &RemoteId) -> Result<RemoteStatus, CallError> {
        let batch = self.batch(&format!("read status of {}", remote.0), remote).await?;
        Ok(batch.status().unwrap_or_else(|| {
            super::unknown_status(DIALECT.provider, remote, &batch.word);
            batch.running()
        }))
    }

    async fn results(
        &self,
        _: Endpoint,
        ended: &Ended,
    ) -> Result<BoxStream<'static, Result<Line, CallError>>, CallError> {
        let results = Results { anthropic: self.clone(), remote: ended.remote.clone() };
        Ok(harvest::stream(Arc::new(results), ended.sources.clone()))
    }

    async fn cancel(&self, remote: &RemoteId) -> Result<(), CallError> {
        let call =
            self.http.call(&format!("cancel {}", remote.0), Method::POST, &format!("{}/cancel", path(remote))).await;
        super::canceled(self, remote, call.map(|_| ())).await
    }

    async fn find(&self, doubt: &Doubt) -> Result<Vec<Candidate>, CallError> {
        let what = format!("look for the batch of {}", doubt.chunk);
        let mut search = Search::new(doubt.credential.as_ref(), doubt.identity.as_ref());
        for key in self.http.keys() {
            search.under(key, self.list(&what, key, doubt).await)?;
        }
        search.end(&what)
    }

    async fn newest(&self) -> Result<Option<Newest>, CallError> {
        let what = format!("list batches of {}", self.http.account);
        // With the key that creates: another may see another workspace.
        let (key, path) = (self.http.first_key(), "/v1/messages/batches?limit=1");
        let reply = self.http.call_with(key, &what, Method::GET, path).await?;
        let (batches, _) = wire::read_page(&reply.body).ok_or_else(|| again(&what, "the answer is no list"))?;
        Ok(batches.into_iter().next().map(wire::Batch::newest))
    }

    async fn list(&self, from: &Cursor) -> Result<Listing, CallError> {
        let path = |after: Option<&str>| match after {
            Some(after) => format!("/v1/messages/batches?limit=100&after_id={}", segment(after)),
            None => "/v1/messages/batches?limit=100".to_owned(),
        };
        listing::page(&self.http, from, path, wire::read_list).await
    }

    fn throttle(&self) -> Option<Throttle> {
        self.http.throttle()
    }

    fn labels(&self) -> bool {
        false // nothing on a batch is ours to write
    }

    fn identity(&self) -> Identity {
        self.http.identity()
    }

    fn kin(&self, made: &Identity) -> Kin {
        self.http.kin(made)
    }

    fn credential(&self) -> String {
        self.http.first_key().name()
    }

    fn has_credential(&self, name: &str) -> bool {
        self.http.has_credential(name)
    }

    async fn discard(&self, _: &InputFile) -> Result<(), CallError> {
        Ok(()) // `upload` leaves nothing
    }
}

/// The results of one batch.
struct Results {
    anthropic: Anthropic,
    remote: RemoteId,
}

#[async_trait]
impl Source for Results {
    fn provider(&self) -> &'static str {
        DIALECT.provider
    }

    async fn open(&self, path: &str) -> Result<Download, CallError> {
        self.anthropic.http.download(&format!("read results of {}", self.remote.0), path).await
    }

    fn decode(&self, line: &str) -> Option<Line> {
        wire::read_line(line)
    }

    /// There is no size to compare with; but there is a line for every request of the batch.
    async fn complete(&self, _: &str, read: Read) -> Result<bool, CallError> {
        let batch = self.anthropic.batch(&format!("read counts of {}", self.remote.0), &self.remote).await?;
        Ok(batch.total > 0 && read.lines >= batch.total)
    }
}
