//! A connection that finds its way back. The manager of the `redis` crate makes a new connection when the old one breaks,
//! but neither on READONLY (the node we speak to was made a replica) nor when nobody answers any more (it vanished
//! without a word): then it would ask the wrong one for ever. This one begins anew there, too, at most once a second.
//!
//! In a cluster it leads to whoever owns its slot, and follows a slot that moved once. The crate's own cluster connection
//! cannot WATCH, and finds a pipeline's node by its first key alone; all we ask in one go bears one hash tag, so a plain
//! connection to that tag's owner does.

use super::cluster::{Node, Topology, slot};
use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value,
    aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Between two new beginnings.
const PAUSE: Duration = Duration::from_secs(1);

/// The way to one hash tag. Cheap to clone; all ways share one connection to each node.
#[derive(Clone)]
pub(super) struct Link {
    net: Arc<Net>,
    slot: u16,
}

struct Net {
    topology: Arc<Topology>,
    config: ConnectionManagerConfig,
    made: Mutex<BTreeMap<Node, Made>>,
}

struct Made {
    manager: ConnectionManager,
    nth: u64,
    at: Instant,
}

/// A connection in use.
struct Current {
    node: Node,
    nth: u64,
    manager: ConnectionManager,
}

impl Link {
    /// Connects to the owner of this key's slot, or says why that is impossible now.
    pub(super) async fn connect(
        topology: &Arc<Topology>,
        config: ConnectionManagerConfig,
        key: &str,
    ) -> RedisResult<Link> {
        let slot = slot(key);
        let node = topology.owner(slot)?;
        let manager = topology.client(&node)?.get_connection_manager_with_config(config.clone()).await?;
        let made = Mutex::new(BTreeMap::from([(node, Made { manager, nth: 0, at: Instant::now() })]));
        Ok(Link { net: Arc::new(Net { topology: Arc::clone(topology), config, made }), slot })
    }

    /// The way to another key's hash tag.
    pub(super) fn of(&self, key: &str) -> Link {
        Link { net: Arc::clone(&self.net), slot: slot(key) }
    }

    /// Where it leads now; empty for a Redis alone.
    pub(super) fn node(&self) -> RedisResult<Node> {
        self.net.topology.owner(self.slot)
    }

    /// For a connection of one's own.
    pub(super) async fn client(&self) -> RedisResult<redis::Client> {
        self.net.topology.settle_doubts().await;
        self.net.topology.client(&self.node()?)
    }

    async fn current(&self) -> RedisResult<Current> {
        let net = &self.net;
        net.topology.settle_doubts().await;
        let node = self.node()?;
        let mut made = net.made();
        if let Some(Made { manager, nth, .. }) = made.get(&node) {
            return Ok(Current { node, nth: *nth, manager: manager.clone() });
        }
        let manager = ConnectionManager::new_lazy_with_config(net.topology.client(&node)?, net.config.clone())?;
        made.insert(node.clone(), Made { manager: manager.clone(), nth: 0, at: Instant::now() });
        Ok(Current { node, nth: 0, manager })
    }

    /// What a failed command says of where it was sent.
    fn learn(&self, from: &Current, error: &RedisError) {
        if let Some((to, slot)) = moved(error) {
            tracing::info!(slot, to, "a slot of the redis cluster has another owner");
            self.net.topology.moved(slot, &to);
        } else if leads_nowhere(error) {
            self.net.renew(from, error);
            self.net.topology.doubt();
        } else if error.is_io_error() || error.kind() == ErrorKind::Server(ServerErrorKind::ClusterDown) {
            self.net.topology.doubt();
        }
    }
}

impl Net {
    fn made(&self) -> std::sync::MutexGuard<'_, BTreeMap<Node, Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This connection leads nowhere: the next command begins a new one.
    fn renew(&self, from: &Current, why: &RedisError) {
        let mut made = self.made();
        let Some(known) = made.get(&from.node).filter(|made| made.nth == from.nth) else { return };
        if known.at.elapsed() < PAUSE {
            return;
        }
        let client = self.topology.client(&from.node);
        match client.and_then(|client| ConnectionManager::new_lazy_with_config(client, self.config.clone())) {
            Ok(manager) => {
                tracing::warn!(%why, "this connection to redis leads nowhere: beginning another");
                metrics::counter!("batchgate_redis_reconnects_total").increment(1);
                made.insert(from.node.clone(), Made { manager, nth: from.nth + 1, at: Instant::now() });
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

/// Who owns a slot, if that is what an error says. In a transaction it stands among the errors of its commands.
fn moved(error: &RedisError) -> Option<(Node, u16)> {
    if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
        return error.redirect_node().map(|(to, slot)| (to.to_owned(), slot));
    }
    let within = error.clone().into_server_errors()?;
    within.iter().find(|(_, one)| one.code() == "MOVED").and_then(|(_, one)| redirect(one.details()?))
}

/// `3999 127.0.0.1:6381`
fn redirect(text: &str) -> Option<(Node, u16)> {
    let (slot, to) = text.split_once(' ')?;
    Some((to.to_owned(), slot.parse().ok()?))
}

/// The first error among a pipeline's answers that says something of where it was sent.
fn refused(values: &[Value]) -> Option<RedisError> {
    values.iter().find_map(|value| match value {
        Value::ServerError(error) if ["READONLY", "MOVED", "CLUSTERDOWN"].contains(&error.code()) => {
            Some(error.clone().into())
        }
        _ => None,
    })
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let mut followed = false;
            loop {
                let mut current = self.current().await?;
                let answer = current.manager.req_packed_command(command).await.and_then(Value::extract_error);
                let Err(error) = &answer else { return answer };
                self.learn(&current, error);
                // Who says MOVED has done nothing.
                if followed || moved(error).is_none() {
                    return answer;
                }
                followed = true;
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let mut followed = false;
            loop {
                let mut current = self.current().await?;
                let answer = current.manager.req_packed_commands(pipeline, offset, count).await;
                let error = match &answer {
                    Err(error) => Some(error.clone()),
                    Ok(values) => refused(values),
                };
                let Some(error) = error else { return answer };
                self.learn(&current, &error);
                // Nothing was done only if all was refused; a MULTI is, as soon as one command of it is.
                let untouched = match &answer {
                    Err(_) => offset > 0,
                    Ok(values) => values.iter().all(|value| matches!(value, Value::ServerError(_))),
                };
                if followed || !untouched || moved(&error).is_none() {
                    return answer;
                }
                followed = true;
            }
        })
    }

    fn get_db(&self) -> i64 {
        self.net.topology.db()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_names_slot_and_place() {
        assert_eq!(redirect("3999 127.0.0.1:6381"), Some(("127.0.0.1:6381".to_owned(), 3_999)));
        assert_eq!(redirect("3999 redis-2.prod:6379"), Some(("redis-2.prod:6379".to_owned(), 3_999)));
        assert_eq!(redirect("soon"), None);
    }
}
