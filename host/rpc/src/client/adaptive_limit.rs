//! Finds a good in-flight limit by trying: more while that is faster, fewer while calls only wait for each
//! other.
//!
//! Time is cut into rounds of a few answers for each call that may be outstanding. At first the limit doubles
//! as long as each round moves more than the one before. From then on it is held, and now and then a round is
//! tried with more or with fewer; what it moved is compared with the rounds before and after it, so that a
//! link that becomes slower or faster by itself does not mislead. Rounds in which callers wanted less than
//! the limit teach nothing.

use std::time::{Duration, Instant};

/// The limit at first, until a call says how long calls are; then as many as are so long together, within
/// bounds. Short ones must be many to keep a client busy, and long ones that wait in memory leave the caches.
const START: u32 = 4;
const START_BYTES: usize = 2 << 20;
const START_BOUNDS: (u32, u32) = (2, 16);

/// A round lasts for so many answers for each call of the limit, for so many answers, and for so long at
/// least.
const ROUND_TURNS: u32 = 3;
const ROUND_ANSWERS_MIN: u32 = 16;
const ROUND_MIN: Duration = Duration::from_millis(4);

/// Doubling goes on while a round moves so much more.
const START_GAIN: f64 = 1.08;
/// A higher limit is kept if it moves so much more; a lower one as well.
const GAIN: f64 = 1.03;
/// A lower limit is kept that moves hardly less, if calls only wait for each other:
const NO_LOSS: f64 = 0.985;
/// they take so many times as long as the fastest did.
const QUEUEING: u32 = 3;

/// Rounds between two attempts: at first, and at most, where they come to nothing.
const CALM: (u32, u32) = (2, 16);

/// Of so many attempts one is downwards even if calls do not wait for each other.
const DOWNWARDS: u32 = 4;

/// The state of the search.
#[derive(Clone, Debug)]
pub(super) struct AdaptiveLimit {
    max: u32,
    has_begun: bool,
    /// The limit that is held, or doubled.
    held: u32,
    phase: Phase,
    round: Round,
    /// What the last round with the limit that is held has moved, in bytes per second.
    rate: f64,
    calm: u32,
    attempts: u32,
    /// The fastest call of late.
    fastest: Option<Duration>,
    /// Calls of the last round with the limit that is held take longer than that by far.
    queueing: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The limit doubles; what it was before.
    Doubling { before: u32 },
    /// It stays for so many rounds.
    Holding { rounds: u32 },
    /// Another limit is tried.
    Trying { limit: u32 },
    /// It was tried and moved so much; how much does the one that is held move now?
    Comparing { limit: u32, moved: f64 },
}

/// A stretch of time in which the limit stays the same.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Answers to calls that were made under the limit of before.
    earlier: u32,
    since: Option<Instant>,
    answers: u32,
    bytes: u64,
    took: Duration,
    /// Times that as many calls were outstanding as may be.
    fills: u32,
}

impl AdaptiveLimit {
    pub(super) fn new(max: u32) -> Self {
        let max = max.max(1);
        let held = START.min(max);
        Self {
            max,
            has_begun: false,
            held,
            phase: Phase::Doubling { before: held },
            round: Round::default(),
            rate: 0.0,
            calm: CALM.0,
            attempts: 0,
            fastest: None,
            queueing: false,
        }
    }

    /// The limit of now.
    pub(super) fn limit(&self) -> u32 {
        match self.phase {
            Phase::Trying { limit } => limit,
            _ => self.held,
        }
    }

    /// A call is made that moves so many bytes. The first decides where the search begins.
    pub(super) fn begun(&mut self, bytes: usize) {
        if !self.has_begun {
            self.has_begun = true;
            let count = u32::try_from(START_BYTES / bytes.max(1)).unwrap_or(u32::MAX);
            self.held = count.clamp(START_BOUNDS.0, START_BOUNDS.1).min(self.max);
            self.phase = Phase::Doubling { before: self.held };
        }
    }

    /// As many calls are outstanding as may be.
    pub(super) fn filled(&mut self) {
        self.round.fills += 1;
    }

