//! What was done, and when: to the world, and to each batch. Told in full only of what broke.

use std::{
    fmt,
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

/// Counts of an epoch, or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) batches: u64,
    pub(crate) prompts: u64,
    pub(crate) cancels: u64,
    /// kill -9 of a gateway, and of Redis.
    pub(crate) kills: u64,
    pub(crate) redis_kills: u64,
    /// Gateways and Redis that stood still for longer than a lease.
    pub(crate) stalls: u64,
    pub(crate) stops: u64,
    /// Rules of faults at the providers; requests that met a proxy's trouble.
    pub(crate) faults: u64,
    pub(crate) cuts: u64,
    /// Answers of the online server that were paid twice: what was in the air.
    pub(crate) reasked: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.batches += more.batches;
        self.prompts += more.prompts;
        self.cancels += more.cancels;
        self.kills += more.kills;
        self.redis_kills += more.redis_kills;
        self.stalls += more.stalls;
        self.stops += more.stops;
        self.faults += more.faults;
        self.cuts += more.cuts;
        self.reasked += more.reasked;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { batches, prompts, cancels, kills, redis_kills, stalls, stops, faults, cuts, reasked } = self;
        write!(
            f,
            "{batches} batches, {prompts} prompts, {cancels} cancels; {kills} gateways and {redis_kills} Redis killed, "
        )?;
        write!(
            f,
            "{stalls} stalls, {stops} orderly stops, {faults} provider faults, {cuts} requests cut; {reasked} asked twice online"
        )
    }
}

struct Event {
    at: Instant,
    /// Whose: a batch's label, or nobody's in particular.
    of: Option<String>,
    what: String,
}

#[derive(Default)]
struct Kept {
    tally: Tally,
    events: Vec<Event>,
}

#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<Kept>>);

impl History {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().expect("nobody panics with it")
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.kept().tally);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.kept().tally
    }

    /// Something that was done to the world.
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.kept().events.push(Event { at: Instant::now(), of: None, what: what.into() });
    }

    /// Something that was done to a batch.
    pub(crate) fn note_of(&self, batch: &str, what: impl Into<String>) {
        self.kept().events.push(Event { at: Instant::now(), of: Some(batch.to_owned()), what: what.into() });
    }

    /// A batch is broken: what was done to it, and to the world while it lived.
    pub(crate) fn tell(&self, batch: &str) {
        let kept = self.kept();
        let own = |event: &&Event| event.of.as_deref() == Some(batch);
        let Some(began) = kept.events.iter().find(own).map(|event| event.at) else { return };
        println!("what was done to {batch}, and to the world meanwhile:");
        for event in
            kept.events.iter().filter(|event| event.at >= began && event.of.as_deref().is_none_or(|of| of == batch))
        {
            let whose = if event.of.is_some() { "batch" } else { "world" };
            println!("  +{:7.2} s  {whose}  {}", (event.at - began).as_secs_f64(), event.what);
        }
    }

    /// Something broke that is no batch's alone: the world's latest events.
    pub(crate) fn tell_and_panic(&self, why: &str) -> ! {
        let kept = self.kept();
        println!("the last things that were done:");
        for event in kept.events.iter().rev().take(40).collect::<Vec<_>>().into_iter().rev() {
            println!(
                "  -{:7.2} s  {}  {}",
                event.at.elapsed().as_secs_f64(),
                event.of.as_deref().unwrap_or("world"),
                event.what
            );
        }
        drop(kept);
        panic!("{why}")
    }
}
