//! Logs and metrics of the process. LEAF. Logs carry ids, never a prompt, an answer or a key.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;

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
        self.0.run_upkeep();
        self.0.render()
    }
}

/// Installs the process's recorder, once.
pub fn install_metrics() -> MetricsPage {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        PrometheusBuilder::new().install_recorder().expect("no other recorder is installed in this process")
    });
    MetricsPage(handle.clone())
}

/// Installs the process's log on stderr, once.
pub fn install_log(filter: &str, format: LogFormat) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second installation in one process (tests) is no harm: the first stays.
    let _ = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}
