//! Who owns what in a Redis Cluster, or that there is none. A key's hash tag names its slot, and a slot has one owner; all
//! we ask in one go bears one tag. It is asked at the start, when an answer says that a slot moved, and when a node does
//! not answer: another one may have taken its place.

use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult, Value};
use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Between two looks at who owns what.
const PAUSE: Duration = Duration::from_secs(1);
/// One node's time to say who owns what.
const PATIENCE: Duration = Duration::from_secs(3);
const SLOTS: u16 = 16_384;

/// A place in a cluster: `host:port`. Empty: the place that is configured.
pub(super) type Node = String;

/// The slot of a key or of what a key begins with: of its hash tag alone, if it has one.
pub(super) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    let mut crc: u16 = 0;
    for byte in bytes {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc
}

/// What is known of who owns what.
pub(super) struct Topology {
    info: ConnectionInfo,
    known: Mutex<Known>,
    /// One asks at a time; the others go by what is known.
    asking: tokio::sync::Mutex<()>,
}

struct Known {
    /// None: a Redis alone.
    ranges: Option<Vec<Range>>,
    asked: Instant,
    /// Something said that it is not so any more.
    doubted: bool,
}

struct Range {
    first: u16,
    last: u16,
    /// The owner, then its replicas.
    nodes: Vec<Node>,
}

impl Topology {
    /// Asks the configured place.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) async fn ask(info: ConnectionInfo) -> RedisResult<Topology> {
        let ranges = ranges(&info).await?;
        let known = Mutex::new(Known { ranges, asked: Instant::now(), doubted: false });
        Ok(Topology { info, known, asking: tokio::sync::Mutex::default() })
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node that owns a slot.
    ///
    /// # Errors
    /// Nobody does: the cluster is not whole.
    pub(super) fn owner(&self, slot: u16) -> RedisResult<Node> {
        let known = self.known();
        let Some(ranges) = &known.ranges else { return Ok(Node::new()) };
        let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
        let owner = range.and_then(|range| range.nodes.first());
        let nobody =
            || RedisError::from((ErrorKind::Io, "nobody in this cluster owns a slot we need", slot.to_string()));
        owner.cloned().ok_or_else(nobody)
    }

    pub(super) fn db(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// How a node is spoken to.
    pub(super) fn client(&self, node: &Node) -> RedisResult<Client> {
        Client::open(at(&self.info, node))
    }

    /// An answer said who owns a slot now; the rest is asked for again.
    pub(super) fn moved(&self, slot: u16, to: &str) {
        let mut known = self.known();
        known.doubted = true;
        let nodes = vec![to.to_owned()];
        if let Some(ranges) = &mut known.ranges {
            ranges.insert(0, Range { first: slot, last: slot, nodes });
        }
    }

    /// A node did not answer: in a cluster another one may own its slots by now.
    pub(super) fn doubt(&self) {
        self.known().doubted = true;
    }

    /// Asks again if there is a doubt: at most once a second, whoever of the nodes answers first.
    pub(super) async fn settle_doubts(&self) {
        let nodes = {
            let known = self.known();
            let (Some(ranges), true) = (&known.ranges, known.doubted) else { return };
            if known.asked.elapsed() < PAUSE {
                return;
            }
            let all: BTreeSet<Node> = ranges.iter().flat_map(|range| range.nodes.iter().cloned()).collect();
            all
        };
        let Ok(_asking) = self.asking.try_lock() else { return };
        self.known().asked = Instant::now();
        for node in nodes.iter().chain([&Node::new()]) {
            match ranges(&at(&self.info, node)).await {
                Ok(Some(ranges)) => {
                    let mut known = self.known();
                    (known.ranges, known.doubted) = (Some(ranges), false);
                    return;
                }
                Ok(None) => tracing::warn!(node, "this redis was part of a cluster, and is none any more"),
                Err(why) => tracing::debug!(node, %why, "ask who owns what in the cluster"),
            }
        }
        tracing::warn!("no node of this redis cluster says who owns what; again in a second");
    }
}

/// The place of a node in the words of the configured one: same user, same TLS.
fn at(info: &ConnectionInfo, node: &Node) -> ConnectionInfo {
    let Some((host, port)) = node.rsplit_once(':').and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)))
    else {
        return info.clone();
    };
    let addr = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

/// Who owns what, as one node says; none where there is no cluster, or nobody may ask for it.
async fn ranges(info: &ConnectionInfo) -> RedisResult<Option<Vec<Range>>> {
    let config =
        AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE)).set_connection_timeout(Some(PATIENCE));
    let mut connection = Client::open(info.clone())?.get_multiplexed_async_connection_with_config(&config).await?;
    match redis::cmd("CLUSTER").arg("SLOTS").query_async::<Vec<Value>>(&mut connection).await {
        Ok(said) => Ok(Some(said.iter().filter_map(|range| read(range, info)).collect())),
        Err(error) if error.kind() == ErrorKind::Server(redis::ServerErrorKind::BusyLoading) => Err(error),
        // "This instance has cluster support disabled", a server that knows no such command, or a user who may not.
        Err(error) if error.code().is_some() => Ok(None),
        Err(away) => Err(away),
    }
}

/// `[first, last, [host, port, id, ..], replicas..]`. A node may leave its host out: then it is the one that was asked.
fn read(range: &Value, asked: &ConnectionInfo) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), nodes @ ..] = &parts[..] else { return None };
    let node = |told: &Value| {
        let Value::Array(parts) = told else { return None };
        let [host, Value::Int(port), ..] = &parts[..] else { return None };
        let told: Option<String> = redis::from_redis_value(host.clone()).ok()?;
        let host = told.filter(|host| !host.is_empty() && host != "?").or_else(|| host_of(asked))?;
        Some(format!("{host}:{port}"))
    };
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    Some(Range { first, last, nodes: nodes.iter().filter_map(node).collect() })
}

fn host_of(info: &ConnectionInfo) -> Option<String> {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::IntoConnectionInfo;

    #[test]
    fn a_tag_names_its_slot() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot("foo"), 12_182);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(slot("{default}:"), slot("{default}:b:1"));
        assert_ne!(slot("{default}:"), slot("{sys}:home"));
        // An empty tag is none.
        assert_eq!(slot("foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
    }

    #[test]
    fn ranges_are_read_and_a_node_without_a_host_is_the_one_that_was_asked() {
        let asked = "redis://u:p@seed:7000".into_connection_info().expect("a URL");
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(Vec::new())]);
        let nodes = [node(text("10.0.0.1"), 7_001), node(Value::Nil, 7_002), node(text("fd00::1"), 7_003)];
        let mut parts = vec![Value::Int(0), Value::Int(5_460)];
        parts.extend(nodes);
        let range = read(&Value::Array(parts), &asked).expect("a range");
        assert_eq!((range.first, range.last), (0, 5_460));
        assert_eq!(range.nodes, ["10.0.0.1:7001", "seed:7002", "fd00::1:7003"]);
        let there = at(&asked, &range.nodes[2]);
        assert_eq!(*there.addr(), ConnectionAddr::Tcp("fd00::1".to_owned(), 7_003));
        assert_eq!(there.redis_settings().password(), Some("p"));
        assert!(read(&Value::Nil, &asked).is_none());
    }
}
