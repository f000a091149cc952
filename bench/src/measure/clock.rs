//! One contestant's doing, and the clock that runs beside it.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::error::Result;

/// An operation that can be repeated.
pub trait Work {
    /// Does it `count` times: [`Clock::start`] before the first, [`Clock::lap`] after each. What needs no timing
    /// (removing what was created) goes between a lap and the next start.
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()>;

    /// The largest count that one run can do; a file can be removed only once.
    fn count_max(&self) -> u64 {
        u64::MAX
    }

    /// Bytes that one operation moves, where the figure is a rate.
    fn bytes(&self) -> Option<u64> {
        None
    }

    /// The process that does it, where it is not this one.
    fn caller(&self) -> Option<u32> {
        None
    }

    /// Whether the figure is how many are done in a second, and not how long one takes.
    fn per_second(&self) -> bool {
        false
    }
}

/// Something done over and over, each time timed alone.
pub struct Repeat<F> {
    once: F,
    each: u64,
    bytes: Option<u64>,
    per_second: bool,
}

impl<F: FnMut() -> Result<()>> Repeat<F> {
    pub fn new(once: F) -> Self {
        Self { once, each: 1, bytes: None, per_second: false }
    }

    pub fn each(self, each: u64) -> Self {
        Self { each, ..self }
    }

    /// An operation moves so many bytes: the figure is a rate.
    pub fn bytes(self, bytes: impl Into<Option<u64>>) -> Self {
        Self { bytes: bytes.into(), ..self }
    }

    /// The figure is operations in a second.
    pub fn per_second(self) -> Self {
        Self { per_second: true, ..self }
    }
}

impl<F: FnMut() -> Result<()>> Work for Repeat<F> {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        clock.start();
        for _ in 0..count.div_ceil(self.each).max(1) {
            (self.once)()?;
            clock.lap_of(self.each);
        }
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    fn per_second(&self) -> bool {
        self.per_second
    }
}

/// Times operations. Each lap costs one look at the clock (about 25 ns), which is part of the figure; what takes less
/// than a microsecond is timed many at a time.
pub struct Clock {
    last: Instant,
    laps: Histogram<u64>,
    total: Duration,
    count: u64,
}

impl Clock {
    pub fn new() -> Self {
        Self { last: Instant::now(), laps: histogram(), total: Duration::ZERO, count: 0 }
    }

    /// The next lap begins now.
    #[inline]
    pub fn start(&mut self) {
        self.last = Instant::now();
    }

    /// One operation ended, and the next begins.
    #[inline]
    pub fn lap(&mut self) {
        self.lap_of(1);
    }

    #[inline]
    pub fn time<T>(&mut self, operation: impl FnOnce() -> T) -> T {
        self.start();
        let outcome = operation();
        self.lap();
        outcome
    }

    /// `count` operations ended, which were not timed one by one.
    #[inline]
    pub fn lap_of(&mut self, count: u64) {
        let now = Instant::now();
        let took = now - self.last;
        self.record(took, count);
        self.last = now;
    }

    /// `count` operations took `took` together.
    pub fn record(&mut self, took: Duration, count: u64) {
        let picoseconds = took.as_nanos().saturating_mul(1000) / u128::from(count.max(1));
        let picoseconds = u64::try_from(picoseconds).unwrap_or(u64::MAX);
        self.laps.saturating_record_n(picoseconds.max(1), count);
        self.total += took;
        self.count += count;
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn total(&self) -> Duration {
        self.total
    }

    /// The time that `quantile` of the operations did not exceed, in nanoseconds.
    pub fn quantile_ns(&self, quantile: f64) -> f64 {
        quantile_ns(&self.laps, quantile)
    }

    /// The times of all laps, in picoseconds.
    pub fn into_laps(self) -> Histogram<u64> {
        self.laps
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// The longest lap that is told from longer ones: an hour.
const LAP_MAX_PS: u64 = 3_600_000_000_000_000;

/// An empty histogram of picoseconds, exact to three digits.
pub(super) fn histogram() -> Histogram<u64> {
    // The bounds are constants that the library accepts, so there is no other case.
    Histogram::new_with_bounds(1, LAP_MAX_PS, 3).unwrap_or_else(|error| unreachable!("{error}"))
}

/// Picoseconds in a histogram, as nanoseconds.
pub(super) fn quantile_ns(laps: &Histogram<u64>, quantile: f64) -> f64 {
    laps.value_at_quantile(quantile) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_timed_together_count_each() {
        let mut clock = Clock::new();
        clock.record(Duration::from_micros(1), 100);
        clock.record(Duration::from_micros(50), 1);
        assert_eq!(clock.count(), 101);
        assert!((9.9..10.1).contains(&clock.quantile_ns(0.5)), "{}", clock.quantile_ns(0.5));
        assert!((49_900.0..50_100.0).contains(&clock.quantile_ns(1.0)), "{}", clock.quantile_ns(1.0));
    }
}
