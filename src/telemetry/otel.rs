//! Spans to an OpenTelemetry collector: OTLP over HTTP with JSON bodies, sent in batches by a thread of its own.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

/// The way to the collector. Dropping it sends what is left, for at most five seconds.
pub(super) struct Exporter(SdkTracerProvider);

impl Exporter {
    /// `collector`: where it listens, as in `http://127.0.0.1:4318`; spans go to `/v1/traces` below.
    pub(super) fn new(collector: &str) -> Result<Exporter, String> {
        let endpoint = format!("{}/v1/traces", collector.trim_end_matches('/'));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(&endpoint)
            .build()
            .map_err(|why| format!("export spans to {endpoint}: {why}"))?;
        let resource = Resource::builder().with_service_name("batchgate").build();
        Ok(Exporter(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
    }

    /// Our own spans only: those of libraries know nothing of batches.
    pub(super) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let ours = Targets::new().with_target("batchgate", Level::INFO);
        tracing_opentelemetry::layer().with_tracer(self.0.tracer("batchgate")).with_filter(ours)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}
