//! The hearts of both sides of a link, as one of them feels them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_shm::link::{Ends, Extent, HEARTBEAT_OFFSET, Health, Patience, Pulse, Watch};

/// Beats our heart and watches the other.
#[derive(Debug)]
pub(super) struct Heart {
    own: Extent,
    peer: Extent,
    pulse: Pulse,
    watch: Watch,
}

impl Heart {
    pub(super) fn new(ends: &Ends, now: Instant) -> Heart {
        let (own, peer) = (ends.own.clone(), ends.peer.clone());
        let (pulse, watch) = (Pulse::new(load(&own), now), Watch::new(load(&peer), Patience::default(), now));
        Heart { own, peer, pulse, watch }
    }

    /// To be called about as often as a heart beats.
    pub(super) fn tick(&mut self, now: Instant) -> Health {
        if let Some(count) = self.pulse.beat(now) {
            // It lies in the header, which every end has.
            let stored = self
                .own
                .place(HEARTBEAT_OFFSET, 8)
                .and_then(|at| self.own.region().store_u64(at, count.to_le(), Ordering::Relaxed));
            debug_assert!(stored.is_ok(), "{stored:?}");
        }
        self.watch.look(load(&self.peer), now)
    }

    /// For how long the other was silent at the last tick.
    pub(super) fn silence(&self) -> Duration {
        self.watch.silence()
    }
}

fn load(end: &Extent) -> u64 {
    let at = end.place(HEARTBEAT_OFFSET, 8);
    at.and_then(|at| end.region().load_u64(at, Ordering::Relaxed)).map_or(0, u64::from_le)
}
