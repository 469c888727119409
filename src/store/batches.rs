//! A batch's facts: written whole by accept, then field by field inside the scripts that change them. Reads are O(1).

use super::{Store, StoreError, script};
use crate::domain::{
    account::Reason,
    id::BatchId,
    outcome::Usage,
    progress::{ChunkCounts, Counts, Progress, Waiting},
};
use std::collections::HashMap;

/// What a deletion found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    Done,
    Running,
    Gone,
}

/// What a cancel found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canceled {
    Asked,
    /// It had ended without one.
    Ended,
    Gone,
}

/// The batch's fields as Redis holds them; [`read_progress`] is the way back.
pub(super) fn fields(p: &Progress) -> Vec<(&'static str, String)> {
    let Progress { counts, chunks, usage, .. } = p;
    let mut fields = vec![
        ("v", "1".to_owned()),
        ("team", p.team.clone()),
        ("created", p.created_at.to_string()),
        ("deadline", p.deadline.to_string()),
        ("metadata", serde_json::to_string(&p.metadata).expect("strings serialize")),
        ("pages", p.pages.to_string()),
        ("sealed", p.sealed.to_string()),
        ("c_planned", chunks.planned.to_string()),
    ];
    let numbers = [
        ("total", counts.total),
        ("succeeded", counts.succeeded),
        ("failed", counts.failed),
        ("cached", counts.cached),
        ("joined", counts.joined),
        ("repeats", counts.repeats),
        ("input_tokens", usage.input_tokens),
        ("cached_input_tokens", usage.cached_input_tokens),
        ("output_tokens", usage.output_tokens),
    ];
    fields.extend(numbers.map(|(name, number)| (name, number.to_string())));
    if let Some(run) = &p.run {
        fields.push(("run", run.clone()));
    }
    if let Some(at) = p.ended_at {
        fields.push(("ended", at.to_string()));
    }
    if let Some(at) = p.deleted_at {
        fields.push(("deleted", at.to_string()));
    }
    fields.push(("terms", serde_json::to_string(&p.terms).expect("words and numbers serialize")));

    fields.extend(p.retry_of.map(|batch| ("retry_of", batch.to_string())));
    fields
}

fn read_progress(batch: BatchId, fields: &HashMap<String, String>) -> Result<Progress, StoreError> {
    let number = |name: &str| fields.get(name).and_then(|text| text.parse().ok());
    let count = |name: &str| number(name).unwrap_or(0);
    let need = |name: &str| number(name).ok_or_else(|| StoreError::corrupt(batch.to_string(), format!("no {name}")));
    let small = |name: &str| u32::try_from(count(name)).unwrap_or(u32::MAX);
    let waits = |reason: Reason| {
        let word = reason.word();
        let (prompts, since) = (count(&format!("w:{word}")), count(&format!("ws:{word}")));
        let detail = fields.get(&format!("wd:{word}")).cloned().unwrap_or_default();
        (prompts > 0).then_some(Waiting { reason, detail, prompts, since })
    };
    Ok(Progress {
        team: fields.get("team").cloned().unwrap_or_default(),
        run: fields.get("run").cloned(),
        created_at: need("created")?,
        deadline: need("deadline")?,
        ended_at: number("ended"),
        deleted_at: number("deleted"),
        cancel_requested: fields.get("cancel").is_some_and(|flag| flag == "1"),
        counts: Counts {
            total: need("total")?,
            succeeded: count("succeeded"),
            failed: count("failed"),
            canceled: count("canceled"),
            expired: count("expired"),
            cached: count("cached"),
            joined: count("joined"),
            repeats: count("repeats"),
        },
        chunks: ChunkCounts {
            planned: count("c_planned"),
            submitting: count("c_submitting"),
            running: count("c_running"),
            settled: count("c_settled"),
            failed: count("c_failed"),
        },
        reported_prompts: count("reported"),
        waiting: Reason::ALL.into_iter().filter_map(waits).collect(),
        usage: Usage {
            input_tokens: count("input_tokens"),
            cached_input_tokens: count("cached_input_tokens"),
            output_tokens: count("output_tokens"),
        },
        metadata: fields.get("metadata").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
        retry_of: fields.get("retry_of").and_then(|text| BatchId::parse(text)),
        terms: fields.get("terms").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
        pages: small("pages"),
        sealed: small("sealed"),
    })
}

