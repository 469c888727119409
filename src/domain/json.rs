//! JSON text into a [`Value`], with nothing lost and nothing added.
//!
//! Why not `serde_json::from_slice`: it rewrites `1e400` as `1e+400`, stops at 127 levels, takes the members
//! `$serde_json::private::Number` and `...::RawValue` of a stranger's object for its own secret marks, and does not say
//! in which member an unpaired surrogate stands. Knows nothing of streams: the text of one value is in memory.

use crate::domain::{canonical, problem, span};
use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Map, Number, Value, value::RawValue};
use std::fmt;

/// Levels of arrays and objects a body may have; the body itself is the first.
pub const MAX_NESTING: usize = 128;

/// Why a text is no value we can work with, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Bytes before the fault.
    pub at: usize,
    /// The way to it, outermost last.
    path: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Not JSON, or not UTF-8.
    Syntax(&'static str),
    /// Deeper than [`MAX_NESTING`].
    Nesting,
    /// `\ud800` without its other half: JSON, but no text.
    Surrogate,
    /// A number whose exponent no 64 bits hold: JSON, but no key can be made of it.
    Exponent,
}

impl Fault {
    /// JSON pointer to the faulty value, relative to the text's own value.
    pub fn pointer(&self) -> String {
        self.path.iter().rev().fold(String::new(), |pointer, part| problem::join(&pointer, part))
    }

    /// What is wrong and what to do about it.
    pub fn message(&self) -> String {
        match self.kind {
            FaultKind::Syntax(what) => format!("not JSON at byte {} of the value: {what}", self.at),
            FaultKind::Nesting => format!("nested deeper than {MAX_NESTING} levels"),
            FaultKind::Surrogate => {
                "an unpaired surrogate (\\ud800 to \\udfff) is no character: remove it or write both halves".into()
            }
            FaultKind::Exponent => "a number's exponent must lie within 64 bits: write a smaller one".into(),
        }
    }

    /// Can the text be read at all? Then the fault is one of content (422), not of form (400).
    pub fn is_readable(&self) -> bool {
        matches!(self.kind, FaultKind::Surrogate | FaultKind::Exponent)
    }

    fn inside(mut self, part: impl Into<String>) -> Fault {
        self.path.push(part.into());
        self
    }
}

/// Parses one whole value. Of members with the same name the last one wins, as in Python and JavaScript.
pub fn parse(text: &[u8]) -> Result<Value, Fault> {
    let text =
        std::str::from_utf8(text).map_err(|error| fault(FaultKind::Syntax("invalid UTF-8"), error.valid_up_to()))?;
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.syntax("something follows the value")),
    }
}

/// An object's members in the order of the text, repeated ones too, their values unread. None if it is no object.
pub fn members(text: &[u8]) -> Option<Vec<(String, Bytes)>> {
    struct Members(Vec<(String, Bytes)>);
    struct Collect;
    impl<'de> Visitor<'de> for Collect {
        type Value = Members;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
            let mut members = Vec::new();
            while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                members.push((name, Bytes::copy_from_slice(value.get().as_bytes())));
            }
            Ok(Members(members))
        }
    }
    impl<'de> Deserialize<'de> for Members {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members, D::Error> {
            deserializer.deserialize_map(Collect)
        }
    }
    serde_json::from_slice(text).ok().map(|Members(members)| members)
}

fn fault(kind: FaultKind, at: usize) -> Fault {
    Fault { kind, at, path: Vec::new() }
}

struct Parser<'a> {
    text: &'a str,
    /// Always on a character boundary where a slice is taken: slices end before or after ASCII.
    at: usize,
}

