//! A Redis as `batchgate check` finds it: looked at and judged by others, so nothing is refused here and nothing written.

use super::{
    CONNECT_TIMEOUT, StoreError,
    cluster::{Topology, slot},
    fitness::is_forbidden,
    home,
    keys::Keys,
};
use crate::{
    clock::Millis,
    domain::home::{Home, Restored},
};
use redis::{AsyncConnectionConfig, IntoConnectionInfo};
use std::{collections::HashMap, time::Duration};

/// Longest any of the few commands may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What it says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// INFO; empty where this user may not call it.
    pub info: HashMap<String, String>,
    /// Unix milliseconds by its clock.
    pub now: Millis,
    /// Where it is at home; none where nobody worked yet.
    pub home: Option<Home>,
    /// The mark of a copy.
    pub restored: Option<Restored>,
    /// How the URL reaches it, as [`crate::domain::home`] writes it.
    pub place: String,
}

impl Inspection {
    /// A fact of INFO; empty if it is not told.
    pub fn fact(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }
}

/// Looks at the Redis behind a URL.
///
/// # Errors
/// It does not answer, or not as a Redis does.
pub async fn inspect(url: &str) -> Result<Inspection, StoreError> {
    let info = url.into_connection_info()?;
    let place = home::place(&info);
    let config =
        AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE)).set_connection_timeout(Some(CONNECT_TIMEOUT));
    // Of a cluster, the node that knows its home.
    let topology = Topology::ask(info).await?;
    let client = topology.client(&topology.owner(slot(Keys::home()))?)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let said = match redis::cmd("INFO").query_async::<String>(&mut connection).await {
        Ok(said) => said,
        Err(error) if is_forbidden(&error) => String::new(),
        Err(error) => return Err(error.into()),
    };
    let facts = said.lines().filter_map(|line| line.trim_end().split_once(':'));
    let info = facts.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let (seconds, micros): (Millis, Millis) = redis::cmd("TIME").query_async(&mut connection).await?;
    let mut pipe = redis::pipe();
    pipe.hgetall(Keys::home()).hgetall(Keys::restored());
    let (kept, mark) = pipe.query_async(&mut connection).await?;
    let (home, restored) = home::read(&kept, &mark);
    Ok(Inspection { info, now: seconds * 1_000 + micros / 1_000, home, restored, place })
}
