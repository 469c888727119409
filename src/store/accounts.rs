//! What all gateways know of a provider account: its gate, the tokens it has enqueued, and whose turn it is to create. A change is worked out by
//! the domain and swapped in if nobody was faster.

use super::{Store, StoreError, keys::Keys, script, unreadable::count_dead_letters};
use crate::{
    clock::Millis,
    domain::{account::Gate, budget::Budget, chunk::ChunkState, creates::Creates, id::ChunkId},
};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// Tries at a swap; with dozens of workers at one account a few are lost.
const SWAPS: u32 = 50;
/// Longest wait for another namespace's node.
const ANOTHERS: Duration = Duration::from_millis(500);
const GATE_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const BUDGET_KEPT: Duration = Duration::from_secs(31 * 24 * 60 * 60);
/// As long as it is kept whose a provider's batch is.
const CREATES_KEPT: Duration = Duration::from_secs(31 * 24 * 60 * 60);

impl Store {
    /// An account's gate as it is, and the time.
    pub async fn gate(&self, account: &str) -> Result<(Gate, Millis), StoreError> {
        let (text, now) = self.read_with_time(&Keys::gate(account)).await?;
        Ok((readable(&text, "gate"), now))
    }

    /// Changes an account's gate. The change may be asked for several times and must depend on its arguments alone.
    pub async fn change_gate<T>(
        &self,
        account: &str,
        mut change: impl FnMut(&mut Gate, Millis) -> T,
    ) -> Result<T, StoreError> {
        let change = |gate: &mut Gate, now| {
            let said = change(gate, now);
            *gate = std::mem::take(gate).tidied(now);
            said
        };
        self.change(&Keys::gate(account), GATE_KEPT, change).await
    }

    /// Changes what an account has enqueued of a model; as [`Store::change_gate`].
    pub async fn change_budget<T>(
        &self,
        account: &str,
        model: &str,
        change: impl FnMut(&mut Budget, Millis) -> T,
    ) -> Result<T, StoreError> {
        self.change(&Keys::budget(account, model), BUDGET_KEPT, change).await
    }

    /// An account's creates as they are.
    pub async fn creates(&self, account: &str) -> Result<Creates, StoreError> {
        let (text, _) = self.read_with_time(&Keys::creates(account)).await?;
        unpack(&text, "creates")
    }

    /// Changes whose turn it is to create; as [`Store::change_gate`].
    pub async fn change_creates<T>(
        &self,
        account: &str,
        change: impl FnMut(&mut Creates, Millis) -> T,
    ) -> Result<T, StoreError> {
        self.change(&Keys::creates(account), CREATES_KEPT, change).await
    }

    /// Tells everybody at the account whose a provider's batch is: of all namespaces.
    pub async fn tell_whose(&self, account: &str, remote: &str, chunk: ChunkId) -> Result<(), StoreError> {
        let (key, mut set) = (Keys::whose(account, remote), redis::cmd("SET"));
        set.arg(&key).arg(self.reservation(chunk)).arg("PX").arg(crate::clock::millis(CREATES_KEPT));
        Ok(set.query_async(&mut self.main.of(&key)).await?)
    }

    /// True if a provider's batch is known to be another chunk's, of whatever namespace.
    pub async fn is_anothers(&self, account: &str, remote: &str, chunk: ChunkId) -> Result<bool, StoreError> {
        let key = Keys::whose(account, remote);
        let told: Option<String> = redis::cmd("GET").arg(&key).query_async(&mut self.main.of(&key)).await?;
        Ok(told.is_some_and(|owner| owner != self.reservation(chunk)))
    }

    /// The state's word of a chunk that is named as [`Store::reservation`] names it, of whatever namespace.
    pub async fn state_of(&self, name: &str) -> Result<Option<String>, StoreError> {
        let Some((namespace, chunk)) = name.split_once("}:") else { return Ok(None) };
        let (key, mut ask) = (Keys::chunk_of(namespace, chunk), redis::cmd("HGET"));
        Ok(ask.arg(&key).arg("state").query_async(&mut self.lease.of(&key)).await?)
    }

