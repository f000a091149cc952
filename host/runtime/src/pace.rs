//! Adaptive choice between inline execution and the thread pool, for work that may wait for a disk.
//!
//! It cannot be determined beforehand whether a look-up, an unlink or a buffered write waits for a disk.
//! Such work is therefore done inline and timed; when it was slow twice in a short while, further work goes
//! to the pool, until it proves quick again. (A single slow operation may just mean that the thread lost its
//! processor; for the second one, the kernel is asked whether the thread waited.) Occasionally a request
//! delays the requests behind it by a disk access; all others save the two thread switches of a pool (20 µs
//! and more, for work that takes 1 to 20 µs). See `docs/decisions/local-dir-inline.md`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tombolo_sys::thread;

/// Duration above which work is slow: it waited for something.
const SLOW: Duration = Duration::from_micros(1000);
/// Number of quick operations that compensate for a slow one.
const WEIGHT: u32 = 32;

/// Statistics on the duration of one kind of work.
#[derive(Debug, Default)]
pub struct Pace {
    /// Score of slowness: slow work adds [`WEIGHT`], up to twice that, unless the thread is found not to have
    /// waited; quick work subtracts one.
    slowness: AtomicU32,
}

impl Pace {
    /// Returns `true` if work of this kind may be done inline.
    #[inline]
    pub fn is_quick(&self) -> bool {
        self.slowness.load(Ordering::Relaxed) <= WEIGHT
    }

    /// Runs work on this thread, inline or in the pool, and learns from its duration.
    #[inline]
    pub fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        // Counting waits costs more than a look-up, so they are counted only after slow work.
        let waits_before = (self.slowness.load(Ordering::Relaxed) > 0).then(thread::waits);
        let start = Instant::now();
        let done = work();
        let slow = start.elapsed() > SLOW;
        self.learn(slow && waits_before.is_none_or(|before| thread::waits() > before), slow);
        done
    }

    #[inline]
    fn learn(&self, waited: bool, slow: bool) {
        let before = self.slowness.load(Ordering::Relaxed);
        let after = match (waited, slow) {
            (true, _) => (before + WEIGHT).min(2 * WEIGHT),
            (false, true) => before,
            (false, false) => before.saturating_sub(1),
        };
        if after != before {
            // A concurrent update may be lost: the value is an estimate anyway.
            self.slowness.store(after, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() {
        std::thread::sleep(2 * SLOW);
    }

    fn computing() {
        let start = Instant::now();
        while start.elapsed() < 2 * SLOW {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn slow_work_leaves_inline_until_quick_again() {
        let pace = Pace::default();
        pace.timed(waiting);
        assert!(pace.is_quick(), "once is an accident");
        pace.timed(waiting);
        let mut tries = 0;
        while !pace.is_quick() {
            pace.timed(|| ());
            tries += 1;
        }
        assert!(tries >= WEIGHT, "{tries}");
    }

    #[test]
    fn a_lost_processor_costs_nothing() {
        // On a busy machine the thread may wait for a page of its own, too.
        let is_quick = |_| {
            let pace = Pace::default();
            (0..10).for_each(|_| pace.timed(computing));
            pace.is_quick()
        };
        assert!((0..50).any(is_quick));
    }
}
