//! An account in trouble: paused until a probe succeeds, or held back until a time. Pure: the store keeps it, the
//! pipeline asks and tells it. What the account may have enqueued is [`super::budget`].
//!
//! Creates and reads are told apart: a spent account still lets its batches be read, and with a revoked first key the
//! others still read. A refused create closes creates; a refused read, for which every key was tried, closes both.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Unix milliseconds, or a number of them.
pub(super) type Millis = u64;

fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// Why prompts wait; the words clients read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The provider's limit on enqueued tokens.
    TokenLimit,
    /// 429, or the rate-limit headers say that nothing is left.
    RateLimited,
    /// Quota, credit or spend limit: an operator must act.
    AccountPaused,
    /// The provider refuses the account's keys, or no configured key sees the batch.
    AuthFailed,
    /// A create's answer was lost; it is being looked for.
    InDoubt,
    /// Redis has no room for the answers; they stay at the provider until it has.
    Storage,
    /// Another batch asks the same questions; its answers are waited for.
    Joined,
}

impl Reason {
    pub const ALL: [Reason; 7] = [
        Reason::TokenLimit,
        Reason::RateLimited,
        Reason::AccountPaused,
        Reason::AuthFailed,
        Reason::InDoubt,
        Reason::Storage,
        Reason::Joined,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Reason::TokenLimit => "token_limit",
            Reason::RateLimited => "rate_limited",
            Reason::AccountPaused => "account_paused",
            Reason::AuthFailed => "auth_failed",
            Reason::InDoubt => "in_doubt",
            Reason::Storage => "storage",
            Reason::Joined => "joined",
        }
    }
}

/// Why a chunk waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// None: only for its turn, which is nothing to tell.
    pub reason: Option<Reason>,
    /// For people; never a provider's own words, which may quote a prompt.
    pub detail: String,
    /// What may end the wait early: all chunks of a group can be woken together.
    pub group: Option<String>,
}

/// What a chunk wants of its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Whatever leads to a create: uploads, and looking at what is there before.
    Create,
    /// Status, results, cancel, search.
    Read,
}

/// Bounds of the wait between two probes: it doubles from one to the other.
#[derive(Clone, Copy, Debug)]
pub struct Probing {
    pub first: Duration,
    pub last: Duration,
    /// How long a probe is one dispatch's alone.
    pub lease: Duration,
}

impl Probing {
    fn wait(&self, failures: u32) -> Millis {
        millis(self.first.saturating_mul(1 << failures.min(20)).min(self.last))
    }
}

/// What an account lets through. The default lets everything through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    creates: Hold,
    reads: Hold,
}

/// Nothing is sent until a probe succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub reason: Reason,
    pub detail: String,
    /// Unix milliseconds, as all times here.
    pub since: Millis,
    /// Which kinds of calls were refused.
    creates: bool,
    reads: bool,
    /// Probes that failed.
    pub failures: u32,
    pub probe_at: Millis,
    /// The dispatch that probes; empty if none does.
    prober: String,
}

/// Nothing of a kind is sent before a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Hold {
    until: Millis,
    detail: String,
}

/// A gate's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pass {
    Free,
    /// This dispatch finds out whether the account works again.
    Probe,
    Closed(Closed),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    pub reason: Reason,
    pub detail: String,
    pub until: Millis,
}

impl Gate {
    /// Asks to be let through. A probe that is due is taken by the first dispatch that asks, for a while.
    pub fn enter(&mut self, call: Call, dispatch: &str, now: Millis, probing: Probing) -> Pass {
        let hold = self.hold(call).clone();
        let held = (hold.until > now).then(|| {
            Pass::Closed(Closed { reason: Reason::RateLimited, detail: hold.detail.clone(), until: hold.until })
        });
        let Some(pause) = self.pause.as_mut().filter(|pause| pause.stops(call)) else {
            return held.unwrap_or(Pass::Free);
        };
        if pause.prober == dispatch && now < pause.probe_at {
            return Pass::Probe;
        }
        if now < pause.probe_at {
            return Pass::Closed(pause.closed());
        }
        if let Some(held) = held {
            return held;
        }
        dispatch.clone_into(&mut pause.prober);
        pause.probe_at = now + millis(probing.lease);
        Pass::Probe
    }

    /// Why this kind of call is not let through now; none if it is, or if a probe is due.
    pub fn closed(&self, call: Call, now: Millis) -> Option<Closed> {
        let pause = self.pause.as_ref().filter(|pause| pause.stops(call) && now < pause.probe_at);
        let hold = self.hold(call);
        let held = || {
            let detail = hold.detail.clone();
            (hold.until > now).then_some(Closed { reason: Reason::RateLimited, detail, until: hold.until })
        };
        pause.map(Pause::closed).or_else(held)
    }