    /// Takes chunks out of a budget that are settled or gone: whoever settled them died before he said so.
    pub async fn clear_budget(&self, account: &str, model: &str) -> Result<usize, StoreError> {
        let (text, _) = self.read_with_time(&Keys::budget(account, model)).await?;
        let budget: Budget = readable(&text, "budget");
        let ours: Vec<(&String, ChunkId)> =
            budget.chunks().filter_map(|name| Some((name, self.reserved(name)?))).collect();
        let mut pipe = redis::pipe();
        for (_, chunk) in &ours {
            pipe.hget(self.keys.chunk(*chunk), "state");
        }
        let states: Vec<Option<String>> =
            if ours.is_empty() { Vec::new() } else { pipe.query_async(&mut self.main.clone()).await? };
        let over = |state: &Option<String>| state.as_ref().is_none_or(|state| state == ChunkState::Settled.word());
        let gone: Vec<String> =
            ours.iter().zip(&states).filter(|(_, state)| over(state)).map(|((name, _), _)| (*name).clone()).collect();
        if !gone.is_empty() {
            self.change_budget(account, model, |budget, _| gone.iter().for_each(|name| budget.release(name))).await?;
        }
        Ok(gone.len())
    }

    /// A chunk's name in a budget: those of other namespaces stand there too.
    pub fn reservation(&self, chunk: ChunkId) -> String {
        format!("{}{chunk}", self.keys.prefix())
    }

    fn reserved(&self, name: &str) -> Option<ChunkId> {
        ChunkId::parse(name.strip_prefix(self.keys.prefix())?)
    }

    /// Makes chunks of a group due, the most urgent first, so many of each namespace; how many there were. What a group
    /// waits for is an account's, and so every namespace's.
    pub async fn wake(&self, group: &str, most: usize) -> Result<usize, StoreError> {
        let mut woken = 0;
        for keys in self.in_use.all() {
            let (held, mut call) = (keys.held(group), script!("wake").prepare_invoke());
            call.key(&held).key(keys.delayed()).arg(most);
            let mut link = self.lease.of(&held);
            let waking = call.invoke_async::<usize>(&mut link);
            if keys.prefix() == self.keys.prefix() {
                woken += waking.await?;
                continue;
            }
            // Its chunks come back by themselves, and ours must not wait for its node.
            match tokio::time::timeout(ANOTHERS, waking).await {
                Ok(Ok(count)) => woken += count,
                Ok(Err(error)) => tracing::debug!(%error, "wake another namespace"),
                Err(_) => tracing::debug!("another namespace's node does not answer; it is woken by its own clock"),
            }
        }
        Ok(woken)
    }

    /// Makes chunks due that wait in turns for one thing, so that each team's come when it is theirs: of every team the most
    /// urgent, about `most` in all, and at least one of each. How many there were.
    pub async fn wake_in_turns(&self, group: &str, most: usize) -> Result<usize, StoreError> {
        let mut call = script!("wake_in_turns").prepare_invoke();
        call.key(self.keys.shares()).key(self.keys.delayed());
        call.arg(self.keys.prefix()).arg(group).arg(most);
        Ok(call.invoke_async(&mut self.lease.clone()).await?)
    }

    async fn read_with_time(&self, key: &str) -> Result<(String, Millis), StoreError> {
        let mut pipe = redis::pipe();
        pipe.get(key).cmd("TIME");
        let mut link = self.lease.of(key);
        let told = pipe.query_async(&mut link).await.map_err(StoreError::from);
        let (text, (seconds, micros)): (Option<String>, (u64, u64)) = match told {
            // Of another type, or no text at all: out of the way with it, for every chunk of the account looks here.
            Err(StoreError::Corrupt { .. }) => {
                tracing::error!(key, "cannot be read; moved out of the way, and learnt anew");
                self.lay_down(key).await?;
                redis::cmd("UNLINK").arg(key).query_async::<()>(&mut link).await?;
                pipe.query_async(&mut link).await?
            }
            told => told?,
        };
        Ok((text.unwrap_or_default(), seconds * 1_000 + micros / 1_000 + self.skew_ms))
    }

