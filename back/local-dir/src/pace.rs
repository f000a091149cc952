//! Whether work on names is quick at present.
//!
//! The kernel does not say beforehand whether a look-up or an unlink will wait for a disk. So such work is done at once,
//! and timed; when it was slow twice in a short while, the next ones go to the pool, until they prove quick again. (Once
//! may just mean that the thread lost its processor for a moment.) A request in a while may then delay the ones behind it,
//! by an access to a disk; all others save the two thread switches that a pool costs (20 µs and more, where the work itself
//! takes 1 to 20). See `docs/decisions/0020-inline-by-pace.md`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Slower than this, and it waited for something.
const SLOW: Duration = Duration::from_micros(1000);
/// So many quick ones make up for a slow one.
const WEIGHT: u32 = 32;

/// Watches how long one kind of work takes.
#[derive(Debug, Default)]
pub struct Pace {
    /// Rises with slow work by [`WEIGHT`], at most to twice that; falls by one with quick work.
    distrust: AtomicU32,
}

impl Pace {
    /// Whether such work may be done at once.
    #[inline]
    pub fn is_quick(&self) -> bool {
        self.distrust.load(Ordering::Relaxed) <= WEIGHT
    }

    /// Does work and learns from how long it took.
    #[inline]
    pub fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.learn(start.elapsed());
        done
    }

    #[inline]
    fn learn(&self, took: Duration) {
        let before = self.distrust.load(Ordering::Relaxed);
        let after = if took > SLOW { (before + WEIGHT).min(2 * WEIGHT) } else { before.saturating_sub(1) };
        if after != before {
            // A thread that learned something else at this moment may go unheard: it is a guess anyway.
            self.distrust.store(after, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOWLY: Duration = Duration::from_millis(2);
    const QUICKLY: Duration = Duration::from_micros(3);

    #[test]
    fn slow_work_in_a_row_costs_the_trust_and_quick_work_wins_it_back() {
        let pace = Pace::default();
        pace.learn(SLOWLY);
        assert!(pace.is_quick(), "once is an accident");
        pace.learn(SLOWLY);
        for _ in 0..WEIGHT {
            assert!(!pace.is_quick());
            pace.learn(QUICKLY);
        }
        assert!(pace.is_quick());
    }

    #[test]
    fn accidents_far_apart_cost_nothing() {
        let pace = Pace::default();
        for _ in 0..10 {
            pace.learn(SLOWLY);
            assert!(pace.is_quick());
            (0..WEIGHT).for_each(|_| pace.learn(QUICKLY));
        }
    }
}
