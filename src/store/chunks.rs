//! A chunk's facts in Redis: written once with the chunk, then field by field through fenced transitions.

use super::{Store, StoreError, record, script};
use crate::{
    clock::{Millis, Sure},
    domain::{
        account::{Reason, Waits},
        batch::{CacheMode, Priority},
        chunk::{Adopted, ChunkState, Item, Lane, Search},
        id::{BatchId, ChunkId, Token, WireTag},
        identity::Identity,
    },
};
use std::collections::HashMap;

/// A chunk as planned: everything about it that never changes.
#[derive(Clone, Debug)]
pub struct NewChunk {
    pub id: ChunkId,
    pub lane: Lane,
    pub mode: CacheMode,
    /// Cache entries from before this moment give way to its answers (`max_age`).
    pub fresh_since: Option<Millis>,
    pub tag: WireTag,
    pub items: Vec<Item>,
    /// Exact bytes of its file or body at the provider.
    pub wire_bytes: u64,
    pub deadline: Millis,
    pub team: String,
    pub priority: Priority,
    /// Bytes in Redis its answers are taken to need; its batch's promise is the sum of these.
    pub reserved: u64,
    /// Its questions are asked by others.
    pub joins: bool,
}

/// A chunk as it is now, without its items.
#[derive(Clone, Debug)]
pub struct Chunk {
    pub id: ChunkId,
    pub lane: Lane,
    pub mode: CacheMode,
    pub fresh_since: Option<Millis>,
    pub tag: WireTag,
    pub prompts: usize,
    pub wire_bytes: u64,
    pub deadline: Millis,
    pub team: String,
    pub priority: Priority,
    /// Bytes in Redis promised to its answers; 0 once it is settled.
    pub reserved: u64,
    pub state: ChunkState,
    /// Creates begun so far.
    pub attempt: u32,
    /// Calls about this chunk that failed in a row.
    pub fails: u32,
    /// Polls answered *still running* so far.
    pub polls: u32,
    /// The uploaded input file, if there is one.
    pub input: Option<String>,
    /// Prompts the provider last said were done.
    pub reported: u64,
    /// The provider was asked to cancel.
    pub cancel_sent: bool,
    /// Provider batches that were looked into and are not this chunk's.
    pub tried: Vec<String>,
    /// Since when the provider does not know the batch id we stored (404); none while it does.
    pub unknown_since: Option<Millis>,
    /// The token of the dispatch that settled it.
    pub settled_by: Option<String>,
    /// The number of reclaims it was last made to wait for.
    pub backed_off: u32,
    /// Which of the account's keys its last create was sent with, as the adapter calls it.
    pub credential: Option<String>,
    /// Whose account its last create was sent to, as far as it is known.
    pub identity: Option<Identity>,
    /// Creates before this one's number are accounted for; none: all but the last are.
    pub unaccounted: Option<u32>,
    /// Which start of Redis its facts are known from; see [`Store::server`].
    pub server: Option<String>,
    /// Estimated tokens others had enqueued when its last create was sent.
    pub beside: u64,
    /// How often in a row it was refused for the token limit with nothing beside it.
    pub alone: u32,
    /// Others took questions of it over while it was planned: what is left to it must be looked up before it is sent.
    pub gave: bool,
}

/// A chunk that bears this field is none of its batch's own: others ask, or asked, its questions.
pub const JOINS: &str = "joins";

/// See [`Chunk::gave`].
pub const GAVE: &str = "gave";

/// A chunk with what its team may want to know of its past.
#[derive(Clone, Debug)]
pub struct ToldChunk {
    pub chunk: Chunk,
    /// The provider's id of its batch, once there was one.
    pub remote: Option<String>,
    pub succeeded: u64,
    pub failed: u64,
    pub submitted_at: Option<Millis>,
    pub settled_at: Option<Millis>,
}

/// The right to change one chunk, for one dispatch.
#[derive(Clone, Debug)]
pub struct Lease {
    pub chunk: ChunkId,
    pub token: Token,
    /// While it is, no other dispatch can have the chunk.
    pub sure: Sure,
}

/// What became of a fenced step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stepped {
    Done,
    /// Another dispatch has the chunk: stop, change nothing.
    Lost,
    /// The step leads to a paid call and the batch was cancelled meanwhile.
    Ending,
    /// It was in another state than the step allows.
    Elsewhere(String),
}

/// What happens to the claim after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    Hold,
    /// Given back; claimable again after this many milliseconds.
    After(Millis),
}

