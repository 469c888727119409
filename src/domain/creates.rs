//! Whose turn it is to create at an account whose provider labels no batch (Anthropic). There a batch whose create's answer
//! was lost is known by its size and age alone, so creates go one by one: the turn is a *chunk's*, which keeps it until
//! everybody knows what became of its create. Pure: the store keeps it, the pipeline asks and tells it.
//!
//! A turn outlives the process that took it. Whoever wants it and finds its chunk idle (gone, or neither `submitting` nor
//! `in doubt`), twice, with a pause, takes it over; and because the holder may just be about to write its intent, both
//! look once more: the holder at the turn, after its intent and before its create; the other at the holder's chunk,
//! after it took the turn. One of them sees the other, whatever the order.

use super::account::Millis;
use serde::{Deserialize, Serialize};

/// What all gateways know of an account's creates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Creates {
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<Turn>,
}

/// A chunk's turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The chunk, with its namespace: others stand here too.
    pub chunk: String,
    /// The token of the chunk's dispatch that took it last: only that one gives it back.
    pub dispatch: String,
    /// Since when the chunk is known to be idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idle_since: Option<Millis>,
}

impl Turn {
    pub fn new(chunk: impl Into<String>, dispatch: impl Into<String>) -> Turn {
        Turn { chunk: chunk.into(), dispatch: dispatch.into(), idle_since: None }
    }
}

impl Creates {
    /// Takes the turn if it is free or the chunk's already; else whose it is.
    pub fn take(&mut self, turn: &Turn) -> Result<(), Turn> {
        match &self.turn {
            Some(other) if other.chunk != turn.chunk => Err(other.clone()),
            Some(_) | None => {
                self.turn = Some(turn.clone());
                Ok(())
            }
        }
    }

    /// True while the turn is this dispatch's.
    pub fn is(&self, turn: &Turn) -> bool {
        self.turn.as_ref().is_some_and(|held| held.chunk == turn.chunk && held.dispatch == turn.dispatch)
    }

    /// Its chunk was looked at, and is or is not idle. True if the turn is `turn`'s now: it was idle at a look so long ago,
    /// too. Nothing changes if the turn is no longer `seen`.
    pub fn contest(&mut self, seen: &Turn, idle: bool, turn: &Turn, now: Millis, pause: Millis) -> bool {
        let Some(held) = self.turn.as_mut().filter(|held| held.chunk == seen.chunk && held.dispatch == seen.dispatch)
        else {
            return false;
        };
        match held.idle_since {
            _ if !idle => held.idle_since = None,
            None => held.idle_since = Some(now),
            Some(since) if now >= since.saturating_add(pause) => {
                self.turn = Some(turn.clone());
                return true;
            }
            Some(_) => {}
        }
        false
    }

    /// The turn goes back to whom it was taken from: its chunk was not idle after all.
    pub fn give_back(&mut self, turn: &Turn, to: &Turn) {
        if self.is(turn) {
            self.turn = Some(Turn { idle_since: None, ..to.clone() });
        }
    }

    /// The chunk's create is settled. True if the turn was this dispatch's, and is free now.
    pub fn release(&mut self, turn: &Turn) -> bool {
        let ours = self.is(turn);
        if ours {
            self.turn = None;
        }
        ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turn(chunk: &str, dispatch: &str) -> Turn {
        Turn::new(chunk, dispatch)
    }

    #[test]
    fn a_turn_is_a_chunks_whichever_dispatch_took_it() {
        let mut creates = Creates::default();
        assert_eq!(creates.take(&turn("a", "1")), Ok(()));
        assert_eq!(creates.take(&turn("b", "2")), Err(turn("a", "1")));
        assert_eq!(creates.take(&turn("a", "3")), Ok(()));
        assert!(!creates.release(&turn("a", "1")), "the older dispatch gives nothing back");
        assert!(creates.release(&turn("a", "3")) && creates == Creates::default());
    }

    #[test]
    fn an_idle_holder_loses_its_turn_at_the_second_look() {
        let (a, b) = (turn("a", "1"), turn("b", "2"));
        let mut creates = Creates::default();
        creates.take(&a).expect("free");
        assert!(!creates.contest(&a, true, &b, 1_000, 500));
        assert!(!creates.contest(&a, true, &b, 1_499, 500), "the pause is not over");
        assert!(!creates.contest(&a, false, &b, 1_600, 500), "it moves");
        assert!(!creates.contest(&a, true, &b, 1_700, 500), "the first look again");
        assert!(creates.contest(&a, true, &b, 2_200, 500) && creates.is(&b));
        assert!(!creates.contest(&a, true, &turn("c", "3"), 9_000, 500), "it is no longer whose it was seen to be");
        creates.give_back(&b, &a);
        assert!(creates.is(&a) && !creates.contest(&a, true, &b, 9_999, 500));
    }

    /// The steps of a holder that writes its intent late, and of one who takes its turn over; each is one look or one write.
    #[derive(Default)]
    struct Race {
        creates: Creates,
        intent: bool,
        created: Vec<&'static str>,
    }

    proptest! {
        /// Whatever the order of their steps, at most one of the two creates.
        #[test]
        fn holder_and_contender_never_both_create(order in prop::collection::vec(any::<bool>(), 0..16)) {
            let (a, b) = (turn("a", "1"), turn("b", "2"));
            let mut race = Race::default();
            race.creates.take(&a).expect("free");
            race.creates.contest(&a, true, &b, 0, 10);
            let (mut holder, mut contender, mut saw_idle, mut took) = (0, 0, false, false);
            for holders in order.into_iter().chain([true, false].into_iter().cycle().take(16)) {
                match (holders, holder, contender) {
                    (true, 0, _) => (race.intent, holder) = (true, 1),
                    (true, 1, _) => {
                        if race.creates.is(&a) { race.created.push("a") } else { race.intent = false }
                        holder = 2;
                    }
                    (false, _, 0) => (saw_idle, contender) = (!race.intent, 1),
                    (false, _, 1) => (took, contender) = (race.creates.contest(&a, saw_idle, &b, 20, 10), 2),
                    (false, _, 2) if took => {
                        if race.intent { race.creates.give_back(&b, &a) } else { race.created.push("b") }
                        contender = 3;
                    }
                    _ => {}
                }
            }
            prop_assert!(race.created.len() <= 1, "{:?}", race.created);
        }
    }
}
