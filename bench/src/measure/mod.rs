//! Measurement method: contestants take turns, round after round, within one run, so that disturbances affect
//! all of them. A figure is the median of its rounds, a ratio the median of the ratios *within* each round;
//! both are shown with their spread.
//!
//! Reading order: [`Work`] and [`Clock`] (operation of one contestant), [`Contest`] (turns), [`Spread`],
//! [`Cost`], [`Placement`].

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
pub use contest::{Contest, Dropped, Entrant, Series};
pub use counters::{Cost, CostMeter, Held, SyncCounter, SyscallCounter, mappings};
use hdrhistogram::Histogram;
pub use moved::{Moved, MovedMeter};
use serde::{Deserialize, Serialize};

use crate::error::{Doing, Error, Result};

mod contest;
mod counters;
mod moved;

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
    /// first and [`Clock::lap`] after each. Untimed work (clean-up) goes between a lap and a start.
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

    /// Creates an operation with this many requests in flight. A request that is alone in flight is timed by
    /// itself; several are timed together, and the figure is their rate.
    pub fn pipelined(
        outstanding: u32,
        mut requests: impl FnMut(u64, &mut Laps<'_>) -> Result<()> + 'a,
    ) -> Self {
        let is_alone = outstanding == 1;
        let run = move |count, clock: &mut Clock| {
            clock.start();
            requests(count, &mut Laps { clock, is_alone })?;
            if !is_alone {
                clock.lap_of(count);
            }
            Ok(())
        };
        Self::new(run).per_second(!is_alone)
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

/// Timer of the requests of [`Work::pipelined`].
pub struct Laps<'c> {
    clock: &'c mut Clock,
    is_alone: bool,
}

impl Laps<'_> {
    /// Ends the lap of a request, if requests are timed by themselves.
    #[inline]
    pub fn lap(&mut self) {
        if self.is_alone {
            self.clock.lap();
        }
    }
}

/// Timer of operations. Each lap reads the clock once (about 25 ns), which is included in the figure; callers
/// may time several short operations in one lap ([`Clock::lap_of`]).
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

/// Median, quartiles and extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub q1: f64,
    pub q3: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Returns the spread of one number.
    pub fn single(value: f64) -> Self {
        Self { median: value, q1: value, q3: value, min: value, max: value }
    }

    /// Returns the spread of some numbers; `None` if there are none or one is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&sorted, 0.5)?,
            q1: quantile(&sorted, 0.25)?,
            q3: quantile(&sorted, 0.75)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }
}

/// Computes a quantile by interpolation.
fn quantile(sorted: &[f64], quantile: f64) -> Option<f64> {
    let place = quantile * sorted.len().checked_sub(1)? as f64;
    let below = *sorted.get(place.floor() as usize)?;
    let above = *sorted.get(place.ceil() as usize)?;
    Some(below + (above - below) * place.fract())
}

/// `true` once a signal has requested the end of the run.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Handles SIGINT and SIGTERM from now on: the run ends after the present turn; at a second signal, at once.
pub fn end_on_signals() -> Result<()> {
    tombolo_host_runtime::signals::on_stop(|_| ASKED.store(true, Ordering::Relaxed))
        .doing(|| "listen for signals".to_owned())
}

/// Fails if the run was interrupted.
pub fn go_on() -> Result<()> {
    if ASKED.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}

/// Assignment of servers and caller to cores, on which the cost of wake-ups depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Placement by the kernel.
    Unpinned,
    /// Server and caller share a core.
    #[value(name = "one-core")]
    SameCore,
    /// Server and caller have a core each; they share one if this process is allowed no other.
    TwoCores,
    /// The caller has one core, the server may use all.
    #[value(skip)]
    Free,
}

impl Placement {
    /// All placements of a caller in this process, in printing order.
    pub const ALL: [Placement; 3] = [Placement::SameCore, Placement::TwoCores, Placement::Free];

    pub fn label(self) -> &'static str {
        match self {
            Placement::Unpinned => "unpinned",
            Placement::SameCore => "same core",
            Placement::TwoCores => "two cores",
            Placement::Free => "server unpinned",
        }
    }

    /// Assigns cores to the calling thread and, unless unpinned, to all threads of `servers`.
    pub fn take(self, servers: &[u32]) -> Result<()> {
        let cores = spare_cores();
        if self == Placement::Unpinned {
            return pin(None, &cores);
        }
        let first = cores.first().copied().unwrap_or_default();
        let other = cores.get(1).copied().unwrap_or(first);
        pin(None, &[first])?;
        let for_server = match self {
            Placement::SameCore => vec![first],
            Placement::TwoCores => vec![other],
            Placement::Free | Placement::Unpinned => cores,
        };
        for server in servers {
            for thread in threads(*server) {
                // A thread may end between listing and pinning.
                let _gone = tombolo_sys::affinity::pin(Some(thread), &for_server);
            }
        }
        Ok(())
    }

    /// Resets the calling thread to all cores.
    pub fn leave() -> Result<()> {
        pin(None, &spare_cores())
    }
}

/// Returns the cores that this process was allowed at its start.
pub fn spare_cores() -> Vec<usize> {
    static CORES: std::sync::OnceLock<Vec<usize>> = std::sync::OnceLock::new();
    CORES.get_or_init(|| tombolo_sys::affinity::cores(None).unwrap_or_default()).clone()
}

fn pin(thread: Option<u32>, cores: &[usize]) -> Result<()> {
    tombolo_sys::affinity::pin(thread, cores).doing(|| format!("pin to cores {cores:?}"))
}

pub(super) fn threads(process: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
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

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).unwrap().median, 2.0);
        let spread = Spread::of(&[4.0, 1.0, 2.0, 3.0, 5.0]).unwrap();
        assert_eq!((spread.q1, spread.q3, spread.min, spread.max), (2.0, 4.0, 1.0, 5.0));
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
    }
}
