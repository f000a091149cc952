//! Whether work on names is quick at present.
//!
//! The kernel does not say beforehand whether a look-up or an unlink will wait for a disk. So such work is done at once,
//! and timed; when it was slow, the next ones go to the pool, until they prove quick again. One request in a while may
//! then delay the one behind it, by one access to a disk; the others save the two thread switches that a pool costs
//! (15 to 30 µs, where the work itself takes 1 to 20). See `docs/decisions/0020-inline-by-pace.md`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Slower than this, and it waited for something.
const SLOW: Duration = Duration::from_micros(1000);
/// So many quick ones in the pool win the trust back.
const PROBATION: u32 = 32;

/// Watches how long one kind of work takes.
#[derive(Debug, Default)]
pub struct Pace {
    distrust: AtomicU32,
}

impl Pace {
    /// Whether such work may be done at once.
    #[inline]
    pub fn is_quick(&self) -> bool {
        self.distrust.load(Ordering::Relaxed) == 0
    }

    /// Does work and learns from how long it took.
    #[inline]
    pub fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.learn(start.elapsed());
        done
    }

    fn learn(&self, took: Duration) {
        if took > SLOW {
            self.distrust.store(PROBATION, Ordering::Relaxed);
        } else if !self.is_quick() {
            let less = |distrust: u32| distrust.checked_sub(1);
            // When another thread was first, it has counted for both.
            let _ = self.distrust.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_piece_of_work_costs_the_trust_and_many_quick_ones_win_it_back() {
        let pace = Pace::default();
        assert!(pace.is_quick());
        pace.learn(Duration::from_millis(2));
        for _ in 0..PROBATION {
            assert!(!pace.is_quick());
            pace.learn(Duration::from_micros(3));
        }
        assert!(pace.is_quick());
    }
}
