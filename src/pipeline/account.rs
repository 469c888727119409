//! What the state of a provider account means for a chunk of its: asked before every call, told after it. All gateways
//! share that state; a chunk's own state changes in calls of their own, before or after, and either may be lost: what
//! an account is told is true by itself, and a chunk that waits always comes back by itself.

use super::{
    Gateway, Provider,
    dispatch::{After, Held},
    pause as by_hand,
};
use crate::{
    clock::{self, Millis},
    domain::{
        account::{Call, Closed, Gate, Pass, Probing, Reason, Waits},
        chunk::ChunkState,
        identity::Kin,
    },
    provider::{BatchProvider, CallError},
    store::{
        StoreError,
        chunks::{Release, Step},
    },
};
use std::time::Duration;

/// Longest time a refusal's Retry-After holds back the whole account; then one call asks again.
const MAX_HOLD: Duration = Duration::from_secs(60 * 60);
/// Chunks woken at once, and how often: a million in all.
const WAKE: usize = 1_000;

/// A chunk that was let through to its provider.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    call: Call,
    probe: bool,
}

/// The group of chunks that wait for an account to work again.
fn group(account: &str) -> String {
    format!("pause:{account}")
}

/// Who calls an account: the dispatch of a chunk, or a job that is no chunk's.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub gateway: &'a Gateway,
    pub account: &'a str,
    /// Fresh per dispatch or turn: it tells one prober from another.
    pub name: &'a str,
}

impl<'a> Caller<'a> {
    fn of(held: &'a Held<'_>) -> Caller<'a> {
        Caller { gateway: held.gateway, account: &held.chunk.lane.account, name: held.lease.token.as_str() }
    }

    fn probing(&self) -> Probing {
        let settings = &self.gateway.settings;
        Probing { first: settings.poll_min, last: settings.poll_max * 5, lease: settings.lease * 2 }
    }

    /// The gate's answer, and when it was given.
    async fn ask(&self, call: Call) -> Result<(Pass, Millis), StoreError> {
        let (gate, now) = self.gateway.store.gate(self.account).await?;
        if gate == Gate::default() {
            return Ok((Pass::Free, now));
        }
        let probing = self.probing();
        let change = |gate: &mut Gate, now| (gate.enter(call, self.name, now, probing), now);
        self.gateway.store.change_gate(self.account, change).await
    }

    /// Asks for the way to the provider, for a job that comes back by itself; none if it is shut.
    pub async fn enter(&self, call: Call) -> Result<Option<Passage>, StoreError> {
        Ok(match self.ask(call).await?.0 {
            Pass::Free => Some(Passage { call, probe: false }),
            Pass::Probe => Some(Passage { call, probe: true }),
            Pass::Closed(_) => None,
        })
    }

    /// Pauses the account; the gate as it is then, and the time.
    async fn refused(&self, call: Call, reason: Reason, said: &str) -> Result<(Closed, Millis), StoreError> {
        let account = self.account;
        let remedy = match reason {
            Reason::AuthFailed => "check its key in api_key_env",
            _ => "check its quota, credit and spend limits",
        };
        let detail = format!("{account} answered {said}: {remedy}; probed again by itself");
        let probing = self.probing();
        let change = |gate: &mut Gate, now| {
            let news = gate.refused(call, (reason, detail.clone()), self.name, now, probing);
            (news, gate.pause.as_ref().map_or(now, |pause| pause.probe_at), now)
        };
        let (news, until, now) = self.gateway.store.change_gate(account, change).await?;
        if news {
            tracing::error!(%account, reason = reason.word(), said, "provider account paused; no prompt fails, it is probed again");
            let labels = [("account", account.to_owned()), ("reason", reason.word().to_owned())];
            metrics::counter!("batchgate_account_pauses_total", &labels).increment(1);
        }
        Ok((Closed { reason, detail, until }, now))
    }

    /// Tells the account what the headers of replies have said since the last time. `fallback`: a refusal that says
    /// nothing.
    async fn note_throttle(&self, fallback: Millis) -> Result<(), StoreError> {
        let Some(Provider::Batch(provider)) = self.gateway.providers.get(self.account) else { return Ok(()) };
        let Some(throttle) = provider.throttle() else { return Ok(()) };
        let account = self.account;
        let bound = if throttle.refused { MAX_HOLD } else { self.gateway.settings.poll_max * 10 };
        let wait = throttle.wait.map_or(fallback, |wait| clock::millis(wait.min(bound)));
        let change = |gate: &mut Gate, now: Millis| {
            let until = clock::rfc3339(now + wait);
            let detail = if throttle.refused {
                format!("{account} has had enough requests and wants none before {until}")
            } else {
                format!("nothing is left of {account}'s rate limit before {until}")
            };
            gate.hold_back(throttle.call, now + wait, &detail);
        };
        self.gateway.store.change_gate(account, change).await
    }
}

