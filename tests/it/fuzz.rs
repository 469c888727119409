//! Bytes of others against everything that reads them: the corpus as it is, then mutated, for a moment each. The targets
//! are those of `./scripts/fuzz`, which goes by coverage and takes minutes; what that finds is added to the corpus.

use crate::support::source::home;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::time::{Duration, Instant};

#[path = "../../fuzz/targets.rs"]
mod targets;

/// What each target gets in the suite.
const MOMENT: Duration = Duration::from_secs(1);

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let place = home().join("tests/fixtures/fuzz").join(target);
    let files = std::fs::read_dir(&place).unwrap_or_else(|why| panic!("{}: {why}", place.display()));
    files.map(|file| std::fs::read(file.expect("a file").path()).expect("readable")).collect()
}

/// A seed with some bytes flipped, cut, doubled, or taken from another seed.
fn mutated(seeds: &[Vec<u8>], dice: &mut StdRng) -> Vec<u8> {
    const TOKENS: [&[u8]; 12] = [b"{", b"}", b"[", b"]", b"\"", b"\\", b",", b":", b"\n", b"null", b"1e999", b"\xff"];
    let mut bytes = seeds.choose(dice).cloned().unwrap_or_default();
    for _ in 0..dice.random_range(1..5) {
        let at = dice.random_range(0..=bytes.len());
        let end = dice.random_range(at..=bytes.len().min(at + 16));
        match dice.random_range(0..6) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << dice.random_range(0..8)),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
            3 => drop(bytes.splice(at..end, TOKENS.choose(dice).copied().unwrap_or_default().iter().copied())),
            4 => bytes.truncate(at),
            _ => {
                let other = seeds.choose(dice).map(Vec::as_slice).unwrap_or_default();
                let from = dice.random_range(0..=other.len());
                drop(bytes.splice(at.., other[from..].iter().copied()));
            }
        }
    }
    bytes
}

#[test]
fn nothing_that_reads_bytes_breaks_on_any() {
    for (name, target) in targets::TARGETS {
        let seeds = corpus(name);
        assert!(seeds.len() > 2, "{name} has a corpus");
        for seed in &seeds {
            target(seed);
        }
        let seed: u64 = rand::random();
        let (mut dice, began) = (StdRng::seed_from_u64(seed), Instant::now());
        while began.elapsed() < MOMENT {
            let bytes = mutated(&seeds, &mut dice);
            let ran = std::panic::catch_unwind(|| target(&bytes));
            assert!(ran.is_ok(), "{name}, seed {seed}: {:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