    /// The provider refused the account. True if this is news: the account was not paused before.
    pub fn refused(
        &mut self,
        call: Call,
        why: (Reason, String),
        dispatch: &str,
        now: Millis,
        probing: Probing,
    ) -> bool {
        let (reason, detail) = why;
        let (creates, reads) = (call == Call::Create, call == Call::Read);
        let Some(pause) = &mut self.pause else {
            let probe_at = now + probing.wait(0);
            let prober = String::new();
            self.pause = Some(Pause { reason, detail, since: now, creates, reads, failures: 0, probe_at, prober });
            return true;
        };
        pause.creates |= creates;
        pause.reads |= reads;
        // Calls that were in the air when the pause began tell nothing new.
        if pause.prober == dispatch {
            pause.failures += 1;
            pause.probe_at = now + probing.wait(pause.failures);
            pause.prober.clear();
            (pause.reason, pause.detail) = (reason, detail);
        }
        false
    }

    /// The provider let the prober's call in, whatever it said to it. True if more gets through than before.
    pub fn worked(&mut self, call: Call, dispatch: &str, now: Millis) -> bool {
        let Some(pause) = self.pause.as_mut().filter(|pause| pause.prober == dispatch) else { return false };
        pause.reads = false;
        if call == Call::Create || !pause.creates {
            self.pause = None;
        } else {
            // Reading works again; whether creating does is for a create to find out, at once.
            (pause.probe_at, pause.failures) = (now, 0);
            pause.prober.clear();
        }
        true
    }

    /// Nothing of this kind before `until`; a refused read counts for creates too.
    pub fn hold_back(&mut self, call: Call, until: Millis, detail: &str) {
        let holds: &mut [&mut Hold] = match call {
            Call::Create => &mut [&mut self.creates],
            Call::Read => &mut [&mut self.creates, &mut self.reads],
        };
        for hold in holds.iter_mut().filter(|hold| hold.until < until) {
            hold.until = until;
            detail.clone_into(&mut hold.detail);
        }
    }

    /// The next call probes, and nobody else has.
    pub fn probe_now(&mut self, now: Millis) {
        if let Some(pause) = &mut self.pause {
            (pause.probe_at, pause.failures) = (now, 0);
            pause.prober.clear();
        }
    }

    /// Without what is over.
    pub fn tidied(mut self, now: Millis) -> Gate {
        for hold in [&mut self.creates, &mut self.reads] {
            if hold.until <= now {
                *hold = Hold::default();
            }
        }
        self
    }

    fn hold(&self, call: Call) -> &Hold {
        match call {
            Call::Create => &self.creates,
            Call::Read => &self.reads,
        }
    }
}

impl Pause {
    fn stops(&self, call: Call) -> bool {
        self.reads || call == Call::Create
    }

