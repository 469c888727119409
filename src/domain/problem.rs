//! What is wrong with a body, where, and what to do about it: data for the answer, not an error of ours.
//! Knows no status code: who calls decides whether a problem refuses the batch or fails one prompt.

use serde::Serialize;

/// One thing to correct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// JSON pointer into the body as `application/json` has it: `/prompts/3/messages`. A line of NDJSON is named by the
    /// same pointer, and by its number.
    pub pointer: String,
    /// 1-based; only for NDJSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Lower case, no full stop, names the remedy. Never holds text of a prompt.
    pub message: String,
}

impl Problem {
    pub fn new(pointer: impl Into<String>, line: Option<u64>, message: impl Into<String>) -> Problem {
        Problem { pointer: pointer.into(), line, message: message.into() }
    }
}

/// The problems of a body as they are found: the first hundred in input order, and how many there were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    first: Vec<Problem>,
    count: u64,
}

impl Problems {
    /// Problems told in one answer.
    pub const TOLD: usize = 100;

    pub fn push(&mut self, problem: Problem) {
        self.count += 1;
        if self.first.len() < Problems::TOLD {
            self.first.push(problem);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them, also those not kept.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first hundred.
    pub fn first(&self) -> &[Problem] {
        &self.first
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Problems {
        Problems { first: vec![problem], count: 1 }
    }
}

impl Extend<Problem> for Problems {
    fn extend<I: IntoIterator<Item = Problem>>(&mut self, problems: I) {
        problems.into_iter().for_each(|problem| self.push(problem));
    }
}

/// The problems of one prompt as one sentence, for a failure that stands beside the prompt: its own place is left out.
/// Tells ten at most.
pub fn sentence(at: &str, problems: &[Problem]) -> String {
    const TOLD: usize = 10;
    let told = problems.iter().take(TOLD).map(|problem| {
        let place = problem.pointer.strip_prefix(at).unwrap_or(&problem.pointer).trim_start_matches('/');
        if place.is_empty() { problem.message.clone() } else { format!("{place}: {}", problem.message) }
    });
    let more = problems.len().saturating_sub(TOLD);
    let more = (more > 0).then(|| format!("and {more} more"));
    told.chain(more).collect::<Vec<_>>().join("; ")
}

/// A pointer one level deeper. Names are a stranger's: long ones are clipped, for the answer must stay small.
pub fn join(pointer: &str, part: &str) -> String {
    format!("{pointer}/{}", clip(part).replace('~', "~0").replace('/', "~1"))
}

/// A stranger's word in a message: in backquotes, control characters escaped, clipped.
pub fn quote(word: &str) -> String {
    let safe: String =
        clip(word).chars().flat_map(|c| if c.is_control() { c.escape_unicode().collect() } else { vec![c] }).collect();
    format!("`{safe}`")
}

fn clip(word: &str) -> String {
    const LONGEST: usize = 100;
    match word.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &word[..at]),
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hundred_are_kept_and_all_are_counted() {
        let mut problems = Problems::default();
        problems.extend((0..250).map(|n| Problem::new(format!("/prompts/{n}"), None, "no")));
        assert_eq!((problems.count(), problems.first().len()), (250, 100));
        assert_eq!(problems.first()[99].pointer, "/prompts/99");
    }

    #[test]
    fn problems_of_a_prompt_are_one_sentence_without_its_place() {
        let problems: Vec<Problem> = (0..12).map(|n| Problem::new(format!("/prompts/1/a/{n}"), None, "no")).collect();
        assert_eq!(sentence("/prompts/1", &problems[..2]), "a/0: no; a/1: no");
        assert_eq!(sentence("/prompts/1", &[Problem::new("/prompts/1", Some(4), "is odd")]), "is odd");
        assert!(sentence("/prompts/1", &problems).ends_with("a/9: no; and 2 more"));
    }

    #[test]
    fn a_strangers_words_are_escaped_and_clipped() {
        assert_eq!(join("/prompts/3", "a/b~c"), "/prompts/3/a~1b~0c");
        assert_eq!(quote("a\nb"), "`a\\u{a}b`");
        assert_eq!(quote(&"é".repeat(200)).chars().count(), 103);
    }
}
