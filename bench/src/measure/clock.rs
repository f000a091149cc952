//! Operation of a contestant, and its clock.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::error::Result;

type Run<'a> = dyn FnMut(u64, &mut Clock) -> Result<()> + 'a;

/// A repeatable operation.
pub struct Work<'a> {
    run: Box<Run<'a>>,
    /// Maximum count of one run; for instance, a file can be removed only once.
    pub count_max: u64,
    /// Number of bytes per operation, if the figure is a rate.
    pub bytes: Option<u64>,
    /// Process that performs the operation, if not this one.
    pub caller: Option<u32>,
    /// `true` if the figure is operations per second instead of time per operation.
    pub per_second: bool,
}

impl<'a> Work<'a> {
    /// Creates an operation: `run` performs it the given number of times, with [`Clock::start`] before the
    /// first and [`Clock::lap`] after each. Untimed work (such as clean-up) goes between a lap and the next
    /// start.
    pub fn new(run: impl FnMut(u64, &mut Clock) -> Result<()> + 'a) -> Self {
        Self { run: Box::new(run), count_max: u64::MAX, bytes: None, caller: None, per_second: false }
    }

    /// Creates an operation from a closure; one call of `once` performs it `each` times.
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

/// Timer of operations. Each lap reads the clock (about 25 ns), which is included in the figure; operations
/// below a microsecond are timed in batches.
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

    /// Starts the next lap.
    #[inline]
    pub fn start(&mut self) {
        self.last = Instant::now();
    }

    /// Ends a lap of one operation and starts the next.
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

    /// Ends a lap of `count` operations that were not timed individually.
    #[inline]
    pub fn lap_of(&mut self, count: u64) {
        let now = Instant::now();
        let took = now - self.last;
        self.record(took, count);
        self.last = now;
    }

    /// Records `count` operations that took `took` in total.
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

    /// Returns the `quantile` of the times, in nanoseconds.
    pub fn quantile_ns(&self, quantile: f64) -> f64 {
        quantile_ns(&self.laps, quantile)
    }

    /// Returns the times of all laps, in picoseconds.
    pub fn into_laps(self) -> Histogram<u64> {
        self.laps
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Maximum distinguishable lap: an hour.
const LAP_MAX_PS: u64 = 3_600_000_000_000_000;

/// Creates an empty histogram of picoseconds, exact to three digits.
pub(super) fn histogram() -> Histogram<u64> {
    // The library accepts these constant bounds.
    Histogram::new_with_bounds(1, LAP_MAX_PS, 3).unwrap_or_else(|error| unreachable!("{error}"))
}

/// Returns a quantile of a histogram of picoseconds, in nanoseconds.
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
