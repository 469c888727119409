//! JSON on the simulated wire: strict when read, raw UTF-8 when written.

use serde_json::Value;

use super::oracle::LONE_SURROGATE;

/// One line or body. U+2028 and its like are not escaped; a lone surrogate is, for it has no other form.
pub(crate) fn encode(value: &Value) -> String {
    let text = value.to_string();
    if text.contains(LONE_SURROGATE) { text.replace(LONE_SURROGATE, "\\ud83d") } else { text }
}

/// What a dynamic language takes for true.
pub(crate) fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(given) => *given,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

/// A number written without fraction or exponent, of any size.
pub(crate) fn is_integer(value: &Value) -> bool {
    value.as_number().is_some_and(|number| !number.as_str().contains(['.', 'e', 'E']))
}

/// The value of the first `"name": "value"` in a piece of JSON that may be cut off anywhere.
pub(crate) fn find_string<'a>(piece: &'a [u8], name: &str) -> Option<&'a str> {
    let piece = match std::str::from_utf8(piece) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&piece[..error.valid_up_to()]).expect("valid up to there"),
    };
    let quoted = format!("\"{name}\"");
    piece.match_indices(&quoted).find_map(|(at, _)| {
        let rest = piece[at + quoted.len()..].trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        let (value, _) = rest.split_once('"')?;
        (!value.is_empty() && !value.contains('\\')).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lone_surrogate_is_written_as_an_escape() {
        assert_eq!(encode(&json!({"text": format!("é{LONE_SURROGATE}")})), "{\"text\":\"é\\ud83d\"}");
    }

    #[test]
    fn a_member_is_found_in_a_piece() {
        assert_eq!(find_string(br#"{"a":"model", "model" : "m-1", "x": "cut"#, "model"), Some("m-1"));
        assert_eq!(find_string(br#"{"model": "m-"#, "model"), None);
    }

    #[test]
    fn integers_are_told_by_their_form() {
        assert!(is_integer(&json!(5)) && !is_integer(&json!(5.0)) && !is_integer(&json!(true)));
    }
}
