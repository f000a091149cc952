//! How long a thread looks for the next request before it sleeps.
//!
//! A wake-up that crosses cores costs more than most requests. A program that uses the mount asks again within
//! microseconds; so after a request the thread that waits goes on looking for a while. It yields between looks: the
//! program may be waiting for this very core. Where looking finds nothing in time, it looks for less and less, down to
//! not at all; where the sleep was so short that looking would have spared it, for longer again.

use std::time::{Duration, Instant};

/// The longest time of looking; measured in `docs/decisions/0032`.
const WINDOW_MAX: Duration = Duration::from_micros(50);
/// Below this a window is not worth its system calls.
const WINDOW_MIN: Duration = Duration::from_micros(4);
/// For so long it looks without yielding.
const EAGER: Duration = Duration::from_micros(2);

/// How long one thread looks, as it has learnt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window(Duration);

impl Default for Window {
    fn default() -> Self {
        Window(WINDOW_MAX)
    }
}

impl Window {
    /// Is looking worth it now?
    pub(super) fn is_open(self) -> bool {
        self.0 >= WINDOW_MIN
    }

    /// Waits a moment between two looks. False once the time is up.
    pub(super) fn pause(self, since: Instant) -> bool {
        let looked = since.elapsed();
        if looked > EAGER {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        looked < self.0
    }

    /// A sleep took so long, whether there was a look before it or not.
    pub(super) fn slept(&mut self, how_long: Duration) {
        if how_long < WINDOW_MAX {
            self.0 = WINDOW_MAX;
        } else if self.is_open() {
            self.0 /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sleeps_close_the_window_and_a_short_one_opens_it() {
        let mut window = Window::default();
        assert!(window.is_open());
        (0..8).for_each(|_| window.slept(Duration::from_millis(5)));
        assert!(!window.is_open());
        window.slept(Duration::from_micros(20));
        assert!(window.is_open());
        assert!(!window.pause(Instant::now() - Duration::from_millis(1)));
        assert!(window.pause(Instant::now()));
    }
}
