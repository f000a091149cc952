//! The faults of the network and the server.

use std::time::Duration;

use super::rng::Rng;

/// What goes on all the time. Chances are in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// How long something is under way, one way.
    pub delay: (Duration, Duration),
    /// How often something takes a hundred times as long: on a stream, a lost segment that is sent again.
    pub spikes: u32,
    /// The longest piece of a stream that travels in one, in bytes.
    pub segment_max: usize,
    /// How often a stream is cut into pieces of a few bytes.
    pub crumbs: u32,
    /// How often a socket takes or gives less than it could.
    pub short_transfers: u32,
    /// Bytes that a direction of a stream holds.
    pub window: usize,
    /// How often a datagram is lost.
    pub loss: u32,
    /// How often one comes twice.
    pub duplicates: u32,
    /// How often a piece of a stream is the last one before a reset.
    pub resets: u32,
    /// How long a receiver stays asleep after data have come.
    pub wake_up: (Duration, Duration),
    /// How long the server takes to begin a call, and after that to answer it.
    pub service: (Duration, Duration),
    /// How long one of the server's file operations takes.
    pub operation: (Duration, Duration),
}

const fn us(least: u64, most: u64) -> (Duration, Duration) {
    (Duration::from_micros(least), Duration::from_micros(most))
}

impl Conditions {
    /// Nothing goes wrong.
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

    /// Bad conditions of some kind.
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

    /// The same with one thing less that goes wrong, each in turn.
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

    /// The time that something is under way now.
    pub(super) fn delay(&self, rng: &mut Rng) -> Duration {
        let delay = rng.between(self.delay);
        if rng.chance(self.spikes) { delay * 100 } else { delay }
    }
}

/// Something that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every stream is reset; what is under way is lost.
    Reset,
    /// Every stream breaks after so many more bytes in one direction.
    Cut {
        /// Towards the server, or from it.
        to_server: bool,
        /// How many bytes still get through.
        after_bytes: usize,
    },
    /// Every stream ends in order, after what is under way.
    Close,
    /// Nothing gets through on the streams that there are, for ever, and neither side is told. New ones work.
    HalfOpen,
    /// Nothing gets through for a while. Streams go on after it.
    Partition(Duration),
    /// Connections are refused for a while.
    Refuse(Duration),
    /// The server does nothing for a while.
    Freeze(Duration),
    /// The server ends and starts again some time later.
    Restart {
        /// How long the server is down.
        down: Duration,
        /// Its machine fails: clients are told nothing before it is back.
        power: bool,
        /// How many of the writes that were not yet stable are lost, in thousandths.
        lost: u32,
        /// Handles of before are no longer good.
        new_handles: bool,
    },
}

impl Fault {
    /// Any of them.
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

    /// Some restart. Handles stay good.
    pub fn draw_restart(rng: &mut Rng) -> Self {
        let lost = *rng.pick(&[0, 500, 1000, 1000]);
        Self::Restart { down: a_while(rng), power: rng.chance(300), lost, new_handles: false }
    }
}

fn a_while(rng: &mut Rng) -> Duration {
    let longest = *rng.pick(&[10_000, 1_000_000, 30_000_000, 150_000_000]);
    rng.between(us(0, longest))
}
