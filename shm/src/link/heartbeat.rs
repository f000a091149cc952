//! Liveness of the peer, from a counter that it increments. No clock: the time is passed in.
//!
//! On a link with a control socket the kernel closes the socket of a dead peer at once, and the heartbeat
//! only reveals a stuck one. On a link over memory alone, the heartbeat is the only sign of life.

use std::time::{Duration, Instant};

use crate::link::ends::Extent;
use crate::link::header::{heartbeat, set_heartbeat};

/// Default interval of heartbeats; see [`HeartbeatSender::every`].
pub const BEAT: Duration = Duration::from_millis(100);

/// Interval of heartbeats on links where each message wakes the other side, or where a side's death is
/// reported otherwise: heartbeats alone do not justify more frequent wake-ups.
pub const SLOW_BEAT: Duration = Duration::from_secs(1);

/// This side's heartbeat: a counter in its memory that the peer watches.
#[derive(Debug, Clone, Copy)]
pub struct HeartbeatSender {
    count: u64,
    interval: Duration,
    next: Instant,
}

impl HeartbeatSender {
    /// Returns a heartbeat whose counter continues from `count`; the first heartbeat is due at once.
    pub fn new(count: u64, now: Instant) -> HeartbeatSender {
        HeartbeatSender { count, interval: BEAT, next: now }
    }

    /// Sets another interval than [`BEAT`], from the next heartbeat on.
    #[must_use]
    pub fn every(self, interval: Duration) -> HeartbeatSender {
        HeartbeatSender { interval, ..self }
    }

    /// Returns the heartbeat of this side, continuing from the counter in its memory.
    pub fn of(own: &Extent, now: Instant) -> HeartbeatSender {
        HeartbeatSender::new(heartbeat(own), now)
    }

    /// Increments the counter in this side's memory, if due.
    pub fn beat_in(&mut self, own: &Extent, now: Instant) {
        if let Some(count) = self.beat(now) {
            set_heartbeat(own, count);
        }
    }

    /// Increments this side's counter, if due, and returns the value to be stored; `None` if it is not due.
    pub fn beat(&mut self, now: Instant) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.count = self.count.wrapping_add(1);
        self.next = now + self.interval;
        Some(self.count)
    }

    /// Returns the time at which the next heartbeat is due.
    pub fn next(&self) -> Instant {
        self.next
    }
}

/// The state of the peer, as judged by its heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Heartbeats arrive.
    Well,
    /// No heartbeat for a while: busy, stopped, or dying.
    Late,
    /// No heartbeat for so long that the peer counts as dead.
    Lost,
}

/// Times without a heartbeat after which the peer's state changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatTimeouts {
    /// Silence after which the peer is late.
    pub late: Duration,
    /// Silence after which the peer is lost.
    pub lost: Duration,
}

impl Default for HeartbeatTimeouts {
    /// Returns one second and five seconds: guests without dedicated processors pause surprisingly long.
    fn default() -> Self {
        HeartbeatTimeouts { late: Duration::from_secs(1), lost: Duration::from_secs(5) }
    }
}

impl HeartbeatTimeouts {
    /// Timeouts for [`SLOW_BEAT`]: three intervals until late, and one interval longer than the default until
    /// lost, since a peer that pauses may have been about to beat.
    pub const SLOW: HeartbeatTimeouts =
        HeartbeatTimeouts { late: Duration::from_secs(3), lost: Duration::from_secs(6) };
}

/// A monitor of the peer's heartbeat. A time without samples that exceeds `late` counts as one [`BEAT`] only.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    timeouts: HeartbeatTimeouts,
    count: u64,
    /// Time of the last sample.
    looked: Instant,
    /// Time since the last change of the counter, as of the last sample.
    silence: Duration,
    lost: bool,
}

impl Watch {
    /// Begins to watch a counter whose current value is `count`.
    pub fn new(count: u64, timeouts: HeartbeatTimeouts, now: Instant) -> Watch {
        Watch { timeouts, count, looked: now, silence: Duration::ZERO, lost: false }
    }

