//! An answer on one line: result files carry one line per answer, and some servers indent theirs. Pure.

use serde_json::value::RawValue;
use std::borrow::Cow;

/// The JSON object that is all of `text`, on one line: without white space around its parts where there are line ends,
/// else as it came. None where it is no object.
pub(super) fn one_line(text: &str) -> Option<Cow<'_, str>> {
    let value = serde_json::from_str::<&RawValue>(text).ok()?.get();
    if !value.starts_with('{') {
        return None;
    }
    if !value.contains(['\n', '\r']) {
        return Some(Cow::Borrowed(value));
    }
    let (mut line, mut quoted, mut escaped) = (String::with_capacity(value.len()), false, false);
    for c in value.chars() {
        if quoted || !c.is_ascii_whitespace() {
            line.push(c);
        }
        (quoted, escaped) = match c {
            '"' if !escaped => (!quoted, false),
            '\\' => (quoted, quoted && !escaped),
            _ => (quoted, false),
        };
    }
    Some(Cow::Owned(line))
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn what_is_on_one_line_stays_as_it_came() {
        for text in [r#"{"a": 1.0,  "b": [1e400, "x \" y"]}"#, "{}"] {
            assert_eq!(one_line(text).as_deref(), Some(text));
        }
        assert_eq!(one_line("  {\"a\": 1}\n").as_deref(), Some("{\"a\": 1}"));
    }

    #[test]
    fn indented_answers_lose_their_indentation_and_nothing_else() {
        let text = "{\n  \"a b\": \"c  \\\\\",\r\n\t\"d \\\" e\": [1.0, 2 ,\n 3]\n}\n";
        let line = one_line(text).expect("an object");
        assert_eq!(line, r#"{"a b":"c  \\","d \" e":[1.0,2,3]}"#);
        let same: (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(text).expect("JSON"), serde_json::from_str(&line).expect("JSON"));
        assert_eq!(same.0, same.1);
    }

    #[test]
    fn what_is_no_object_is_none() {
        for text in ["", "null", "[]", "<html>", "{\"cut", "{} {}"] {
            assert_eq!(one_line(text), None, "{text}");
        }
    }
}
