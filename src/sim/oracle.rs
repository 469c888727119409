//! What a simulated model says: a pure function of the body it is asked.
//!
//! The text is `echo <first 16 hex of the SHA-256 of the canonical body> | <last user text>`, so that every
//! answer tells which body it answers; with `answers: "echo"` it is the last user text alone. Equal bodies
//! get equal text, online or in a batch, from either provider. Knows nothing of calls, time or money.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    problem::{Problem, Provider, Trouble},
    settings::Answers,
};

/// Members of a body that do not change what a model would say.
const IRRELEVANT: [&str; 9] = [
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "user",
];

/// What clients tend to trip over: line ends that are none, controls, combining marks, surrogate pairs.
const UNICODE: &str = "\u{2028}line\u{2029}para\u{85}nel\u{b}vt\u{1}\u{1f} \u{e9} e\u{301} \u{6f22}\u{5b57} \u{1f600} \\ud83d \"quoted\" \r\n\ttail";

/// Stands for a lone surrogate, which no Rust string can hold, until `json::encode` writes the line.
pub(crate) const LONE_SURROGATE: &str = "\u{10ffff}lone surrogate\u{10ffff}";

const REFUSAL: &str = "I can't help with that.";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// Including the cached.
    pub(crate) input: u32,
    /// Including the reasoning.
    pub(crate) output: u32,
    pub(crate) cached: u32,
    pub(crate) reasoning: u32,
}

/// How a request ends if nobody interferes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Error,
    /// Not done before the window closes.
    Expire,
    /// A server error the first so many times, per account and body.
    Flaky(u64),
}

impl Outcome {
    pub(crate) fn word(self) -> String {
        match self {
            Self::Ok => "ok".into(),
            Self::Error => "error".into(),
            Self::Expire => "expire".into(),
            Self::Flaky(times) => format!("flaky:{times}"),
        }
    }
}

/// The content of an answer, not yet in any endpoint's shape.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) sha: [u8; 32],
    pub(crate) marks: Marks,
    pub(crate) text: String,
    pub(crate) model: String,
    pub(crate) problem: Option<Problem>,
    pub(crate) tokens: Tokens,
}

impl Reply {
    /// Answer `body`; `problem` is what the endpoint itself found wrong with it.
    pub(crate) fn to(provider: Provider, body: &Value, problem: Option<Problem>, answers: Answers) -> Self {
        let raw = canonical(body);
        let sha: [u8; 32] = Sha256::digest(&raw).into();
        let last = last_user_text(body);
        let marks = Marks::of(&last);
        let text = text(&sha, &last, &marks, answers);
        let model = body["model"].as_str().unwrap_or_default().to_owned();
        let thinks = match provider {
            Provider::OpenAi => is_reasoning_model(&model),
            Provider::Anthropic => body.get("thinking").is_some(),
        };
        let reasoning = if thinks { 64 } else { 0 };
        let input = size(raw.len() / 4 + 1);
        let tokens = Tokens {
            input,
            output: size((text.chars().count() / 4 + 1) * choices(body)) + reasoning,
            cached: if marks.has("cached") { input / 2 } else { 0 },
            reasoning,
        };
        let problem = problem.or_else(|| marks.problem(provider));
        Self { sha, marks, text, model, problem, tokens }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        if self.problem.is_some() {
            Outcome::Error
        } else if self.marks.has("expire") {
            Outcome::Expire
        } else if self.marks.has("flaky") {
            Outcome::Flaky(self.marks.number("flaky", 1))
        } else {
            Outcome::Ok
        }
    }

    /// The first 16 hex digits of the digest.
    pub(crate) fn tag(&self) -> String {
        hex(&self.sha[..8])
    }
}

fn text(sha: &[u8; 32], last: &str, marks: &Marks, answers: Answers) -> String {
    let says = if marks.has("refuse") { REFUSAL } else { last };
    let mut text = match answers {
        Answers::Tagged => format!("echo {} | {says}", hex(&sha[..8])),
        Answers::Echo => says.to_owned(),
    };
    if marks.has("unicode") {
        text.push_str(UNICODE);
    }
    if marks.has("len") {
        let wanted = usize::try_from(marks.number("len", 1000)).unwrap_or(usize::MAX);
        let missing = wanted.saturating_sub(text.chars().count());
        text.extend(std::iter::repeat_n('.', missing));
    }
    if marks.has("truncate") {
        text = text.chars().take(text.chars().count() / 2).collect();
    }
    if marks.has("empty") {
        text.clear();
    } else if marks.has("surrogate") {
        text.push_str(LONE_SURROGATE);
    }
    text
}

