//! `batchgate submit --dry-run`: what a file would become, for people.

use super::{
    client::Client,
    failure::{Ending, Failure, Fault},
    out::{self, count, note},
    progress::{plural, plural_of},
    upload::Upload,
};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Problems shown on a terminal.
const SHOWN: usize = 10;

/// What the command line reads in a forecast; members it does not know are none of its business.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Forecast {
    total: u64,
    cached: u64,
    joined: u64,
    repeats: u64,
    to_buy: u64,
    chunks: BTreeMap<String, u64>,
    input_tokens: u64,
    storage_bytes: u64,
    cost_usd: Option<String>,
    problem_count: u64,
}

pub(crate) async fn run(client: &Client, upload: &Upload, json: bool) -> Result<Ending, Failure> {
    let object = client.forecast(upload).await?;
    let forecast = Forecast::read(&object)?;
    if json {
        out::json(&object)?;
    } else {
        out::say(&forecast.summary())?;
        let faults = object["problems"].as_array().into_iter().flatten().map(Fault::read);
        for fault in faults.take(SHOWN) {
            note(&fault.shifted(upload.added_lines).to_string());
        }
        if forecast.problem_count > SHOWN as u64 {
            note(&format!("... and {} more", count(forecast.problem_count - SHOWN as u64)));
        }
    }
    Ok(if forecast.problem_count > 0 { Ending::Lacking } else { Ending::Fine })
}

impl Forecast {
    fn read(object: &Value) -> anyhow::Result<Forecast> {
        Forecast::deserialize(object).map_err(|error| anyhow::anyhow!("the gateway's forecast is not one: {error}"))
    }

    /// `100,000 prompts · 62,000 cached · 1,200 repeats · 32,800 to buy in 4 chunks`, and what that comes to.
    fn summary(&self) -> String {
        let mut parts = vec![plural(self.total, "prompt")];
        let repeats = plural_of(self.repeats, "repeat");
        let problems = plural_of(self.problem_count, "problem");
        for (number, what) in
            [(self.cached, "cached"), (self.joined, "joined"), (self.repeats, repeats), (self.problem_count, problems)]
        {
            if number > 0 {
                parts.push(format!("{} {what}", count(number)));
            }
        }
        if self.to_buy == 0 {
            parts.push("nothing to buy".to_owned());
            return parts.join(" · ");
        }
        parts.push(format!("{} to buy in {}", count(self.to_buy), plural(self.chunks.values().sum(), "chunk")));
        let cost = self.cost_usd.as_deref().map_or_else(String::new, |usd| format!("${} · ", out::clip(usd, 20)));
        format!(
            "{}\nestimate {cost}{} input tokens · {} in Redis",
            parts.join(" · "),
            count(self.input_tokens),
            indicatif::HumanBytes(self.storage_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_forecast_reads_as_the_product_page_draws_it() {
        let forecast = Forecast::read(&json!({
            "object": "batch.forecast", "total": 100_000, "cached": 62_000, "joined": 4_000, "repeats": 1_200,
            "to_buy": 32_800, "chunks": {"anthropic": 3, "openai": 1}, "input_tokens": 1_234_567,
            "storage_bytes": 52_428_800, "cost_usd": null, "problems": [], "problem_count": 0, "of_the_future": 7
        }));
        assert_eq!(
            forecast.expect("a forecast").summary(),
            "100,000 prompts · 62,000 cached · 4,000 joined · 1,200 repeats · 32,800 to buy in 4 chunks\n\
             estimate 1,234,567 input tokens · 50.00 MiB in Redis"
        );
        let forecast = Forecast { total: 4, cached: 3, problem_count: 1, ..Forecast::default() };
        assert_eq!(forecast.summary(), "4 prompts · 3 cached · 1 problem · nothing to buy");
    }
}
