//! How the simulated world behaves: every switch with its default, in three sections.
//!
//! Names that end in `_s` are simulated seconds. A patch is merged member by member and refused as a whole
//! if it names anything unknown. One batch may be made with settings of its own (fault `settings`).

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    pub(crate) common: Common,
    pub(crate) openai: OpenAi,
    pub(crate) anthropic: Anthropic,
}

impl Settings {
    /// These settings with the members of `patch` in place of their own.
    pub(crate) fn patched(&self, patch: &Value) -> Result<Self, serde_json::Error> {
        let mut whole = serde_json::to_value(self)?;
        for (section, members) in patch.as_object().into_iter().flatten() {
            let slot = &mut whole[section];
            match (slot.as_object_mut(), members.as_object()) {
                (Some(slot), Some(members)) => slot.extend(members.clone()),
                _ => *slot = members.clone(),
            }
        }
        serde_json::from_value(whole)
    }

    /// Is there a setting of this name in any section?
    pub(crate) fn knows(name: &str) -> bool {
        let whole = serde_json::to_value(Self::default()).expect("settings are plain JSON");
        whole.as_object().into_iter().flat_map(Map::values).any(|section| section.get(name).is_some())
    }
}

/// One section with those of the given members that it has.
pub(crate) fn overridden<T: Serialize + DeserializeOwned>(
    section: &T,
    by: &Map<String, Value>,
) -> serde_json::Result<T> {
    let mut whole = serde_json::to_value(section)?;
    for (name, value) in by {
        if let Some(slot) = whole.get_mut(name) {
            *slot = value.clone();
        }
    }
    serde_json::from_value(whole)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Common {
    /// From creation to expiry of a batch.
    pub(crate) window_s: f64,
    /// Work through a batch, and write its results, in random order.
    pub(crate) shuffle: bool,
    /// Share of the unfinished requests that still finish after a cancel.
    pub(crate) cancel_completes: f64,
    /// A new batch is missing from lists for so long.
    pub(crate) list_delay_s: f64,
    /// Globs; a model so named does not exist.
    pub(crate) unknown_models: Vec<String>,
    /// Answer with a dated model name for an alias.
    pub(crate) dated_models: bool,
    /// Put the call number into `usage` of every answer.
    pub(crate) sim_call_in_usage: bool,
    /// Per account, over online calls and batch creates.
    pub(crate) requests_per_minute: Option<u64>,
    /// Real seconds.
    pub(crate) online_latency: f64,
    pub(crate) reject_unknown_fields: bool,
    /// Honour `Range` on file content and results.
    pub(crate) content_ranges: bool,
    pub(crate) answers: Answers,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            window_s: 86_400.0,
            shuffle: true,
            cancel_completes: 0.0,
            list_delay_s: 0.0,
            unknown_models: vec!["nonexistent*".into(), "unknown*".into()],
            dated_models: true,
            sim_call_in_usage: true,
            requests_per_minute: None,
            online_latency: 0.0,
            reject_unknown_fields: true,
            content_ranges: false,
            answers: Answers::Tagged,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OpenAi {
    pub(crate) validating_s: f64,
    pub(crate) in_progress_s: f64,
    pub(crate) finalizing_s: f64,
    pub(crate) cancelling_s: f64,
    pub(crate) expiring_s: f64,
    /// A new file is `uploaded`, not yet `processed`, for so long.
    pub(crate) file_processing_s: f64,
    /// `request_counts` of a running batch are this old.
    pub(crate) count_lag_s: f64,
    pub(crate) max_requests: usize,
    pub(crate) max_file_bytes: u64,
    pub(crate) max_batch_file_bytes: u64,
    pub(crate) max_embedding_inputs: usize,
    pub(crate) max_custom_id: Option<usize>,
    pub(crate) max_validation_errors: usize,
    /// Per account and model.
    pub(crate) enqueued_token_limit: Option<u64>,
    pub(crate) blank_lines: BlankLines,
    pub(crate) missing_file: MissingFile,
    pub(crate) cancel_expired: Verdict,
    pub(crate) expired_via_finalizing: bool,
    pub(crate) file_ids_in_finalizing: bool,
    /// An empty error file when nothing failed.
    pub(crate) always_error_file: bool,
    pub(crate) error_member: ErrorMember,
    pub(crate) batch_usage: bool,
}

impl Default for OpenAi {
    fn default() -> Self {
        Self {
            validating_s: 0.05,
            in_progress_s: 0.2,
            finalizing_s: 0.05,
            cancelling_s: 0.1,
            expiring_s: 0.05,
            file_processing_s: 0.0,
            count_lag_s: 0.0,
            max_requests: 50_000,
            max_file_bytes: 512 << 20,
            max_batch_file_bytes: 200 << 20,
            max_embedding_inputs: 50_000,
            max_custom_id: None,
            max_validation_errors: 100,
            enqueued_token_limit: None,
            blank_lines: BlankLines::Reject,
            missing_file: MissingFile::Fail,
            cancel_expired: Verdict::Reject,
            expired_via_finalizing: true,
            file_ids_in_finalizing: false,
            always_error_file: false,
            error_member: ErrorMember::Null,
            batch_usage: true,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Anthropic {
    pub(crate) in_progress_s: f64,
    pub(crate) canceling_s: f64,
    pub(crate) results_days: f64,
    pub(crate) max_requests: usize,
    pub(crate) max_body_bytes: u64,
    /// Per account, over all its batches that have not ended.
    pub(crate) max_queued_requests: Option<usize>,
    pub(crate) duplicate_custom_id: DuplicateId,
    /// What becomes of requests that version 2026-10-21 no longer takes.
    pub(crate) version_refusals: VersionRefusals,
    pub(crate) require_version: bool,
    pub(crate) cancel_ended: Verdict,
    /// The status of a request for results that are not there yet.
    pub(crate) results_before_end: u16,
    pub(crate) results_url: ResultsUrl,
    pub(crate) archived_results_url: ArchivedUrl,
    pub(crate) results_framing: Framing,
    pub(crate) too_large_body: TooLargeBody,
}

impl Default for Anthropic {
    fn default() -> Self {
        Self {
            in_progress_s: 0.3,
            canceling_s: 0.1,
            results_days: 29.0,
            max_requests: 100_000,
            max_body_bytes: 256_000_000,
            max_queued_requests: None,
            duplicate_custom_id: DuplicateId::Reject,
            version_refusals: VersionRefusals::Errored,
            require_version: true,
            cancel_ended: Verdict::Accept,
            results_before_end: 404,
            results_url: ResultsUrl::Absolute,
            archived_results_url: ArchivedUrl::Null,
            results_framing: Framing::Chunked,
            too_large_body: TooLargeBody::Json,
        }
    }
}

/// The settings that one batch lives by.
#[derive(Clone, Debug)]
pub(crate) struct Own<S> {
    pub(crate) common: Common,
    pub(crate) special: S,
}

impl<S: Serialize + DeserializeOwned> Own<S> {
    pub(crate) fn new(common: &Common, special: &S, by: &Map<String, Value>) -> serde_json::Result<Self> {
        Ok(Self { common: overridden(common, by)?, special: overridden(special, by)? })
    }
}

/// What a simulated model says: `tagged` begins with a digest of the body, `echo` is the last user text alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Answers {
    Tagged,
    Echo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BlankLines {
    Reject,
    Ignore,
}

/// Whether a create that names no file is refused at once or fails later, as the real service was seen to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MissingFile {
    Fail,
    Reject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Accept,
    Reject,
}

/// `error` of a result line whose `response` already says what failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ErrorMember {
    Null,
    Filled,
}

/// `errored` errs all but the first of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DuplicateId {
    Reject,
    Errored,
    Accept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VersionRefusals {
    Errored,
    Reject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResultsUrl {
    Absolute,
    Path,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ArchivedUrl {
    Null,
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TooLargeBody {
    Json,
    Html,
}

/// How the end of a body is told. `close` has no mark at all but the end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Framing {
    Length,
    Chunked,
    Close,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_changes_what_it_names_and_nothing_else() {
        let settings = Settings::default()
            .patched(&json!({"common": {"window_s": 10}, "openai": {"blank_lines": "ignore"}}))
            .expect("both are known");
        assert!((settings.common.window_s - 10.0).abs() < f64::EPSILON);
        assert_eq!(settings.openai.blank_lines, BlankLines::Ignore);
        assert!(settings.common.shuffle);
    }

    #[test]
    fn unknown_names_are_refused() {
        for patch in [json!({"common": {"windows": 1}}), json!({"azure": {}}), json!({"openai": {"blank_lines": "x"}})]
        {
            assert!(Settings::default().patched(&patch).is_err(), "{patch}");
        }
        assert!(Settings::knows("canceling_s") && !Settings::knows("common"));
    }
}
