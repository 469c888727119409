//! Any provider, with its calls timed and counted; each is a span of its own.

use super::{
    BatchProvider, CallError, Candidate, CreateError, Created, Cursor, Doubt, Ended, InputFile, Line, Listing, Newest,
    Parcel, RemoteId, RemoteStatus, Throttle,
};
use crate::domain::{
    identity::{Identity, Kin},
    limits::BatchLimits,
    prompt::Endpoint,
};
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use std::{future::Future, sync::Arc, time::Instant};
use tracing::Instrument;

pub(super) struct Measured(pub Arc<dyn BatchProvider>);

impl Measured {
    /// Times a call. Of `results` it is the time to the first byte: what follows is the harvest's.
    async fn time<T>(&self, call: &'static str, work: impl Future<Output = T>) -> T {
        let account = self.0.account().to_owned();
        let span = tracing::info_span!("provider", call, account);
        let began = Instant::now();
        let done = work.instrument(span).await;
        metrics::histogram!("batchgate_provider_call_seconds", "account" => account, "call" => call)
            .record(began.elapsed().as_secs_f64());
        done
    }
}

#[async_trait]
impl BatchProvider for Measured {
    fn account(&self) -> &str {
        self.0.account()
    }

    fn limits(&self, endpoint: Endpoint) -> BatchLimits {
        self.0.limits(endpoint)
    }

    fn throttle(&self) -> Option<Throttle> {
        self.0.throttle()
    }

    fn labels(&self) -> bool {
        self.0.labels()
    }

    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn kin(&self, made: &Identity) -> Kin {
        self.0.kin(made)
    }

    fn credential(&self) -> String {
        self.0.credential()
    }

    fn has_credential(&self, name: &str) -> bool {
        self.0.has_credential(name)
    }

    async fn upload(&self, parcel: &Parcel) -> Result<Option<InputFile>, CallError> {
        self.time("upload", self.0.upload(parcel)).await
    }

    async fn create(&self, parcel: &Parcel, input: Option<&InputFile>) -> Result<Created, CreateError> {
        self.time("create", self.0.create(parcel, input)).await
    }

    async fn status(&self, remote: &RemoteId) -> Result<RemoteStatus, CallError> {
        self.time("status", self.0.status(remote)).await
    }

    async fn results(
        &self,
        endpoint: Endpoint,
        ended: &Ended,
    ) -> Result<BoxStream<'static, Result<Line, CallError>>, CallError> {
        self.time("results", self.0.results(endpoint, ended)).await
    }

    async fn cancel(&self, remote: &RemoteId) -> Result<(), CallError> {
        self.time("cancel", self.0.cancel(remote)).await
    }

    async fn find(&self, doubt: &Doubt) -> Result<Vec<Candidate>, CallError> {
        self.time("find", self.0.find(doubt)).await
    }

    async fn newest(&self) -> Result<Option<Newest>, CallError> {
        self.time("newest", self.0.newest()).await
    }

    async fn list(&self, from: &Cursor) -> Result<Listing, CallError> {
        self.time("list", self.0.list(from)).await
    }

    async fn discard(&self, input: &InputFile) -> Result<(), CallError> {
        self.time("discard", self.0.discard(input)).await
    }
}
