//! Fault rules: which calls go wrong, how often, and in what way.
//!
//! A rule is `{"match": {...}, "fault": {...}, "times": 1, "chance": 1}`. Rules are used up by the calls they
//! hit; several rules that hit one call are merged member by member, the later rule winning. What a fault
//! does is not here: transport faults are in `calls` and `delivery`, those of a batch with the batch.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{
    problem::Trouble,
    settings::{Framing, Settings},
};

/// A call as the rules see it.
pub(crate) struct Call<'a> {
    pub(crate) provider: &'a str,
    pub(crate) route: &'a str,
    pub(crate) account: &'a str,
    pub(crate) model: &'a str,
    pub(crate) id: &'a str,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    #[serde(default, rename = "match")]
    matching: Match,
    /// Kept as given, to be merged with others.
    #[serde(default)]
    fault: Map<String, Value>,
    /// How many calls it may hit; 0 is for ever.
    #[serde(default = "once")]
    times: u64,
    #[serde(default = "always")]
    chance: f64,
    #[serde(default, skip_deserializing)]
    seen: u64,
    #[serde(default, skip_deserializing)]
    hits: u64,
}

fn once() -> u64 {
    1
}

fn always() -> f64 {
    1.0
}

/// All but `nth` are globs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Match {
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The first matching call to hit, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    nth: Option<u64>,
}

impl Match {
    fn fits(&self, call: &Call<'_>) -> bool {
        let pairs = [
            (&self.provider, call.provider),
            (&self.route, call.route),
            (&self.account, call.account),
            (&self.model, call.model),
            (&self.id, call.id),
        ];
        pairs.iter().all(|(pattern, name)| pattern.as_deref().is_none_or(|pattern| glob(pattern, name)))
    }
}

/// All that may go wrong with one call.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Fault {
    /// Answer this instead of handling the call, or, with `after`, instead of its answer.
    pub(crate) status: Option<u16>,
    pub(crate) after: bool,
    pub(crate) body: Option<Value>,
    pub(crate) html: bool,
    pub(crate) headers: Map<String, Value>,
    pub(crate) retry_after: Option<Value>,
    /// Real seconds before, and after, the call is handled.
    pub(crate) delay: f64,
    pub(crate) delay_after: f64,
    pub(crate) reset: Option<Moment>,
    pub(crate) truncate: Option<Truncate>,
    pub(crate) trickle: Option<Trickle>,
    /// Settings of the batch that this call makes.
    pub(crate) settings: Map<String, Value>,
    /// Members to show in place of the batch object's own, by status or `*`.
    pub(crate) show: BTreeMap<String, Map<String, Value>>,
    pub(crate) results: Spoil,
    pub(crate) validation_errors: Option<Value>,
    /// What this call makes cannot be found, or listed, for so long after; results for so long after the end.
    pub(crate) hidden_s: f64,
    pub(crate) list_hidden_s: f64,
    pub(crate) results_hidden_s: f64,
}

impl Fault {
    /// Does a status take the place of the whole call?
    pub(crate) fn answers_early(&self) -> bool {
        self.status.is_some() && !self.after
    }
}

/// When a connection is reset: once the request is read, or once it is handled too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Moment {
    Before,
    After,
}

/// A body that ends early, after `bytes` or else a `fraction` of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Truncate {
    pub(crate) bytes: Option<u64>,
    pub(crate) fraction: f64,
    pub(crate) framing: Option<Framing>,
    pub(crate) at_line_end: bool,
}

impl Default for Truncate {
    fn default() -> Self {
        Self { bytes: None, fraction: 0.5, framing: None, at_line_end: false }
    }
}

/// So many bytes at a time, every so many real seconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Trickle {
    pub(crate) bytes: usize,
    pub(crate) every: f64,
}

impl Default for Trickle {
    fn default() -> Self {
        Self { bytes: 64, every: 0.05 }
    }
}

/// How the results of a batch are spoiled; the numbers say how many.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Spoil {
    /// Requests that fail, with `fail_kind`; `"all"` for every one.
    #[serde(deserialize_with = "count_or_all")]
    pub(crate) fail: usize,
    pub(crate) fail_kind: Option<Trouble>,
    /// Failures stand in the output file.
    pub(crate) misfile: bool,
    pub(crate) drop: usize,
    pub(crate) duplicate: usize,
    /// A second, different outcome under the same id.
    pub(crate) conflict: usize,
    pub(crate) unknown_id: usize,
    pub(crate) garbage: usize,
    pub(crate) blank: usize,
    /// Bytes of padding in one line.
    pub(crate) pad: Option<usize>,
    pub(crate) crlf: bool,
    pub(crate) bom: bool,
    pub(crate) no_final_newline: bool,
}

fn count_or_all<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    let given = Value::deserialize(from)?;
    if given == "all" {
        return Ok(usize::MAX);
    }
    serde_json::from_value(given).map_err(serde::de::Error::custom)
}

pub(crate) struct Faults {
    rules: Vec<Rule>,
    /// Seeded, so that a script with chances plays the same way every time.
    chance: StdRng,
}

impl Default for Faults {
    fn default() -> Self {
        Self { rules: Vec::new(), chance: StdRng::seed_from_u64(1) }
    }
}

