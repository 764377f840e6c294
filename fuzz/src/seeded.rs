//! Runs a fuzz target's function on changed seeds, with stable Rust.
//!
//! Input: the target's name and function, and the number of inputs. Output: none. What must hold: each run
//! uses the same bytes unless `FUZZ_SEED` is set, and the same number of inputs unless `FUZZ_TIMES` is set;
//! an input that fails is written to a file, and the failure shows the file's name.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

/// The folder of all seeds and of inputs that once failed.
const SEEDS: &str = "fuzz/seeds";
/// Byte sequences that parsers treat specially.
const PIECES: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u0000",
    "\\ud800",
    "null",
    "-1",
    "1e999",
    "18446744073709551615",
    "0",
    "{{",
    "}}",
    "{%",
    "%}",
    "..",
    "/",
    "\u{0}",
    "\u{feff}",
    "\u{301}",
    "<|im_end|>",
    "a\u{301}\u{200d}",
    "\r\n",
];

/// Runs `target` on each seed, then on `count` inputs made by changing seeds.
pub fn run(root: &Path, name: &str, count: usize, target: impl Fn(&[u8])) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(root.join(SEEDS).join(name))
        .expect("the seeds")
        .map(|entry| entry.expect("a seed").path())
        .collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("a seed")).collect();
    let variable = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let mut random = StdRng::seed_from_u64(variable("FUZZ_SEED").unwrap_or(21));
    let count = count * variable("FUZZ_TIMES").unwrap_or(1) as usize;
    let changed = std::iter::from_fn(|| {
        let mut input = seeds.choose(&mut random)?.clone();
        for _ in 0..random.random_range(1..6) {
            change(&mut random, &mut input, &seeds);
        }
        Some(input)
    });
    for input in seeds.iter().cloned().chain(changed.take(count)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
            let file = std::env::temp_dir().join(format!("fuzz-{name}-{}", std::process::id()));
            std::fs::write(&file, &input).expect("a file for what failed");
            eprintln!("{name} failed on {}: add it to {SEEDS}/{name} once it is fixed", file.display());
            resume_unwind(panic);
        }
    }
}

fn change(random: &mut StdRng, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let place = random.random_range(0..=input.len());
    let end = random.random_range(place..=input.len().min(place + 40));
    match random.random_range(0..7) {
        0 => input.truncate(place),
        1 => drop(input.drain(place..end)),
        2 => drop(input.splice(place..place, PIECES.choose(random).unwrap_or(&"").bytes())),
        3 => drop(input.splice(place..end, PIECES.choose(random).unwrap_or(&"").bytes())),
        4 if place < input.len() => input[place] = random.random(),
        5 => {
            let again = input[place..end].repeat(random.random_range(1..30));
            drop(input.splice(place..place, again));
        }
        _ => {
            let Some(other) = seeds.choose(random) else { return };
            let from = random.random_range(0..=other.len());
            input.truncate(place);
            input.extend_from_slice(&other[from..]);
        }
    }
}
