//! Which start of Redis answers. A Redis that was killed may come back without its last writes (with `appendfsync everysec`
//! those of a second or two; a replica that took over, likewise), so what it says of a moment before may be too old: a
//! chunk it calls planned may have been sent. Each chunk carries the start it was written at, and no clock is needed.

use super::{Store, StoreError};
use std::sync::PoisonError;

impl Store {
    /// The `run_id` of the Redis that answers now. Empty where it will not say (`INFO` is not allowed, or knows none).
    pub async fn server(&self) -> Result<String, StoreError> {
        let mut ask = redis::cmd("INFO");
        ask.arg("server");
        let said = match ask.query_async::<String>(&mut self.lease.clone()).await {
            Ok(said) => said,
            Err(error) if error.code() == Some("NOPERM") => {
                tracing::warn!("this redis user may not call INFO: a redis that loses its last writes is not noticed");
                String::new()
            }
            Err(away) => return Err(away.into()),
        };
        let run = said.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default().trim().to_owned();
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&run);
        Ok(run)
    }

    /// What [`Store::server`] last said. If it is out of date, a chunk written with it is looked for once, in vain.
    pub(super) fn known_server(&self) -> String {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
