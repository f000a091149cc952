//! Adaptive polling before a thread sleeps.
//!
//! A wake-up across cores costs more than most requests. A program that waits for one answer at a time sends
//! its next request within microseconds, so after a request the thread continues to poll for a while. Two
//! policies, both measured in docs/decisions/runtime-polling.md:
//!
//! - [`PollWindow`], for threads of RPC, links and mounts, yields between polls, since the program may be
//!   waiting for this very core. Each long sleep halves the polling time, down to zero. A sleep so short that
//!   polling would have avoided it restores the full time. After a yield of over 200 µs, in which a busy
//!   thread had the core, the window stays closed for 16 short sleeps, and for twice as many each next time,
//!   unless there have been many short yields since.
//! - [`SpinWindow`], for the threads of a guest's queues, never yields, since that would give the core away
//!   for milliseconds on a busy machine. Polling must therefore be sure to pay: after polling in vain it is
//!   tried ever more rarely.
//!
//! The servers of links poll by a [`PollTime`] directly, which [`PollWindow`] wraps.

use std::time::{Duration, Instant};

use tombolo_shm::doorbell::PollTime;
use tombolo_sys::moment::Moment;

/// Beginning of each polling time, during which a [`PollWindow`] does not yield.
const EAGER: Duration = Duration::from_micros(2);

/// Adaptive polling time of a thread or of a link's callers, with yields. The window is open while it pays.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollWindow(PollTime);

impl PollWindow {
    /// Returns the window of a caller that waits for answers over a link.
    pub fn new(poll_time: PollTime) -> PollWindow {
        PollWindow(poll_time)
    }

    /// Returns `true` if polling pays at present.
    pub fn is_open(&self) -> bool {
        self.0.is_open()
    }

    /// Pauses between two polls; `since` is the time of the first poll. Returns `false` once the polling time
    /// is over, or after a long yield: the caller then polls once more, and sleeps.
    pub fn pause(&mut self, since: Moment) -> bool {
        let polled = since.elapsed();
        if polled <= EAGER {
            std::hint::spin_loop();
            return true;
        }
        std::thread::yield_now();
        self.0.yielded(since.elapsed().saturating_sub(polled)) && polled < self.0.length()
    }

    /// Records the duration of a sleep, with or without polling before it.
    pub fn slept(&mut self, how_long: Duration) {
        self.0.slept(how_long < self.0.max());
    }
}

/// Polling without yielding. The window is open, so that the thread polls, until polling was in vain.
///
/// The duration of the sleep after polling in vain shows the reason. If it is long, the guest was idle: the
/// window opens after the next short sleep. If it is short, the guest may have needed this core to make its
/// request: the window stays closed for a number of short sleeps, which is doubled each time.
#[derive(Debug)]
pub struct SpinWindow {
    max: Duration,
    open: bool,
    /// Number of short sleeps before polling is tried again.
    countdown: u32,
    /// Value of `countdown` after the next short sleep that follows polling in vain.
    backoff: u32,
}

impl SpinWindow {
    /// Bounds of `backoff`.
    const BACKOFF_MIN: u32 = 16;
    const BACKOFF_MAX: u32 = 1024;

    /// Returns a window that polls for at most `max`; zero disables it.
    pub fn new(max: Duration) -> SpinWindow {
        SpinWindow { max, open: !max.is_zero(), countdown: 0, backoff: SpinWindow::BACKOFF_MIN }
    }

    /// Polls for work while the window is open. Returns `true` if work was found.
    pub fn spin(&mut self, found: impl Fn() -> bool) -> bool {
        /// Number of polls between two readings of the clock.
        const POLLS: u32 = 32;
        if !self.open {
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..POLLS {
                if found() {
                    self.backoff = SpinWindow::BACKOFF_MIN;
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= self.max {
                return false;
            }
        }
    }

    /// Records the duration of a sleep. If the window was open, the thread polled in vain before it.
    pub fn slept(&mut self, time: Duration) {
        let short = time <= self.max;
        if self.open {
            self.open = false;
            // After a long sleep one short one opens the window, because an idle guest may become active at
            // any time. After a short sleep more of them are needed than the last time.
            self.countdown = if short { self.backoff } else { 1 };
            self.backoff = if short { (self.backoff * 2).min(SpinWindow::BACKOFF_MAX) } else { self.backoff };
        } else if short {
            self.countdown = self.countdown.saturating_sub(1);
            self.open = self.countdown == 0 && !self.max.is_zero();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_window_follows_sleep_durations() {
        let mut window = PollWindow::default();
        assert!(window.is_open());
        (0..8).for_each(|_| window.slept(Duration::from_millis(5)));
        assert!(!window.is_open());
        window.slept(Duration::from_micros(20));
        assert!(window.is_open());
        let begun = Moment::now();
        std::thread::sleep(Duration::from_millis(1));
        assert!(!window.pause(begun));
        assert!(window.pause(Moment::now()));
    }

    const MAX: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_secs(1);

    #[test]
    fn spin_window_follows_activity() {
        let mut spinner = SpinWindow::new(MAX);
        let start = Instant::now();
        assert!(!spinner.spin(|| false));
        assert!(start.elapsed() >= MAX);
        for _ in 0..5 {
            spinner.slept(LONG);
            assert!(!spinner.spin(|| true), "does not even look");
        }
        spinner.slept(SHORT);
        assert!(spinner.spin(|| true));
    }

    #[test]
    fn polling_in_vain_is_tried_ever_more_rarely() {
        let mut spinner = SpinWindow::new(MAX);
        for pause in [16, 32, 64, 128, 256, 512, 1024, 1024] {
            assert!(!spinner.spin(|| false));
            spinner.slept(SHORT);
            for _ in 0..pause {
                assert!(!spinner.spin(|| true));
                spinner.slept(SHORT);
            }
        }
        assert!(spinner.spin(|| true));
        assert!(!spinner.spin(|| false));
        spinner.slept(SHORT);
        assert_eq!(spinner.countdown, 16, "one success forgives");
    }

    #[test]
    fn a_queue_told_not_to_poll_never_does() {
        let mut spinner = SpinWindow::new(Duration::ZERO);
        for _ in 0..2000 {
            assert!(!spinner.spin(|| true));
            spinner.slept(Duration::ZERO);
        }
    }
}
