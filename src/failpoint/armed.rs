//! What a build with fail points knows of those that are armed. One plan per process, set once, at its start.

use super::POINTS;
use std::{
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

static PLAN: OnceLock<Plan> = OnceLock::new();

/// Which points trip, how, and when.
#[derive(Debug, Default)]
pub struct Plan(Vec<Armed>);

#[derive(Debug)]
struct Armed {
    point: &'static str,
    mode: Mode,
    /// Trips the n-th time it is reached, and only then.
    nth: u32,
    reached: AtomicU32,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    /// The process dies on the spot, as by kill -9.
    Exit,
    /// The whole process stands still for so long, as by SIGSTOP: its renewals with it.
    Stall(Duration),
    /// What comes next fails, as if Redis or a provider had broken off.
    Error,
}

/// A point tripped in mode `error`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the fail point {0} was tripped")]
pub struct Tripped(pub &'static str);

impl Plan {
    /// Reads the setting. Unknown points and modes are mistakes.
    ///
    /// # Errors
    /// What is wrong, and what is known.
    pub fn parse(text: &str) -> Result<Plan, String> {
        let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
        parts.map(Armed::parse).collect::<Result<_, _>>().map(Plan)
    }
}

/// A clone comes by for the first time.
impl Clone for Plan {
    fn clone(&self) -> Plan {
        let anew = |armed: &Armed| Armed { reached: AtomicU32::new(0), ..*armed };
        Plan(self.0.iter().map(anew).collect())
    }
}

impl Armed {
    fn parse(part: &str) -> Result<Armed, String> {
        let (name, mode) = part.split_once('=').ok_or_else(|| format!("{part:?}: write name=mode"))?;
        let point = POINTS.iter().find(|point| **point == name);
        let point = point.ok_or_else(|| format!("{name:?} is no fail point; known are {}", POINTS.join(", ")))?;
        let (mode, nth) = mode.split_once('@').unwrap_or((mode, "1"));
        let nth = nth.parse().ok().filter(|nth| *nth > 0).ok_or_else(|| format!("{part:?}: @ takes 1, 2, ..."))?;
        let mode = match mode.split_once(':') {
            None if mode == "exit" => Mode::Exit,
            None if mode == "error" => Mode::Error,
            Some(("stall", time)) => Mode::Stall(seconds(time).ok_or_else(|| format!("{part:?}: write stall:3s"))?),
            _ => return Err(format!("{part:?}: the modes are exit, error and stall:3s")),
        };
        Ok(Armed { point, mode, nth, reached: AtomicU32::new(0) })
    }

    fn trips(&self, point: &str) -> bool {
        self.point == point && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == self.nth
    }
}

fn seconds(text: &str) -> Option<Duration> {
    text.strip_suffix('s')?.parse().ok().map(Duration::from_secs)
}

/// Arms the points of this process; only the first plan counts.
pub fn arm(plan: Plan) {
    if PLAN.set(plan).is_err() {
        tracing::error!("fail points were armed already");
    }
}

/// Is it in the list? Asked by the compiler.
pub const fn is_known(name: &str) -> bool {
    let mut at = 0;
    while at < POINTS.len() {
        if same(POINTS[at].as_bytes(), name.as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// The process came by a point.
///
/// # Errors
/// The point is armed to fail.
pub fn reached(point: &'static str) -> Result<(), Tripped> {
    let Some(armed) = PLAN.get().and_then(|plan| plan.0.iter().find(|armed| armed.trips(point))) else { return Ok(()) };
    tracing::warn!(point, mode = ?armed.mode, "fail point tripped");
    match armed.mode {
        Mode::Error => Err(Tripped(point)),
        Mode::Exit => die(),
        Mode::Stall(time) => {
            stand_still(time);
            tracing::warn!(point, "awake again");
            Ok(())
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "to skip everything that an orderly end does is the point of it")]
fn die() -> ! {
    std::process::abort()
}

/// Stops every thread of the process. Somebody outside has to wake it.
fn stand_still(time: Duration) {
    let script = "kill -STOP $0; sleep $1; kill -CONT $0";
    let (us, time) = (std::process::id().to_string(), time.as_secs().to_string());
    let done = Command::new("sh").args(["-c", script, &us, &time]).status();
    if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
        tracing::error!(?done, "cannot stand still");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_is_wrong_with_it() {
        for (text, piece) in [
            ("nowhere=exit", "known are upload_entered"),
            ("claimed", "name=mode"),
            ("claimed=explode", "the modes are"),
            ("claimed=stall", "the modes are"),
            ("claimed=stall:soon", "stall:3s"),
            ("claimed=exit@0", "@ takes"),
        ] {
            let why = Plan::parse(text).expect_err(text);
            assert!(why.contains(piece), "{text}: {why}");
        }
    }

    #[test]
    fn a_point_trips_once_and_when_it_is_told_to() {
        let plan = Plan::parse("claimed=error@2; settled=stall:3s").expect("a good plan");
        let tripped: Vec<bool> = (0..4).map(|_| plan.0[0].trips("claimed")).collect();
        assert_eq!(tripped, [false, true, false, false]);
        assert!(!plan.0[1].trips("claimed") && plan.0[1].trips("settled"));
    }
}
