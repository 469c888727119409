//! The soak: random schedules of submissions, cancels, deaths, stalls, broken providers and broken networks, for as long
//! as it is told. It works in epochs of a few minutes, each a world of its own; at the end of an epoch the chaos stops, and
//! every batch must hold: right answers twice, paid once, counts that add up, nothing left behind.
//!
//! `./scripts/soak --minutes 30 --seed 7`. The schedule comes from the seed; how it meets the work does not, so a seed
//! brings the same kind of trouble again, not the same instant. What breaks is told with the seed and what was done to it.
#![expect(
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a soak says what it does and what it saw"
)]

mod chaos;
mod clients;
mod history;
#[path = "../it/support/mod.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "the stories of tests/it use the rest")]
mod support;
mod verdict;

use futures_util::FutureExt;
use history::History;
use std::{
    panic::AssertUnwindSafe,
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};
use support::Kind;

/// How long chaos lasts in a world before its batches are judged.
const EPOCH: Duration = Duration::from_secs(150);

struct Orders {
    minutes: f64,
    seed: u64,
}

/// `--minutes N` (10) and `--seed S` (the time).
fn orders() -> Result<Orders, String> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(|why| why.to_string())?;
    let mut orders = Orders { minutes: 10.0, seed: since.as_secs() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} takes a value"))?;
        let bad = |why: &dyn std::fmt::Display| format!("{word} {value}: {why}");
        match word.as_str() {
            "--minutes" => orders.minutes = value.parse().map_err(|why| bad(&why))?,
            "--seed" => orders.seed = value.parse().map_err(|why| bad(&why))?,
            _ => return Err(format!("{word}: known are --minutes and --seed")),
        }
    }
    Ok(orders)
}

#[tokio::main]
async fn main() -> ExitCode {
    let orders = match orders() {
        Ok(orders) => orders,
        Err(why) => {
            eprintln!("soak: {why}");
            return ExitCode::from(2);
        }
    };
    println!("soak: {} minutes, seed {}", orders.minutes, orders.seed);
    let (began, until) = (Instant::now(), Duration::from_secs_f64(orders.minutes * 60.0));
    let mut total = history::Tally::default();
    let mut epoch = 0;
    while began.elapsed() < until {
        let kind = if epoch % 2 == 0 { Kind::Ours } else { Kind::Referee };
        let seed = orders.seed.wrapping_mul(1_000).wrapping_add(epoch);
        let length = EPOCH.min(until.saturating_sub(began.elapsed())).max(Duration::from_secs(20));
        // A broken invariant is a panic, which has said what it saw.
        let history = History::default();
        let ended = AssertUnwindSafe(run(kind, seed, length, &history)).catch_unwind().await;
        let tally = history.tally();
        match ended {
            Ok(()) => {
                println!(
                    "epoch {epoch} ({kind:?}, seed {seed}), minute {:.1}: {tally}",
                    began.elapsed().as_secs_f64() / 60.0
                );
                total += tally;
            }
            Err(_) => {
                println!("soak: BROKEN in epoch {epoch} ({kind:?}) of seed {}", orders.seed);
                println!("before it: {total}; in it: {tally}");
                return ExitCode::FAILURE;
            }
        }
        epoch += 1;
    }
    println!(
        "soak: seed {}, {epoch} epochs in {:.1} minutes: {total}",
        orders.seed,
        began.elapsed().as_secs_f64() / 60.0
    );
    println!("soak: 0 wrong, 0 lost, 0 stuck, 0 paid twice");
    ExitCode::SUCCESS
}

/// One epoch: chaos and clients side by side, then the verdict.
async fn run(kind: Kind, seed: u64, length: Duration, history: &History) {
    let mut chaos = chaos::Chaos::begin(kind, seed, history.clone()).await;
    let over = Instant::now() + length;
    let clients = clients::start(&chaos, seed, over, history);
    chaos.rage(over).await;
    let calm = Instant::now();
    chaos.calm().await;
    let mut sent = Vec::new();
    for client in clients {
        match client.await {
            Ok(batches) => sent.extend(batches),
            Err(panic) => history.tell_and_panic(&format!("a client saw what must not be: {panic}")),
        }
    }
    println!("  the last batch ended {:.0} s after the chaos", calm.elapsed().as_secs_f64());
    verdict::judge(&chaos, sent, history).await;
}
