//! Seats for those who may create a batch now. They are few, for each holds a piece of a body in memory; and while there are
//! several teams one alone never takes them all, however slowly it sends.

use super::error::{ApiError, Code};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

pub struct Seats {
    all: Semaphore,
    max: usize,
    /// What each team may take of them; entered at its first request, so there are as many as teams.
    shares: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A seat; left when it is dropped.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    _seat: SemaphorePermit<'a>,
    _of_the_share: Option<OwnedSemaphorePermit>,
}

impl Seats {
    /// `max`: `BATCHGATE_MAX_UPLOADS`.
    pub fn new(max: usize) -> Seats {
        Seats { all: Semaphore::new(max), max, shares: Mutex::default() }
    }

    /// Seats that are taken now.
    pub(super) fn taken(&self) -> usize {
        self.max.saturating_sub(self.all.available_permits())
    }

    /// All but one; of one alone, that one.
    fn share(&self) -> usize {
        self.max.saturating_sub(1).max(1)
    }

    /// A seat for this team, in the order of asking; a 503 if none is free `within` this time. `alone`: there is no other team
    /// to leave one for.
    pub(super) async fn take(&self, team: &str, alone: bool, within: Duration) -> Result<Seat<'_>, ApiError> {
        let until = Instant::now() + within;
        // Its own share first: while it waits for that, it stands in nobody's way.
        let of_the_share = if alone {
            None
        } else {
            let own = timeout_at(until, self.of(team).acquire_owned()).await;
            Some(own.ok().and_then(Result::ok).ok_or_else(|| self.share_is_taken())?)
        };
        let seat = timeout_at(until, self.all.acquire()).await;
        let seat = seat.ok().and_then(Result::ok).ok_or_else(all_are_taken)?;
        Ok(Seat { _seat: seat, _of_the_share: of_the_share })
    }

    fn of(&self, team: &str) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let share = shares.entry(team.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.share())));
        Arc::clone(share)
    }

    fn share_is_taken(&self) -> ApiError {
        let (share, max) = (self.share(), self.max);
        let detail = format!(
            "your team has {share} uploads under way, and of the {max} that are read at once (BATCHGATE_MAX_UPLOADS) one is \
             left for other teams; try again when one of yours has ended"
        );
        ApiError::new(Code::Unavailable, detail)
    }
}

fn all_are_taken() -> ApiError {
    ApiError::new(Code::Unavailable, "too many uploads at once (BATCHGATE_MAX_UPLOADS); try again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinSet;

    const AT_ONCE: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn no_team_takes_the_last_seat_from_the_others() {
        let seats = Seats::new(4);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(seats.take("rival", false, AT_ONCE).await.expect("one of its share"));
        }
        let refused = format!("{:?}", seats.take("rival", false, AT_ONCE).await.expect_err("the last one"));
        assert!(refused.contains("your team has 3 uploads under way"), "{refused}");
        held.push(seats.take("evals", false, AT_ONCE).await.expect("it was left for the others"));
        let refused = format!("{:?}", seats.take("data", false, AT_ONCE).await.expect_err("none is left"));
        assert!(refused.contains("too many uploads"), "{refused}");
        assert_eq!(seats.taken(), 4);
        held.clear();
        assert_eq!(seats.taken(), 0);
        seats.take("rival", false, AT_ONCE).await.expect("its share is its own again");
    }

    #[tokio::test]
    async fn those_who_wait_for_their_own_share_hold_up_nobody() {
        let seats = Arc::new(Seats::new(2));
        let first = seats.take("rival", false, AT_ONCE).await.expect("a seat");
        let mut more = JoinSet::new();
        for _ in 0..5 {
            let seats = Arc::clone(&seats);
            more.spawn(async move { seats.take("rival", false, LONG).await.is_ok() });
        }
        tokio::task::yield_now().await; // they all stand in line
        drop(seats.take("evals", false, LONG).await.expect("past all of them"));
        drop(first);
        assert_eq!(more.join_all().await, [true; 5], "each has its turn");
    }

    #[tokio::test]
    async fn who_is_alone_takes_all() {
        let seats = Seats::new(2);
        let (one, two) = (seats.take("default", true, AT_ONCE).await, seats.take("default", true, AT_ONCE).await);
        assert!(one.is_ok() && two.is_ok());
        let single = Seats::new(1);
        single.take("rival", false, AT_ONCE).await.expect("of one seat everybody may have it");
    }
}
