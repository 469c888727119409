//! A team's batches, newest first, some at a time. The index knows when they were created and nothing else, so a filter
//! looks at the batches themselves: boundedly many a request, and the answer says how far it looked.

use super::{Store, StoreError, batches::read_visible};
use crate::domain::{filter::Filter, id::BatchId, progress::Progress};
use std::collections::HashMap;

/// Batches whose facts are asked for together.
const LOOK: usize = 100;
/// Most batches one request looks at.
pub const MAX_LOOKED_AT: usize = 2_000;

/// A page of the list.
#[derive(Debug, Default)]
pub struct Listed {
    pub batches: Vec<(BatchId, Progress)>,
    /// There are more that fit, or at least some not looked at.
    pub has_more: bool,
    /// Where the next page goes on: the last one listed, or the last one looked at where the bound was met.
    pub last: Option<BatchId>,
}

impl Listed {
    /// The pages that several namespaces gave for one question, as one page of at most `limit`.
    pub fn merge(all: Vec<Listed>, limit: usize) -> Listed {
        // What a page did not come to may hold anything behind its end: so far, and no further, all is known.
        let known_to = all.iter().filter(|page| page.has_more).filter_map(|page| page.last).max();
        let mut has_more = all.iter().any(|page| page.has_more);
        let mut batches: Vec<(BatchId, Progress)> = all.into_iter().flat_map(|page| page.batches).collect();
        batches.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
        batches.retain(|(id, _)| known_to.is_none_or(|end| *id >= end));
        if batches.len() > limit {
            batches.truncate(limit);
            has_more = true;
            let last = batches.last().map(|(id, _)| *id);
            return Listed { batches, has_more, last };
        }
        let last = known_to.or(batches.last().map(|(id, _)| *id));
        Listed { batches, has_more, last }
    }
}

impl Store {
    /// Batches of a team that the filter takes, newest first, behind `after` if given (which may be gone by now).
    pub async fn list(
        &self,
        team: &str,
        filter: &Filter,
        after: Option<BatchId>,
        limit: usize,
    ) -> Result<Listed, StoreError> {
        let mut listed = Listed::default();
        let mut cursor = after;
        let mut looked_at = 0;
        loop {
            let ids = self.behind(team, cursor).await?;
            if ids.is_empty() {
                return Ok(listed);
            }
            for (id, progress) in self.facts_of(&ids).await? {
                if looked_at == MAX_LOOKED_AT {
                    return Ok(Listed { has_more: true, last: cursor, ..listed });
                }
                looked_at += 1;
                cursor = Some(id);
                let Some(progress) = progress else { continue };
                if filter.is_behind(&progress) {
                    return Ok(listed);
                }
                if filter.takes(&progress) {
                    if listed.batches.len() == limit {
                        return Ok(Listed { has_more: true, ..listed });
                    }
                    listed.batches.push((id, progress));
                    listed.last = Some(id);
                }
            }
        }
    }

    /// The next ids of the index behind one of them, newest first. An id begins with the time that the index is sorted
    /// by, so the one behind which we look need not be there any more.
    async fn behind(&self, team: &str, cursor: Option<BatchId>) -> Result<Vec<BatchId>, StoreError> {
        let from = cursor.and_then(|id| id.created_at()).map_or_else(|| "+inf".to_owned(), |ms| ms.to_string());
        let mut skip = 0;
        loop {
            let mut range = redis::cmd("ZREVRANGEBYSCORE");
            range.arg(self.keys.team(team)).arg(&from).arg("-inf").arg("LIMIT").arg(skip).arg(LOOK);
            let found: Vec<String> = range.query_async(&mut self.main.clone()).await?;
            let ids = found.iter().filter_map(|id| BatchId::from_hex(id));
            let behind: Vec<BatchId> = ids.filter(|id| cursor.is_none_or(|cursor| *id < cursor)).collect();
            if !behind.is_empty() || found.len() < LOOK {
                return Ok(behind);
            }
            skip += LOOK; // all of one millisecond, and all before the cursor
        }
    }

    async fn facts_of(&self, ids: &[BatchId]) -> Result<Vec<(BatchId, Option<Progress>)>, StoreError> {
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.hgetall(self.keys.batch(*id));
        }
        let found: Vec<HashMap<String, String>> = match pipe.query_async(&mut self.main.clone()).await {
            Ok(found) => found,
            Err(error) => match StoreError::from(error) {
                StoreError::Corrupt { .. } => self.facts_one_by_one(ids).await?,
                away @ StoreError::Away(_) => return Err(away),
            },
        };
        let visible = |(id, fields): (&BatchId, HashMap<String, String>)| match read_visible(*id, &fields) {
            Ok(progress) => (*id, progress),
            // It is told of where it is asked for by its id; the list of all others goes on.
            Err(error) => {
                tracing::error!(batch = %id, %error, "a batch cannot be read; the list leaves it out");
                (*id, None)
            }
        };
        Ok(ids.iter().zip(found).map(visible).collect())
    }

    /// One of them is no hash: the others are.
    async fn facts_one_by_one(&self, ids: &[BatchId]) -> Result<Vec<HashMap<String, String>>, StoreError> {
        let mut found = Vec::new();
        for id in ids {
            found.push(match self.facts(*id).await {
                Err(StoreError::Corrupt { .. }) => HashMap::new(),
                facts => facts?,
            });
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> BatchId {
        BatchId::new(ms, &[0; 10])
    }

    fn page(times: &[u64], more: Option<u64>) -> Listed {
        let batches = times.iter().map(|ms| (id(*ms), Progress::default())).collect();
        let last = more.or(times.last().copied()).map(id);
        Listed { batches, has_more: more.is_some(), last }
    }

    fn merged(all: Vec<Listed>, limit: usize) -> (Vec<BatchId>, bool, Option<BatchId>) {
        let Listed { batches, has_more, last } = Listed::merge(all, limit);
        (batches.into_iter().map(|(id, _)| id).collect(), has_more, last)
    }

    #[test]
    fn pages_of_several_namespaces_are_one_and_pass_over_nothing() {
        let whole = || vec![page(&[9, 5], None), page(&[7, 3], None)];
        assert_eq!(merged(whole(), 9), (vec![id(9), id(7), id(5), id(3)], false, Some(id(3))));
        assert_eq!(merged(whole(), 3), (vec![id(9), id(7), id(5)], true, Some(id(5))));
        // What is behind 5 in the first is not known yet, so the 3 of the second has to wait.
        assert_eq!(
            merged(vec![page(&[9, 5], Some(5)), page(&[7, 3], None)], 9),
            (vec![id(9), id(7), id(5)], true, Some(id(5)))
        );
        // One looked at as many as it may and found none: the next page goes on where it stopped.
        assert_eq!(merged(vec![page(&[], Some(8)), page(&[9, 7], None)], 9), (vec![id(9)], true, Some(id(8))));
        assert_eq!(merged(vec![Listed::default(), Listed::default()], 9), (Vec::new(), false, None));
    }
}
