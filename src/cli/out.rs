//! The terminal: the one place of the command line that writes to it. Knows nothing of batches.
//!
//! Text that came from a server may carry escape sequences that move the cursor, retitle the window or hide what was
//! said. Everything that is printed passes [`inert`], so such text shows as what it is.

use serde_json::Value;
use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

/// The same text with every character that could act on a terminal, or reorder what is read, written as `\u001b`.
/// In a line of JSON the result means the same value as before.
pub(crate) fn inert(text: &str) -> Cow<'_, str> {
    if !text.contains(acts_on_terminals) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts_on_terminals(c) {
            safe.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Control characters (C0, DEL, C1), line separators, and the marks that turn the direction of text.
fn acts_on_terminals(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// At most `width` characters of the text, inert, with `…` where something was left out.
pub(crate) fn clip(text: &str, width: usize) -> String {
    let safe = inert(text);
    if safe.chars().count() <= width {
        return safe.into_owned();
    }
    safe.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// A count as people read it: `100,000`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// What the command was asked for, to standard output.
pub(crate) fn say(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for line in text.split('\n') {
        writeln!(stdout, "{}", inert(line))?;
    }
    stdout.flush()
}

/// What accompanies it, to standard error. A closed standard error is nobody's loss.
pub(crate) fn note(text: &str) {
    let mut stderr = io::stderr().lock();
    for line in text.split('\n') {
        let _ = writeln!(stderr, "{}", inert(line));
    }
}

/// One JSON value: indented for a person, on one line for a program.
pub(crate) fn json(value: &Value) -> io::Result<()> {
    say(&if io::stdout().is_terminal() { format!("{value:#}") } else { value.to_string() })
}

/// Whole lines to standard output: as they came for a program, inert for a person.
pub(crate) fn lines(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if stdout.is_terminal() {
        stdout.write_all(inert_lines(bytes).as_bytes())?;
    } else {
        stdout.write_all(bytes)?;
    }
    stdout.flush()
}

/// Whole lines as a terminal may have them.
pub(crate) fn inert_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.split_terminator('\n').map(|line| format!("{}\n", inert(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn escape_sequences_come_out_inert() {
        assert_eq!(inert("plain, ünïcödé, 日本語, 🦀"), "plain, ünïcödé, 日本語, 🦀");
        assert_eq!(inert("\x1b[2J\x1b]0;owned\x07"), "\\u001b[2J\\u001b]0;owned\\u0007");
        assert_eq!(inert("a\r\nok: all paid\u{9b}31m\u{7f}"), "a\\u000d\\u000aok: all paid\\u009b31m\\u007f");
        assert_eq!(inert("\u{202e}gpj.exe\u{2066}"), "\\u202egpj.exe\\u2066");
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(inert_lines(b"{\"a\": \"\x1b[2J\"}\n{}\n"), "{\"a\": \"\\u001b[2J\"}\n{}\n");
        assert_eq!(inert_lines(b""), "");
    }

    #[test]
    fn inert_json_is_the_same_value() {
        let value = json!({"completion": "\u{9b}31m red \u{202e}txet \u{7f}", "n": 1});
        let safe = inert(&value.to_string()).into_owned();
        assert!(!safe.contains('\u{9b}'));
        assert_eq!(serde_json::from_str::<Value>(&safe).expect("still JSON"), value);
    }

    #[test]
    fn counts_are_grouped_in_threes() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (62_000, "62,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn clipping_counts_characters_and_shows_itself() {
        assert_eq!(clip("kurz", 10), "kurz");
        assert_eq!(clip("日本語のテキスト", 4), "日本語…");
        assert_eq!(clip("a\nb", 10), "a\\u000ab");
    }
}