/// `None` if there is no such batch, or it was deleted.
pub(super) fn read_visible(batch: BatchId, fields: &HashMap<String, String>) -> Result<Option<Progress>, StoreError> {
    let there = !fields.is_empty() && !fields.contains_key("hidden");
    there.then(|| read_progress(batch, fields)).transpose()
}

impl Store {
    /// How far a batch is; `None` if there is no such batch, or it was deleted.
    pub async fn progress(&self, batch: BatchId) -> Result<Option<Progress>, StoreError> {
        read_visible(batch, &self.facts(batch).await?)
    }

    /// The team whose batch this is, deleted or not; `None` if there is no such batch. As much work for Redis and for us
    /// whatever the batch holds.
    pub async fn owner(&self, batch: BatchId) -> Result<Option<String>, StoreError> {
        Ok(redis::cmd("HGET").arg(self.keys.batch(batch)).arg("team").query_async(&mut self.main.clone()).await?)
    }

    /// As [`Store::progress`], of a batch that its team deleted too: what the sweeper needs.
    pub(super) async fn remains(&self, batch: BatchId) -> Result<Option<Progress>, StoreError> {
        let fields = self.facts(batch).await?;
        (!fields.is_empty()).then(|| read_progress(batch, &fields)).transpose()
    }

    pub(super) async fn facts(&self, batch: BatchId) -> Result<HashMap<String, String>, StoreError> {
        Ok(redis::cmd("HGETALL").arg(self.keys.batch(batch)).query_async(&mut self.main.clone()).await?)
    }

    /// Makes an ended batch unknown at once; the sweeper removes it.
    pub async fn delete(&self, batch: BatchId, team: &str) -> Result<Deleted, StoreError> {
        let mut call = script!("delete").prepare_invoke();
        call.key(self.keys.batch(batch)).key(self.keys.team(team)).key(self.keys.chores()).arg(batch.hex());
        let answer: String = call.invoke_async(&mut self.main.clone()).await?;
        match answer.as_str() {
            "ok" => Ok(Deleted::Done),
            "running" => Ok(Deleted::Running),
            "gone" => Ok(Deleted::Gone),
            other => Err(StoreError::corrupt("delete script's answer", other)),
        }
    }

    /// Asks a batch to stop. Says so first; the worker then tells the providers.
    pub async fn cancel(&self, batch: BatchId) -> Result<Canceled, StoreError> {
        let mut call = script!("cancel").prepare_invoke();
        call.key(self.keys.batch(batch)).key(self.keys.delayed()).arg(batch.hex());
        call.arg(self.keys.prefix());
        let answer: String = call.invoke_async(&mut self.main.clone()).await?;
        match answer.as_str() {
            "ok" => Ok(Canceled::Asked),
            "ended" => Ok(Canceled::Ended),
            "gone" => Ok(Canceled::Gone),
            other => Err(StoreError::corrupt("cancel script's answer", other)),
        }
    }

    /// Numbers for new chunks of a batch. A number drawn and not used leaves a gap, which hurts nobody.
    pub async fn draw_chunk_numbers(&self, batch: BatchId, count: usize) -> Result<u32, StoreError> {
        let mut draw = redis::cmd("HINCRBY");
        draw.arg(self.keys.batch(batch)).arg("next_chunk").arg(count);
        let next: u64 = draw.query_async(&mut self.main.clone()).await?;
        u32::try_from(next - count as u64).map_err(|why| StoreError::corrupt(batch.to_string(), why))
    }
}
