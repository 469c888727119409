//! DEVICE: Redis, and only Redis. Split by what is asked; every key string is in [`keys`], every stored shape in
//! [`record`]. Knows nothing of providers or of HTTP, and decides nothing: policies live in `domain` and `pipeline`.

pub mod accounts;
pub mod batches;
pub mod cache;
pub mod chunks;
pub mod commit;
pub mod gauges;

pub mod idempotency;
pub mod keys;
pub mod listing;
pub mod pages;
pub mod queue;
pub mod reconcile;
pub mod record;
pub mod runs;
pub mod said;
pub mod seal;
pub mod sweep;
pub mod unanswered;
pub mod unreadable;
pub mod uploads;

use keys::Keys;
use redis::{
    AsyncConnectionConfig, IntoConnectionInfo,
    aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection},
};
use std::time::Duration;

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
    main: ConnectionManager,
    /// Claims and leases, so that they never wait behind a large write.
    lease: ConnectionManager,
    pub keys: Keys,
    /// Added to Redis's clock in every script; 0 outside tests.
    pub skew_ms: u64,
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
        let client = redis::Client::open(info)?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_number_of_retries(2)
            .set_max_delay(Duration::from_secs(1));
        let main = client.get_connection_manager_with_config(config.clone()).await?;
        let lease = client.get_connection_manager_with_config(config).await?;
        let store = Store { client, main, lease, keys: Keys::new(namespace), skew_ms: 0 };
        store.check_policy().await?;
        Ok(store)
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

    /// Warns of settings that can lose jobs, and refuses those that will.
    async fn check_policy(&self) -> Result<(), StoreError> {
        let mut connection = self.main.clone();
        let read = |name: &'static str| {
            let mut connection = connection.clone();
            async move {
                let mut ask = redis::cmd("CONFIG");
                ask.arg("GET").arg(name);
                let pair: Vec<String> = ask.query_async(&mut connection).await.unwrap_or_default();
                pair.into_iter().nth(1).unwrap_or_default()
            }
        };
        let policy = read("maxmemory-policy").await;
        if policy.starts_with("allkeys-") {
            return Err(StoreError::corrupt(
                "maxmemory-policy",
                format!("{policy} evicts jobs; set it to noeviction (CONFIG SET maxmemory-policy noeviction)"),
            ));
        }
        if policy.starts_with("volatile-") {
            tracing::warn!(%policy, "this redis may evict cached answers under memory pressure; noeviction is safer");
        }
        if read("appendonly").await == "no" {
            tracing::warn!("this redis has no append-only file: a crash of redis loses jobs and paid answers");
        }
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        Ok(())
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
