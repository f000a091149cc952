//! How long a thread looks for the next request before it sleeps.
//!
//! A wake-up that crosses cores costs more than most requests. A program that waits for one answer at a time asks again
//! within microseconds; so after a request the thread that waits goes on looking for a while. It yields between looks: the
//! program may be waiting for this very core. Where looking finds nothing in time, it looks for less and less, down to
//! not at all; where the sleep was so short that looking would have spared it, for longer again.

use std::time::{Duration, Instant};

use tombolo_shm::doorbell::{self, WINDOW_MAX};

/// For so long it looks without yielding.
const EAGER: Duration = Duration::from_micros(2);

/// How long one thread looks, as it has learnt. Its longest time was measured in `docs/decisions/runtime-polling.md`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window(doorbell::Window);

impl Window {
    /// Is looking worth it now?
    pub fn is_open(&self) -> bool {
        self.0.is_open()
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
        self.0.yielded(since.elapsed().saturating_sub(looked)) && looked < self.0.length()
    }

    /// A sleep took so long, whether there was a look before it or not.
    pub fn slept(&mut self, how_long: Duration) {
        self.0.slept(how_long < WINDOW_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sleeps_end_the_looking_and_a_short_one_begins_it_anew() {
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
