//! OpenAI and what speaks like it: upload a file, create a batch of it, read its output and its error file.
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
use reqwest::{
    Body, Method,
    multipart::{Form, Part},
};
use std::{collections::HashSet, sync::Arc};

mod answer;
pub mod wire;

pub(super) const DIALECT: Dialect = Dialect {
    provider: "openai",
    key_header: "authorization",
    key_prefix: "Bearer ",
    headers: &[],
    identity: &["openai-organization"],
    pause: PauseSigns {
        codes: &["insufficient_quota", "billing_hard_limit_reached", "billing_not_active"],
        phrases: &[],
    },
};

/// Pages of a hundred batches that `find` looks through.
const MAX_PAGES: usize = 10;
/// Batches so much older than the newest, by the provider's clock, cannot be what a create has just left.
const LOOK_BACK_SECONDS: u64 = 3 * 24 * 60 * 60;

#[derive(Clone)]
pub struct OpenAi {
    http: Arc<Transport>,
}

impl OpenAi {
    pub(super) fn new(http: Transport) -> OpenAi {
        OpenAi { http: Arc::new(http) }
    }

    /// The file as a multipart form: `purpose` before `file`, so that a server knows what is coming.
    fn form(parcel: &Parcel) -> (Form, parcel::Progress) {
        let (pieces, progress) = parcel::stream(parcel, wire::frame(), Means::Upload);
        let file = Part::stream_with_length(Body::wrap_stream(pieces), parcel.wire_bytes)
            .file_name(format!("{}.jsonl", parcel.chunk))
            .mime_str("application/octet-stream")
            .expect("a media type of the standard");
        (Form::new().text("purpose", "batch").part("file", file), progress)
    }

    /// The batches one key sees that are the one in doubt.
    async fn list(&self, what: &str, key: &Key, doubt: &Doubt) -> Result<Vec<Candidate>, CallError> {
        let (mut found, mut seen, mut after, mut newest) = (Vec::new(), HashSet::new(), String::new(), None);
        for _ in 0..MAX_PAGES {
            let reply = self.http.call_with(key, what, Method::GET, &format!("/batches?limit=100{after}")).await?;
            let page = wire::read_page(doubt, &reply.body).ok_or_else(|| again(what, "the answer is no list"))?;
            newest = newest.or(page.newest);
            // A server that does not know the cursor may start again from page one.
            let fresh = page.ids.iter().filter(|id| seen.insert((*id).clone())).count();
            found.extend(
                page.ours.into_iter().filter(|one| fresh > 0 && !found_already(&found, one)).collect::<Vec<_>>(),
            );
            let too_old = |oldest: u64| {
                doubt.is_older(oldest) || newest.is_some_and(|newest| newest.saturating_sub(oldest) > LOOK_BACK_SECONDS)
            };
            let old = page.oldest.is_some_and(too_old);
            match page.ids.last() {
                Some(last) if page.more && fresh > 0 && !old => after = format!("&after={}", segment(last)),
                _ => break,
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl BatchProvider for OpenAi {
    fn account(&self) -> &str {
        &self.http.account
    }

    fn limits(&self, endpoint: Endpoint) -> BatchLimits {
        wire::limits(endpoint)
    }

    async fn upload(&self, parcel: &Parcel) -> Result<Option<InputFile>, CallError> {
        let what = format!("upload input of {}", parcel.chunk);
        let (form, progress) = OpenAi::form(parcel);
        let reply = self.http.upload(&what, "/files", form, &progress).await?;
        let id = wire::read_id(&reply.body).ok_or_else(|| again(&what, "the answer names no file"))?;
        Ok(Some(InputFile(id)))
    }

    async fn create(&self, parcel: &Parcel, input: Option<&InputFile>) -> Result<Created, CreateError> {
        let what = format!("create batch of {}", parcel.chunk);
        let Some(input) = input else {
            return Err(CreateError::NotCreated(CallError::NotFound { detail: format!("{what}: no input file") }));
        };
        let body = wire::create_body(parcel, &input.0);
        let length = body.len() as u64;
        let (pieces, progress) = parcel::small(parcel, body);
        let body = Outgoing { body: Body::wrap_stream(pieces), length, progress };
        let reply = self.http.create(&what, "/batches", &[], body).await?;
        let remote = wire::read_id(&reply.body)
            .ok_or_else(|| CreateError::Unknown { detail: format!("{what}: the answer names no batch") })?;
        Ok(Created { remote: RemoteId(remote), identity: self.http.identity() })
    }

    async fn status(&self, remote: &RemoteId) -> Result<RemoteStatus, CallError> {
        let what = format!("read status of {}", remote.0);
        let reply = self.http.call(&what, Method::GET, &format!("/batches/{}", segment(&remote.0))).await?;
        match wire::read_status(remote, &reply.body) {
            Some(Ok(status)) => Ok(status),
            Some(Err(unknown)) => {
                super::unknown_status(DIALECT.provider, remote, &unknown.word);
                Ok(unknown.running)
            }
            None => Err(again(&what, "the answer is no batch")),
        }
    }

    async fn results(
        &self,
        endpoint: Endpoint,
        ended: &Ended,
    ) -> Result<BoxStream<'static, Result<Line, CallError>>, CallError> {
        let results = Results { openai: self.clone(), endpoint };
        Ok(harvest::stream(Arc::new(results), ended.sources.clone()))
    }

    async fn cancel(&self, remote: &RemoteId) -> Result<(), CallError> {
        let what = format!("cancel {}", remote.0);
        let call = self.http.call(&what, Method::POST, &format!("/batches/{}/cancel", segment(&remote.0))).await;
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
        Ok(None) // metadata names our batches: nothing has to be counted as "before"
    }

    async fn list(&self, from: &Cursor) -> Result<Listing, CallError> {
        let path = |after: Option<&str>| match after {
            Some(after) => format!("/batches?limit=100&after={}", segment(after)),
            None => "/batches?limit=100".to_owned(),
        };
        listing::page(&self.http, from, path, wire::read_list).await
    }

    fn throttle(&self) -> Option<Throttle> {
        self.http.throttle()
    }

    fn labels(&self) -> bool {
        true // in its metadata
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

    async fn discard(&self, input: &InputFile) -> Result<(), CallError> {
        let what = format!("delete input {}", input.0);
        match self.http.call(&what, Method::DELETE, &format!("/files/{}", segment(&input.0))).await {
            Ok(_) | Err(CallError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn found_already(found: &[Candidate], one: &Candidate) -> bool {
    found.iter().any(|known| known.remote == one.remote)
}

/// The files of a batch of this endpoint.
struct Results {
    openai: OpenAi,
    endpoint: Endpoint,
}

#[async_trait]
impl Source for Results {
    fn provider(&self) -> &'static str {
        DIALECT.provider
    }

    async fn open(&self, file: &str) -> Result<Download, CallError> {
        self.openai.http.download(&format!("read file {file}"), &format!("/files/{}/content", segment(file))).await
    }

    fn decode(&self, line: &str) -> Option<Line> {
        wire::read_line(self.endpoint, line)
    }

    /// The file object knows its size.
    async fn complete(&self, file: &str, read: Read) -> Result<bool, CallError> {
        let (what, path) = (format!("read size of {file}"), format!("/files/{}", segment(file)));
        let reply = self.openai.http.call(&what, Method::GET, &path).await?;
        Ok(wire::read_size(&reply.body) == Some(read.bytes))
    }
}
