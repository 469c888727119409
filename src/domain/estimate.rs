//! What is said of things nobody knows yet: tokens a question will cost, and the room its answer will take. Rules of
//! thumb, pure and documented in `openapi.yaml`. A forecast tells them; room in Redis is reserved by them.

use super::prompt::Endpoint;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Members of a body that hold what the model reads.
const READ: [&str; 8] =
    ["messages", "system", "instructions", "input", "prompt", "tools", "functions", "response_format"];
/// A text answer's envelope, and the tokens it is taken to have where its cap allows more.
const ENVELOPE: u64 = 800;
const TYPICAL_TOKENS: u64 = 500;
/// Bytes of a packed answer that are not its body: its key, what was read in it, where it came from.
const PACKED_AROUND: u64 = 200;
/// Dimensions a vector is taken to have at most, whatever a body asks: OpenAI's largest have 3,072, open models' 4,096.
const MOST_DIMENSIONS: u64 = 4_096;
/// No answer is taken to be larger: 2,048 vectors of that many numbers, and no provider is known to give more at once. So
/// one question is promised 80 MiB at most ([`result_bytes`] and [`entry_bytes`]), however little it takes to ask it.
pub const LARGEST_ANSWER: u64 = 2_048 * MOST_DIMENSIONS * 12;

/// Tokens a body is read as: a quarter of the bytes of its texts, rounded up, where a list of token numbers counts as
/// so many tokens. Files given as base64 count nothing: what they cost is not a matter of their bytes.
pub fn input_tokens(body: &Map<String, Value>) -> u64 {
    let mut sum = Sum::default();
    for value in READ.iter().filter_map(|name| body.get(*name)) {
        sum.add(value);
    }
    sum.bytes.div_ceil(4) + sum.numbers
}

#[derive(Default)]
struct Sum {
    bytes: u64,
    numbers: u64,
}

impl Sum {
    fn add(&mut self, value: &Value) {
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(_) => self.numbers += 1,
            Value::String(text) if text.starts_with("data:") => {}
            Value::String(text) => self.bytes += text.len() as u64,
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(members) => {
                members
                    .iter()
                    .filter(|(name, _)| !matches!(name.as_str(), "data" | "file_data"))
                    .for_each(|(_, value)| self.add(value));
            }
        }
    }
}

/// How large answers turned out, by endpoint and model: the mean bytes of an answer packed alone.
#[derive(Clone, Debug, Default)]
pub struct Learnt(BTreeMap<String, u64>);

impl Learnt {
    pub fn new(means: impl IntoIterator<Item = (String, u64)>) -> Learnt {
        Learnt(means.into_iter().collect())
    }

    /// The name something is learnt under.
    pub fn field(endpoint: Endpoint, model: &str) -> String {
        format!("{} {model}", endpoint.path())
    }

    /// False where the size follows from the request.
    pub fn learns(endpoint: Endpoint) -> bool {
        match endpoint {
            Endpoint::Messages | Endpoint::ChatCompletions | Endpoint::Responses | Endpoint::Completions => true,
            Endpoint::Embeddings | Endpoint::Moderations => false,
        }
    }

    /// Bytes the answer to a question is taken to have: as answers of its model turned out so far, but no more than 800
    /// and eight for each token it may have; [`answer_bytes`] where nothing is known. Never more than [`LARGEST_ANSWER`].
    pub fn answer_bytes(&self, endpoint: Endpoint, model: &str, inputs: u64, body: &Map<String, Value>) -> u64 {
        let bytes = match self.packed(endpoint, model) {
            Some(packed) => {
                let most = cap(body).map_or(u64::MAX, |cap| ENVELOPE.saturating_add(cap.saturating_mul(8)));
                packed.saturating_sub(PACKED_AROUND).saturating_mul(2).min(most)
            }
            None => answer_bytes(endpoint, inputs, body),
        };
        bytes.min(LARGEST_ANSWER)
    }

    /// A name without a date may have been answered under the one with it.
    fn packed(&self, endpoint: Endpoint, model: &str) -> Option<u64> {
        if !Learnt::learns(endpoint) {
            return None;
        }
        let field = Learnt::field(endpoint, model);
        let dated = |name: &str| {
            let date = name.strip_prefix(&field).and_then(|rest| rest.strip_prefix('-'));
            date.is_some_and(|date| date.len() == 8 && date.bytes().all(|digit| digit.is_ascii_digit()))
        };
        let near = self.0.range(field.clone()..).take_while(|(name, _)| name.starts_with(&field));
        near.filter(|(name, _)| **name == field || dated(name)).map(|(_, mean)| *mean).next()
    }
}

/// The most tokens an answer may have, as the body says.
fn cap(body: &Map<String, Value>) -> Option<u64> {
    let number = |name: &str| body.get(name).and_then(Value::as_u64);
    ["max_completion_tokens", "max_output_tokens", "max_tokens"].into_iter().find_map(number)
}

