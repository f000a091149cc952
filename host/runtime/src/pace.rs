//! Whether work that may wait for a disk is quick at present.
//!
//! The kernel does not say beforehand whether a look-up, an unlink or a buffered write will wait for a disk.
//! So such work is done at once, and timed; when it was slow twice in a short while, the next ones go to the
//! pool, until they prove quick again. (Once may just mean that the thread lost its processor for a moment;
//! so the second time the kernel is asked whether the thread waited.) A request in a while may then delay the
//! ones behind it, by an access to a disk; all others save the two thread switches that a pool costs (20 µs
//! and more, where the work itself takes 1 to 20). See `docs/decisions/local-dir-inline.md`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tombolo_sys::thread;

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
        // Asking costs more than a look-up, so it is done only when there is a reason.
        let waits = (self.distrust.load(Ordering::Relaxed) > 0).then(thread::waits);
        let start = Instant::now();
        let done = work();
        let slow = start.elapsed() > SLOW;
        self.learn(slow && waits.is_none_or(|before| thread::waits() > before), slow);
        done
    }

    #[inline]
    fn learn(&self, waited: bool, slow: bool) {
        let before = self.distrust.load(Ordering::Relaxed);
        let after = match (waited, slow) {
            (true, _) => (before + WEIGHT).min(2 * WEIGHT),
            (false, true) => before,
            (false, false) => before.saturating_sub(1),
        };
        if after != before {
            // A thread that learned something else at this moment may go unheard: it is a guess anyway.
            self.distrust.store(after, Ordering::Relaxed);
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
    fn work_that_waits_costs_the_trust_and_quick_work_wins_it_back() {
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
        let pace = Pace::default();
        for _ in 0..10 {
            pace.timed(computing);
        }
        assert!(pace.is_quick());
    }
}
