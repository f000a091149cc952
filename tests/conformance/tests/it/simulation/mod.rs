//! Deterministic simulation: an origin, a network that delays, reorders and cuts, two caches with clients,
//! and changes at the origin itself. Each answer is compared with the origin's history by the rules of the
//! cache's contract.
//!
//! A run is single-threaded and depends on its seed alone. A failing seed is printed with its log;
//! `TOMBOLO_SEED=… cargo test -p tombolo-conformance --test it simulation` repeats it. `TOMBOLO_CASES` sets
//! the number of runs, from that seed or the first.

mod caller;
mod history;
mod network;
mod run;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use run::Run;

/// Number of seeds in the usual and in the long run.
const SEEDS: (u64, u64) = (80, 5000);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn answers_of_two_caches_obey_their_contracts() {
    let seeds = if number("TOMBOLO_LONG").is_some() { SEEDS.1 } else { SEEDS.0 };
    let seeds = match number("TOMBOLO_SEED") {
        Some(seed) => seed..seed + number("TOMBOLO_CASES").unwrap_or(1),
        None => 0..number("TOMBOLO_CASES").unwrap_or(seeds),
    };
    let (next, sums) = (AtomicU64::new(seeds.start), Mutex::new((0, 0)));
    let run_all = || {
        while let seed = next.fetch_add(1, Ordering::Relaxed)
            && seed < seeds.end
        {
            let outcome = std::panic::catch_unwind(|| Run::new(seed).run());
            let mut sums = sums.lock().expect("another seed has failed");
            match outcome {
                Ok(Ok(counts)) => *sums = (sums.0 + counts.hits, sums.1 + counts.misses),
                Ok(Err(told)) => panic!("{told}\nTOMBOLO_SEED={seed} runs it again"),
                Err(_) => panic!("TOMBOLO_SEED={seed} runs it again"),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run_all))));
    let (answered, asked) = sums.into_inner().expect("no panic");
    eprintln!("{} seeds: {answered} operations answered by caches, {asked} waited", seeds.end - seeds.start);
    assert!(seeds.end - seeds.start < 50 || answered * 10 > asked, "caches have answered next to nothing");
}