impl Parser<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, Fault> {
        match self.peek() {
            Some(b'"') => self.string().map(Value::String),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'-' | b'0'..=b'9') => self.number().map(Value::Number),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            Some(_) => Err(self.syntax("no value begins like this")),
            None => Err(self.syntax("it breaks off")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Fault> {
        self.enter(depth)?;
        let mut members = Map::new();
        if self.take(b'}') {
            return Ok(Value::Object(members));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.syntax("a member name must be a string"));
            }
            let name = self.string()?;
            if !self.take(b':') {
                return Err(self.syntax("a colon is missing after a member name").inside(name));
            }
            match self.value(depth) {
                Ok(value) => members.insert(name, value),
                Err(fault) => return Err(fault.inside(name)),
            };
            if self.take(b'}') {
                return Ok(Value::Object(members));
            }
            if !self.take(b',') {
                return Err(self.syntax("a comma or `}` is missing"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Fault> {
        self.enter(depth)?;
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            let item = self.value(depth).map_err(|fault| fault.inside(items.len().to_string()))?;
            items.push(item);
            if self.take(b']') {
                return Ok(Value::Array(items));
            }
            if !self.take(b',') {
                return Err(self.syntax("a comma or `]` is missing"));
            }
        }
    }

    fn enter(&mut self, depth: usize) -> Result<(), Fault> {
        self.at += 1;
        if depth > MAX_NESTING { Err(fault(FaultKind::Nesting, self.at)) } else { Ok(()) }
    }

    fn word(&mut self, word: &'static str, value: Value) -> Result<Value, Fault> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(self.syntax("not one of true, false, null"))
        }
    }

    fn number(&mut self) -> Result<Number, Fault> {
        let start = self.at;
        self.take_byte(b'-');
        if !self.take_byte(b'0') && self.digits() == 0 {
            return Err(self.syntax("a digit is missing"));
        }
        if self.take_byte(b'.') && self.digits() == 0 {
            return Err(self.syntax("a digit is missing after the point"));
        }
        if self.take_byte(b'e') || self.take_byte(b'E') {
            let _sign = self.take_byte(b'+') || self.take_byte(b'-');
            if self.digits() == 0 {
                return Err(self.syntax("a digit is missing in the exponent"));
            }
            if canonical::number(&self.text[start..self.at]).is_err() {
                return Err(fault(FaultKind::Exponent, start));
            }
        }
        // Hidden from serde_json's documentation, and the only way to keep `1e400` from becoming `1e+400`; the grammar
        // it does not check was checked above.
        Ok(Number::from_string_unchecked(self.text[start..self.at].to_owned()))
    }

    fn digits(&mut self) -> usize {
        let rest = &self.text.as_bytes()[self.at..];
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count
    }

    fn string(&mut self) -> Result<String, Fault> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let plain = span::plain(rest);
            text.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain + 1;
            match rest.get(plain) {
                Some(b'"') => return Ok(text),
                Some(b'\\') => text.push(self.escape()?),
                None => return Err(fault(FaultKind::Syntax("it breaks off inside a string"), self.text.len())),
                Some(_) => return Err(self.syntax("a control character inside a string must be escaped")),
            }
        }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Result<char, Fault> {
        let start = self.at - 1;
        let Some(&letter) = self.text.as_bytes().get(self.at) else {
            return Err(self.syntax("it breaks off inside a string"));
        };
        self.at += 1;
        Ok(match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let high = self.hex()?;
                let code = match high {
                    0xd800..0xdc00 if self.text[self.at..].starts_with("\\u") => {
                        self.at += 2;
                        match self.hex()? {
                            low @ 0xdc00..0xe000 => 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00),
                            _ => high,
                        }
                    }
                    _ => high,
                };
                char::from_u32(code).ok_or_else(|| fault(FaultKind::Surrogate, start))?
            }
            _ => return Err(self.syntax("no such escape")),
        })
    }

    fn hex(&mut self) -> Result<u32, Fault> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let code = digits.and_then(|digits| {
            digits.iter().try_fold(0, |code, &digit| Some(code * 16 + char::from(digit).to_digit(16)?))
        });
        self.at += 4;
        code.ok_or_else(|| fault(FaultKind::Syntax("four hexadecimal digits are missing"), self.at - 4))
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let space = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).count();
        self.at += space;
        rest.get(space).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        self.peek() == Some(byte) && self.take_byte(byte)
    }

    fn take_byte(&mut self, byte: u8) -> bool {
        let found = self.text.as_bytes().get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn syntax(&self, what: &'static str) -> Fault {
        fault(FaultKind::Syntax(what), self.at)
    }
}

#[cfg(test)]
mod tests;
