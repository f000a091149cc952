//! How long a thread looks for the next request before it sleeps.
//!
//! A wake-up that crosses cores costs more than most requests. A program that waits for one answer at a time asks again
//! within microseconds; so after a request the thread that waits goes on looking for a while. It yields between looks: the
//! program may be waiting for this very core. Where looking finds nothing in time, it looks for less and less, down to
//! not at all; where the sleep was so short that looking would have spared it, for longer again.
//!
//! A yield that takes long went to somebody with much to do. A thread that sleeps is put before such a one when it is
//! woken; one that yielded waits its turn. So one long yield ends the looking for the next few hundred requests, and each
//! further one for twice as many, up to a second or two of them.

use std::time::{Duration, Instant};

/// The longest time of looking; measured in `docs/decisions/0032`.
const WINDOW_MAX: Duration = Duration::from_micros(50);
/// Below this a window is not worth its system calls.
const WINDOW_MIN: Duration = Duration::from_micros(4);
/// For so long it looks without yielding.
const EAGER: Duration = Duration::from_micros(2);
/// A yield longer than this met somebody who needs the core.
const YIELD_MAX: Duration = Duration::from_micros(200);
/// Short sleeps before the window opens again after such a yield: at first, and at most.
const PENALTY: (u32, u32) = (256, 1 << 16);

/// How long one thread looks, as it has learnt.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    length: Duration,
    /// Short sleeps to go until it may open.
    closed_for: u32,
    /// The last penalty.
    penalty: u32,
}

impl Default for Window {
    fn default() -> Self {
        Window { length: WINDOW_MAX, closed_for: 0, penalty: 0 }
    }
}

impl Window {
    /// Is looking worth it now?
    pub fn is_open(&self) -> bool {
        self.length >= WINDOW_MIN
    }

    /// Waits a moment between two looks, the first of which was at `since`. False once the time is up; there is one look
    /// more to be had then.
    pub fn pause(&mut self, since: Instant) -> bool {
        let looked = since.elapsed();
        if looked <= EAGER {
            std::hint::spin_loop();
            return true;
        }
        std::thread::yield_now();
        self.yielded(since.elapsed().saturating_sub(looked)) && looked < self.length
    }

    /// A sleep took so long, whether there was a look before it or not.
    pub fn slept(&mut self, how_long: Duration) {
        if how_long >= WINDOW_MAX {
            self.length /= 2;
        } else if self.closed_for > 0 {
            self.closed_for -= 1;
        } else {
            self.length = WINDOW_MAX;
        }
    }

    fn yielded(&mut self, how_long: Duration) -> bool {
        if how_long <= YIELD_MAX {
            return true;
        }
        self.penalty = self.penalty.saturating_mul(2).clamp(PENALTY.0, PENALTY.1);
        self.closed_for = self.penalty;
        self.length = Duration::ZERO;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);

    #[test]
    fn long_sleeps_close_the_window_and_a_short_one_opens_it() {
        let mut window = Window::default();
        assert!(window.is_open());
        (0..8).for_each(|_| window.slept(Duration::from_millis(5)));
        assert!(!window.is_open());
        window.slept(SHORT);
        assert!(window.is_open());
        assert!(!window.pause(Instant::now() - Duration::from_millis(1)));
        assert!(window.pause(Instant::now()));
    }

    #[test]
    fn where_others_need_the_core_looking_ends_for_longer_each_time() {
        let mut window = Window::default();
        for penalty in [PENALTY.0, 2 * PENALTY.0, 4 * PENALTY.0] {
            assert!(window.yielded(SHORT) && window.is_open());
            assert!(!window.yielded(Duration::from_millis(3)));
            for _ in 0..penalty {
                window.slept(SHORT);
                assert!(!window.is_open());
            }
            window.slept(SHORT);
            assert!(window.is_open());
        }
    }
}
