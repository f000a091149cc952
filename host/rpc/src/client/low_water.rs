//! Receive low-water marks of TCP sockets without TLS: one wake-up for many packets.
//!
//! While a long reply arrives over a network slower than memory, each packet would wake the receiver.
//! Instead the receiver sleeps until two milliseconds' worth of data have arrived, at most 256 KiB, or the
//! remainder of the reply; if that is less than 32 KiB, each packet wakes it. The marks are only an
//! optimization: without them everything works the same.

use std::time::{Duration, Instant};

use super::wire::Socket;

/// Time whose data the receiver awaits, at the rate at which the data of its last turn arrived.
const TIME: Duration = Duration::from_millis(2);
/// Maximum low-water mark, so that data are received while more arrive.
const BYTES_MAX: usize = 256 << 10;
/// Minimum low-water mark; a lower one is not worth the system calls.
const BYTES_MIN: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct LowWater {
    bytes: usize,
    last_turn: Option<Instant>,
}

impl LowWater {
    pub(super) fn new() -> Self {
        Self { bytes: 1, last_turn: None }
    }

    /// Updates the mark after a turn that received `bytes` and emptied the socket, with `missing` bytes of a
    /// reply outstanding.
    pub(super) fn after_turn(&mut self, socket: &dyn Socket, bytes: usize, missing: usize, now: Instant) {
        let wanted = match self.last_turn.replace(now) {
            Some(last) => wanted(bytes, now.saturating_duration_since(last), missing),
            None => 1,
        };
        if wanted != self.bytes {
            self.bytes = wanted;
            socket.set_low_water(wanted);
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
        // 10 Gbit/s, and instantaneous arrival.
        assert_eq!(wanted(1_250_000, ms(1), 1 << 20), BYTES_MAX);
        assert_eq!(wanted(1 << 20, Duration::ZERO, 1 << 20), BYTES_MAX);
        // A slow network, the end of a reply, no reply.
        assert_eq!(wanted(4000, ms(10), 1 << 20), 1);
        assert_eq!(wanted(125_000, ms(1), 20_000), 1);
        assert_eq!(wanted(125_000, ms(1), 0), 1);
    }
}
