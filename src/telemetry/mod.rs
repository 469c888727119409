//! Logs, metrics and spans of the process. LEAF. All of them carry ids, never a prompt, an answer or a key.

pub mod catalog;
#[cfg(feature = "otel")]
mod otel;

use catalog::{Kind, METRICS};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use tracing_subscriber::{EnvFilter, Layer, filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Renders `/metrics`.
#[derive(Clone)]
pub struct MetricsPage(PrometheusHandle);

impl MetricsPage {
    pub fn render(&self) -> String {
        metrics::gauge!("batchgate_resident_memory_bytes").set(resident_bytes() as f64);
        self.0.run_upkeep();
        self.0.render()
    }
}

/// Installs the process's recorder, once, with the words of the catalogue.
pub fn install_metrics() -> MetricsPage {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), catalog::SECONDS)
            .and_then(|builder| {
                builder.set_buckets_for_metric(Matcher::Full("batchgate_commit_answers".to_owned()), catalog::ANSWERS)
            })
            .expect("the buckets are not empty")
            .install_recorder()
            .expect("no other recorder is installed in this process");
        describe();
        handle
    });
    MetricsPage(handle.clone())
}

/// Says what each metric is, and shows those without labels from the start: a rate needs its zero.
fn describe() {
    for metric in METRICS {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Kind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
        }
        if metric.kind == Kind::Counter && metric.labels.is_empty() {
            metrics::counter!(metric.name).increment(0);
        }
    }
    metrics::gauge!("batchgate_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// As the kernel counts it, in pages of 4 KiB; 0 where there is no `/proc`.
fn resident_bytes() -> u64 {
    const PAGE: u64 = 4_096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}

/// What is to be done at the end of the process: spans not sent yet are sent.
#[must_use = "spans not sent yet are lost when this is dropped early"]
pub struct Telemetry {
    #[cfg(feature = "otel")]
    _spans: Option<otel::Exporter>,
}

/// Whether a log filter says what it seems to say.
///
/// # Errors
/// What is wrong with it.
pub fn check_filter(filter: &str) -> Result<(), String> {
    EnvFilter::try_new(filter).map_err(|why| format!("{filter:?} is no filter: {why}"))?;
    // A word alone would be the name of a module, and a misspelt level a log without a line.
    let bare = |part: &&str| !part.is_empty() && !part.contains(['=', '[']) && part.parse::<LevelFilter>().is_err();
    match filter.split(',').map(str::trim).find(bare) {
        Some(word) => {
            Err(format!("{word:?} is no level: write error, warn, info, debug, trace or off, or {word}=debug"))
        }
        None => Ok(()),
    }
}

/// Installs the process's log on stderr, once; and, where there is a collector, the export of spans to it.
///
/// # Errors
/// The filter cannot be read, the collector's address cannot be used, or this build has no export.
pub fn install(filter: &str, format: LogFormat, collector: Option<&str>) -> Result<Telemetry, String> {
    let log_filter = EnvFilter::try_new(filter).map_err(|why| format!("{filter:?} is no filter: {why}"))?;
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match format {
        LogFormat::Text => log.boxed(),
        LogFormat::Json => log.json().with_current_span(false).boxed(),
    };
    let registry = tracing_subscriber::registry().with(log.with_filter(log_filter));
    #[cfg(feature = "otel")]
    {
        let spans = collector.map(otel::Exporter::new).transpose()?;
        // A second installation in one process (tests) is no harm: the first stays.
        let _ = registry.with(spans.as_ref().map(otel::Exporter::layer)).try_init();
        Ok(Telemetry { _spans: spans })
    }
    #[cfg(not(feature = "otel"))]
    {
        let _ = registry.try_init();
        match collector {
            None => Ok(Telemetry {}),
            Some(_) => {
                Err("this build exports no spans: build it with the feature `otel`, which is on by default".to_owned())
            }
        }
    }
}