impl Faults {
    /// One rule or a list; either all are taken or none.
    pub(crate) fn add(&mut self, given: &Value) -> Result<(), String> {
        let given = given.as_array().cloned().unwrap_or_else(|| vec![given.clone()]);
        let rules: Vec<_> = given.into_iter().map(parse).collect::<Result<_, _>>()?;
        self.rules.extend(rules);
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether any rule looks at the model, for that takes a look into the request's body.
    pub(crate) fn need_model(&self) -> bool {
        self.rules.iter().any(|rule| rule.matching.model.is_some())
    }

    /// The merged faults of all rules that hit this call.
    pub(crate) fn pick(&mut self, call: &Call<'_>) -> Map<String, Value> {
        let mut merged = Map::new();
        for rule in self.rules.iter_mut().filter(|rule| rule.matching.fits(call)) {
            rule.seen += 1;
            let due = rule.seen >= rule.matching.nth.unwrap_or(1) && (rule.times == 0 || rule.hits < rule.times);
            if due && (rule.chance >= 1.0 || self.chance.random::<f64>() < rule.chance) {
                rule.hits += 1;
                merged.extend(rule.fault.clone());
            }
        }
        merged
    }
}

fn parse(given: Value) -> Result<Rule, String> {
    let rule: Rule = serde_json::from_value(given).map_err(|error| format!("fault rule: {error}"))?;
    let fault: Fault =
        serde_json::from_value(Value::Object(rule.fault.clone())).map_err(|error| format!("fault: {error}"))?;
    match fault.settings.keys().find(|name| !Settings::knows(name)) {
        Some(name) => Err(format!("unknown setting in a fault rule: {name}")),
        None => Ok(rule),
    }
}

/// Shell patterns: `*`, `?` and `[abc]`, `[!abc]`, `[a-z]`; case matters.
pub(crate) fn glob(pattern: &str, name: &str) -> bool {
    let (mut pattern_chars, mut name_chars) = (pattern.chars(), name.chars());
    match pattern_chars.next() {
        None => name.is_empty(),
        Some('*') => {
            let rest = pattern_chars.as_str();
            name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| glob(rest, &name[at..]))
        }
        Some('?') => name_chars.next().is_some() && glob(pattern_chars.as_str(), name_chars.as_str()),
        Some('[') => match set(pattern_chars.as_str()) {
            Some((set, rest)) => {
                name_chars.next().is_some_and(|given| in_set(set, given)) && glob(rest, name_chars.as_str())
            }
            None => name_chars.next() == Some('[') && glob(pattern_chars.as_str(), name_chars.as_str()),
        },
        Some(plain) => name_chars.next() == Some(plain) && glob(pattern_chars.as_str(), name_chars.as_str()),
    }
}

/// The inside of a set and what follows it; a `]` that comes first belongs to the set.
fn set(after_bracket: &str) -> Option<(&str, &str)> {
    let negated = usize::from(after_bracket.starts_with('!'));
    let first = after_bracket[negated..].chars().next()?.len_utf8();
    let end = negated + first + after_bracket[negated + first..].find(']')?;
    Some((&after_bracket[..end], &after_bracket[end + 1..]))
}

fn in_set(set: &str, given: char) -> bool {
    let (wanted, set) = set.strip_prefix('!').map_or((true, set), |rest| (false, rest));
    let chars: Vec<_> = set.chars().collect();
    let mut at = 0;
    while at < chars.len() {
        let range = chars.get(at + 1) == Some(&'-') && at + 2 < chars.len();
        let last = if range { chars[at + 2] } else { chars[at] };
        if (chars[at]..=last).contains(&given) {
            return wanted;
        }
        at += if range { 3 } else { 1 };
    }
    !wanted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CREATE: Call<'_> =
        Call { provider: "openai", route: "batches.create", account: "a", model: "gpt-5", id: "batch_1" };

    #[test]
    fn globs_match_as_in_a_shell() {
        let check = |pattern, name, fits| assert_eq!(glob(pattern, name), fits, "{pattern} {name}");
        check("batches.*", "batches.create", true);
        check("batches.*", "files.create", false);
        check("b?t[a-d]h", "batch", true);
        check("[!x]*", "abc", true);
        check("[!a]*", "abc", false);
        check("[]]", "]", true);
        check("", "", true);
        check("**", "", true);
    }

    #[test]
    fn a_rule_is_used_up_and_counts() {
        let mut faults = Faults::default();
        let rule = json!({"match": {"route": "batches.*", "nth": 2}, "fault": {"status": 503}, "times": 2});
        faults.add(&rule).expect("a proper rule");
        let hits: Vec<_> = (0..5).map(|_| faults.pick(&CREATE).contains_key("status")).collect();
        assert_eq!(hits, [false, true, true, false, false]);
        let shown = serde_json::to_value(faults.rules()).expect("rules are plain JSON");
        assert_eq!((&shown[0]["seen"], &shown[0]["hits"]), (&json!(5), &json!(2)));
    }

    #[test]
    fn later_rules_win_and_all_are_merged() {
        let mut faults = Faults::default();
        faults.add(&json!([{"fault": {"status": 500, "delay": 1}}, {"fault": {"status": 429}}])).expect("proper rules");
        assert_eq!(Value::Object(faults.pick(&CREATE)), json!({"status": 429, "delay": 1}));
    }

    #[test]
    fn what_is_unknown_is_refused() {
        for rule in [
            json!({"when": {}}),
            json!({"match": {"rout": "x"}}),
            json!({"fault": {"statsu": 500}}),
            json!({"fault": {"settings": {"nothing_s": 1}}}),
            json!({"fault": {"results": {"fail": "some"}}}),
        ] {
            assert!(Faults::default().add(&rule).is_err(), "{rule}");
        }
        let all =
            json!({"fault": {"results": {"fail": "all", "fail_kind": "server", "pad": 10}, "truncate": {"bytes": 3}}});
        assert_eq!(Faults::default().add(&all), Ok(()));
    }
}
