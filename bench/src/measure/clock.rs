//! One contestant's doing, and the clock that runs beside it.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::error::Result;

type Run<'a> = dyn FnMut(u64, &mut Clock) -> Result<()> + 'a;

/// An operation that can be repeated.
pub struct Work<'a> {
    run: Box<Run<'a>>,
    /// The largest count that one run can do; a file can be removed only once.
    pub count_max: u64,
    /// Bytes that one operation moves, where the figure is a rate.
    pub bytes: Option<u64>,
    /// The process that does it, where it is not this one.
    pub caller: Option<u32>,
    /// Whether the figure is how many are done in a second, and not how long one takes.
    pub per_second: bool,
}

impl<'a> Work<'a> {
    /// `run` does it as often as it is told: [`Clock::start`] before the first, [`Clock::lap`] after each.
    /// What needs no timing (removing what was created) goes between a lap and the next start.
    pub fn new(run: impl FnMut(u64, &mut Clock) -> Result<()> + 'a) -> Self {
        Self { run: Box::new(run), count_max: u64::MAX, bytes: None, caller: None, per_second: false }
    }

    /// Done over and over; one turn of `once` does it `each` times.
    pub fn repeat(each: u64, mut once: impl FnMut() -> Result<()> + 'a) -> Self {
        Self::new(move |count, clock| {
            clock.start();
            for _ in 0..count.div_ceil(each).max(1) {
                once()?;
                clock.lap_of(each);
            }
            Ok(())
        })
    }

    pub fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        (self.run)(count, clock)
    }

    pub fn count_max(self, count_max: u64) -> Self {
        Self { count_max, ..self }
    }

    pub fn bytes(self, bytes: impl Into<Option<u64>>) -> Self {
        Self { bytes: bytes.into(), ..self }
    }

    pub fn caller(self, process: u32) -> Self {
        Self { caller: Some(process), ..self }
    }

    pub fn per_second(self, per_second: bool) -> Self {
        Self { per_second, ..self }
    }
}

/// Times operations. Each lap costs one look at the clock (about 25 ns), which is part of the figure; what
/// takes less than a microsecond is timed many at a time.
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
