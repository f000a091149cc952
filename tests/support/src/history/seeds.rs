//! Many sequences, and the reduction of one that fails.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;

/// Maximum number of attempts to reduce a sequence.
const ATTEMPTS_MAX: usize = 2000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Returns the number of cases: `TOMBOLO_CASES`, or `usual`.
pub fn cases(usual: u64) -> u64 {
    number("TOMBOLO_CASES").unwrap_or(usual)
}

/// Runs `usual` sequences, or as many as `TOMBOLO_CASES` says, from `TOMBOLO_SEED` or a new seed on. A
/// sequence that fails or panics is reduced and printed with its seed.
///
/// # Panics
/// If a sequence fails.
pub fn run_sequences<T: Clone + Debug>(
    usual: u64,
    sample: impl Fn(&mut Rng) -> Vec<T>,
    run: impl Fn(&[T]) -> Result<(), String>,
) {
    let first = number("TOMBOLO_SEED").unwrap_or_else(|| u64::from(fastrand::u32(..)));
    for seed in first..first + cases(usual) {
        let steps = sample(&mut Rng::with_seed(seed));
        if outcome(&run, &steps).is_err() {
            let steps = reduced(steps, |steps| outcome(&run, steps).is_err());
            let failure = outcome(&run, &steps);
            panic!("TOMBOLO_SEED={seed} TOMBOLO_CASES=1 fails:\n{steps:#?}\n{failure:?}");
        }
    }
}

fn outcome<T>(run: impl Fn(&[T]) -> Result<(), String>, steps: &[T]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| run(steps))).unwrap_or_else(|_| Err("a panic, above".into()))
}

/// Removes elements of a sequence while it still fails, halves first and single ones last.
fn reduced<T: Clone>(mut steps: Vec<T>, fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let (mut len, mut attempts) = (steps.len().div_ceil(2), 0);
    while len > 0 {
        let (mut at, before) = (0, steps.len());
        while at < steps.len() && attempts < ATTEMPTS_MAX {
            let end = steps.len().min(at + len);
            let fewer = [&steps[..at], &steps[end..]].concat();
            attempts += 1;
            if fails(&fewer) { steps = fewer } else { at = end }
        }
        // Single ones again after each success: an earlier one may be needless by now.
        if len > 1 || steps.len() == before || attempts == ATTEMPTS_MAX {
            len /= 2;
        }
    }
    steps
}