/// A step in a chunk's life.
pub struct Step<'a> {
    pub from: &'a [&'static str],
    pub to: &'a ChunkState,
    /// Further fields; an empty value removes the field.
    pub fields: Vec<(&'static str, String)>,
    pub release: Release,
    /// True if it leads to a paid call: refused once the batch is cancelled.
    pub asking: bool,
    /// Why it waits now. None: as before while it is held, for nothing once it is given back.
    pub waits: Option<&'a Waits>,
}

impl NewChunk {
    /// Commands that write the chunk, for a pipeline of the caller's: accept's, or a commit's MULTI.
    pub fn write(&self, store: &Store, pipe: &mut redis::Pipeline) {
        let state = if self.joins { ChunkState::Joining { owner: None } } else { ChunkState::Planned };
        let fields = [
            ("v", "1".to_owned()),
            ("state", state.word().to_owned()),
            ("lane", serde_json::to_string(&self.lane).expect("a lane serializes")),
            ("lane_id", if self.joins { joins_lane(&self.team) } else { lane_id(&self.lane.account, &self.team) }),
            ("mode", word(self.mode)),
            ("tag", self.tag.as_str().to_owned()),
            ("prompts", self.items.len().to_string()),
            ("wire_bytes", self.wire_bytes.to_string()),
            ("deadline", self.deadline.to_string()),
            ("team", self.team.clone()),
            ("server", store.known_server()),
            ("reserved", self.reserved.to_string()),
        ];
        // What the reconciler asks: how many results it will bring, and the first and last page it touches.
        let places = || self.items.iter().flat_map(|item| &item.places);
        let results: u64 = places().map(|place| u64::from(place.results)).sum();
        let (first, last) = (places().map(|at| at.page).min(), places().map(|at| at.page).max());
        let span = [("results", results), ("first", first.unwrap_or(0).into()), ("last", last.unwrap_or(0).into())];
        pipe.hset_multiple(store.keys.chunk(self.id), &span).ignore();
        pipe.hset_multiple(store.keys.chunk(self.id), &fields).ignore();
        if self.joins {
            pipe.hset(store.keys.chunk(self.id), JOINS, 1).ignore();
        }
        if self.priority == Priority::Low {
            pipe.hset(store.keys.chunk(self.id), "priority", "low").ignore();
        }
        if let Some(moment) = self.fresh_since {
            pipe.hset(store.keys.chunk(self.id), "fresh_since", moment).ignore();
        }
        pipe.set(store.keys.items(self.id), record::pack_items(&self.items)).ignore();
    }
}

/// Where a team's chunks for an account stand while they are ready: the account in front, so that a claim can pass by one
/// that has no permit left, and the team at the end, so that a claim sees whose turn it is. A claim looks at every lane, so
/// there are as many as an operator made, not as many as a team asks models and headers: it may invent thousands of those.
pub fn lane_id(account: &str, team: &str) -> String {
    format!("{account}:asks:{team}")
}

/// Where chunks stand that wait for others: they ask nobody, so no account holds them up.
pub fn joins_lane(team: &str) -> String {
    format!(":joins:{team}")
}

fn word(mode: CacheMode) -> String {
    serde_json::to_string(&mode).expect("a word").trim_matches('"').to_owned()
}

impl Store {
    /// The chunk as it is now; `None` if there is no such chunk (any more).
    pub async fn chunk(&self, id: ChunkId) -> Result<Option<Chunk>, StoreError> {
        let fields: HashMap<String, String> =
            redis::cmd("HGETALL").arg(self.keys.chunk(id)).query_async(&mut self.main.clone()).await?;
        if fields.is_empty() {
            return Ok(None);
        }
        read_chunk(id, &Fields { id, fields }).map(Some)
    }

    pub async fn items(&self, id: ChunkId) -> Result<Vec<Item>, StoreError> {
        let stored: Option<Vec<u8>> =
            redis::cmd("GET").arg(self.keys.items(id)).query_async(&mut self.main.clone()).await?;
        record::unpack_items(&stored.ok_or_else(|| StoreError::corrupt(format!("items of {id}"), "absent"))?)
    }

