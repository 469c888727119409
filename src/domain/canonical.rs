//! Canonical JSON: one text for every way of writing the same value. Only ever hashed, never sent or shown.
//!
//! * Members sorted by name, by code point (the order of UTF-8 bytes); sorted here, whatever map a dependency chooses.
//! * Arrays keep their order; strings keep every character: no trimming, folding or Unicode normalisation.
//! * Strings escape `"`, `\`, and the controls below U+0020 (`\b \t \n \f \r`, else `\u00xx`), and nothing else: what Python's
//!   `json.dumps(ensure_ascii=False)` writes.
//! * Numbers are sign, digits without zeros at either end, `e`, exponent: `1` and `1.0` are `1e0`, `-0` is `0e0`. Nothing
//!   is expanded or rounded, so 1e400 and 2^53 + 1 are themselves.
//!
//! Changing any of this changes every key: see the version in `key.rs`, and the golden vectors.

use crate::domain::span;
use serde_json::{Map, Value};

/// A number's canonical exponent does not fit in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a number's exponent must lie within 64 bits")]
pub struct ExponentOutOfRange;

/// Appends the canonical text of a value.
pub fn write(value: &Value, out: &mut Vec<u8>) -> Result<(), ExponentOutOfRange> {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(digits) => out.extend_from_slice(number(digits.as_str())?.as_bytes()),
        Value::String(text) => string(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push(b',');
                }
                write(item, out)?;
            }
            out.push(b']');
        }
        Value::Object(members) => object(members, &[], out)?,
    }
    Ok(())
}

/// Appends the canonical text of an object, less the members of these names. Only this object's own members are left
/// out: what is nested counts, whatever its name.
pub fn object(members: &Map<String, Value>, except: &[&str], out: &mut Vec<u8>) -> Result<(), ExponentOutOfRange> {
    let mut members: Vec<_> = members.iter().filter(|(name, _)| !except.contains(&name.as_str())).collect();
    members.sort_unstable_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
    out.push(b'{');
    for (n, (name, value)) in members.into_iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        string(name, out);
        out.push(b':');
        write(value, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// Appends a string with its quotes.
pub fn string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut rest = text.as_bytes();
    loop {
        let at = span::plain(rest);
        out.extend_from_slice(&rest[..at]);
        let Some(&special) = rest.get(at) else { break };
        match special {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            control => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(control >> 4)], HEX[usize::from(control & 15)]]);
            }
        }
        rest = &rest[at + 1..];
    }
    out.push(b'"');
}

/// The canonical text of a JSON number.
pub fn number(text: &str) -> Result<String, ExponentOutOfRange> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text),
    };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    let digits = all.trim_start_matches('0').trim_end_matches('0');
    if digits.is_empty() {
        return Ok("0e0".into());
    }
    // The point moves behind the last digit that is no zero.
    let dropped = all.len() - all.trim_end_matches('0').len();
    let moved = i128::try_from(dropped).and_then(|dropped| Ok(dropped - i128::try_from(fraction.len())?));
    let exponent = moved.ok().zip(exponent_of(exponent)).and_then(|(moved, given)| i64::try_from(given + moved).ok());
    Ok(format!("{sign}{digits}e{}", exponent.ok_or(ExponentOutOfRange)?))
}

/// The exponent as written; none beyond what could still be brought within 64 bits by the digits before it.
fn exponent_of(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.trim_start_matches('0');
    if digits.len() > 30 {
        return None;
    }
    let exponent = if digits.is_empty() { 0 } else { digits.parse::<i128>().ok()? };
    Some(if negative { -exponent } else { exponent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::json;
    use proptest::prelude::*;

    fn check(given: &str, expect: &str) {
        let mut out = Vec::new();
        write(&json::parse(given.as_bytes()).expect("JSON"), &mut out).expect("in range");
        assert_eq!(String::from_utf8_lossy(&out), expect, "of {given}");
    }

    #[test]
    fn numbers_are_sign_digits_and_exponent() {
        for (given, expect) in [
            ("1", "1e0"),
            ("1.0", "1e0"),
            ("1e0", "1e0"),
            ("10e-1", "1e0"),
            ("0.1E+1", "1e0"),
            ("100", "1e2"),
            ("1.50", "15e-1"),
            ("-1.5", "-15e-1"),
            ("0", "0e0"),
            ("-0", "0e0"),
            ("-0.00e7", "0e0"),
            ("0.001", "1e-3"),
            ("9007199254740992", "9007199254740992e0"),
            ("9007199254740993", "9007199254740993e0"),
            ("1e400", "1e400"),
            ("1e0400", "1e400"),
            ("1E-400", "1e-400"),
            ("120.0340", "120034e-3"),
            ("1e9223372036854775807", "1e9223372036854775807"),
            ("0.1e9223372036854775808", "1e9223372036854775807"),
            ("1e-9223372036854775808", "1e-9223372036854775808"),
            ("0e99999999999999999999999999999999999999", "0e0"),
        ] {
            check(given, expect);
        }
    }

    #[test]
    fn exponents_beyond_64_bits_are_refused() {
        for given in [
            "1e9223372036854775808",
            "10e9223372036854775807",
            "1e-9223372036854775809",
            "1e99999999999999999999999999999999999999",
        ] {
            assert_eq!(number(given), Err(ExponentOutOfRange), "{given}");
        }
    }

    #[test]
    fn strings_keep_every_character() {
        check(r#""\u0000\u001f\b\t\n\f\r\"\\\/\u007f""#, "\"\\u0000\\u001f\\b\\t\\n\\f\\r\\\"\\\\/\u{7f}\"");
        check(r#""\u2028\ud83d\ude00 e\u0301""#, "\"\u{2028}😀 e\u{301}\"");
    }

    #[test]
    fn members_are_sorted_by_code_point_and_arrays_are_not() {
        check(r#"{"b":1,"a":[2,1],"":{},"B":[]}"#, r#"{"":{},"B":[],"a":[2e0,1e0],"b":1e0}"#);
        // U+FF61 sorts before U+1F600, although its UTF-16 unit is the greater one.
        check(r#"{"😀":1,"｡":2}"#, r#"{"｡":2e0,"😀":1e0}"#);
    }

    #[test]
    fn the_last_duplicate_wins() {
        check(r#"{"a":1,"b":0,"a":2}"#, r#"{"a":2e0,"b":0e0}"#);
    }

    proptest! {
        /// However a number is shifted and padded, its text is the same.
        #[test]
        fn one_number_one_text(digits in "[1-9][0-9]{0,30}", shift in 0usize..20, zeros in 0usize..5, exponent in -1000i64..1000) {
            let plain = format!("{digits}e{exponent}");
            let shifted = format!("{}{digits}.{}E{:+}", "", "0".repeat(zeros + 1), exponent);
            let point = i64::try_from(digits.len() + shift).expect("small");
            let small = format!("0.{}{digits}{}e{}", "0".repeat(shift), "0".repeat(zeros), exponent + point);
            prop_assert_eq!(number(&plain), number(&shifted));
            prop_assert_eq!(number(&plain), number(&small));
        }

        /// Strings come out as serde_json, and so Python, writes them.
        #[test]
        fn strings_as_python_writes_them(text in any::<String>()) {
            let mut out = Vec::new();
            string(&text, &mut out);
            prop_assert_eq!(out, serde_json::to_vec(&text).expect("a string"));
        }
    }
}