/// Bytes the provider's answer to a question is taken to have.
///
/// A text: 800 and four for each token it may have, at most 500 of them. Vectors: 12 for each dimension as numbers, six
/// as base64, 1,536 dimensions where the body does not say and 4,096 at most. Verdicts: 1,600. The last two for each input.
fn answer_bytes(endpoint: Endpoint, inputs: u64, body: &Map<String, Value>) -> u64 {
    let number = |name: &str| body.get(name).and_then(Value::as_u64);
    match endpoint {
        Endpoint::Messages | Endpoint::ChatCompletions | Endpoint::Responses | Endpoint::Completions => {
            ENVELOPE + 4 * cap(body).unwrap_or(TYPICAL_TOKENS).min(TYPICAL_TOKENS)
        }
        Endpoint::Embeddings => {
            let base64 = body.get("encoding_format").is_some_and(|format| format == "base64");
            let dimensions = number("dimensions").unwrap_or(1_536).min(MOST_DIMENSIONS);
            inputs.saturating_mul(dimensions * if base64 { 6 } else { 12 })
        }
        Endpoint::Moderations => inputs.saturating_mul(1_600),
    }
}

/// Bytes in Redis of a result on its batch's pages, many of which are packed together: 150 and a third of its answer.
pub fn result_bytes(answer_bytes: u64) -> u64 {
    150 + answer_bytes / 3
}

/// Bytes in Redis of a cache entry, which is packed alone: 350 and half of its answer.
pub fn entry_bytes(answer_bytes: u64) -> u64 {
    350 + answer_bytes / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(value: Value) -> Map<String, Value> {
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn tokens_are_a_quarter_of_the_text() {
        for (value, expect) in [
            (json!({"model": "a long name of a model", "input": ""}), 0),
            (json!({"input": "123456789"}), 3),
            (json!({"input": ["1234", "5678"]}), 2),
            (json!({"input": [1, 2, 3]}), 3),
            (json!({"prompt": [[1, 2], [3]]}), 3),
            (json!({"system": "1234", "messages": [{"role": "user", "content": "12345678"}]}), 4),
            (json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "12345678"}]}]}), 4),
            (json!({"input": [{"source": {"data": "x".repeat(1000)}, "url": "data:image/png;base64,AAAA"}]}), 0),
        ] {
            assert_eq!(input_tokens(&body(value.clone())), expect, "{value}");
        }
    }

    #[test]
    fn answers_are_as_long_as_they_may_be_up_to_a_point() {
        let text = |value| answer_bytes(Endpoint::Messages, 1, &body(value));
        assert_eq!(text(json!({"max_tokens": 100})), 1_200);
        assert_eq!(text(json!({"max_tokens": 100_000})), 2_800);
        assert_eq!(text(json!({})), 2_800);
        let vectors = |value| answer_bytes(Endpoint::Embeddings, 3, &body(value));
        assert_eq!(vectors(json!({"dimensions": 10})), 360);
        assert_eq!(vectors(json!({"encoding_format": "base64"})), 3 * 1_536 * 6);
        assert_eq!(answer_bytes(Endpoint::Moderations, 2, &body(json!({}))), 3_200);
    }

    #[test]
    fn no_answer_is_taken_to_be_larger_than_any_is() {
        let vectors = |inputs, value| Learnt::default().answer_bytes(Endpoint::Embeddings, "e", inputs, &body(value));
        assert_eq!(vectors(1, json!({"dimensions": 3_072})), 3_072 * 12);
        for absurd in [100_000, u64::MAX] {
            assert_eq!(vectors(1, json!({"dimensions": absurd})), 4_096 * 12);
            assert_eq!(vectors(50_000, json!({"dimensions": absurd, "encoding_format": "base64"})), LARGEST_ANSWER);
        }
        let nothing = body(json!({}));
        assert_eq!(Learnt::default().answer_bytes(Endpoint::Moderations, "m", u64::MAX, &nothing), LARGEST_ANSWER);
        // Whatever its model is said to have answered, and whatever it may say.
        let learnt = Learnt::new([(Learnt::field(Endpoint::Messages, "m"), u64::MAX)]);
        let talkative = body(json!({"max_tokens": u64::MAX}));
        assert_eq!(learnt.answer_bytes(Endpoint::Messages, "m", 1, &talkative), LARGEST_ANSWER);
        assert!(result_bytes(LARGEST_ANSWER) + entry_bytes(LARGEST_ANSWER) <= (80 << 20) + 500);
    }

    #[test]
    fn answers_are_as_large_as_they_were() {
        let known = [("claude-a-20260101", 1_200), ("claude-a-1-20260202", 9_000), ("claude-b", 100)];
        let field = |(model, mean): (&str, u64)| (Learnt::field(Endpoint::Messages, model), mean);
        let learnt = Learnt::new(known.map(field));
        let bytes = |model: &str, value| learnt.answer_bytes(Endpoint::Messages, model, 1, &body(value));
        assert_eq!(bytes("claude-a", json!({})), 2_000);
        assert_eq!(bytes("claude-a-20260101", json!({})), 2_000);
        assert_eq!(bytes("claude-a", json!({"max_tokens": 10})), 880, "it cannot be that long");
        assert_eq!(bytes("claude-b", json!({})), 0);
        assert_eq!(bytes("claude", json!({})), 2_800, "nothing is known of it");
        assert_eq!(learnt.answer_bytes(Endpoint::Responses, "claude-b", 1, &body(json!({}))), 2_800);
    }
}
