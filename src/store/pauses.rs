//! What is paused by hand, of all namespaces: one small hash that every gateway reads.

use super::{Store, StoreError, keys::Keys};
use crate::{
    clock,
    domain::pause::{Paused, Scope, Told},
};
use std::collections::BTreeMap;

/// Version, then JSON.
const VERSION: char = '1';

impl Store {
    /// All pauses that hold now, by their ids.
    pub async fn pauses(&self) -> Result<Vec<Paused>, StoreError> {
        let mut hgetall = redis::cmd("HGETALL");
        hgetall.arg(Keys::pauses());
        let stored: BTreeMap<String, String> = hgetall.query_async(&mut self.lease.of(Keys::pauses())).await?;
        let read = |(id, text): (&String, &String)| Some(Paused { scope: Scope::parse(id)?, told: read(id, text) });
        Ok(stored.iter().filter_map(read).collect())
    }

    /// Pauses; what is paused already stays as it was told first. True if it is news.
    pub async fn pause(&self, scope: &Scope, by: &str) -> Result<(Paused, bool), StoreError> {
        let (id, told) = (scope.to_string(), Told { by: by.to_owned(), since: clock::now_ms() });
        let text = format!("{VERSION}{}", serde_json::to_string(&told).expect("our own shapes serialize"));
        let mut pipe = redis::pipe();
        pipe.atomic().hset_nx(Keys::pauses(), &id, text).hget(Keys::pauses(), &id);
        let (news, stored): (bool, String) = pipe.query_async(&mut self.lease.of(Keys::pauses())).await?;
        Ok((Paused { scope: scope.clone(), told: read(&id, &stored) }, news))
    }

    /// Ends a pause; false if there was none.
    pub async fn resume(&self, scope: &Scope) -> Result<bool, StoreError> {
        let mut hdel = redis::cmd("HDEL");
        hdel.arg(Keys::pauses()).arg(scope.to_string());
        Ok(hdel.query_async(&mut self.lease.of(Keys::pauses())).await?)
    }
}

/// What cannot be read is paused all the same: somebody meant it.
fn read(id: &str, text: &str) -> Told {
    let told = text.strip_prefix(VERSION).and_then(|json| serde_json::from_str(json).ok());
    told.unwrap_or_else(|| {
        tracing::error!(id, "a pause cannot be read: it holds, by whom and since when is not known");
        Told { by: "?".to_owned(), since: 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_version_1_wrote_stays_readable_and_what_nobody_wrote_holds() {
        assert_eq!(read("all", r#"1{"by":"ops","since":5}"#), Told { by: "ops".into(), since: 5 });
        for text in ["", "2{}", "1", "1{\"by\":5}"] {
            assert_eq!(read("all", text).since, 0, "{text}");
        }
    }
}
