//! Search for a good in-flight limit: more calls while that is faster, fewer while calls only wait for each
//! other.
//!
//! Time is divided into rounds of a few answers for each call of the limit. The limit doubles at first, as
//! long as each round moves clearly more than the one before. Afterwards it is constant, and a larger or
//! smaller limit is probed periodically; the result is compared with the rounds before and after the probe,
//! so that changes of the network itself do not mislead. Rounds in which callers rarely reached the limit
//! are not evaluated.

use std::time::{Duration, Instant};

/// Limit before the first call. The length of the first call then determines the limit: as many such calls as
/// together move [`START_BYTES`], within [`START_BOUNDS`]. It takes many short calls to keep the server busy,
/// but many long calls overflow the CPU's caches while they wait in memory.
const START: u32 = 4;
const START_BYTES: usize = 2 << 20;
const START_BOUNDS: (u32, u32) = (2, 16);

/// Minimum extent of a round: number of answers for each call that the limit allows, total number of answers
/// (fewer of both while the limit doubles), and time.
const ROUND_TURNS: u32 = 3;
const ROUND_ANSWERS_MIN: u32 = 16;
const ROUND_MIN: Duration = Duration::from_millis(4);

/// Relative gain for which doubling continues.
const START_GAIN: f64 = 1.08;
/// Relative gain for which a higher or lower limit is adopted.
const GAIN: f64 = 1.03;
/// Relative rate above which a lower limit is adopted if calls only wait for each other.
const NO_LOSS: f64 = 0.985;
/// Ratio of the mean call time of a round to the fastest call's, above which calls wait for each other.
const QUEUEING: u32 = 3;

/// Number of rounds between two attempts: initially, and at most after unsuccessful ones.
const PAUSE_ROUNDS: (u32, u32) = (2, 16);

/// Number of attempts of which one is downward, while calls do not wait for each other.
const DOWNWARDS: u32 = 4;

/// An adaptive in-flight limit, and the state of the search for a better one.
#[derive(Clone, Debug)]
pub(super) struct AdaptiveLimit {
    max: u32,
    has_begun: bool,
    /// The adopted limit: in force, except while another one is tried.
    current: u32,
    phase: Phase,
    round: Round,
    /// Rate of the last evaluated round with a limit adopted at that time, in bytes per second.
    rate: f64,
    pause_rounds: u32,
    attempts: u32,
    /// Time of the fastest recent call.
    fastest: Option<Duration>,
    /// `true` if calls of the last evaluated round of [`Phase::Holding`] took on average more than
    /// [`QUEUEING`] times as long as `fastest`.
    queueing: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The limit doubles; `before` is its value before the last step.
    Doubling { before: u32 },
    /// The limit is constant in this round, and in this number of further rounds.
    Holding { rounds: u32 },
    /// The client measures this limit in place of the current one.
    Trying { limit: u32 },
    /// The client has measured `limit`, at a rate of `moved` bytes per second, and measures the current limit
    /// again for comparison.
    Comparing { limit: u32, moved: f64 },
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Number of answers still to skip, because their calls may have been made under the previous limit.
    earlier: u32,
    since: Option<Instant>,
    answers: u32,
    bytes: u64,
    duration: Duration,
    /// Number of times that the limit was reached.
    fills: u32,
}

impl AdaptiveLimit {
    pub(super) fn new(max: u32) -> Self {
        let max = max.max(1);
        let current = START.min(max);
        Self {
            max,
            has_begun: false,
            current,
            phase: Phase::Doubling { before: current },
            round: Round::default(),
            rate: 0.0,
            pause_rounds: PAUSE_ROUNDS.0,
            attempts: 0,
            fastest: None,
            queueing: false,
        }
    }

    /// Returns the limit in force: the adopted one, or the one being tried.
    pub(super) fn limit(&self) -> u32 {
        match self.phase {
            Phase::Trying { limit } => limit,
            _ => self.current,
        }
    }

    /// Records a call that moves `bytes`. The first one determines the initial limit.
    pub(super) fn begun(&mut self, bytes: usize) {
        if !self.has_begun {
            self.has_begun = true;
            let count = u32::try_from(START_BYTES / bytes.max(1)).unwrap_or(u32::MAX);
            self.current = count.clamp(START_BOUNDS.0, START_BOUNDS.1).min(self.max);
            self.phase = Phase::Doubling { before: self.current };
        }
    }

    pub(super) fn filled(&mut self) {
        self.round.fills += 1;
    }

