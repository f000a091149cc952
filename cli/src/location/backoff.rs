//! Retries for an unreachable server.

use std::thread;
use std::time::{Duration, Instant};

const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Pauses between attempts, doubling up to a limit, until a deadline.
#[derive(Debug)]
pub struct Backoff {
    pause: Duration,
    pause_max: Duration,
    until: Option<Instant>,
}

impl Backoff {
    /// Creates the back-off. `until` is the time of the last attempt; `None`: no limit.
    pub fn new(pause_max: Duration, until: Option<Instant>) -> Self {
        Self { pause: PAUSE_MIN, pause_max, until }
    }

    /// Sleeps until the next attempt. Returns `false` at once after the last one.
    pub fn wait(&mut self) -> bool {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return false;
        }
        thread::sleep(left.map_or(self.pause, |left| self.pause.min(left)));
        self.pause = (self.pause * 2).min(self.pause_max);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_begins_when_the_time_is_over() {
        let begun = Instant::now();
        let mut backoff = Backoff::new(Duration::from_millis(200), Some(begun + Duration::from_millis(450)));
        let waits = (0..).take_while(|_| backoff.wait()).count();
        assert_eq!(waits, 3, "100, 200 and the rest of 150 ms");
        assert!(begun.elapsed() >= Duration::from_millis(450));
        assert!(!Backoff::new(Duration::ZERO, Some(begun)).wait());
    }
}