    /// Chunks of a batch from a number on, at most `limit`, as their team may read them, without those that wait for
    /// others; and the number after the last.
    pub async fn told_chunks(
        &self,
        batch: BatchId,
        from: u32,
        limit: u32,
    ) -> Result<(Vec<ToldChunk>, u32), StoreError> {
        let end = self.chunk_numbers(batch).await?;
        let until = end.min(from.saturating_add(limit));
        let mut pipe = redis::pipe();
        for number in from..until {
            pipe.hgetall(self.keys.chunk(ChunkId { batch, number }));
        }
        let found: Vec<HashMap<String, String>> =
            if from < until { pipe.query_async(&mut self.main.clone()).await? } else { Vec::new() };
        let own = |fields: &HashMap<String, String>| !fields.is_empty() && !fields.contains_key(JOINS);
        let told = (from..).zip(found).filter(|(_, fields)| own(fields));
        let told = told.map(|(number, fields)| {
            let id = ChunkId { batch, number };
            let fields = Fields { id, fields };
            let chunk = read_chunk(id, &fields)?;
            Ok(ToldChunk {
                remote: fields.get("remote").map(str::to_owned),
                succeeded: fields.number("succeeded").unwrap_or(0),
                failed: fields.number("failed").unwrap_or(0),
                submitted_at: fields.number("submitted_at"),
                settled_at: fields.number("settled_at"),
                chunk,
            })
        });
        Ok((told.collect::<Result<_, StoreError>>()?, end))
    }

    /// Notes whose a provider's batch is, as its create's own answer said: no other chunk in doubt may adopt it.
    pub async fn know_remote(&self, remote: &str, chunk: ChunkId) -> Result<(), StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(self.keys.remote(remote)).arg(chunk.to_string()).arg("EX").arg(31 * 24 * 60 * 60);
        Ok(set.query_async(&mut self.main.clone()).await?)
    }

    /// The chunk a provider's batch is known to belong to.
    pub async fn remote_owner(&self, remote: &str) -> Result<Option<ChunkId>, StoreError> {
        let owner: Option<String> =
            redis::cmd("GET").arg(self.keys.remote(remote)).query_async(&mut self.main.clone()).await?;
        Ok(owner.and_then(|text| ChunkId::parse(&text)))
    }

    /// Takes one step in the chunk's life, if this dispatch still holds it and the chunk is where the step begins.
    pub async fn step(&self, lease: &Lease, step: &Step<'_>) -> Result<Stepped, StoreError> {
        let mut call = script!("transition").prepare_invoke();
        let batch = lease.chunk.batch;
        call.key(self.keys.chunk(lease.chunk)).key(self.keys.fence(lease.chunk)).key(self.keys.batch(batch));
        call.key(self.keys.claimed()).key(self.keys.delayed());
        call.arg(lease.chunk.to_string()).arg(lease.token.as_str()).arg(step.from.join(",")).arg(step.to.word());
        match step.release {
            Release::Hold => call.arg("hold"),
            Release::After(delay) => call.arg(delay),
        };
        call.arg(self.skew_ms).arg(if step.asking { "asking" } else { "" });
        call.arg(step.waits.and_then(|waits| waits.reason).map_or("", Reason::word));
        call.arg(step.waits.map_or("", |waits| waits.detail.as_str()));
        call.arg(step.waits.and_then(|waits| waits.group.as_deref()).unwrap_or("")).arg(self.keys.prefix());
        for (name, value) in state_fields(step.to).into_iter().chain(step.fields.iter().cloned()) {
            call.arg(name).arg(value);
        }
        let answer: String = call.invoke_async(&mut self.lease.clone()).await?;
        Ok(match answer.as_str() {
            "ok" => {
                if step.release != Release::Hold {
                    lease.sure.give_back();
                }
                Stepped::Done
            }
            "lost" => Stepped::Lost,
            "ending" => Stepped::Ending,
            _ => Stepped::Elsewhere(answer),
        })
    }
}

/// The fields that hold a state's own data; those of other states are removed.
fn state_fields(state: &ChunkState) -> Vec<(&'static str, String)> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let flag = |set: bool| if set { "1".to_owned() } else { String::new() };
    let list = |list: &[String]| serde_json::to_string(list).expect("strings serialize");
    let (mut newest, mut looks, mut remote, mut sources, mut looked, mut adopted) = Default::default();
    let (mut by_tag, mut candidates, mut owner) = (String::new(), String::new(), String::new());
    match state {
        ChunkState::Joining { owner: of } => owner = of.map(|chunk| chunk.to_string()).unwrap_or_default(),
        ChunkState::Planned | ChunkState::Asking | ChunkState::Settled => {}
        ChunkState::Submitting { newest_before } => newest = text(newest_before),
        ChunkState::InDoubt(search) => {
            (newest, looks, by_tag) = (text(&search.newest_before), search.looks.to_string(), flag(search.by_tag));
            candidates = if search.candidates.is_empty() { String::new() } else { list(&search.candidates) };
        }
        ChunkState::Running { remote: id, adopted: from } => {
            remote = id.clone();
            adopted = flag(from.is_some());
            newest = from.as_ref().map(|from| text(&from.newest_before)).unwrap_or_default();
        }
        ChunkState::Harvested { remote: id, sources: all, looked: once, adopted: from } => {
            remote = id.clone();
            sources = list(all);
            looked = flag(*once);
            adopted = flag(from.is_some());
            newest = from.as_ref().map(|from| text(&from.newest_before)).unwrap_or_default();
        }
    }
    let own = [("newest", newest), ("looks", looks), ("remote", remote), ("sources", sources), ("looked", looked)];
    let rest = [("adopted", adopted), ("by_tag", by_tag), ("candidates", candidates), ("owner", owner)];
    own.into_iter().chain(rest).collect()
}

