//! Heartbeats of both sides of a link, and detection of lost local memory.

use std::time::{Duration, Instant};

use tombolo_shm::link::{Ends, Extent, Health, HeartbeatSender, HeartbeatTimeouts, SLOW_BEAT, Watch};

use super::end::EndReason;

/// Sender of the local heartbeat and monitor of the peer's, for a link with a socket.
#[derive(Debug)]
pub(super) struct Heartbeat {
    own: Extent,
    peer: Extent,
    pulse: HeartbeatSender,
    watch: Watch,
}

impl Heartbeat {
    pub(super) fn new(ends: &Ends, now: Instant) -> Heartbeat {
        let (own, peer) = (ends.own.clone(), ends.peer.clone());
        let pulse = HeartbeatSender::of(&own, now).every(SLOW_BEAT);
        let watch = Watch::of(&peer, now).with_patience(HeartbeatTimeouts::SLOW);
        Heartbeat { own, peer, pulse, watch }
    }

    /// Advances the local heartbeat, and returns the state of the peer's. To be called about once per
    /// [`SLOW_BEAT`].
    pub(super) fn tick(&mut self, now: Instant) -> Health {
        self.pulse.beat_in(&self.own, now);
        self.watch.look_at(&self.peer, now)
    }

    /// Returns the reason why the link cannot continue, if local memory has lost its pages, so that the peer
    /// no longer sees this side's writes. Returns `None` if the memory is intact.
    pub(super) fn fault(&self) -> Option<EndReason> {
        self.own.region().is_poisoned().then(EndReason::local_memory_lost)
    }

    /// Returns the time since the peer's last heartbeat, as of the last tick.
    pub(super) fn silence(&self) -> Duration {
        self.watch.silence()
    }
}
