//! Finds where a JSON value ends, checking its grammar on the way, in slices of any size and without keeping any of it.
//! UTF-8 inside strings is not checked here (the finished frame is), nor are surrogates paired.
//!
//! ```text
//! Value --scalar--> AfterValue --,--> Name or Value        stack: one bit per open level, 1 = object
//!   |  --{--> NameOrEnd --string--> Colon --:--> Value
//!   |  --[--> ValueOrEnd
//! ```

use crate::domain::{json::MAX_NESTING, span};

/// Not JSON from this byte of the slice on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) what: &'static str,
}

/// A scanner for one value; white space before it is the caller's.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    state: State,
    /// Levels above the value count too.
    depth: usize,
    base: usize,
    levels: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    ValueOrEnd,
    Name,
    NameOrEnd,
    Colon,
    AfterValue,
    Text { name: bool },
    Escape { name: bool },
    Hex { name: bool, left: u8 },
    Word { rest: &'static [u8] },
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Scanner {
    /// `depth`: arrays and objects already open around the value.
    pub(super) fn new(depth: usize) -> Scanner {
        Scanner { state: State::Value, depth, base: depth, levels: 0 }
    }

    /// Reads on. `Some(n)`: the value ends before byte n of the slice.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let mut at = 0;
        while at < bytes.len() {
            if let State::Text { name } = self.state {
                at += span::plain(&bytes[at..]);
                match bytes.get(at) {
                    None => break,
                    Some(b'"') if name => self.state = State::Colon,
                    Some(b'"') => self.state = State::AfterValue,
                    Some(b'\\') => self.state = State::Escape { name },
                    Some(_) => return Err(Fault { at, what: "a control character inside a string must be escaped" }),
                }
                at += 1;
            } else if self.ends_before(bytes[at]) {
                self.state = State::AfterValue;
            } else {
                self.state = self.step(bytes[at]).map_err(|what| Fault { at, what })?;
                at += 1;
            }
            if self.state == State::AfterValue && self.depth == self.base {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Is the value whole if nothing follows? Only numbers cannot tell by themselves.
    pub(super) fn may_end(&self) -> bool {
        self.depth == self.base && self.in_whole_number()
    }

    pub(super) fn inside_string(&self) -> bool {
        matches!(self.state, State::Text { .. } | State::Escape { .. } | State::Hex { .. })
    }

    fn in_whole_number(&self) -> bool {
        matches!(self.state, State::Zero | State::Whole | State::Fraction | State::ExponentDigits)
    }

    /// A number ends at the first byte that cannot be its own.
    fn ends_before(&self, byte: u8) -> bool {
        self.in_whole_number() && !matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')
    }

    fn step(&mut self, byte: u8) -> Result<State, &'static str> {
        use State as S;
        Ok(match (self.state, byte) {
            (
                S::Value | S::ValueOrEnd | S::Name | S::NameOrEnd | S::Colon | S::AfterValue,
                b' ' | b'\t' | b'\r' | b'\n',
            ) => self.state,
            (S::ValueOrEnd, b']') | (S::NameOrEnd, b'}') => self.close(),
            (S::Value | S::ValueOrEnd, _) => self.begin(byte)?,
            (S::Name | S::NameOrEnd, b'"') => S::Text { name: true },
            (S::Name | S::NameOrEnd, _) => return Err("a member name must be a string"),
            (S::Colon, b':') => S::Value,
            (S::Colon, _) => return Err("a colon is missing after a member name"),
            (S::AfterValue, b',') if self.in_object() => S::Name,
            (S::AfterValue, b',') => S::Value,
            (S::AfterValue, b'}') if self.in_object() => self.close(),
            (S::AfterValue, b']') if !self.in_object() => self.close(),
            (S::AfterValue, _) => return Err("a comma or a closing bracket is missing"),
            (S::Escape { name }, b'u') => S::Hex { name, left: 4 },
            (S::Escape { name }, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => S::Text { name },
            (S::Escape { .. }, _) => return Err("no such escape"),
            (S::Hex { name, left: 1 }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => S::Text { name },
            (S::Hex { name, left }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => S::Hex { name, left: left - 1 },
            (S::Hex { .. }, _) => return Err("four hexadecimal digits are missing"),
            (S::Word { rest: [next] }, _) if byte == *next => S::AfterValue,
            (S::Word { rest: [next, rest @ ..] }, _) if byte == *next => S::Word { rest },
            (S::Word { .. }, _) => return Err("not one of true, false, null"),
            (S::Minus, b'0') => S::Zero,
            (S::Minus, b'1'..=b'9') | (S::Whole, b'0'..=b'9') => S::Whole,
            (S::Zero | S::Whole, b'.') => S::Point,
            (S::Point | S::Fraction, b'0'..=b'9') => S::Fraction,
            (S::Zero | S::Whole | S::Fraction, b'e' | b'E') => S::Exponent,
            (S::Exponent, b'+' | b'-') => S::ExponentSign,
            (S::Exponent | S::ExponentSign | S::ExponentDigits, b'0'..=b'9') => S::ExponentDigits,
            (S::Minus | S::Point | S::Exponent | S::ExponentSign, _) => return Err("a digit is missing"),
            (S::Zero | S::Whole | S::Fraction | S::ExponentDigits, _) => return Err("no number goes on like this"),
            (S::Text { .. }, _) => self.state,
        })
    }

    fn begin(&mut self, byte: u8) -> Result<State, &'static str> {
        Ok(match byte {
            b'"' => State::Text { name: false },
            b'{' => self.open(1, State::NameOrEnd)?,
            b'[' => self.open(0, State::ValueOrEnd)?,
            b't' => State::Word { rest: b"rue" },
            b'f' => State::Word { rest: b"alse" },
            b'n' => State::Word { rest: b"ull" },
            b'-' => State::Minus,
            b'0' => State::Zero,
            b'1'..=b'9' => State::Whole,
            _ => return Err("no value begins like this"),
        })
    }

    fn open(&mut self, level: u128, state: State) -> Result<State, &'static str> {
        if self.depth == MAX_NESTING {
            return Err("nested deeper than 128 levels");
        }
        self.depth += 1;
        self.levels = self.levels << 1 | level;
        Ok(state)
    }

    fn close(&mut self) -> State {
        self.depth -= 1;
        self.levels >>= 1;
        State::AfterValue
    }

    fn in_object(&self) -> bool {
        self.levels & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `Some(n)` where the value ends, none where it breaks off.
    fn scan(text: &[u8]) -> Result<Option<usize>, Fault> {
        let mut scanner = Scanner::new(0);
        let end = scanner.feed(text)?;
        Ok(end.or(scanner.may_end().then_some(text.len())))
    }

    #[test]
    fn values_end_where_they_end() {
        for (text, expect) in [
            ("1 ", Some(1)),
            ("-0.5e+10,", Some(8)),
            ("0", Some(1)),
            ("true]", Some(4)),
            ("null", Some(4)),
            (r#""a\"]\\""#, Some(8)),
            (r#"{"a":[1,{"b":[]}]}}"#, Some(18)),
            ("[]", Some(2)),
            ("{ }", Some(3)),
            ("[1,", None),
            ("\"a", None),
            ("-", None),
            ("tru", None),
            ("1e", None),
            ("\"\\u12", None),
        ] {
            assert_eq!(scan(text.as_bytes()), Ok(expect), "{text}");
        }
    }

    #[test]
    fn broken_values_are_found_at_the_broken_byte() {
        for (text, at) in [
            ("[1,]", 3),
            ("[1 2]", 3),
            ("{\"a\" 1}", 5),
            ("{,}", 1),
            ("{\"a\":1,}", 7),
            ("[}", 1),
            ("[1}", 2),
            ("tru1", 3),
            ("01", 1),
            ("1.e", 2),
            ("-a", 1),
            ("\"\\x\"", 2),
            ("\"\\u12g4\"", 5),
            ("\"a\nb\"", 2),
            ("\"\0\"", 1),
            ("NaN", 0),
            ("1.2.3", 3),
            ("+1", 0),
            ("'a'", 0),
            ("1ee", 2),
            ("1-", 1),
            ("{1:2}", 1),
            ("", 0),
        ] {
            let result = scan(text.as_bytes());
            assert_eq!(result.map_err(|fault| fault.at), if text.is_empty() { Ok(None) } else { Err(at) }, "{text}");
        }
    }

    #[test]
    fn nesting_ends_at_128() {
        assert_eq!(scan("[".repeat(128).as_bytes()), Ok(None));
        assert_eq!(scan("[".repeat(129).as_bytes()).map_err(|fault| fault.at), Err(128));
        let whole =
            format!("{}{}", "[{\"a\":".repeat(64).trim_end_matches("{\"a\":"), "]}".repeat(64).trim_start_matches(']'));
        assert!(scan(whole.as_bytes()).is_err(), "a sanity check: this one is broken");
        let whole = format!("{}1{}", "[{\"a\":".repeat(64), "}]".repeat(64));
        assert_eq!(scan(whole.as_bytes()), Ok(Some(whole.len())));
    }

    proptest! {
        /// What we take for JSON and what serde_json does are the same.
        #[test]
        fn the_grammar_is_json(text in r#"[\[\]{}:,"a\\ue01+.\- tn\n]{0,12}|(\[|\{"a":|1|,|\]|\}|"\\u00e9"|true|-0\.5e7| ){0,10}"#) {
            let ours = scan(text.as_bytes()) == Ok(Some(text.len())) ;
            let trimmed = text.trim_start_matches([' ', '\n']).len() == text.len();
            let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            // They accept white space around a value.
            if trimmed && !text.ends_with([' ', '\n']) {
                prop_assert_eq!(ours, theirs, "{:?}", text);
            }
        }
    }
}