    /// Begins to watch the counter in the peer's memory.
    pub fn of(peer: &Extent, now: Instant) -> Watch {
        Watch::new(heartbeat(peer), HeartbeatTimeouts::default(), now)
    }

    /// Sets other timeouts than the default ones; the silence so far is retained.
    #[must_use]
    pub fn with_patience(self, timeouts: HeartbeatTimeouts) -> Watch {
        Watch { timeouts, ..self }
    }

    /// Samples the counter in the peer's memory.
    pub fn look_at(&mut self, peer: &Extent, now: Instant) -> Health {
        self.look(heartbeat(peer), now)
    }

    /// Records a sample of the counter. Any change of the counter is a heartbeat, even an irregular one. A
    /// lost peer stays lost.
    pub fn look(&mut self, count: u64, now: Instant) -> Health {
        // During a long time without samples (this machine was suspended, or this process stopped) the peer
        // may have been stopped as well, so all of that time counts as one [`BEAT`].
        let passed = now.saturating_duration_since(self.looked);
        self.silence += if passed > self.timeouts.late { BEAT } else { passed };
        self.looked = now;
        if count != self.count {
            self.count = count;
            self.silence = Duration::ZERO;
        }
        self.lost |= self.silence >= self.timeouts.lost;
        self.health()
    }

    /// Returns the duration of silence at the last sample.
    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// Returns the state at the last sample.
    pub fn health(&self) -> Health {
        match self.silence {
            _ if self.lost => Health::Lost,
            silence if silence >= self.timeouts.late => Health::Late,
            _ => Health::Well,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn heartbeat_fires_when_due() {
        let start = Instant::now();
        let mut pulse = HeartbeatSender::new(u64::MAX, start);
        assert_eq!(pulse.beat(start), Some(0));
        assert_eq!(pulse.beat(at(start, 99)), None);
        assert_eq!(pulse.next(), at(start, 100));
        assert_eq!(pulse.beat(at(start, 100)), Some(1));
        // Late ourselves: one beat, not many.
        assert_eq!(pulse.beat(at(start, 1000)), Some(2));
        assert_eq!(pulse.beat(at(start, 1001)), None);
    }

    #[test]
    fn heartbeat_interval_can_be_changed() {
        let start = Instant::now();
        let mut pulse = HeartbeatSender::new(0, start).every(Duration::from_secs(1));
        let beats = (0..=30).filter(|tick| pulse.beat(at(start, tick * 100)).is_some()).count();
        assert_eq!(beats, 4);
    }

    #[test]
    fn missing_heartbeats_make_peer_late_then_lost() {
        let start = Instant::now();
        let mut watch = Watch::new(7, HeartbeatTimeouts::default(), start);
        let mut healths = Vec::new();
        for tick in 1..=60 {
            healths.push(watch.look(7, at(start, tick * 100)));
        }
        assert_eq!(healths.iter().position(|health| *health == Health::Late), Some(9));
        assert_eq!(healths.iter().position(|health| *health == Health::Lost), Some(49));
        assert_eq!(watch.look(8, at(start, 6100)), Health::Lost);
    }

    #[test]
    fn any_change_is_a_beat() {
        let start = Instant::now();
        let mut watch = Watch::new(7, HeartbeatTimeouts::default(), start);
        for (tick, count) in [6, u64::MAX, 0, 1].into_iter().enumerate() {
            let base = tick as u64 * 2000;
            assert_eq!(watch.look(count, at(start, base + 100)), Health::Well);
            assert_eq!(watch.look(count, at(start, base + 900)), Health::Well);
            assert_eq!(watch.look(count, at(start, base + 1800)), Health::Late);
        }
    }

    #[test]
    fn unsampled_time_does_not_count_as_silence() {
        let start = Instant::now();
        let mut watch = Watch::new(7, HeartbeatTimeouts::default(), start);
        assert_eq!(watch.look(7, at(start, 3_600_000)), Health::Well);
        assert_eq!(watch.look(7, at(start, 3_600_100)), Health::Well);
        assert_eq!(watch.look(8, at(start, 3_600_200)), Health::Well);
        // A clock that goes backwards is harmless.
        assert_eq!(watch.look(8, start), Health::Well);
    }
}
