//! Room in Redis: what is used and promised, how large answers turn out, and what the cache takes and gives back.
//!
//! The cache's size is an estimate: keys drawn at random tell which part of all keys are cache entries and how large those
//! are, within some per cent for a cache that matters. What goes is drawn the same way, as Redis itself does it: of some
//! hundred keys the entries idle for longest, so nearly, not exactly, the least recently used. Redis counts idle time in
//! seconds, and from its own start.

use super::{Store, StoreError, keys::Keys, script};
use crate::{
    clock,
    domain::{estimate::Learnt, prompt::Endpoint, room::Room},
};
use redis::{Value, from_redis_value};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

/// Keys drawn for one look.
const DRAWN: usize = 512;
/// Longest time one call removes entries for; the next call goes on.
const AT_MOST: Duration = Duration::from_secs(2);
/// Looks in a row that see no entry before the cache counts as empty.
const IN_VAIN: u32 = 3;
/// What is learnt of sizes is forgotten after so long without an answer, and holds so many models.
const REMEMBERED: Duration = Duration::from_secs(90 * 86_400);
const MODELS: usize = 1_000;

/// How large the cache is, about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSize {
    pub entries: u64,
    pub bytes: u64,
}

/// Entries that were removed, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub entries: u64,
    pub bytes: u64,
}

/// Answers of one model at one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub answers: u64,
    /// As they are stored, each packed alone.
    pub bytes: u64,
}

struct Entry {
    name: String,
    bytes: u64,
    /// Larger: longer not looked at.
    age: u64,
}

/// Some keys drawn at random: the cache entries among them, longest idle first.
struct Look {
    size: CacheSize,
    entries: Vec<Entry>,
}

impl Store {
    /// Where Redis does not tell its memory, there is no bound. What is promised in other namespaces of the same Redis takes
    /// room as well.
    pub async fn room(&self) -> Result<Room, StoreError> {
        let memory = self.memory().await?;
        let (mut ask, here) = (redis::pipe(), self.node());
        ask.get(self.keys.reserved());
        let others = self.in_use.all().into_iter().filter(|keys| keys.prefix() != self.keys.prefix());
        for keys in others.filter(|keys| self.main.of(keys.prefix()).node().is_ok_and(|node| node == here)) {
            ask.get(keys.reserved());
        }
        let told: Vec<Option<u64>> = ask.query_async(&mut self.main.clone()).await?;
        let mut promised = told.into_iter().map(|bytes| bytes.unwrap_or(0));
        let reserved = promised.next().unwrap_or(0);
        Ok(Room { used: memory.used, max: memory.max, reserved, elsewhere: promised.sum() })
    }

    /// Of all namespaces of this Redis together.
    pub async fn cache_size(&self) -> Result<CacheSize, StoreError> {
        Ok(self.look_around().await?.size)
    }

    /// Removes about so many bytes of cache entries, of whatever namespace, least recently used first, for two seconds at most. Costs money
    /// later and never an answer: no batch reads the cache once it is accepted.
    pub async fn shrink_cache(&self, bytes: u64) -> Result<Removed, StoreError> {
        let (began, mut removed, mut in_vain) = (Instant::now(), Removed::default(), 0);
        while removed.bytes < bytes && began.elapsed() < AT_MOST && in_vain < IN_VAIN {
            let look = self.look_around().await?;
            in_vain = if look.entries.is_empty() { in_vain + 1 } else { 0 };
            // So large a part of what was drawn as is to go of the whole; half of it where all is to go.
            let wanted = bytes - removed.bytes;
            let part = (look.entries.len() as u64).saturating_mul(wanted) / look.size.bytes.max(1);
            let most = look.entries.len().div_ceil(2);
            let count = usize::try_from(part).unwrap_or(most).clamp(1, most.max(1));
            let mut names = Vec::new();
            for entry in look.entries.into_iter().take(count) {
                if removed.bytes >= bytes {
                    break;
                }
                removed.bytes += entry.bytes;
                removed.entries += 1;
                names.push(entry.name);
            }
            // One by one: they may be of several namespaces, and a command is of one.
            let mut pipe = redis::pipe();
            for name in &names {
                pipe.unlink(name).ignore();
            }
            if !names.is_empty() {
                pipe.query_async::<()>(&mut self.main.clone()).await?;
            }
        }
        Ok(removed)
    }

