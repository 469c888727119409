//! How far a batch is, for people: pure texts made of the batch object, and the live line that shows them.

use super::out::{clip, count, inert, note};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use serde_json::Value;
use std::io::IsTerminal;

/// What the command line reads in a batch object; members it does not know are none of its business.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Batch {
    pub(crate) id: String,
    pub(crate) status: String,
    pub(crate) created_at: String,
    pub(crate) counts: Counts,
    pub(crate) chunks: Chunks,
    pub(crate) reported_prompts: u64,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) cost: Cost,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Counts {
    pub(crate) total: u64,
    pub(crate) pending: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) canceled: u64,
    pub(crate) expired: u64,
    pub(crate) cached: u64,
    pub(crate) joined: u64,
    pub(crate) repeats: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Chunks {
    pub(crate) planned: u64,
    pub(crate) submitting: u64,
    pub(crate) running: u64,
    pub(crate) settled: u64,
    pub(crate) failed: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Waiting {
    pub(crate) reason: String,
    pub(crate) prompts: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cost {
    pub(crate) spent_usd: Option<String>,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            id: "?".to_owned(),
            status: "?".to_owned(),
            created_at: String::new(),
            counts: Counts::default(),
            chunks: Chunks::default(),
            reported_prompts: 0,
            waiting: Vec::new(),
            cost: Cost::default(),
        }
    }
}

impl Batch {
    pub(crate) fn read(object: &Value) -> anyhow::Result<Batch> {
        let batch = Batch::deserialize(object);
        let batch = batch.map_err(|error| anyhow::anyhow!("the gateway's batch object is not one: {error}"))?;
        Ok(Batch { id: inert(&batch.id).into_owned(), ..batch })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.status == "ended"
    }

    /// Results that hold no answer and will not get one.
    pub(crate) fn lacking(&self) -> u64 {
        self.counts.failed + self.counts.canceled + self.counts.expired
    }

    /// `100,000 prompts · 62,000 cached · 1,200 repeats · 32,800 to buy in 4 chunks`
    pub(crate) fn summary(&self) -> String {
        let Counts { total, pending, cached, joined, repeats, .. } = self.counts;
        let mut parts = vec![plural(total, "prompt")];
        for (number, what) in [(cached, "cached"), (joined, "joined"), (repeats, plural_of(repeats, "repeat"))] {
            if number > 0 {
                parts.push(format!("{} {what}", count(number)));
            }
        }
        if pending > 0 {
            parts.push(format!("{} to buy in {}", count(pending), plural(self.chunks.total(), "chunk")));
        } else if cached == total {
            parts.push("nothing to buy".to_owned());
        }
        parts.join(" · ")
    }

    /// `settled 1/4 · reported 51% · waiting: none · $1.42`
    pub(crate) fn state(&self) -> String {
        let bought = self.counts.total.saturating_sub(self.counts.cached + self.counts.joined);
        let mut parts = Vec::new();
        if self.chunks.total() > 0 {
            parts.push(format!("settled {}/{}", self.chunks.done(), self.chunks.total()));
        }
        if bought > 0 && !self.has_ended() {
            parts.push(format!("reported {}%", share(self.reported_prompts, bought)));
        }
        if !self.has_ended() {
            parts.push(format!("waiting: {}", self.reasons().unwrap_or_else(|| "none".to_owned())));
        }
        if let Some(spent) = &self.cost.spent_usd {
            parts.push(format!("${}", clip(spent, 20)));
        }
        parts.join(" · ")
    }

    /// `token_limit (5,000), rate_limited (12)`; none where everything moves.
    fn reasons(&self) -> Option<String> {
        let told = |waiting: &Waiting| format!("{} ({})", inert(&waiting.reason), count(waiting.prompts));
        let reasons: Vec<String> = self.waiting.iter().map(told).collect();
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }

    /// `ended: 99,998 succeeded (62,000 cached) · 2 failed`
    pub(crate) fn outcome(&self) -> String {
        let Counts { succeeded, failed, canceled, expired, cached, joined, pending, .. } = self.counts;
        let mut parts = Vec::new();
        let mut from = Vec::new();
        for (number, what) in [(cached, "cached"), (joined, "joined")] {
            if number > 0 {
                from.push(format!("{} {what}", count(number)));
            }
        }
        let from = if from.is_empty() { String::new() } else { format!(" ({})", from.join(", ")) };
        parts.push(format!("{} succeeded{from}", count(succeeded)));
        for (number, what) in [(failed, "failed"), (canceled, "canceled"), (expired, "expired"), (pending, "pending")] {
            if number > 0 {
                parts.push(format!("{} {what}", count(number)));
            }
        }
        format!("{}: {}", inert(&self.status), parts.join(" · "))
    }

    pub(crate) fn percent(&self) -> u64 {
        share(self.counts.total.saturating_sub(self.counts.pending), self.counts.total)
    }
}