/// The `[[word]]` and `[[word:value]]` markers of a text; of two with one word, the later counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks(BTreeMap<String, String>);

impl Marks {
    fn of(text: &str) -> Self {
        let mut marks = BTreeMap::new();
        let mut rest = text;
        while let Some(start) = rest.find("[[") {
            rest = &rest[start + 2..];
            // A third bracket moves the start on, as `[[[word]]` still holds a marker.
            if let Some((inside, after)) = rest.split_once("]]").filter(|(inside, _)| !inside.contains(['[', ']'])) {
                let (word, value) = inside.split_once(':').unwrap_or((inside, ""));
                if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()) {
                    marks.insert(word.to_owned(), value.to_owned());
                    rest = after;
                }
            } else if rest.starts_with('[') {
                rest = &text[text.len() - rest.len() - 1..];
            }
        }
        Self(marks)
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.0.contains_key(word)
    }

    fn number(&self, word: &str, default: u64) -> u64 {
        let digits = self.0.get(word).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(default)
    }

    fn problem(&self, provider: Provider) -> Option<Problem> {
        let trouble = Trouble::named(self.0.get("error")?);
        let problem = Problem::of(provider, trouble);
        Some(if trouble == Trouble::RateLimit { problem.header("retry-after", "1") } else { problem })
    }
}

/// Compact JSON of what matters in a body: keys sorted, raw UTF-8, numbers as they were given.
pub(crate) fn canonical(body: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    match body {
        Value::Object(members) => {
            write_object(members.iter().filter(|(name, _)| !IRRELEVANT.contains(&name.as_str())), &mut out);
        }
        other => write(other, &mut out),
    }
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(members) => write_object(members.iter(), out),
        Value::Array(items) => {
            out.push(b'[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        plain => write_plain(plain, out),
    }
}

/// Sorts for itself, as whether serde_json's maps are sorted depends on what other crates ask of it.
fn write_object<'a>(members: impl Iterator<Item = (&'a String, &'a Value)>, out: &mut Vec<u8>) {
    let mut members: Vec<_> = members.collect();
    members.sort_unstable_by_key(|(name, _)| *name);
    out.push(b'{');
    for (place, (name, value)) in members.into_iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        write_plain(name, out);
        out.push(b':');
        write(value, out);
    }
    out.push(b'}');
}

fn write_plain<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("a vector takes all that is written");
}

/// The text of the last user turn of `messages`, `input` or `prompt`, whichever the body has.
pub(crate) fn last_user_text(body: &Value) -> String {
    let Some(pool) = ["messages", "input", "prompt"].iter().find_map(|name| body.get(name)) else {
        return String::new();
    };
    let Some(items) = pool.as_array() else { return pool.as_str().unwrap_or_default().to_owned() };
    let turns: Vec<_> = items.iter().filter(|item| item.is_object()).collect();
    match (turns.iter().rev().find(|turn| turn["role"] == "user").or(turns.last()), items.last()) {
        (Some(turn), _) => content_text(&turn["content"]),
        (None, Some(Value::String(text))) => text.clone(),
        (None, Some(tokens)) => spaced(tokens),
        (None, None) => String::new(),
    }
}

fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// Token lists as text have a space after each comma.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// How many answers a body asks for by `n`; never more than a provider would give.
pub(crate) fn choices(body: &Value) -> usize {
    let wanted = body["n"].as_u64().and_then(|wanted| usize::try_from(wanted).ok());
    wanted.map_or(1, |wanted| wanted.clamp(1, MAX_CHOICES))
}

const MAX_CHOICES: usize = 128;

