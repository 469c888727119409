//! Which combinations are run: a third, another one every day, or all.

use crate::support::Kind;
use std::{fmt, time::SystemTime};

#[derive(Clone, Copy, Debug)]
pub(super) enum Share {
    All,
    /// The third of this turn; turns are counted in days unless told otherwise.
    Third(u64),
}

impl Share {
    /// `BATCHGATE_MATRIX`: `all`, or the number of a turn; absent: the day since 1970.
    #[expect(clippy::disallowed_methods, reason = "the scripts say in the environment what is to be run")]
    pub(super) fn chosen() -> Share {
        match std::env::var("BATCHGATE_MATRIX").as_deref() {
            Ok("all") => Share::All,
            Ok(turn) => Share::Third(turn.parse().expect("BATCHGATE_MATRIX is `all` or a number")),
            Err(_) => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
                Share::Third(since.as_secs() / 86_400)
            }
        }
    }

    pub(super) fn takes(self, number: usize) -> bool {
        match self {
            Share::All => true,
            Share::Third(turn) => number as u64 % 3 == turn % 3,
        }
    }

    /// Both simulators have their turns.
    pub(super) fn simulator(self, number: usize) -> Kind {
        let turn = match self {
            Share::All => 0,
            Share::Third(turn) => turn / 3,
        };
        if (number as u64 / 3 + turn).is_multiple_of(2) { Kind::Ours } else { Kind::Referee }
    }

    /// Prompts of a batch.
    pub(super) fn prompts(self) -> usize {
        match self {
            Share::All => 240,
            Share::Third(_) => 40,
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::All => write!(f, "all"),
            Share::Third(turn) => write!(f, "third {} of 3 (BATCHGATE_MATRIX={turn})", turn % 3 + 1),
        }
    }
}
