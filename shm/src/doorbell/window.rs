use std::time::Duration;

/// The longest time that an adaptive consumer looks before it sleeps.
pub const WINDOW_MAX: Duration = Duration::from_micros(50);
/// Below this a window is not worth its system calls.
const WINDOW_MIN: Duration = Duration::from_micros(4);
/// A yield longer than this met a thread that needs the processor.
const YIELD_MAX: Duration = Duration::from_micros(200);
/// Short sleeps before the window opens again after such a yield: at first, and at most.
const PENALTY: (u32, u32) = (256, 1 << 16);

/// How long one consumer looks before it sleeps, as it has learnt: for less and less where that finds nothing
/// in time, down to not at all; for longer again where the sleep was so short that looking would have spared
/// it.
///
/// A yield that takes long went to a busy thread. A thread that sleeps is put before such a one when it is
/// woken; one that yielded waits its turn. So one long yield ends the looking for the next few hundred short
/// sleeps, and each further one for twice as many.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    length: Duration,
    /// Short sleeps to go until it may open.
    closed_for: u32,
    /// The last penalty.
    penalty: u32,
}

impl Default for Window {
    fn default() -> Window {
        Window { length: WINDOW_MAX, closed_for: 0, penalty: 0 }
    }
}

impl Window {
    /// Whether looking is worth it now.
    pub fn is_open(&self) -> bool {
        self.length >= WINDOW_MIN
    }

    /// For how long to look.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// A sleep ended, with a message or because the time was up. Looking longer would have spared it if it
    /// was short: of less than [`WINDOW_MAX`].
    pub fn slept(&mut self, short: bool) {
        if !short {
            self.length /= 2;
        } else if self.closed_for > 0 {
            self.closed_for -= 1;
        } else {
            self.length = WINDOW_MAX;
        }
    }

    /// Whether to go on after a yield that took so long.
    pub fn yielded(&mut self, how_long: Duration) -> bool {
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

    #[test]
    fn long_sleeps_close_the_window_and_a_short_one_opens_it() {
        let mut window = Window::default();
        assert!(window.is_open());
        (0..8).for_each(|_| window.slept(false));
        assert!(!window.is_open());
        window.slept(true);
        assert!(window.is_open());
    }

    #[test]
    fn where_others_need_the_processor_looking_ends_for_longer_each_time() {
        let mut window = Window::default();
        for penalty in [PENALTY.0, 2 * PENALTY.0, 4 * PENALTY.0] {
            assert!(window.yielded(Duration::from_micros(20)) && window.is_open());
            assert!(!window.yielded(Duration::from_millis(3)));
            for _ in 0..penalty {
                window.slept(true);
                assert!(!window.is_open());
            }
            window.slept(true);
            assert!(window.is_open());
        }
    }
}
