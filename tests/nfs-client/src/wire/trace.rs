//! Events of a run, in order.

use std::fmt;
use std::time::Duration;

/// The events of one run. The digest is always computed, the text only on request.
#[derive(Debug)]
pub struct Trace {
    digest: u64,
    lines: Option<Vec<(Duration, String)>>,
}

impl Trace {
    /// Creates a trace; retains the text of events if `is_read`.
    pub fn new(is_read: bool) -> Self {
        Self { digest: 0xcbf2_9ce4_8422_2325, lines: is_read.then(Vec::new) }
    }

    /// Adds an event: kind and number for the digest, and its text.
    pub fn add(&mut self, now: Duration, kind: u8, number: u64, words: impl FnOnce() -> String) {
        for value in [now.as_nanos() as u64, u64::from(kind), number] {
            for byte in value.to_le_bytes() {
                self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        if let Some(lines) = &mut self.lines {
            lines.push((now, words()));
        }
    }

    /// Returns a digest; runs with the same events have the same digest.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, words) in self.lines.iter().flatten() {
            writeln!(f, "{:12.6} s  {words}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