fn is_reasoning_model(model: &str) -> bool {
    let first_digit = |rest: &str| rest.bytes().next().filter(u8::is_ascii_digit);
    model.strip_prefix('o').and_then(first_digit).is_some()
        || model.strip_prefix("gpt-").and_then(first_digit).is_some_and(|digit| digit >= b'5')
}

/// The model's name with a date, unless it ends in one already.
pub(crate) fn dated(model: &str, suffix: &str) -> String {
    let compact: String = model.chars().rev().take(10).collect::<String>().replace('-', "");
    let has_date = compact.len() >= 8 && compact.bytes().take(8).all(|byte| byte.is_ascii_digit());
    if has_date || model.is_empty() { model.to_owned() } else { format!("{model}{suffix}") }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn size(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(body: &str) -> Reply {
        let body = serde_json::from_str(body).expect("the test's own JSON");
        Reply::to(Provider::OpenAi, &body, None, Answers::Tagged)
    }

    #[test]
    fn the_canonical_form_is_sorted_compact_raw_and_exact() {
        let body =
            serde_json::from_str("{ \"b\": 1.50, \"user\": \"x\", \"a\": {\"d\": \"\u{2028}é\", \"c\": 1e400} }");
        let expected = "{\"a\":{\"c\":1e400,\"d\":\"\u{2028}é\"},\"b\":1.50}";
        // serde_json may write an exponent's sign; beyond that numbers stay as they were given.
        let written = String::from_utf8(canonical(&body.expect("valid"))).expect("UTF-8").replace("e+", "e");
        assert_eq!(written, expected);
    }

    #[test]
    fn the_text_tells_the_body_and_the_last_user_turn() {
        let reply = ask(
            r#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},{"role":"assistant","content":"c"}]}"#,
        );
        assert_eq!(reply.text, format!("echo {} | b", reply.tag()));
        assert_eq!(reply.outcome(), Outcome::Ok);
        let raw = br#"{"messages":[{"content":"a","role":"user"},{"content":[{"text":"b","type":"text"}],"role":"user"},{"content":"c","role":"assistant"}],"model":"m"}"#;
        assert_eq!(reply.sha, <[u8; 32]>::from(Sha256::digest(raw)));
    }

    #[test]
    fn the_last_user_text_is_found_in_every_shape() {
        let check = |body: Value, text: &str| assert_eq!(last_user_text(&body), text, "{body}");
        check(json!({"input": "plain"}), "plain");
        check(json!({"prompt": ["one", "two"]}), "two");
        check(json!({"input": [1, 2]}), "2");
        check(json!({"input": [[1], [2, 3]]}), "[2, 3]");
        check(json!({"messages": [{"role": "system", "content": "s"}]}), "s");
        check(json!({"messages": []}), "");
        check(json!({}), "");
    }

    #[test]
    fn markers_steer_the_answer() {
        let with = |text: &str| ask(&json!({"model": "m", "input": text}).to_string());
        assert_eq!(with("[[flaky:3]]").outcome(), Outcome::Flaky(3));
        assert_eq!(with("[[flaky]]").outcome(), Outcome::Flaky(1));
        assert_eq!(with("[[[expire]]").outcome(), Outcome::Expire);
        assert_eq!(with("[[ expire]] [[Expire]]").outcome(), Outcome::Ok);
        assert_eq!(with("[[error:rate_limit]]").problem.map(|problem| problem.status), Some(429));
        assert_eq!(with("[[len:5000]]").text.chars().count(), 5000);
        assert_eq!(with("[[empty]]").text, "");
        let echo = Reply::to(Provider::OpenAi, &json!({"input": "just this"}), None, Answers::Echo);
        assert_eq!(echo.text, "just this");
    }

    #[test]
    fn models_get_a_date_once() {
        assert_eq!(dated("gpt-5-mini", "-2025-08-07"), "gpt-5-mini-2025-08-07");
        assert_eq!(dated("gpt-5-mini-2025-08-07", "-x"), "gpt-5-mini-2025-08-07");
        assert_eq!(dated("claude-haiku-4-5-20251001", "-x"), "claude-haiku-4-5-20251001");
        assert!(is_reasoning_model("o3") && is_reasoning_model("gpt-5-mini") && !is_reasoning_model("gpt-4.1"));
    }
}
