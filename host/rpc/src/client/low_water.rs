//! Being told of data when there is much of it, not at each packet.
//!
//! While a long reply comes in over a link that is slower than memory, each packet would wake the receiver.
//! It sleeps until as much has come as two milliseconds bring, or what is missing of the reply. A fast path:
//! without it, all works the same.

use std::time::{Duration, Instant};

use super::wire::Socket;

/// As much as comes in this time is waited for; so short that nothing else notices.
const TIME: Duration = Duration::from_millis(2);
/// So much of it at most: what has come is taken while more comes.
const BYTES_MAX: usize = 256 << 10;
/// For less it is not worth the system calls.
const BYTES_MIN: usize = 32 << 10;

/// How much one socket waits for.
#[derive(Debug)]
pub(super) struct LowWater {
    bytes: usize,
    last_turn: Option<Instant>,
}

impl LowWater {
    pub(super) fn new() -> Self {
        Self { bytes: 1, last_turn: None }
    }

    /// A turn has received so many bytes, and nothing is left. Of the reply that is coming in so many are
    /// missing.
    pub(super) fn after_turn(&mut self, socket: &dyn Socket, bytes: usize, missing: usize, now: Instant) {
        let wanted = match self.last_turn.replace(now) {
            Some(last) => wanted(bytes, now.saturating_duration_since(last), missing),
            None => 1,
        };
        if wanted != self.bytes {
            self.bytes = wanted;
            socket.tell_from(wanted);
        }
    }
}

fn wanted(bytes: usize, took: Duration, missing: usize) -> usize {
    let per_second = bytes as f64 / took.as_secs_f64().max(1e-6);
    let soon = (per_second * TIME.as_secs_f64()) as usize;
    let wanted = soon.min(BYTES_MAX).min(missing);
    if wanted < BYTES_MIN { 1 } else { wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_is_waited_for_as_comes_soon() {
        let ms = Duration::from_millis;
        // 1 Gbit/s.
        assert_eq!(wanted(125_000, ms(1), 1 << 20), 250_000);
        assert_eq!(wanted(125_000, ms(1), 100_000), 100_000);
        // 10 Gbit/s, and what comes at once.
        assert_eq!(wanted(1_250_000, ms(1), 1 << 20), BYTES_MAX);
        assert_eq!(wanted(1 << 20, Duration::ZERO, 1 << 20), BYTES_MAX);
        // A slow link, the end of a reply, nothing of a reply.
        assert_eq!(wanted(4000, ms(10), 1 << 20), 1);
        assert_eq!(wanted(125_000, ms(1), 20_000), 1);
        assert_eq!(wanted(125_000, ms(1), 0), 1);
    }
}
