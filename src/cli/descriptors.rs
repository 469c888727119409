//! Descriptors: as many as the system lets the process have, and how many of them those may take who connect to it.

use crate::http::listen::Bounds;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, and says what it is then; none: there is no limit. (The soft one is 1,024 in most
/// places, for the sake of programs that could not count further.)
pub(super) fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(why) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        tracing::warn!(%why, limit = limit.current, "raise the limit of open files: it stays as it was");
    }
    getrlimit(Resource::Nofile).current
}

/// Connections that may be open at the API: at most half of all descriptors, so that Redis, the providers and the metrics'
/// listener always find some.
pub(super) fn connections(descriptors: Option<u64>) -> usize {
    let most = Bounds::default().connections;
    let half = descriptors.map_or(most, |all| usize::try_from(all / 2).unwrap_or(most));
    half.clamp(1, most)
}

/// Those at the metrics' listener, of what the API leaves.
pub(super) fn beside(connections: usize) -> usize {
    (connections / 8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        let lower = before.maximum.map_or(1_024, |hard| hard / 2);
        setrlimit(Resource::Nofile, Rlimit { current: Some(lower), ..before }).expect("it may be lowered");
        assert_eq!(raise(), before.maximum);
        assert_eq!(raise(), before.maximum, "and twice is once");
    }

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        for (descriptors, expect) in [
            (Some(0), 1),
            (Some(256), 128),
            (Some(1_024), 512),
            (Some(1 << 20), 4_096),
            (Some(u64::MAX), 4_096),
            (None, 4_096),
        ] {
            let connections = connections(descriptors);
            assert_eq!(connections, expect, "{descriptors:?}");
            assert!(beside(connections) >= 1 && beside(connections) <= connections.div_ceil(8), "{descriptors:?}");
        }
    }
}