    async fn change<S, T>(
        &self,
        key: &str,
        kept: Duration,
        mut change: impl FnMut(&mut S, Millis) -> T,
    ) -> Result<T, StoreError>
    where
        S: Default + PartialEq + Serialize + DeserializeOwned,
    {
        for _ in 0..SWAPS {
            let (before, now) = self.read_with_time(key).await?;
            let mut state: S = readable(&before, key);
            let said = change(&mut state, now);
            let after = if state == S::default() { String::new() } else { pack(&state) };
            if after == before {
                return Ok(said);
            }
            let mut call = script!("swap").prepare_invoke();
            call.key(key).arg(&before).arg(&after).arg(crate::clock::millis(kept));
            if call.invoke_async::<u8>(&mut self.lease.of(key)).await? == 1 {
                return Ok(said);
            }
        }
        Err(StoreError::Away(redis::RedisError::from((redis::ErrorKind::Io, "an account's state changes too fast"))))
    }
}

/// Version, then JSON.
fn pack<S: Serialize>(state: &S) -> String {
    format!("1{}", serde_json::to_string(state).expect("our own shapes serialize"))
}

/// What cannot be read is as if it were not there: a gate and a budget are learnt anew from the provider's answers, while
/// an error here would strike every chunk of the account.
fn readable<S: Default + DeserializeOwned>(text: &str, what: &str) -> S {
    unpack(text, what).unwrap_or_else(|error| {
        tracing::error!(%error, "what is known of an account cannot be read; learnt anew");
        count_dead_letters(1);
        S::default()
    })
}

fn unpack<S: Default + DeserializeOwned>(text: &str, what: &str) -> Result<S, StoreError> {
    match text.split_at_checked(1) {
        None => Ok(S::default()),
        Some(("1", json)) => serde_json::from_str(json).map_err(|why| StoreError::corrupt(what, why)),
        Some((version, _)) => Err(StoreError::corrupt(what, format!("unknown version {version}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::account::{Call, Probing, Reason};

    #[test]
    fn states_come_back_and_what_version_1_wrote_stays_readable() {
        let mut gate = Gate::default();
        let second = Duration::from_secs(1);
        let probing = Probing { first: second, last: second, lease: second };
        gate.refused(Call::Create, (Reason::AuthFailed, "401".into()), "t", 5, probing);
        let text = r#"1{"pause":{"reason":"auth_failed","detail":"401","since":5,"creates":true,"reads":false,"failures":0,"probe_at":1005,"prober":""},"creates":{"until":0,"detail":""},"reads":{"until":0,"detail":""}}"#;
        assert_eq!(pack(&gate), text);
        assert_eq!(unpack::<Gate>(text, "gate").expect("readable"), gate);
        let mut creates = Creates::default();
        creates.take(&crate::domain::creates::Turn::new("{default}:x", "t")).expect("free");
        let text = r#"1{"turn":{"chunk":"{default}:x","dispatch":"t"}}"#;
        assert_eq!((pack(&creates), unpack::<Creates>(text, "creates").expect("readable")), (text.to_owned(), creates));
        let mut budget = Budget::default();
        budget.reserve("{default}:x", 7);
        let text = r#"1{"cap":null,"stated":null,"judged":0,"in_flight":{"{default}:x":7}}"#;
        assert_eq!((pack(&budget), unpack::<Budget>(text, "budget").expect("readable")), (text.to_owned(), budget));
        assert!(unpack::<Gate>("2{}", "gate").is_err() && unpack::<Gate>("", "gate").expect("none") == Gate::default());
    }
}
