//! Runs over many seeds, with reduction of failures.

use std::cell::Cell;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use tombolo_nfs_client_tests::wire::Network;

/// Maximum number of attempts to reduce a failing run.
const ATTEMPTS_MAX: usize = 300;

/// Parameters of a run, all drawn from a seed.
pub trait Scenario: Clone + Debug {
    /// Samples the run of a seed.
    fn draw(seed: u64) -> Self;
    /// Returns smaller variants of the run.
    fn smaller(&self) -> Vec<Self>;
    /// Executes the run. Panics if an invariant is violated.
    fn run(&self, telling: Telling);
}

/// Runs a test with the seeds from the environment (`SEED=` for one; `SEEDS=` for a number of them, from
/// `FIRST_SEED=` or 0), or else with `usual` seeds from 0; fifty times as many in the long run (`make
/// test-long`).
///
/// A failing run is reduced while it still fails; the result is printed with its events.
pub fn run_seeds<S: Scenario>(usual: u64) {
    let number = |name| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("FIRST_SEED").unwrap_or(0);
            let usual = if std::env::var_os("TOMBOLO_LONG").is_some() { 50 * usual } else { usual };
            first..first + number("SEEDS").unwrap_or(usual)
        }
    };
    for seed in seeds {
        let scenario = S::draw(seed);
        if fails(&scenario) {
            tell(seed, &scenario);
        }
    }
}

fn fails(scenario: &impl Scenario) -> bool {
    silently(|| catch_unwind(AssertUnwindSafe(|| scenario.run(Telling::Quiet))).is_err())
}

fn tell<S: Scenario>(seed: u64, scenario: &S) -> ! {
    let mut smallest = scenario.clone();
    let mut attempts = 0;
    while attempts < ATTEMPTS_MAX {
        let candidates = smallest.smaller();
        attempts += candidates.len();
        match candidates.into_iter().find(fails) {
            Some(smaller) => smallest = smaller,
            None => break,
        }
    }
    eprintln!("\nSEED={seed} fails. What is left of it fails as well:\n{smallest:#?}\n");
    smallest.run(Telling::Aloud);
    panic!("SEED={seed} failed the first time, and not when it was to be told of");
}

/// Output of a run's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// No output.
    Quiet,
    /// Events are printed at the end of the run.
    Aloud,
}

/// Guard that prints a run's events when dropped.
pub struct Told(Option<Network>);

impl Telling {
    /// Returns a guard that prints the events at the end of the run if [`Telling::Aloud`].
    pub fn at_end(self, network: &Network) -> Told {
        Told((self == Self::Aloud).then(|| network.clone()))
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(network) = &self.0 {
            eprintln!("{}", network.trace());
        }
    }
}

thread_local! {
    /// `true` while panics of this thread are not printed.
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

fn silently<T>(act: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !SILENT.get() {
                usual(info);
            }
        }));
    });
    SILENT.set(true);
    let outcome = act();
    SILENT.set(false);
    outcome
}