    /// Records the answer to a call.
    pub(super) fn answered(&mut self, now: Instant, bytes: usize, duration: Duration) {
        self.fastest = Some(self.fastest.map_or(duration, |fastest| fastest.min(duration)));
        let limit = self.limit();
        let round = &mut self.round;
        if round.earlier > 0 {
            round.earlier -= 1;
            return;
        }
        let since = *round.since.get_or_insert(now);
        round.answers += 1;
        round.bytes += bytes as u64;
        round.duration += duration;
        let lasted = now.saturating_duration_since(since);
        let enough = match self.phase {
            // Rounds are short while the limit doubles: over a long-distance network each is expensive, and
            // long enough.
            Phase::Doubling { .. } => 2 * limit,
            _ => (ROUND_TURNS * limit).max(ROUND_ANSWERS_MIN),
        };
        if round.answers < enough || lasted < ROUND_MIN {
            return;
        }
        let wanted_more = round.fills >= (round.answers / limit / 4).max(1);
        let rate = round.bytes as f64 / lasted.as_secs_f64();
        let mean = round.duration / round.answers;
        self.round = Round { since: Some(now), ..Round::default() };
        self.end_round(rate, mean, wanted_more);
    }

    /// Halves the limit after a retransmission or the loss of a connection, but not while the current round
    /// still skips answers: many calls may be lost at a time.
    pub(super) fn lost(&mut self) {
        if self.round.earlier == 0 {
            self.hold((self.limit() / 2).max(1), PAUSE_ROUNDS.0);
        }
    }

    fn end_round(&mut self, rate: f64, mean: Duration, wanted_more: bool) {
        // The minimum rises slowly, so that a time measured under another load does not count for long.
        self.fastest = self.fastest.map(|fastest| fastest + fastest / 64);
        if !wanted_more {
            if !matches!(self.phase, Phase::Doubling { .. }) {
                self.hold(self.current, self.pause_rounds);
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
            Phase::Trying { limit } => self.change(self.current, Phase::Comparing { limit, moved: rate }),
            Phase::Comparing { limit, moved } => self.compare(limit, moved, rate),
        }
    }

    fn double(&mut self, before: u32, rate: f64) {
        if rate < self.rate * START_GAIN {
            return self.hold(before, PAUSE_ROUNDS.0);
        }
        self.rate = rate;
        let next = (self.current * 2).min(self.max);
        if next == self.current {
            return self.hold(next, PAUSE_ROUNDS.0);
        }
        self.change(next, Phase::Doubling { before: self.current });
    }

    /// Tries another limit.
    fn attempt(&mut self) {
        self.attempts += 1;
        let current = self.current;
        let downwards = self.queueing || current >= self.max || self.attempts.is_multiple_of(DOWNWARDS);
        let limit = match downwards {
            // Large steps down are tried as well: if the calls overflow the CPU's caches, fewer calls are no
            // faster until they are few enough to fit.
            true if self.queueing || self.attempts.is_multiple_of(2 * DOWNWARDS) => current.div_ceil(2),
            true => current - (current / 3).max(1).min(current - 1),
            false => (current + (current / 2).max(1)).min(self.max),
        };
        match limit == current {
            true => self.hold(current, PAUSE_ROUNDS.1),
            false => self.change(current, Phase::Trying { limit }),
        }
    }

    fn compare(&mut self, limit: u32, moved: f64, after: f64) {
        let usual = f64::midpoint(self.rate, after);
        self.rate = after;
        let is_better =
            moved > usual * GAIN || limit < self.current && self.queueing && moved > usual * NO_LOSS;
        if is_better {
            // A further step in the same direction may be better still.
            return self.hold(limit, 0);
        }
        self.hold(self.current, (self.pause_rounds * 2).min(PAUSE_ROUNDS.1));
    }

    /// Adopts a limit for this round and `rounds` further ones.
    fn hold(&mut self, limit: u32, rounds: u32) {
        self.pause_rounds = rounds.max(PAUSE_ROUNDS.0);
        self.change(limit, Phase::Holding { rounds });
    }

    /// Adopts a limit and begins a phase, and a round that first skips as many answers as the former or the
    /// new limit in force allows calls.
    fn change(&mut self, current: u32, phase: Phase) {
        let before = self.limit();
        (self.current, self.phase) = (current, phase);
        self.round = Round { earlier: before.max(self.limit()), ..Round::default() };
    }
}
