//! What a Redis remembers of its home, and the mark of a copy. The facts alone: [`crate::domain::home`] judges them.

use super::{Store, StoreError, chunks::Lease, keys::Keys, script};
use crate::{
    clock::{self, Sure},
    domain::{
        home::{self, Home, Restored},
        id::{BatchId, ChunkId, Token},
    },
};
use redis::{ConnectionAddr, ConnectionInfo};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How long it is remembered that a gateway works here.
const AT_WORK: Duration = Duration::from_secs(10);
/// A field of the home for each place.
const PLACE: &str = "place:";

/// Where a URL leads.
pub(super) fn place(info: &ConnectionInfo) -> String {
    let db = info.redis_settings().db();
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => named(host, *port, db),
        _ => home::LOCAL.to_owned(),
    }
}

/// A host by its name.
fn named(host: &str, port: u16, db: i64) -> String {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let loopback = host == "localhost" || bare.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    if loopback { home::LOCAL.to_owned() } else { format!("{host}:{port}/{db}") }
}

type Fields = HashMap<String, String>;

/// What the two hashes say; none where they are not there.
pub(super) fn read(home: &Fields, mark: &Fields) -> (Option<Home>, Option<Restored>) {
    let text = |fields: &Fields, name| fields.get(name).cloned().unwrap_or_default();
    let places = home.keys().filter_map(|name| name.strip_prefix(PLACE).map(str::to_owned)).collect();
    let at_home = (!home.is_empty()).then(|| Home { deployment: text(home, "deployment"), places });
    let marked = (!mark.is_empty()).then(|| Restored { at: text(mark, "at"), source: text(mark, "source") });
    (at_home, marked)
}

impl Store {
    /// Where this Redis is at home, and whether it bears the mark of a copy.
    pub async fn home(&self) -> Result<(Option<Home>, Option<Restored>), StoreError> {
        let mut pipe = redis::pipe();
        pipe.hgetall(Keys::home()).hgetall(Keys::restored());
        let (home, mark): (Fields, Fields) = pipe.query_async(&mut self.lease.of(Keys::home())).await?;
        Ok(read(&home, &mark))
    }

    /// Makes this Redis our home, if it is nobody's yet.
    pub async fn settle_in(&self, deployment: &str) -> Result<(), StoreError> {
        let mut call = script!("settle_in").prepare_invoke();
        call.key(Keys::home()).key(Keys::restored());
        call.arg(deployment).arg(&self.place).arg(clock::rfc3339(clock::now_ms()));
        call.invoke_async::<u8>(&mut self.lease.of(Keys::home())).await?;
        Ok(())
    }

    /// Makes this Redis our home, whatever it was. `known`: it is our deployment's already, and other places stay known.
    pub async fn move_in(&self, deployment: &str, known: bool) -> Result<(), StoreError> {
        let now = clock::rfc3339(clock::now_ms());
        let place = format!("{PLACE}{}", self.place);
        let mut pipe = redis::pipe();
        pipe.atomic();
        if !known {
            pipe.del(Keys::home()).ignore();
        }
        let fields = [("deployment", deployment), ("since", &now), (&place, &now)];
        pipe.hset_multiple(Keys::home(), &fields).ignore().del(Keys::restored()).ignore();
        Ok(pipe.query_async(&mut self.lease.of(Keys::home())).await?)
    }

    /// Says that a gateway of this deployment works here.
    pub async fn note_at_work(&self, deployment: &str) -> Result<(), StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(Keys::at_work()).arg(deployment).arg("PX").arg(clock::millis(AT_WORK));
        Ok(set.query_async(&mut self.lease.of(Keys::at_work())).await?)
    }

    /// The deployment whose gateway worked here in the last ten seconds.
    pub async fn at_work(&self) -> Result<Option<String>, StoreError> {
        Ok(redis::cmd("GET").arg(Keys::at_work()).query_async(&mut self.lease.of(Keys::at_work())).await?)
    }

    /// All batches that have not ended.
    pub async fn open_batches(&self) -> Result<Vec<BatchId>, StoreError> {
        let mut range = redis::cmd("ZRANGE");
        range.arg(self.keys.open_batches()).arg(0).arg(-1);
        let ids: Vec<String> = range.query_async(&mut self.main.clone()).await?;
        Ok(ids.iter().filter_map(|hex| BatchId::from_hex(hex)).collect())
    }

    /// Takes a chunk out of whatever hands held it: for a Redis on which no worker runs.
    pub async fn seize(&self, chunk: ChunkId, token: Token) -> Result<Lease, StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(self.keys.fence(chunk)).arg(token.as_str());
        set.query_async::<()>(&mut self.lease.clone()).await?;
        // Nothing is sent under it.
        Ok(Lease { chunk, token, sure: Sure::since(Instant::now(), Duration::ZERO) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::IntoConnectionInfo;

    #[test]
    fn every_spelling_of_this_machine_is_one_place() {
        let at = |url: &str| place(&url.into_connection_info().expect("a URL"));
        for url in ["unix:///run/redis.sock", "redis://localhost", "redis://:x@127.9.9.9:7/3", "redis://[::1]:7"] {
            assert_eq!(at(url), home::LOCAL, "{url}");
        }
        assert_eq!(at("redis://u:secret@Redis.Prod./2"), "redis.prod:6379/2");
        assert_ne!(at("redis://10.0.0.1:1"), at("redis://10.0.0.1:2"));
    }
}
