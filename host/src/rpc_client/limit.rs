//! How many bulk calls may be outstanding.

use std::time::{Duration, Instant};

use super::options::InFlight;

/// So many are outstanding at least and at first, where the limit adapts.
const START: u32 = 4;

/// The limit, as it is now.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    mode: InFlight,
    now: u32,
    round: Option<Round>,
    best: f64,
}

/// A round: as many answers as may be outstanding.
#[derive(Clone, Copy, Debug)]
struct Round {
    began: Instant,
    answers: u32,
    bytes: u64,
}

impl Limit {
    pub(super) fn new(mode: InFlight) -> Self {
        let mut limit = Self { mode, now: 1, round: None, best: 0.0 };
        limit.set(mode);
        limit
    }

    /// How many may be outstanding now.
    pub(super) fn count(&self) -> u32 {
        self.now
    }

    /// Changes how it is found.
    pub(super) fn set(&mut self, mode: InFlight) {
        self.mode = mode;
        self.now = match mode {
            InFlight::Fixed(count) => count.max(1),
            InFlight::Adaptive { max } => START.min(max.max(1)),
        };
        (self.round, self.best) = (None, 0.0);
    }

    /// A bulk call was answered that moved so many bytes; `full` says that others wait for the limit.
    pub(super) fn answered(&mut self, now: Instant, bytes: usize, full: bool) {
        let InFlight::Adaptive { max } = self.mode else { return };
        let round = self.round.get_or_insert(Round { began: now, answers: 0, bytes: 0 });
        round.answers += 1;
        round.bytes += bytes as u64;
        if round.answers < self.now {
            return;
        }
        let took = now.saturating_duration_since(round.began).max(Duration::from_micros(1));
        let rate = round.bytes as f64 / took.as_secs_f64();
        self.round = Some(Round { began: now, answers: 0, bytes: 0 });
        if full && rate > self.best * 1.05 {
            self.best = rate;
            self.now = (self.now + self.now / 2).min(max.max(1));
        }
    }

    /// Something was lost.
    pub(super) fn lost(&mut self) {
        if let InFlight::Adaptive { .. } = self.mode {
            self.now = (self.now / 2).max(1);
            (self.round, self.best) = (None, 0.0);
        }
    }
}
