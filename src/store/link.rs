//! A connection that finds its way back. The manager of the `redis` crate makes a new connection when the old one breaks,
//! but neither on READONLY (the node we speak to was made a replica) nor when nobody answers any more (it vanished
//! without a word): then it would ask the wrong one for ever. This one begins anew there, too, at most once a second.

use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value,
    aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Between two new beginnings.
const PAUSE: Duration = Duration::from_secs(1);

/// Cheap to clone; all clones share one connection.
#[derive(Clone)]
pub(super) struct Link(Arc<Shared>);

struct Shared {
    client: redis::Client,
    config: ConnectionManagerConfig,
    made: Mutex<Made>,
}

struct Made {
    manager: ConnectionManager,
    nth: u64,
    at: Instant,
}

impl Link {
    /// Connects, or says why that is impossible now.
    pub(super) async fn connect(client: &redis::Client, config: ConnectionManagerConfig) -> RedisResult<Link> {
        let manager = client.get_connection_manager_with_config(config.clone()).await?;
        let made = Mutex::new(Made { manager, nth: 0, at: Instant::now() });
        Ok(Link(Arc::new(Shared { client: client.clone(), config, made })))
    }

    fn current(&self) -> (u64, ConnectionManager) {
        let made = self.0.made.lock().unwrap_or_else(PoisonError::into_inner);
        (made.nth, made.manager.clone())
    }

    /// The connection that was `nth` leads nowhere: the next command begins a new one.
    fn renew(&self, nth: u64, why: &RedisError) {
        let mut made = self.0.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.nth != nth || made.at.elapsed() < PAUSE {
            return;
        }
        match ConnectionManager::new_lazy_with_config(self.0.client.clone(), self.0.config.clone()) {
            Ok(manager) => {
                tracing::warn!(%why, "this connection to redis leads nowhere: beginning another");
                metrics::counter!("batchgate_redis_reconnects_total").increment(1);
                *made = Made { manager, nth: nth + 1, at: Instant::now() };
            }
            Err(error) => tracing::warn!(%error, "begin another connection to redis"),
        }
    }
}

/// Another connection may do better.
fn leads_nowhere(error: &RedisError) -> bool {
    let read_only = |error: &RedisError| error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
    let within =
        || error.clone().into_server_errors().is_some_and(|errors| errors.iter().any(|(_, e)| e.code() == "READONLY"));
    read_only(error) || error.is_timeout() || within()
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let (nth, mut manager) = self.current();
            let answer = manager.req_packed_command(command).await.and_then(Value::extract_error);
            if let Err(error) = &answer
                && leads_nowhere(error)
            {
                self.renew(nth, error);
            }
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let (nth, mut manager) = self.current();
            let answer = manager.req_packed_commands(pipeline, offset, count).await;
            match &answer {
                Err(error) if leads_nowhere(error) => self.renew(nth, error),
                Err(_) => {}
                Ok(values) => {
                    let refused = values.iter().find_map(|value| match value {
                        Value::ServerError(error) if error.code() == "READONLY" => Some(error.clone()),
                        _ => None,
                    });
                    if let Some(error) = refused {
                        self.renew(nth, &error.into());
                    }
                }
            }
            answer
        })
    }

    fn get_db(&self) -> i64 {
        self.current().1.get_db()
    }
}
