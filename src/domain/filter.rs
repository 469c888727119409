//! Which of a team's batches are wanted. Pure; how they are walked through is the store's.

use super::progress::{BatchStatus, Progress};
use std::collections::BTreeMap;

/// All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub status: Option<BatchStatus>,
    /// The whole `name~attempt`, as the batch has it.
    pub run: Option<String>,
    pub metadata: BTreeMap<String, String>,
    /// Created then or later; Unix milliseconds.
    pub since: Option<u64>,
}

impl Filter {
    pub fn takes(&self, batch: &Progress) -> bool {
        self.status.is_none_or(|status| status == batch.status())
            && self.run.as_ref().is_none_or(|run| batch.run.as_ref() == Some(run))
            && self.metadata.iter().all(|(name, value)| batch.metadata.get(name) == Some(value))
            && !self.is_behind(batch)
    }

    /// It is too old, and so is every batch created before it.
    pub fn is_behind(&self, batch: &Progress) -> bool {
        self.since.is_some_and(|since| batch.created_at < since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_given_must_hold() {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let batch = Progress {
            created_at: 5,
            run: Some("a~1".into()),
            metadata: pairs(&[("x", "1"), ("y", "2")]),
            ..Progress::default()
        };
        let takes = |filter: Filter| filter.takes(&batch);
        assert!(takes(Filter::default()));
        assert!(takes(Filter { status: Some(BatchStatus::Running), run: Some("a~1".into()), ..Filter::default() }));
        assert!(!takes(Filter { status: Some(BatchStatus::Ended), ..Filter::default() }));
        assert!(!takes(Filter { run: Some("a".into()), ..Filter::default() }));
        assert!(takes(Filter { metadata: pairs(&[("x", "1"), ("y", "2")]), ..Filter::default() }));
        for wrong in [pairs(&[("x", "1"), ("y", "3")]), pairs(&[("z", "")])] {
            assert!(!takes(Filter { metadata: wrong, ..Filter::default() }));
        }
        for (since, taken) in [(4, true), (5, true), (6, false)] {
            assert_eq!(takes(Filter { since: Some(since), ..Filter::default() }), taken, "{since}");
        }
    }
}
