//! Reads members of our own envelope, at whatever level they stand, and collects what is wrong with them.
//! What batch and prompt have in common is here; nothing inside `params` and provider bodies is.

use crate::domain::{
    canonical,
    problem::{Problem, join, quote},
};
use serde_json::{Map, Number, Value};
use std::ops::RangeInclusive;

/// What a batch may say for all its prompts, and a prompt for itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    pub model: Option<String>,
    pub max_tokens: Option<u64>,
    /// Provider-native members, untouched.
    pub params: Map<String, Value>,
    pub headers: HeaderFields,
}

/// The headers as far as they were named; a prompt's replace the batch's one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFields {
    pub version: Option<String>,
    /// Sorted, without repeats. An empty list is a choice too: none of the batch's.
    pub betas: Option<Vec<String>>,
}

/// The versions of Anthropic's API we know to differ only in what they refuse; the first is the default.
pub const ANTHROPIC_VERSIONS: [&str; 2] = ["2023-06-01", "2026-10-21"];

/// A bound for `max_tokens`, far above what any model writes.
pub(super) const MAX_CAP: u64 = 1_000_000_000;

/// Reads values below one place of the body.
pub(super) struct Reader {
    /// Pointer to the place.
    base: String,
    line: Option<u64>,
    pub(super) problems: Vec<Problem>,
}

impl Reader {
    pub(super) fn new(base: impl Into<String>, line: Option<u64>) -> Reader {
        Reader { base: base.into(), line, problems: Vec::new() }
    }

    /// `pointer` is relative to the reader's place.
    pub(super) fn note(&mut self, pointer: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(format!("{}{pointer}", self.base), self.line, message));
    }

    /// Has this place been complained of already? Then what follows from it need not be.
    pub(super) fn has_noted(&self, pointer: &str) -> bool {
        self.problems.iter().any(|problem| problem.pointer.strip_prefix(&self.base) == Some(pointer))
    }

    pub(super) fn unknown(&mut self, pointer: &str, name: &str) {
        let message = format!("unknown field {}: put it into `params` if it is meant for the provider", quote(name));
        self.note(&join(pointer, name), message);
    }

    /// One of the members batch and prompt share; false if it is none of them.
    pub(super) fn shared(&mut self, fields: &mut Fields, name: &str, value: Value) -> bool {
        match name {
            "model" => fields.model = self.model("/model", value),
            "max_tokens" => fields.max_tokens = self.integer("/max_tokens", &value, 1..=MAX_CAP),
            "params" => fields.params = self.object("/params", value).unwrap_or_default(),
            "headers" => fields.headers = self.headers(value),
            _ => return false,
        }
        true
    }

    /// A model's name. What it may look like is the routes' affair; it ends in keys and metrics, so it has bounds.
    pub(super) fn model(&mut self, pointer: &str, value: Value) -> Option<String> {
        match value {
            Value::String(name)
                if !name.is_empty() && name.chars().count() <= 256 && !name.contains(char::is_control) =>
            {
                Some(name)
            }
            _ => {
                self.note(pointer, "must be the name of a model: a string of 1 to 256 characters");
                None
            }
        }
    }

    pub(super) fn integer(&mut self, pointer: &str, value: &Value, range: RangeInclusive<u64>) -> Option<u64> {
        let found = value.as_number().and_then(integer).filter(|number| range.contains(number));
        if found.is_none() {
            self.note(pointer, format!("must be a whole number from {} to {}", range.start(), range.end()));
        }
        found
    }

    pub(super) fn text(&mut self, pointer: &str, value: Value, longest: usize) -> Option<String> {
        match value {
            Value::String(text) if !text.is_empty() && text.chars().count() <= longest => Some(text),
            _ => {
                self.note(pointer, format!("must be a string of 1 to {longest} characters"));
                None
            }
        }
    }

    pub(super) fn object(&mut self, pointer: &str, value: Value) -> Option<Map<String, Value>> {
        match value {
            Value::Object(members) => Some(members),
            _ => {
                self.note(pointer, "must be an object");
                None
            }
        }
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&mut self, pointer: &str, value: &Value, words: &[(&str, T)]) -> Option<T> {
        let found = value.as_str().and_then(|given| words.iter().find(|(word, _)| *word == given));
        if found.is_none() {
            let known: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
            self.note(pointer, format!("must be one of {}", known.join(", ")));
        }
        found.map(|(_, meaning)| *meaning)
    }

    fn headers(&mut self, value: Value) -> HeaderFields {
        let mut headers = HeaderFields::default();
        for (name, value) in self.object("/headers", value).unwrap_or_default() {
            let pointer = join("/headers", &name);
            match name.to_ascii_lowercase().as_str() {
                _ if value.is_null() => {}
                "anthropic-version" => {
                    let versions = ANTHROPIC_VERSIONS.map(|version| (version, version));
                    headers.version = self.word(&pointer, &value, &versions).map(str::to_owned);
                }
                "anthropic-beta" => headers.betas = self.betas(&pointer, &value),
                _ => self.note(&pointer, "only `anthropic-version` and `anthropic-beta` may be set: leave it out"),
            }
        }
        headers
    }

    fn betas(&mut self, pointer: &str, value: &Value) -> Option<Vec<String>> {
        let names = value.as_str().map(|list| list.split(',').map(str::trim).filter(|name| !name.is_empty()));
        let mut betas: Vec<String> = match names {
            Some(names)
                if names.clone().all(|name| name.len() <= 128 && name.bytes().all(|b| b.is_ascii_graphic())) =>
            {
                names.map(str::to_owned).collect()
            }
            _ => {
                self.note(pointer, "must be a string: the names of betas, separated by commas");
                return None;
            }
        };
        betas.sort_unstable();
        betas.dedup();
        Some(betas)
    }
}

/// A whole number that is not negative, in whatever spelling: 100, 100.0 and 1e2 are one.
pub(super) fn integer(number: &Number) -> Option<u64> {
    let text = canonical::number(number.as_str()).ok()?;
    let (digits, exponent) = text.split_once('e')?;
    let exponent = exponent.parse::<u32>().ok()?;
    digits.parse::<u64>().ok()?.checked_mul(10_u64.checked_pow(exponent)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_in_any_spelling() {
        for (text, expect) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("100", Some(100)),
            ("100.0", Some(100)),
            ("1e2", Some(100)),
            ("0.5", None),
            ("-1", None),
            ("1e400", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("10e-1", Some(1)),
        ] {
            let value = crate::domain::json::parse(text.as_bytes()).expect("JSON");
            assert_eq!(integer(value.as_number().expect("a number")), expect, "{text}");
        }
    }
}