    fn closed(&self) -> Closed {
        Closed { reason: self.reason, detail: self.detail.clone(), until: self.probe_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PROBING: Probing =
        Probing { first: Duration::from_secs(5), last: Duration::from_secs(300), lease: Duration::from_secs(60) };

    fn refuse(gate: &mut Gate, call: Call, dispatch: &str, now: Millis) -> bool {
        gate.refused(call, (Reason::AuthFailed, "401".to_owned()), dispatch, now, PROBING)
    }

    fn until(pass: Pass) -> Millis {
        match pass {
            Pass::Closed(closed) => closed.until,
            Pass::Free | Pass::Probe => panic!("open: {pass:?}"),
        }
    }

    #[test]
    fn a_pause_is_news_once_and_one_dispatch_probes() {
        let mut gate = Gate::default();
        assert!(refuse(&mut gate, Call::Create, "a", 1_000));
        assert!(!refuse(&mut gate, Call::Create, "b", 1_001), "it was in the air");
        assert_eq!(until(gate.enter(Call::Create, "c", 5_999, PROBING)), 6_000);
        assert_eq!(gate.enter(Call::Create, "c", 6_000, PROBING), Pass::Probe);
        assert_eq!(gate.enter(Call::Create, "c", 6_500, PROBING), Pass::Probe, "it goes on");
        assert_eq!(until(gate.enter(Call::Create, "d", 6_500, PROBING)), 66_000, "nobody else does");
        assert!(!refuse(&mut gate, Call::Create, "c", 7_000));
        assert_eq!(until(gate.enter(Call::Create, "c", 7_000, PROBING)), 17_000);
        assert_eq!(gate.enter(Call::Create, "d", 17_000, PROBING), Pass::Probe);
        assert!(gate.worked(Call::Create, "d", 17_500));
        assert_eq!(gate, Gate::default());
    }

    #[test]
    fn a_prober_that_died_leaves_the_probe_to_the_next() {
        let mut gate = Gate::default();
        refuse(&mut gate, Call::Read, "a", 0);
        assert_eq!(gate.enter(Call::Read, "dead", 5_000, PROBING), Pass::Probe);
        assert_eq!(gate.enter(Call::Read, "next", 65_000, PROBING), Pass::Probe);
        assert!(!gate.worked(Call::Read, "dead", 65_001), "its word comes too late");
        assert!(gate.worked(Call::Read, "next", 65_002));
    }

    #[test]
    fn intervals_double_and_end_at_the_last() {
        let mut gate = Gate::default();
        refuse(&mut gate, Call::Create, "a", 0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let now = gate.pause.as_ref().unwrap().probe_at;
            assert_eq!(gate.enter(Call::Create, "p", now, PROBING), Pass::Probe);
            refuse(&mut gate, Call::Create, "p", now);
            waits.push((gate.pause.as_ref().unwrap().probe_at - now) / 1_000);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn a_refused_create_does_not_stop_reading_but_a_refused_read_stops_all() {
        let mut gate = Gate::default();
        refuse(&mut gate, Call::Create, "a", 0);
        assert_eq!(gate.enter(Call::Read, "r", 1, PROBING), Pass::Free);
        refuse(&mut gate, Call::Read, "r", 2);
        assert_eq!(until(gate.enter(Call::Read, "s", 3, PROBING)), 5_000);
        assert_eq!(gate.enter(Call::Read, "s", 5_000, PROBING), Pass::Probe);
        assert!(gate.worked(Call::Read, "s", 5_001));
        assert_eq!(gate.enter(Call::Read, "t", 5_002, PROBING), Pass::Free);
        assert_eq!(gate.enter(Call::Create, "t", 5_002, PROBING), Pass::Probe, "creating is tried at once");
        let mut read_only = Gate::default();
        refuse(&mut read_only, Call::Read, "a", 0);
        assert_eq!(read_only.enter(Call::Read, "b", 5_000, PROBING), Pass::Probe);
        assert!(read_only.worked(Call::Read, "b", 5_001));
        assert_eq!(read_only, Gate::default());
    }

    #[test]
    fn a_hold_ends_at_its_time_and_never_earlier() {
        let mut gate = Gate::default();
        gate.hold_back(Call::Create, 100, "x");
        gate.hold_back(Call::Create, 50, "y");
        assert_eq!(until(gate.enter(Call::Create, "a", 99, PROBING)), 100);
        assert_eq!(gate.enter(Call::Read, "a", 99, PROBING), Pass::Free);
        assert_eq!(gate.enter(Call::Create, "a", 100, PROBING), Pass::Free);
        gate.hold_back(Call::Read, 200, "z");
        assert_eq!(until(gate.enter(Call::Read, "a", 199, PROBING)), 200);
        assert_eq!(until(gate.enter(Call::Create, "a", 199, PROBING)), 200);
        assert_eq!(gate.tidied(200), Gate::default());
    }

    proptest! {
        /// Whatever happens in whatever order: never two probers at a time, and no pause is for ever.
        #[test]
        fn one_probe_at_a_time(steps in prop::collection::vec((0usize..4, 0usize..4, 0u64..40_000, any::<bool>()), 1..60)) {
            let (mut gate, mut now) = (Gate::default(), 0);
            let names = ["a", "b", "c", "d"];
            let mut probing: Option<(usize, Millis)> = None;
            for (what, who, later, create) in steps {
                now += later;
                let call = if create { Call::Create } else { Call::Read };
                match what {
                    0 => { refuse(&mut gate, call, names[who], now); probing = probing.filter(|(p, _)| *p != who); }
                    1 => { gate.worked(call, names[who], now); probing = probing.filter(|(p, _)| *p != who); }
                    _ => if gate.enter(call, names[who], now, PROBING) == Pass::Probe {
                        prop_assert!(probing.is_none_or(|(p, until)| p == who || until <= now));
                        if probing.is_none_or(|(p, until)| p != who || until <= now) { probing = Some((who, now + 60_000)); }
                    },
                }
                if let Some(pause) = &gate.pause {
                    prop_assert!(pause.probe_at <= now + 300_000);
                }
            }
        }
    }
}
