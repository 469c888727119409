//! One server's desk: how many requests may be in the air at once, and when it is to be left alone. Of this process; two
//! gateways have two desks.
//!
//! A seat is a narrow permit: the worker takes one before it claims a chunk, and asks for no chunk of a server whose
//! seats are all taken. So a slow server holds none of the worker's own few slots.

use super::limit::{Ended, Limit};
use crate::provider::online::Online;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// How long a server in trouble is left alone: at first `least`, doubled with each further trouble, up to `most`.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub least: Duration,
    pub most: Duration,
}

/// Doublings of a rest.
const MAX_DOUBLINGS: u32 = 16;

pub struct Desk {
    pub provider: Online,
    pub concurrency: usize,
    pace: Pace,
    opened: Instant,
    seats: Arc<Semaphore>,
    state: Mutex<State>,
}

struct State {
    /// None: a plain cap.
    limit: Option<Limit>,
    /// Seats to be taken away as they are left.
    surplus: usize,
    rest_until: Option<Instant>,
    /// In a row.
    troubles: u32,
}

/// The right to have one request in the air.
pub struct Seat {
    desk: Arc<Desk>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Desk {
    /// `concurrency`: requests in the air at most; with `adaptive` that is how far the limit may grow.
    pub fn new(provider: Online, concurrency: usize, adaptive: bool, pace: Pace) -> Desk {
        let limit = adaptive.then(|| Limit::new(concurrency));
        let seats = limit.as_ref().map_or(concurrency, Limit::now);
        let state = State { limit, surplus: 0, rest_until: None, troubles: 0 };
        Desk {
            provider,
            concurrency,
            pace,
            opened: Instant::now(),
            seats: Arc::new(Semaphore::new(seats)),
            state: Mutex::new(state),
        }
    }

    /// A seat, if one is free and the server is not to be left alone.
    pub fn try_seat(self: &Arc<Desk>) -> Option<Seat> {
        if self.rest_left().is_some() {
            return None;
        }
        let permit = Arc::clone(&self.seats).try_acquire_owned().ok()?;
        Some(Seat { desk: Arc::clone(self), permit: Some(permit) })
    }

    /// The next seat that is left.
    pub async fn seat(self: &Arc<Desk>) -> Seat {
        let permit = Arc::clone(&self.seats).acquire_owned().await.expect("a desk's semaphore is never closed");
        Seat { desk: Arc::clone(self), permit: Some(permit) }
    }

    /// How long the server is still to be left alone.
    pub fn rest_left(&self) -> Option<Duration> {
        let left = self.state().rest_until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// The server has answered, whatever it said.
    pub fn answered(&self, took: Duration) {
        self.state().troubles = 0;
        self.note(Ended::Answered { took });
    }

    /// A request got no answer in time.
    pub fn silent(&self) {
        self.note(Ended::Trouble);
    }

    /// The server wants to be left alone, for at least `after`, or is not there; gives how long it will be. Half of the
    /// bound is jitter.
    pub fn rest(&self, after: Option<Duration>) -> Duration {
        self.note(Ended::Trouble);
        let mut state = self.state();
        let bound = self.pace.least.saturating_mul(1 << state.troubles.min(MAX_DOUBLINGS)).min(self.pace.most);
        let wait = bound.mul_f64(0.5 + 0.5 * rand::random::<f64>()).max(after.unwrap_or_default());
        let until = Instant::now() + wait;
        // Many requests meet one trouble: it counts once.
        if state.rest_until.is_none_or(|before| before <= Instant::now()) {
            state.troubles += 1;
        }
        let until = state.rest_until.map_or(until, |before| before.max(until));
        state.rest_until = Some(until);
        until.saturating_duration_since(Instant::now())
    }

    /// Tells the adaptive limit, if there is one, and adds or takes away seats as it says.
    fn note(&self, ended: Ended) {
        let full = self.seats.available_permits() == 0;
        let mut state = self.state();
        let Some(limit) = &mut state.limit else { return };
        let before = limit.now();
        limit.note(self.opened.elapsed(), ended, full);
        let now = limit.now();
        if now > before {
            let paid = state.surplus.min(now - before);
            state.surplus -= paid;
            self.seats.add_permits(now - before - paid);
        } else if now < before {
            state.surplus += before - now - self.seats.forget_permits(before - now);
        }
        metrics::gauge!("batchgate_online_limit", "account" => self.provider.account().to_owned()).set(now as f64);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.desk.state();
        if let Some(permit) = self.permit.take().filter(|_| state.surplus > 0) {
            state.surplus -= 1;
            permit.forget();
        }
    }
}

/// Seats taken before a claim: one at each desk that has one.
pub struct Seats {
    free: BTreeMap<String, Seat>,
    /// Accounts whose chunks must not be claimed now.
    pub full: Vec<String>,
}

impl Seats {
    pub(in crate::pipeline) fn take<'a>(desks: impl Iterator<Item = (&'a String, &'a Arc<Desk>)>) -> Seats {
        let mut seats = Seats { free: BTreeMap::new(), full: Vec::new() };
        for (account, desk) in desks {
            match desk.try_seat() {
                Some(seat) => {
                    seats.free.insert(account.clone(), seat);
                }
                None => seats.full.push(account.clone()),
            }
        }
        seats
    }

    /// The seat at this account's desk; the others are left. None where an account has no desk.
    pub fn keep(mut self, account: &str) -> Option<Seat> {
        self.free.remove(account)
    }
}
