//! Whether the other side lives, told by a counter that it moves. No clock: the time is passed in.
//!
//! Where there is a socket, its end tells death at once, and a heartbeat only shows that a side is stuck.
//! Where there is only memory, the heartbeat is all there is.

use std::time::{Duration, Instant};

use crate::link::ends::Extent;
use crate::link::header::{heartbeat, set_heartbeat};

/// The interval of heartbeats, if nothing else is [said](Pulse::every).
pub const BEAT: Duration = Duration::from_millis(100);

/// Our own heartbeat.
#[derive(Debug)]
pub struct Pulse {
    count: u64,
    interval: Duration,
    next: Instant,
}

impl Pulse {
    /// A heartbeat whose counter goes on from `count`, with the first beat due at once.
    pub fn new(count: u64, now: Instant) -> Pulse {
        Pulse { count, interval: BEAT, next: now }
    }

    /// The same with another interval.
    #[must_use]
    pub fn every(self, interval: Duration) -> Pulse {
        Pulse { interval, ..self }
    }

    /// The heartbeat of an end, which goes on from where the counter is.
    pub fn of(own: &Extent, now: Instant) -> Pulse {
        Pulse::new(heartbeat(own), now)
    }

    /// Moves the counter of our end, if it is time.
    pub fn beat_in(&mut self, own: &Extent, now: Instant) {
        if let Some(count) = self.beat(now) {
            set_heartbeat(own, count);
        }
    }

    /// What to store in our counter, if it is time.
    pub fn beat(&mut self, now: Instant) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.count = self.count.wrapping_add(1);
        self.next = now + self.interval;
        Some(self.count)
    }

    /// When the next beat is due.
    pub fn next(&self) -> Instant {
        self.next
    }
}

/// How the other side is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Its heartbeat comes.
    Well,
    /// It was not heard for a while: busy, stopped, or dying.
    Late,
    /// It was not heard for so long that it counts as dead.
    Lost,
}

/// How long a heartbeat may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// From then on it is late.
    pub late: Duration,
    /// From then on it is lost.
    pub lost: Duration,
}

impl Default for Patience {
    /// Late after a second, lost after five: guests without processors of their own pause for longer than one
    /// thinks.
    fn default() -> Self {
        Patience { late: Duration::from_secs(1), lost: Duration::from_secs(5) }
    }
}

/// Watches the other side's heartbeat.
#[derive(Debug)]
pub struct Watch {
    patience: Patience,
    count: u64,
    looked: Instant,
    silence: Duration,
    lost: bool,
}

impl Watch {
    /// Begins to watch a counter that is `count` now.
    pub fn new(count: u64, patience: Patience, now: Instant) -> Watch {
        Watch { patience, count, looked: now, silence: Duration::ZERO, lost: false }
    }

    /// Begins to watch the owner of an end.
    pub fn of(peer: &Extent, now: Instant) -> Watch {
        Watch::new(heartbeat(peer), Patience::default(), now)
    }

    /// The same with another patience.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Watch {
        Watch { patience, ..self }
    }

    /// Takes note of the counter of the other side's end.
    pub fn look_at(&mut self, peer: &Extent, now: Instant) -> Health {
        self.look(heartbeat(peer), now)
    }

    /// Takes note of the counter. Any change is a beat: a peer that moves its counter oddly lives all the
    /// same. Once lost it stays so.
    pub fn look(&mut self, count: u64, now: Instant) -> Health {
        // While we did not look (this machine was suspended, this process stopped) the other side may have
        // been stopped as well, or not have had a processor: such time counts as one beat.
        let passed = now.saturating_duration_since(self.looked);
        self.silence += if passed > self.patience.late { BEAT } else { passed };
        self.looked = now;
        if count != self.count {
            self.count = count;
            self.silence = Duration::ZERO;
        }
        self.lost |= self.silence >= self.patience.lost;
        self.health()
    }

    /// For how long it had been silent when last looked at.
    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// How it was when last looked at.
    pub fn health(&self) -> Health {
        match self.silence {
            _ if self.lost => Health::Lost,
            silence if silence >= self.patience.late => Health::Late,
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
    fn a_heart_beats_when_it_is_time() {
        let start = Instant::now();
        let mut pulse = Pulse::new(u64::MAX, start);
        assert_eq!(pulse.beat(start), Some(0));
        assert_eq!(pulse.beat(at(start, 99)), None);
        assert_eq!(pulse.next(), at(start, 100));
        assert_eq!(pulse.beat(at(start, 100)), Some(1));
        // Late ourselves: one beat, not many.
        assert_eq!(pulse.beat(at(start, 1000)), Some(2));
        assert_eq!(pulse.beat(at(start, 1001)), None);
    }

    #[test]
    fn a_slower_heart_beats_as_often_as_it_was_told() {
        let start = Instant::now();
        let mut pulse = Pulse::new(0, start).every(Duration::from_secs(1));
        let beats = (0..=30).filter(|tick| pulse.beat(at(start, tick * 100)).is_some()).count();
        assert_eq!(beats, 4);
    }

    #[test]
    fn a_silent_heart_is_late_and_then_lost_for_good() {
        let start = Instant::now();
        let mut watch = Watch::new(7, Patience::default(), start);
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
        let mut watch = Watch::new(7, Patience::default(), start);
        for (tick, count) in [6, u64::MAX, 0, 1].into_iter().enumerate() {
            let base = tick as u64 * 2000;
            assert_eq!(watch.look(count, at(start, base + 100)), Health::Well);
            assert_eq!(watch.look(count, at(start, base + 900)), Health::Well);
            assert_eq!(watch.look(count, at(start, base + 1800)), Health::Late);
        }
    }

    #[test]
    fn time_without_a_look_does_not_count() {
        let start = Instant::now();
        let mut watch = Watch::new(7, Patience::default(), start);
        assert_eq!(watch.look(7, at(start, 3_600_000)), Health::Well);
        assert_eq!(watch.look(7, at(start, 3_600_100)), Health::Well);
        assert_eq!(watch.look(8, at(start, 3_600_200)), Health::Well);
        // A clock that goes backwards is none of our business either.
        assert_eq!(watch.look(8, start), Health::Well);
    }
}