/// Asks for the way to the provider; the chunk waits where it is if it is shut, or if somebody paused what it belongs to.
pub async fn enter(held: &Held<'_>, call: Call) -> Result<Result<Passage, After>, StoreError> {
    if call == Call::Create
        && let Some(after) = by_hand::wait(held).await?
    {
        return Ok(Err(after));
    }
    let (pass, now) = Caller::of(held).ask(call).await?;
    match pass {
        Pass::Free => Ok(Ok(Passage { call, probe: false })),
        Pass::Probe => Ok(Ok(Passage { call, probe: true })),
        Pass::Closed(_) if held.gives_up() => held.give_up().await.map(Err),
        Pass::Closed(closed) => {
            let state = &held.chunk.state;
            // Whoever probes wakes the others; these come by themselves only so that somebody does.
            let paused = closed.reason != Reason::RateLimited;
            let spread = if paused {
                held.gateway.settings.poll_max.mul_f64(2.0 * rand::random::<f64>())
            } else {
                Duration::ZERO
            };
            let delay = closed.until.saturating_sub(now) + clock::millis(spread);
            wait(held, &closed, delay, Move { from: state, to: state, fields: Vec::new() }).await.map(Err)
        }
    }
}

impl Passage {
    /// The provider answered, whatever it said to the call itself: the account works.
    pub async fn answered(&self, held: &Held<'_>) -> Result<(), StoreError> {
        self.answered_to(&Caller::of(held)).await
    }

    /// The same, whoever called.
    pub async fn answered_to(&self, caller: &Caller<'_>) -> Result<(), StoreError> {
        caller.note_throttle(0).await?;
        if !self.probe {
            return Ok(());
        }
        let (account, name) = (caller.account, caller.name);
        let change = |gate: &mut Gate, now| (gate.worked(self.call, name, now), gate.pause.is_none());
        if let (true, healed) = caller.gateway.store.change_gate(account, change).await? {
            tracing::info!(%account, healed, "the provider account works again");
            wake_all(caller.gateway, account).await?;
        }
        Ok(())
    }

    /// A job's call failed. What headers say holds for the account; but only a probe's refusal tells it anything new: a
    /// job may ask for what the account's chunks never need.
    pub async fn failed(&self, caller: &Caller<'_>, error: &CallError) -> Result<(), StoreError> {
        if let (true, CallError::Paused { auth, .. }) = (self.probe, error) {
            let reason = if *auth { Reason::AuthFailed } else { Reason::AccountPaused };
            caller.refused(self.call, reason, &bare(error)).await?;
        }
        caller.note_throttle(clock::millis(caller.gateway.settings.poll_max)).await
    }
}

/// A step of a chunk whose call failed: from where, to where, and with what.
pub struct Move<'a> {
    pub from: &'a ChunkState,
    pub to: &'a ChunkState,
    pub fields: Vec<(&'static str, String)>,
}

/// A call failed: the chunk is tried again later, and what concerns its account too is told to the account.
pub async fn failed(held: &Held<'_>, call: Call, error: &CallError, mut step: Move<'_>) -> Result<After, StoreError> {
    if let CallError::Paused { auth, .. } = error {
        let reason = if *auth { Reason::AuthFailed } else { Reason::AccountPaused };
        return pause(held, call, reason, &bare(error), step).await;
    }
    let back_off = held.back_off(error);
    Caller::of(held).note_throttle(back_off).await?;
    step.fields.push(("fails", (held.chunk.fails + 1).to_string()));
    let (gate, now) = held.gateway.store.gate(&held.chunk.lane.account).await?;
    match gate.closed(call, now) {
        Some(closed) => {
            let delay = closed.until.saturating_sub(now).max(back_off);
            wait(held, &closed, delay, step).await
        }
        None => held.step(&[step.from.word()], step.to, step.fields, Release::After(back_off)).await,
    }
}

/// The provider will do nothing for this account until somebody acts: it is paused, and probed again.
pub async fn pause(
    held: &Held<'_>,
    call: Call,
    reason: Reason,
    said: &str,
    step: Move<'_>,
) -> Result<After, StoreError> {
    let (closed, now) = Caller::of(held).refused(call, reason, said).await?;
    wait(held, &closed, closed.until.saturating_sub(now), step).await
}

