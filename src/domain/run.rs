//! A run: the name under which the askings of a question are counted across batches.

use std::fmt;

/// `name`, which counts on for ever, or `name~attempt`, which counts from 0 again in each attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run(String);

impl Run {
    /// Longest name, and longest attempt, in characters.
    pub const PART: usize = 128;

    /// None unless it is one or two parts of 1 to 128 of `A-Z a-z 0-9 . _ -`, with `~` between them.
    pub fn parse(text: &str) -> Option<Run> {
        let (name, attempt) = text.split_once('~').map_or((text, None), |(name, attempt)| (name, Some(attempt)));
        (is_part(name) && attempt.is_none_or(is_part)).then(|| Run(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_part(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=Run::PART).contains(&part.len()) && part.bytes().all(plain)
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_perhaps_an_attempt() {
        let long = "x".repeat(128);
        for good in ["arc", "arc~1", "a.b_c-D~9", &format!("{long}~{long}")] {
            assert_eq!(Run::parse(good).map(|run| run.to_string()).as_deref(), Some(good));
        }
        let long = format!("{long}x");
        for bad in ["", "~", "a~", "~1", "a~1~2", "a b", "a/b", "ä", "a:1", "a\n", &long, &format!("a~{long}")] {
            assert_eq!(Run::parse(bad), None, "{bad:?}");
        }
    }
}