    /// A call was answered that moved so many bytes and took so long.
    pub(super) fn answered(&mut self, now: Instant, bytes: usize, took: Duration) {
        self.fastest = Some(self.fastest.map_or(took, |fastest| fastest.min(took)));
        let limit = self.limit();
        let round = &mut self.round;
        if round.earlier > 0 {
            round.earlier -= 1;
            return;
        }
        let since = *round.since.get_or_insert(now);
        round.answers += 1;
        round.bytes += bytes as u64;
        round.took += took;
        let lasted = now.saturating_duration_since(since);
        let enough = match self.phase {
            // Over a long link each round costs; and it lasts.
            Phase::Doubling { .. } => 2 * limit,
            _ => (ROUND_TURNS * limit).max(ROUND_ANSWERS_MIN),
        };
        if round.answers < enough || lasted < ROUND_MIN {
            return;
        }
        let wanted_more = round.fills >= (round.answers / limit / 4).max(1);
        let rate = round.bytes as f64 / lasted.as_secs_f64();
        let mean = round.took / round.answers;
        self.round = Round { since: Some(now), ..Round::default() };
        self.end_round(rate, mean, wanted_more);
    }

    /// A call or its answer was lost: half the limit, but not twice for what was lost together.
    pub(super) fn lost(&mut self) {
        if self.round.earlier == 0 {
            self.held = (self.limit() / 2).max(1);
            self.hold(CALM.0);
        }
    }

    fn end_round(&mut self, rate: f64, mean: Duration, wanted_more: bool) {
        // What was the fastest under another load is forgotten in time.
        self.fastest = self.fastest.map(|fastest| fastest + fastest / 64);
        if !wanted_more {
            if !matches!(self.phase, Phase::Doubling { .. }) {
                self.hold(self.calm);
            }
            return;
        }
        match self.phase {
            Phase::Doubling { before } => self.double(before, rate),
            Phase::Holding { rounds } => {
                (self.rate, self.queueing) =
                    (rate, self.fastest.is_some_and(|fastest| mean > fastest * QUEUEING));
                match rounds {
                    0 => self.attempt(),
                    _ => self.phase = Phase::Holding { rounds: rounds - 1 },
                }
            }
            Phase::Trying { limit } => self.change(Phase::Comparing { limit, moved: rate }),
            Phase::Comparing { limit, moved } => self.compare(limit, moved, rate),
        }
    }

    fn double(&mut self, before: u32, rate: f64) {
        if rate < self.rate * START_GAIN {
            self.held = before;
            return self.hold(CALM.0);
        }
        self.rate = rate;
        let next = (self.held * 2).min(self.max);
        if next == self.held {
            return self.hold(CALM.0);
        }
        let before = self.held;
        self.held = next;
        self.change(Phase::Doubling { before });
    }

    /// Tries another limit.
    fn attempt(&mut self) {
        self.attempts += 1;
        let held = self.held;
        let downwards = self.queueing || held >= self.max || self.attempts.is_multiple_of(DOWNWARDS);
        let limit = match downwards {
            // In long strides as well: where memory caches overflow, fewer are no better until they are few.
            true if self.queueing || self.attempts.is_multiple_of(2 * DOWNWARDS) => held.div_ceil(2),
            true => held - (held / 3).max(1).min(held - 1),
            false => (held + (held / 2).max(1)).min(self.max),
        };
        match limit == held {
            true => self.hold(CALM.1),
            false => self.change(Phase::Trying { limit }),
        }
    }

    fn compare(&mut self, limit: u32, moved: f64, after: f64) {
        let usual = f64::midpoint(self.rate, after);
        self.rate = after;
        let is_better = moved > usual * GAIN || limit < self.held && self.queueing && moved > usual * NO_LOSS;
        if is_better {
            self.held = limit;
            // More of the same may be better still.
            return self.hold(0);
        }
        self.hold((self.calm * 2).min(CALM.1));
    }

    fn hold(&mut self, rounds: u32) {
        self.calm = rounds.max(CALM.0);
        self.change(Phase::Holding { rounds });
    }

    /// Goes on with another limit. The calls that are out were made under the one before.
    fn change(&mut self, phase: Phase) {
        let before = self.limit();
        self.phase = phase;
        self.round = Round { earlier: before.max(self.limit()), ..Round::default() };
    }
}
