//! Every metric of the process: its name, its kind, its labels, and what it tells. A test holds the list against the
//! code both ways; another holds the alerts and the board against the list.
//!
//! Labels come from closed sets: routes, status words, states, loops, and the accounts of the configuration. Never a team
//! or a batch: their number has no bound.

/// What kind of metric it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, labels, help }
}

/// In the order in which a batch meets them; the state of the process and of Redis first.
pub const METRICS: &[Metric] = &[
    gauge("batchgate_build_info", &["version"], "Always 1; the version is the label"),
    gauge("batchgate_resident_memory_bytes", &[], "Memory of this process that is in use"),
    gauge("batchgate_loop_last_tick_seconds", &["loop"], "Since a loop last went round; above its limit it is stuck"),
    gauge("batchgate_loop_limit_seconds", &["loop"], "How long a round of a loop may take"),
    counter("batchgate_loop_ticks_total", &["loop"], "Rounds of the worker's loops"),
    counter("batchgate_loop_errors_total", &["loop"], "Rounds that failed, and were tried again after a second"),
    gauge("batchgate_copy", &[], "1 while this Redis is taken for a copy, and only reads are served"),
    gauge("batchgate_redis_up", &[], "1 if Redis answered when this page was drawn"),
    gauge("batchgate_redis_unfit", &[], "1 while Redis's policy would evict jobs: nothing new is begun"),
    gauge("batchgate_redis_durable", &[], "1 while Redis writes an append-only file"),
    counter("batchgate_redis_reconnects_total", &[], "Connections given up because they led to a replica or to nobody"),
    counter("batchgate_redis_full_total", &[], "Writes of paid answers Redis refused for lack of memory; made again"),
    gauge("batchgate_redis_memory_bytes", &[], "Redis's used_memory"),
    gauge("batchgate_redis_memory_max_bytes", &[], "Redis's maxmemory; 0 is no bound"),
    gauge("batchgate_redis_reserved_bytes", &[], "Promised to batches that wait for answers, by estimate"),
    gauge("batchgate_queue_depth", &["queue"], "Members of a queue, due or not"),
    gauge("batchgate_queue_oldest_seconds", &["queue"], "Since the oldest due member of a queue was due; 0 if none is"),
    gauge(
        "batchgate_config_refused",
        &[],
        "1 while the teams are those of an older file: the last SIGHUP met mistakes",
    ),
    // The door.
    counter("batchgate_http_requests_total", &["route", "status"], "Requests answered"),
    histogram("batchgate_http_request_seconds", &["route"], "From a request's head to its answer's head"),
    counter("batchgate_http_received_bytes_total", &[], "Bytes of POST bodies, as they came"),
    gauge("batchgate_connections_open", &["listener"], "Connections open now; listener: api, metrics"),
    gauge("batchgate_connections_max", &["listener"], "So many may be open; more wait until one closes"),
    gauge("batchgate_uploads_open", &[], "Seats taken by requests that create a batch: bodies being read now, retries"),
    counter("batchgate_batches_accepted_total", &[], "Batches that came to exist"),
    counter("batchgate_prompts_accepted_total", &[], "Results asked for by them, cached ones included"),
    counter("batchgate_cache_hits_total", &[], "Questions the cache could answer at accept"),
    counter("batchgate_cache_misses_total", &[], "Questions it could not"),
    gauge("batchgate_cache_entries", &[], "Entries of the cache, by a sample; told by the process that looked last"),
    gauge("batchgate_cache_bytes", &[], "Bytes they take in Redis, by the same sample"),
    counter(
        "batchgate_cache_removed_total",
        &["reason"],
        "Entries that gave way, least recently used first: max (BATCHGATE_CACHE_MAX), reserve (a new batch), harvest",
    ),
    counter(
        "batchgate_quota_exceeded_total",
        &["what"],
        "Batches refused because their team has enough in work: open_batches, pending_prompts",
    ),
    counter("batchgate_storage_full_total", &[], "Batches refused because Redis has no room for their answers"),
    counter("batchgate_cache_suspect_total", &[], "Cache entries that did not answer their key, and were set aside"),
    // The worker.
    counter("batchgate_claims_total", &[], "Chunks taken to work on"),
    counter("batchgate_reclaims_total", &[], "Of these, chunks whose last claim had run out"),
    gauge("batchgate_workers_busy", &[], "Chunks in this process's hands"),
    counter("batchgate_steps_total", &["verb", "outcome"], "Steps of chunks: done, failed"),
    counter(
        "batchgate_steps_failed_total",
        &[],
        "Steps that failed or panicked; the claim runs out, and it is tried again",
    ),
    histogram("batchgate_step_seconds", &["verb"], "Time of one step"),
    counter("batchgate_fences_lost_total", &[], "Writes refused because another dispatch holds the chunk"),
    counter("batchgate_poison_chunks_total", &[], "Chunks set apart because their claims ran out again and again"),
    counter("batchgate_dead_letters_total", &[], "Queue members and records nobody could read"),
    // The providers.
    counter("batchgate_submits_total", &["outcome"], "Creates: created, not_created, in_doubt"),
    counter("batchgate_doubts_total", &["outcome"], "Doubts looked into: found, not_found, several that may be it"),
    counter(
        "batchgate_duplicates_total",
        &["outcome"],
        "Second provider batches of one chunk: cancelled, or ended before it was known whose they are",
    ),
    counter(
        "batchgate_left_alone_total",
        &["account"],
        "Looks at chunks that another organisation's key, or another address, now stands for",
    ),
    histogram(
        "batchgate_provider_call_seconds",
        &["account", "call"],
        "Time of one provider call, retries not included",
    ),
    counter(
        "batchgate_provider_call_failures_total",
        &["account"],
        "Provider calls that failed and are made again later",
    ),
    counter("batchgate_back_pressure_total", &[], "Chunks refused for an enqueued-token limit, and sent again later"),
    gauge("batchgate_pauses", &[], "Pauses by hand that hold now: of a provider, a team, or everything"),
    gauge("batchgate_account_paused", &["account"], "1 while nothing is sent for the account until a probe succeeds"),
    counter(
        "batchgate_account_pauses_total",
        &["account", "reason"],
        "Times an account was paused: account_paused, auth_failed",
    ),
    counter("batchgate_unknown_status_total", &["provider"], "Batch status words nobody knew; taken as still running"),
    counter("batchgate_broken_lines_total", &["provider"], "Result lines that could not be read"),
    counter("batchgate_stray_lines_total", &[], "Result lines that name no question of the chunk"),
    counter("batchgate_harvests_total", &["outcome"], "Results read to their end: complete, incomplete"),
    counter("batchgate_harvested_bytes_total", &[], "Bytes of answers, as the providers sent them"),
    // Servers that are asked one by one.
    counter("batchgate_online_requests_total", &["account", "outcome"], "Requests: answered, failed, again, trouble"),
    counter(
        "batchgate_online_reasked_total",
        &[],
        "Requests that may have been worked on, and whose answer nobody has",
    ),
    gauge("batchgate_online_limit", &["account"], "Requests that may be in the air, where the limit adapts"),
    // The janitor.
    counter(
        "batchgate_janitor_passes_total",
        &["account", "outcome"],
        "Looks at an account's batches: through, partly (it goes on there), shut (the account is paused), failed",
    ),
    counter(
        "batchgate_janitor_batches_total",
        &["outcome"],
        "Of the provider batches on the pages it read: seen (all), foreign; adopted: read, for nobody had; failed",
    ),
    counter("batchgate_janitor_answers_total", &[], "Answers it brought into the cache"),
    // Commit and seal.
    counter("batchgate_commits_total", &[], "Chunks settled, each in one transaction"),
    histogram("batchgate_commit_seconds", &[], "Time of that transaction"),
    histogram("batchgate_commit_answers", &[], "Answers in it"),
    counter("batchgate_results_total", &["status"], "Results settled by commits: succeeded, failed, canceled, expired"),
    counter("batchgate_results_joined_total", &[], "Results answered by another batch's call"),
    counter("batchgate_rebought_total", &[], "Questions asked again that may have been billed before"),
    counter("batchgate_pages_sealed_total", &[], "Result pages sealed"),
    histogram("batchgate_seal_seconds", &[], "Time to write and seal one"),
    counter("batchgate_batches_ended_total", &[], "Batches that ended"),
    counter(
        "batchgate_conservation_violations_total",
        &[],
        "Batches that ended although their outcomes do not add up to their total",
    ),
    // The reconciler.
    counter("batchgate_reconciler_passes_total", &[], "Passes of the reconciler"),
    counter("batchgate_reconciler_batches_total", &[], "Batches it looked at"),
    counter("batchgate_reconciler_findings_total", &["kind"], "What two looks found wrong"),
    counter("batchgate_reconciler_repairs_total", &["kind"], "What it put right"),
];

/// Upper bounds of the buckets of histograms of seconds: from a Redis command to a provider's slowest answer.
pub(super) const SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Of answers per commit.
pub(super) const ANSWERS: &[f64] = &[1.0, 10.0, 100.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 50_000.0, 100_000.0];