/// Nothing more is created for the account for so long.
pub async fn hold_creates(held: &Held<'_>, wait_ms: Millis, step: Move<'_>) -> Result<After, StoreError> {
    let account = &held.chunk.lane.account;
    let detail = format!("{account} takes no more requests for now");
    let change = |gate: &mut Gate, now| gate.hold_back(Call::Create, now + wait_ms, &detail);
    held.gateway.store.change_gate(account, change).await?;
    let closed = Closed { reason: Reason::RateLimited, detail, until: 0 };
    wait(held, &closed, wait_ms, step).await
}

/// No key of the account sees what this chunk left at the provider. A matter of this chunk alone: the account works.
pub async fn unseen(held: &Held<'_>, detail: String, step: Move<'_>) -> Result<After, StoreError> {
    if held.gives_up() {
        return held.give_up().await;
    }
    let closed = Closed { reason: Reason::AuthFailed, detail, until: 0 };
    wait(held, &closed, clock::millis(held.gateway.settings.poll_max), step).await
}

/// Has the chunk wait if every key of its account is one of these to where its last create went, as far as is known: what
/// those answer says nothing of it, a 404 least of all. None: go on.
pub async fn left_alone(
    held: &Held<'_>,
    provider: &dyn BatchProvider,
    strangers: &[Kin],
) -> Result<Option<After>, StoreError> {
    let Some(made) = held.chunk.identity.as_ref().filter(|made| strangers.contains(&provider.kin(made))) else {
        return Ok(None);
    };
    let account = &held.chunk.lane.account;
    tracing::error!(
        chunk = %held.chunk.id, %account, sent_to = ?made, now = ?provider.identity(),
        "another organisation answers under this account's name: the chunk is left alone"
    );
    metrics::counter!("batchgate_left_alone_total", "account" => account.clone()).increment(1);
    let detail = format!(
        "{account} now belongs to another organisation, or is at another address, than the one these were sent to; they \
         are left alone: put a key of that one back in api_key_env and its base_url back, or cancel the batch"
    );
    let state = &held.chunk.state;
    unseen(held, detail, Move { from: state, to: state, fields: Vec::new() }).await.map(Some)
}

/// Waits for the account, never past the deadline; with a little jitter, so that not all come at once.
pub(super) async fn wait(held: &Held<'_>, closed: &Closed, delay: Millis, step: Move<'_>) -> Result<After, StoreError> {
    let woken = matches!(closed.reason, Reason::AuthFailed | Reason::AccountPaused);
    let group = woken.then(|| group(&held.chunk.lane.account));
    let waits = Waits { reason: Some(closed.reason), detail: closed.detail.clone(), group };
    let jitter = held.gateway.settings.poll_min.mul_f64(rand::random::<f64>());
    let release = Release::After(held.within_deadline(delay + clock::millis(jitter)));
    let from = [step.from.word()];
    held.try_step(&Step { from: &from, to: step.to, fields: step.fields, release, asking: false, waits: Some(&waits) })
        .await
}

/// Everything that waits for this account moves on at once.
pub(super) async fn wake_all(gateway: &Gateway, account: &str) -> Result<(), StoreError> {
    let group = group(account);
    for _ in 0..WAKE {
        if gateway.store.wake(&group, WAKE).await? < WAKE {
            break;
        }
    }
    gateway.wake.chunks.notify_one();
    Ok(())
}

/// At the start of a worker: keys may have changed, so accounts that are paused are probed at once.
pub async fn probe_at_start(gateway: &Gateway) -> Result<(), StoreError> {
    for account in gateway.providers.keys() {
        gateway.store.change_gate(account, |gate, now| gate.probe_now(now)).await?;
        wake_all(gateway, account).await?;
    }
    Ok(())
}

/// Which accounts are paused, for `/metrics`.
pub async fn paused(gateway: &Gateway) -> Result<Vec<(String, bool)>, StoreError> {
    let mut told = Vec::new();
    for account in gateway.providers.keys() {
        told.push((account.clone(), gateway.store.gate(account).await?.0.pause.is_some()));
    }
    Ok(told)
}

/// Status and code alone: what was tried names another team's chunk, what the provider says may quote a prompt.
fn bare(error: &CallError) -> String {
    let head = error.head();
    head.rsplit_once(": ").map_or(head, |(_, said)| said).to_owned()
}