    async fn look_around(&self) -> Result<Look, StoreError> {
        let mut draw = redis::pipe();
        draw.cmd("DBSIZE");
        for _ in 0..DRAWN {
            draw.cmd("RANDOMKEY");
        }
        let drawn: Vec<Value> = draw.query_async(&mut self.main.clone()).await?;
        let mut drawn = drawn.into_iter();
        let keys: u64 = drawn.next().and_then(|size| from_redis_value(size).ok()).unwrap_or(0);
        let mut times: BTreeMap<String, u64> = BTreeMap::new();
        for name in drawn.filter_map(|name| from_redis_value::<Option<String>>(name).ok().flatten()) {
            if Keys::is_cached(&name) {
                *times.entry(name).or_default() += 1;
            }
        }
        let names: BTreeSet<&String> = times.keys().collect();
        let mut entries = Vec::new();
        let (mut hits, mut bytes) = (0, 0);
        for (name, facts) in self.weigh(names.into_iter().cloned().collect()).await? {
            let drawn = times.get(&name).copied().unwrap_or(0);
            hits += drawn;
            bytes += facts.bytes * drawn;
            entries.push(Entry { name, ..facts });
        }
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.age));
        let of_all = |sum: u64| u64::try_from(u128::from(sum) * u128::from(keys) / DRAWN as u128).unwrap_or(u64::MAX);
        Ok(Look { size: CacheSize { entries: of_all(hits), bytes: of_all(bytes) }, entries })
    }

    /// Size and age of some entries; one that is gone meanwhile is left out.
    async fn weigh(&self, names: Vec<String>) -> Result<HashMap<String, Entry>, StoreError> {
        let mut found = HashMap::new();
        if names.is_empty() {
            return Ok(found);
        }
        let mut ask = redis::pipe();
        // Under a policy that counts uses Redis knows no idle time; then the end of an entry's life tells its age.
        ask.ignore_errors();
        for name in &names {
            ask.cmd("MEMORY").arg("USAGE").arg(name).cmd("OBJECT").arg("IDLETIME").arg(name).cmd("PTTL").arg(name);
        }
        let told: Vec<Value> = ask.query_async(&mut self.main.clone()).await?;
        for (name, told) in names.into_iter().zip(told.chunks_exact(3)) {
            let number = |at: usize| from_redis_value::<Option<u64>>(told[at].clone()).ok().flatten();
            let Some(bytes) = number(0) else { continue };
            let idle_ms = number(1).map(|seconds| seconds * 1_000);
            let age = idle_ms.unwrap_or_else(|| u64::MAX - number(2).unwrap_or(0));
            found.insert(name.clone(), Entry { name, bytes, age });
        }
        Ok(found)
    }

    /// What answers of each model have taken so far.
    pub async fn learnt(&self) -> Result<Learnt, StoreError> {
        let stored: HashMap<String, String> =
            redis::cmd("HGETALL").arg(self.keys.sizes()).query_async(&mut self.main.clone()).await?;
        let mean = |text: &str| text.split(' ').next()?.parse().ok();
        Ok(Learnt::new(stored.into_iter().filter_map(|(field, text)| Some((field, mean(&text)?)))))
    }

    /// Learns from a commit's answers. Of embeddings nothing is learnt: their size follows from their dimensions.
    pub async fn learn(&self, endpoint: Endpoint, tallies: &BTreeMap<String, Tally>) -> Result<(), StoreError> {
        if !Learnt::learns(endpoint) || tallies.is_empty() {
            return Ok(());
        }
        let mut call = script!("learn").prepare_invoke();
        call.key(self.keys.sizes()).arg(clock::millis(REMEMBERED)).arg(MODELS);
        for (model, tally) in tallies {
            call.arg(Learnt::field(endpoint, model)).arg(tally.answers).arg(tally.bytes);
        }
        Ok(call.invoke_async(&mut self.main.clone()).await?)
    }
}
