//! DEVICE: Redis, and only Redis. Split by what is asked; every key string is in [`keys`], every stored shape in
//! [`record`]. Knows nothing of providers or of HTTP, and decides nothing: policies live in `domain` and `pipeline`.

pub mod accounts;
pub mod batches;
pub mod cache;
pub mod chunks;
pub mod commit;
mod fitness;
pub mod gauges;
pub mod home;
pub mod idempotency;
pub mod janitor;
pub mod joins;
pub mod key_uses;
pub mod keys;
mod link;
pub mod listing;
pub mod marks;
pub mod pages;
pub mod queue;
pub mod reconcile;
pub mod record;
pub mod room;
pub mod runs;
pub mod said;
pub mod seal;
pub mod server;
pub mod sweep;
pub mod unanswered;
pub mod unreadable;
pub mod uploads;

use fitness::Fitness;
use keys::Keys;
use link::Link;
use redis::{
    AsyncConnectionConfig, IntoConnectionInfo,
    aio::{ConnectionManagerConfig, MultiplexedConnection},
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Longest any single Redis command may take, a commit's included; the crate's own default is half a second, and a
/// command given up on is still applied.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// What went wrong below.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Redis did not answer, or refused: try again later. Nothing is lost by waiting.
    #[error("redis: {}", clipped(.0))]
    Away(#[source] redis::RedisError),
    /// Something stored cannot be read. Trying again will not help; the rest goes on.
    #[error("stored {what}: {why}")]
    Corrupt { what: String, why: String },
}

/// A failed pipeline tells of each of its commands; the beginning says enough.
fn clipped(error: &redis::RedisError) -> String {
    error.to_string().chars().take(300).collect()
}

#[cfg(feature = "failpoints")]
impl From<crate::failpoint::Tripped> for StoreError {
    fn from(tripped: crate::failpoint::Tripped) -> StoreError {
        redis::RedisError::from((redis::ErrorKind::Io, "a fail point", tripped.to_string())).into()
    }
}

impl From<redis::RedisError> for StoreError {
    /// Redis answered, and what stands there is of another type than any version wrote: asking again will not help.
    fn from(error: redis::RedisError) -> StoreError {
        // Told by its text: inside a script or a pipeline the error has no code of its own.
        let text = error.to_string();
        let foreign = text.contains("WRONGTYPE") || text.starts_with("Incompatible type");
        if foreign || error.kind() == redis::ErrorKind::UnexpectedReturnType {
            return StoreError::corrupt("value of another type", clipped(&error));
        }
        StoreError::Away(error)
    }
}

impl StoreError {
    /// Redis refused a write for lack of memory; nothing of it was applied.
    pub fn is_full(&self) -> bool {
        let StoreError::Away(error) = self else { return false };
        error.clone().into_server_errors().is_some_and(|errors| errors.iter().any(|(_, error)| error.code() == "OOM"))
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers pass errors and texts they have no more use for")]
    pub fn corrupt(what: impl Into<String>, why: impl ToString) -> StoreError {
        StoreError::Corrupt { what: what.into(), why: why.to_string() }
    }
}

/// One namespace in one Redis.
#[derive(Clone)]
pub struct Store {
    client: redis::Client,
    /// Reads, accept and harvest.
    main: Link,
    /// Claims and leases, so that they never wait behind a large write.
    lease: Link,
    /// Where this Redis is, as [`crate::domain::home`] writes it.
    pub place: String,
    pub keys: Keys,
    /// As [`Store::server`] last said.
    server: Arc<Mutex<String>>,
    /// Added to Redis's clock in every script; 0 outside tests.
    pub skew_ms: u64,
    fitness: Fitness,
}

impl Store {
    /// Connects and checks that this Redis will not lose jobs.
    ///
    /// # Errors
    /// Redis cannot be reached, or its `maxmemory-policy` is one of `allkeys-*`, which would evict jobs.
    pub async fn connect(url: &str, namespace: &str) -> Result<Store, StoreError> {
        let mut info = url.into_connection_info()?;
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        info = info.set_tcp_settings(tcp);
        let place = home::place(&info);
        let client = redis::Client::open(info)?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_number_of_retries(2)
            .set_max_delay(Duration::from_secs(1));
        let main = Link::connect(&client, config.clone()).await?;
        let lease = Link::connect(&client, config).await?;
        let (keys, fitness) = (Keys::new(namespace), Fitness::default());
        let store = Store { client, main, lease, place, keys, server: Arc::default(), skew_ms: 0, fitness };
        store.check().await?;
        match store.unfit() {
            Some(why) => Err(StoreError::corrupt("maxmemory-policy", why)),
            None => {
                store.server().await?;
                Ok(store)
            }
        }
    }

    /// A connection of its own, for WATCH: on a shared one other commands would interleave.
    async fn dedicated(&self) -> Result<MultiplexedConnection, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_connection_timeout(Some(CONNECT_TIMEOUT));
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    pub async fn ping(&self) -> Result<(), StoreError> {
        let mut connection = self.main.clone();
        let ask = redis::cmd("PING");
        match tokio::time::timeout(Duration::from_secs(2), ask.query_async::<()>(&mut connection)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(redis::RedisError::from((redis::ErrorKind::Io, "no answer to PING in 2 s")).into()),
        }
    }
}

/// A script of ours, loaded by its text when Redis does not know it.
macro_rules! script {
    ($name:literal) => {{
        static SCRIPT: std::sync::LazyLock<redis::Script> =
            std::sync::LazyLock::new(|| redis::Script::new(include_str!(concat!("scripts/", $name, ".lua"))));
        &*SCRIPT
    }};
}
pub(crate) use script;