struct Fields {
    id: ChunkId,
    fields: HashMap<String, String>,
}

impl Fields {
    fn text(&self, name: &str) -> Result<&str, StoreError> {
        self.get(name).ok_or_else(|| StoreError::corrupt(format!("chunk {}", self.id), format!("no {name}")))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.get(name)?.parse().ok()
    }

    fn parsed<T>(&self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
        parse(self.text(name)?).ok_or_else(|| StoreError::corrupt(format!("chunk {}", self.id), format!("odd {name}")))
    }
}

fn read_chunk(id: ChunkId, fields: &Fields) -> Result<Chunk, StoreError> {
    Ok(Chunk {
        id,
        lane: fields.parsed("lane", |text| serde_json::from_str(text).ok())?,
        mode: fields.parsed("mode", |text| serde_json::from_value(text.into()).ok())?,
        fresh_since: fields.number("fresh_since"),
        tag: fields.parsed("tag", WireTag::from_stored)?,
        prompts: fields.parsed("prompts", |text| text.parse().ok())?,
        wire_bytes: fields.parsed("wire_bytes", |text| text.parse().ok())?,
        deadline: fields.parsed("deadline", |text| text.parse().ok())?,
        team: fields.text("team")?.to_owned(),
        priority: if fields.get("priority") == Some("low") { Priority::Low } else { Priority::Normal },
        reserved: fields.number("reserved").unwrap_or(0),
        state: read_state(fields)?,
        attempt: fields.number("attempt").unwrap_or(0),
        fails: fields.number("fails").unwrap_or(0),
        polls: fields.number("polls").unwrap_or(0),
        input: fields.get("input").map(str::to_owned),
        reported: fields.number("reported").unwrap_or(0),
        cancel_sent: fields.get("cancel_sent") == Some("1"),
        tried: fields.get("tried").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
        unknown_since: fields.number("unknown_since"),
        settled_by: fields.get("settled_by").map(str::to_owned),
        backed_off: fields.number("backed_off").unwrap_or(0),
        credential: fields.get("credential").map(str::to_owned),
        identity: fields.get("identity").and_then(|text| serde_json::from_str(text).ok()),
        unaccounted: fields.number("unaccounted"),
        server: fields.get("server").map(str::to_owned),
        beside: fields.number("beside").unwrap_or(0),
        alone: fields.number("alone").unwrap_or(0),
        gave: fields.get(GAVE).is_some(),
    })
}

fn read_state(fields: &Fields) -> Result<ChunkState, StoreError> {
    let newest_before = fields.get("newest").map(str::to_owned);
    let adopted = fields.get("adopted").map(|_| Adopted { newest_before: newest_before.clone() });
    let remote = || fields.text("remote").map(str::to_owned);
    Ok(match fields.text("state")? {
        "joining" => ChunkState::Joining { owner: fields.get("owner").and_then(ChunkId::parse) },
        "planned" => ChunkState::Planned,
        "asking" => ChunkState::Asking,
        "submitting" => ChunkState::Submitting { newest_before },
        "in_doubt" => ChunkState::InDoubt(Search {
            newest_before,
            looks: fields.number("looks").unwrap_or(0),
            by_tag: fields.get("by_tag") == Some("1"),
            candidates: match fields.get("candidates") {
                Some(_) => fields.parsed("candidates", |text| serde_json::from_str(text).ok())?,
                None => Vec::new(),
            },
        }),
        "running" => ChunkState::Running { remote: remote()?, adopted },
        "harvested" => ChunkState::Harvested {
            remote: remote()?,
            sources: fields.parsed("sources", |text| serde_json::from_str(text).ok())?,
            looked: fields.get("looked") == Some("1"),
            adopted,
        },
        "settled" => ChunkState::Settled,
        other => return Err(StoreError::corrupt(format!("chunk {}", fields.id), format!("unknown state {other}"))),
    })
}
