//! Faults of the network and the server.

use std::time::Duration;

use super::rng::Rng;

/// Constant properties of the network. Probabilities are in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// One-way delay.
    pub delay: (Duration, Duration),
    /// Probability of a hundredfold delay: on a stream, a retransmitted segment.
    pub spikes: u32,
    /// Maximum length of a segment of a stream, in bytes.
    pub segment_max: usize,
    /// Probability that a stream is cut into pieces of a few bytes.
    pub crumbs: u32,
    /// Probability of a short send or receive.
    pub short_transfers: u32,
    /// Capacity of each direction of a stream, in bytes.
    pub window: usize,
    /// Probability that a datagram is lost.
    pub loss: u32,
    /// Probability that a datagram is duplicated.
    pub duplicates: u32,
    /// Probability that a reset follows a piece of a stream.
    pub resets: u32,
    /// Wake-up latency of a receiver after data have arrived.
    pub wake_up: (Duration, Duration),
    /// Delay before the server executes a call, and again before it replies.
    pub service: (Duration, Duration),
    /// Duration of one of the server's file operations.
    pub operation: (Duration, Duration),
}

const fn us(least: u64, most: u64) -> (Duration, Duration) {
    (Duration::from_micros(least), Duration::from_micros(most))
}

impl Conditions {
    /// Conditions without faults.
    pub const CALM: Self = Self {
        delay: us(50, 100),
        spikes: 0,
        segment_max: 64 << 10,
        crumbs: 0,
        short_transfers: 0,
        window: 256 << 10,
        loss: 0,
        duplicates: 0,
        resets: 0,
        wake_up: us(0, 10),
        service: us(10, 50),
        operation: us(0, 0),
    };

    /// Samples random bad conditions.
    pub fn draw(rng: &mut Rng) -> Self {
        let often = *rng.pick(&[0, 0, 5, 20, 100]);
        Self {
            delay: *rng.pick(&[us(50, 100), us(10, 5_000), us(20_000, 40_000), us(1, 300_000)]),
            spikes: *rng.pick(&[0, 5, 50]),
            segment_max: *rng.pick(&[100, 1_460, 9_000, 64 << 10]),
            crumbs: *rng.pick(&[0, 50, 500]),
            short_transfers: *rng.pick(&[0, 100, 500]),
            window: *rng.pick(&[600, 8 << 10, 64 << 10, 256 << 10]),
            loss: often,
            duplicates: *rng.pick(&[0, 20, 200]),
            resets: *rng.pick(&[0, 0, 0, 2, 20]),
            wake_up: *rng.pick(&[us(0, 0), us(0, 10), us(0, 20_000)]),
            service: *rng.pick(&[us(0, 0), us(10, 50), us(0, 50_000), us(0, 3_000_000)]),
            operation: *rng.pick(&[us(0, 0), us(0, 0), us(0, 1_000), us(0, 100_000)]),
        }
    }

    /// Returns variants with one kind of fault less each.
    pub fn calmer(&self) -> Vec<Self> {
        let calm = Self::CALM;
        let candidates = [
            Self { delay: calm.delay, ..*self },
            Self { spikes: 0, ..*self },
            Self { segment_max: calm.segment_max, ..*self },
            Self { crumbs: 0, ..*self },
            Self { short_transfers: 0, ..*self },
            Self { window: calm.window, ..*self },
            Self { loss: 0, ..*self },
            Self { duplicates: 0, ..*self },
            Self { resets: 0, ..*self },
            Self { wake_up: calm.wake_up, ..*self },
            Self { service: calm.service, ..*self },
            Self { operation: calm.operation, ..*self },
        ];
        candidates.into_iter().filter(|candidate| candidate != self).collect()
    }

    /// Samples a one-way delay.
    pub(super) fn delay(&self, rng: &mut Rng) -> Duration {
        let delay = rng.between(self.delay);
        if rng.chance(self.spikes) { delay * 100 } else { delay }
    }
}

/// A single event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every stream is reset; data in flight are lost.
    Reset,
    /// Every stream breaks after a number of bytes in one direction.
    Cut {
        /// `true` towards the server, `false` from it.
        to_server: bool,
        /// Number of bytes delivered before the break.
        after_bytes: usize,
    },
    /// Every stream is closed in order, behind the data in flight.
    Close,
    /// Existing streams deliver nothing any more, and neither side is notified. New ones work.
    HalfOpen,
    /// Nothing is delivered for a while; streams continue afterwards.
    Partition(Duration),
    /// Connections are refused for a while.
    Refuse(Duration),
    /// The server pauses for a while.
    Freeze(Duration),
    /// The server stops and restarts later.
    Restart {
        /// Downtime of the server.
        down: Duration,
        /// The server's machine fails: clients receive no resets before it is up again.
        power: bool,
        /// Share of unstable writes that are lost, in thousandths.
        lost: u32,
    },
}

impl Fault {
    /// Samples a random fault.
    pub fn draw(rng: &mut Rng) -> Self {
        match rng.below(10) {
            0 | 1 => Self::Reset,
            2 | 3 => {
                let most = *rng.pick(&[8, 300, 5_000, 200_000]);
                let after_bytes = rng.below(most) as usize;
                Self::Cut { to_server: rng.chance(500), after_bytes }
            }
            4 => Self::Close,
            5 => Self::HalfOpen,
            6 => Self::Partition(a_while(rng)),
            7 => Self::Refuse(a_while(rng)),
            8 => Self::Freeze(a_while(rng)),
            _ => Self::draw_restart(rng),
        }
    }

    /// Samples a random restart.
    pub fn draw_restart(rng: &mut Rng) -> Self {
        let lost = *rng.pick(&[0, 500, 1000, 1000]);
        Self::Restart { down: a_while(rng), power: rng.chance(300), lost }
    }
}

fn a_while(rng: &mut Rng) -> Duration {
    let longest = *rng.pick(&[10_000, 1_000_000, 30_000_000, 150_000_000]);
    rng.between(us(0, longest))
}
