//! Log lines that a stranger can cause: one in a while, and then how many there were.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(10);

/// A kind of log line.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    last: Option<Instant>,
    suppressed: u64,
}

impl Seldom {
    /// Whether to write a line now, and how many were left out since the last.
    pub fn turn(&self) -> Option<u64> {
        self.turn_at(Instant::now())
    }

    fn turn_at(&self, now: Instant) -> Option<u64> {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            heard.suppressed += 1;
            return None;
        }
        heard.last = Some(now);
        Some(std::mem::take(&mut heard.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_while_tells_of_all() {
        let (line, start) = (Seldom::default(), Instant::now());
        assert_eq!(line.turn_at(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(line.turn_at(start + PAUSE / 2), None);
        }
        assert_eq!(line.turn_at(start + PAUSE), Some(1000));
        assert_eq!(line.turn_at(start + PAUSE * 2), Some(0));
    }
}
