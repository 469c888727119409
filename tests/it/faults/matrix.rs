//! Every seam at which a gateway may die, stand still or see a call break off: each kind of provider, alone and beside
//! another gateway. Whatever happens there, the batch ends with the right answers, nothing is paid twice, nothing is left
//! behind. Each test is one row of [`seams`] for one kind of provider, and goes through its modes.
//!
//! CI runs a third of the combinations with smaller batches, another one every day; `./scripts/soak --matrix` all of them.

mod ratchet;
mod seams;
mod share;
mod trial;

use batchgate::failpoint;
use futures_util::{StreamExt, stream};
use seams::SEAMS;
use share::Share;

/// What happens at the seam.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The process is gone.
    Exit,
    /// The process stands still for longer than its lease, and goes on.
    Stall,
    /// The call at hand breaks off.
    Error,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Exit, Mode::Stall, Mode::Error];

    /// As the setting wants it.
    fn word(self) -> &'static str {
        match self {
            Mode::Exit => "exit",
            Mode::Stall => "stall:4s",
            Mode::Error => "error",
        }
    }
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Anthropic,
    OpenAi,
    Online,
}

/// What must happen for the seam to be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Story {
    /// A batch is sent and answered.
    Batch,
    /// One with so many prompts in a chunk that its answers are staged in two groups.
    LargeChunk,
    /// A batch of a run, with a prompt that fails at once.
    Run,
    /// A second batch asks what the first one has in flight.
    Join,
    /// A body that is refused at its last line.
    Refused,
    /// What a batch left unanswered is asked again.
    Retry,
    /// The answer to a create is lost.
    Doubt,
    /// The batch is cancelled while it runs.
    Cancel,
    /// The gateway is told to stop while the batch runs.
    Stop,
}

/// One row of the table.
#[derive(Debug)]
pub(super) struct Seam {
    point: &'static str,
    story: Story,
    /// Who can bring a batch there at all.
    asked: &'static [Asked],
    /// What becomes of the batch if the process dies there.
    fate: &'static str,
}

/// One way through a seam.
#[derive(Clone, Copy, Debug)]
pub(super) struct Combination {
    seam: &'static Seam,
    asked: Asked,
    mode: Mode,
    gateways: usize,
}

/// Every combination of a row, with its number: neighbours differ in mode and in the count of gateways.
fn combinations(at: usize, asked: Asked) -> impl Iterator<Item = (usize, Combination)> {
    let seam = &SEAMS[at];
    let ways = Mode::ALL.into_iter().flat_map(|mode| [1, 2].map(|gateways| (mode, gateways)));
    ways.enumerate().map(move |(n, (mode, gateways))| {
        let number = at + asked as usize + n / 2 + 2 * (n % 2);
        (number, Combination { seam, asked, mode, gateways })
    })
}

/// How many combinations of a row run side by side: they mostly wait.
const AT_ONCE: usize = 2;

/// Runs the chosen combinations of one row.
async fn run(point: &str, asked: Asked) {
    let at = SEAMS.iter().position(|seam| seam.point == point).expect("each test is made of a row");
    assert!(SEAMS[at].asked.contains(&asked), "{asked:?} never comes by {point}");
    let share = Share::chosen();
    let chosen =
        combinations(at, asked).filter(|(number, _)| share.takes(*number)).map(async |(number, combination)| {
            eprintln!("{share}: {point} {asked:?} {:?}, {} gateway(s)", combination.mode, combination.gateways);
            let trial = trial::run(combination, share.simulator(number), share.prompts());
            match ratchet::known_broken(&combination) {
                None => trial.await,
                Some(why) => ratchet::still_breaks(why, trial).await,
            }
        });
    stream::iter(chosen).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// A point that is in no row is a seam nobody looked at.
#[test]
fn every_point_has_its_row() {
    let rows: Vec<&str> =
        SEAMS.iter().map(|seam| seam.point).chain(super::jobs::SEAMS.iter().map(|seam| seam.0)).collect();
    assert_eq!(
        rows,
        failpoint::POINTS,
        "src/failpoint.rs, tests/it/faults/matrix/seams.rs and jobs.rs tell the same seams"
    );
}

/// What is tried, and what cannot be: a kind of provider that never comes by a seam is listed, not passed over.
#[test]
fn the_table_says_what_is_tried() {
    let every = [Asked::Anthropic, Asked::OpenAi, Asked::Online];
    let mut tried = [0; 3];
    for (at, seam) in SEAMS.iter().enumerate() {
        eprintln!("{:<20} {}", seam.point, seam.fate);
        for asked in every {
            if !seam.asked.contains(&asked) {
                eprintln!("{:<20} cannot be met by {asked:?}", "");
                continue;
            }
            for (number, _) in combinations(at, asked) {
                tried[number % 3] += 1;
            }
        }
    }
    eprintln!("combinations: {} in all, by thirds {tried:?}", tried.iter().sum::<usize>());
    assert!(tried.iter().sum::<usize>() >= 200, "{tried:?}");
    assert!(tried.iter().max() <= tried.iter().min().map(|least| least * 11 / 10).as_ref(), "uneven thirds: {tried:?}");
}
