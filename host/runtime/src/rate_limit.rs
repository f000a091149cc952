//! Rate limit of log messages that a peer can cause: one in ten seconds, with the number of suppressed ones.

use std::sync::Mutex;
use std::time::{Duration, Instant};
use tombolo_core::lock;

const PAUSE: Duration = Duration::from_secs(10);

/// Rate limit of one kind of log message.
#[derive(Debug, Default)]
pub struct RateLimit(Mutex<LastMessage>);

#[derive(Debug, Default)]
struct LastMessage {
    last: Option<Instant>,
    suppressed: u64,
}

impl RateLimit {
    /// Returns the number of messages suppressed since the last one, if a message is allowed now. Otherwise
    /// counts it as suppressed, and returns `None`.
    pub fn allow(&self) -> Option<u64> {
        self.allow_at(Instant::now())
    }

    fn allow_at(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_counts_suppressed_messages() {
        let (line, start) = (RateLimit::default(), Instant::now());
        assert_eq!(line.allow_at(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(line.allow_at(start + PAUSE / 2), None);
        }
        assert_eq!(line.allow_at(start + PAUSE), Some(1000));
        assert_eq!(line.allow_at(start + PAUSE * 2), Some(0));
    }
}