impl Chunks {
    pub(crate) fn total(&self) -> u64 {
        self.planned + self.submitting + self.running + self.done()
    }

    fn done(&self) -> u64 {
        self.settled + self.failed
    }
}

fn share(part: u64, whole: u64) -> u64 {
    if whole == 0 { 100 } else { u64::try_from(u128::from(part) * 100 / u128::from(whole)).unwrap_or(100).min(100) }
}

pub(crate) fn plural(number: u64, word: &'static str) -> String {
    format!("{} {}", count(number), plural_of(number, word))
}

pub(crate) fn plural_of(number: u64, word: &'static str) -> &'static str {
    match (number, word) {
        (1, word) => word,
        (_, "prompt") => "prompts",
        (_, "chunk") => "chunks",
        (_, "repeat") => "repeats",
        (_, "problem") => "problems",
        (_, word) => word,
    }
}

/// The live line: a bar on a terminal; elsewhere (a log, CI) one line whenever a chunk has settled.
pub(crate) struct Live {
    bar: Option<ProgressBar>,
    said: String,
}

impl Live {
    pub(crate) fn new() -> Live {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr());
            let style =
                ProgressStyle::with_template("{bar:24} {percent:>3}%  {wide_msg}").expect("the template is a constant");
            bar.set_style(style.progress_chars("##-"));
            bar
        });
        Live { bar, said: String::new() }
    }

    pub(crate) fn show(&mut self, batch: &Batch) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(batch.percent());
                bar.set_message(batch.state());
            }
            None if batch.chunks.total() == 0 => {}
            None => {
                let waiting = batch.reasons().map_or(String::new(), |reasons| format!("  waiting: {reasons}"));
                let (done, total) = (batch.chunks.done(), batch.chunks.total());
                let line = format!("{:>3}%  settled {done}/{total}{waiting}", batch.percent());
                if line != self.said {
                    note(&line);
                    self.said = line;
                }
            }
        }
    }

    /// Something that keeps the line from moving.
    pub(crate) fn trouble(&mut self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(clip(what, 100)),
            None if what != self.said => {
                note(what);
                what.clone_into(&mut self.said);
            }
            None => {}
        }
    }

    /// Leaves the last state standing.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.abandon();
        }
    }
}

/// A bar of bytes for what is being sent; nothing where no person is looking, or for less than a megabyte.
pub(crate) fn sending(bytes: u64) -> ProgressBar {
    if bytes < 1 << 20 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:24} {percent:>3}%  sending {bytes} of {total_bytes} ({bytes_per_sec})")
            .expect("the template is a constant");
    ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr()).with_style(style.progress_chars("##-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn batch(value: &Value) -> Batch {
        Batch::read(value).expect("a batch object")
    }

    #[test]
    fn a_batch_reads_as_the_product_page_draws_it() {
        let running = batch(&json!({
            "id": "batch_0198f3", "status": "running",
            "counts": {"total": 100_000, "pending": 32_800, "succeeded": 67_200, "cached": 62_000, "joined": 4_000, "repeats": 1_200},
            "chunks": {"planned": 1, "submitting": 1, "running": 1, "settled": 1, "failed": 0}, "reported_prompts": 17_340,
            "waiting": [], "cost": {"spent_usd": "1.42", "saved_usd": null}
        }));
        assert_eq!(
            running.summary(),
            "100,000 prompts · 62,000 cached · 4,000 joined · 1,200 repeats · 32,800 to buy in 4 chunks"
        );
        assert_eq!(running.state(), "settled 1/4 · reported 51% · waiting: none · $1.42");
        assert_eq!(running.percent(), 67);
    }

    #[test]
    fn what_is_absent_or_unknown_is_not_told() {
        let waiting = batch(&json!({
            "id": "b", "status": "running", "counts": {"total": 1, "pending": 1}, "chunks": {"planned": 1},
            "waiting": [{"reason": "rate\u{1b}_limited", "prompts": 1, "detail": "x"}],
            "cost": {"spent_usd": null, "saved_usd": null}, "a_member_of_the_future": 7
        }));
        assert_eq!(waiting.summary(), "1 prompt · 1 to buy in 1 chunk");
        assert_eq!(waiting.state(), "settled 0/1 · reported 0% · waiting: rate\\u001b_limited (1)");
        let cached = batch(&json!({"status": "ended", "counts": {"total": 4, "succeeded": 4, "cached": 4}}));
        assert_eq!(cached.summary(), "4 prompts · 4 cached · nothing to buy");
        assert_eq!(cached.outcome(), "ended: 4 succeeded (4 cached)");
        assert_eq!((cached.percent(), cached.lacking()), (100, 0));
        let failed =
            batch(&json!({"status": "ended", "counts": {"total": 4, "succeeded": 1, "failed": 2, "expired": 1}}));
        assert_eq!(failed.outcome(), "ended: 1 succeeded · 2 failed · 1 expired");
        assert_eq!(failed.lacking(), 3);
    }
}
