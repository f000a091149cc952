//! Cheap measurement of short times, where a single result that is far too long or too short does no harm.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::cycles;

/// A moment, read from the processor's time stamp counter where there is one: in a User Mode Linux guest the
/// kernel's clock takes a system call of 18 µs. Durations are right within a few percent.
#[derive(Clone, Copy, Debug)]
pub struct Moment(Reading);

#[derive(Clone, Copy, Debug)]
enum Reading {
    Ticks(u64),
    Clock(Instant),
}

impl Moment {
    /// Returns the present moment.
    #[inline]
    #[must_use]
    pub fn now() -> Moment {
        // The counter is read after `tick`, whose first call calibrates it and takes a while.
        match tick().and_then(|_| cycles::now()) {
            Some(ticks) => Moment(Reading::Ticks(ticks)),
            None => Moment(Reading::Clock(Instant::now())),
        }
    }

    /// Returns the time since this moment.
    #[inline]
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Moment::now().since(self)
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is a little later, and the maximum
    /// if the counter was reset in between.
    #[inline]
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        match (self.0, earlier.0) {
            (Reading::Ticks(now), Reading::Ticks(then)) if now >= then => duration(now - then),
            // The counters of two cores differ a little. If the counter was reset, as by a suspension, the
            // result is a long time: with a short one a wait would not end.
            (Reading::Ticks(now), Reading::Ticks(then)) => match duration(then - now) {
                skew if skew <= SKEW_MAX => Duration::ZERO,
                _ => Duration::MAX,
            },
            (Reading::Clock(now), Reading::Clock(then)) => now.saturating_duration_since(then),
            _ => Duration::ZERO,
        }
    }
}

/// Number of fractional bits of the duration of a tick, in nanoseconds.
const PLACES: u32 = 24;
/// Maximum difference between the counters of two cores.
const SKEW_MAX: Duration = Duration::from_millis(1);

#[inline]
fn duration(ticks: u64) -> Duration {
    let nanos = (u128::from(ticks) * u128::from(tick().unwrap_or_default())) >> PLACES;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Returns the duration of a tick in 2^-24 ns; `None` if the counter is unusable.
#[inline]
fn tick() -> Option<u64> {
    static CALIBRATED: OnceLock<Option<u64>> = OnceLock::new();
    *CALIBRATED.get_or_init(|| {
        cycles::now()?;
        (0..3).find_map(|_| calibrated())
    })
}

/// Measures the duration of a tick, in a fifth of a millisecond. Returns `None` if the duration is not
/// between a tenth of a nanosecond and 100 ns, as when the thread was moved to a core with another count.
#[cold]
fn calibrated() -> Option<u64> {
    const SPAN: Duration = Duration::from_micros(200);
    const PLAUSIBLE: std::ops::RangeInclusive<u128> = (1 << PLACES) / 10..=100 << PLACES;
    let (first, begun) = paired();
    while begun.elapsed() < SPAN {
        std::hint::spin_loop();
    }
    let (last, ended) = paired();
    let nanos = (ended - begun).as_nanos() << PLACES;
    let tick = nanos.checked_div(u128::from(last.saturating_sub(first)))?;
    PLAUSIBLE.contains(&tick).then(|| u64::try_from(tick).ok())?
}

/// Reads counter and clock together: returns the one of three attempts that took the least time.
fn paired() -> (u64, Instant) {
    let read = || {
        let before = cycles::now().unwrap_or_default();
        let clock = Instant::now();
        (before, clock, cycles::now().unwrap_or_default())
    };
    let attempts = [read(), read(), read()];
    let (before, clock, after) = attempts
        .into_iter()
        .min_by_key(|(before, _, after)| after.saturating_sub(*before))
        .unwrap_or_else(read);
    (before / 2 + after / 2, clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_measure_what_the_clock_does() {
        let (begun, moment) = (Instant::now(), Moment::now());
        std::thread::sleep(Duration::from_millis(50));
        let (clock, ticks) = (begun.elapsed(), moment.elapsed());
        let ratio = ticks.as_secs_f64() / clock.as_secs_f64();
        assert!((0.8..1.25).contains(&ratio), "{ticks:?} of {clock:?}");
        let (first, second) = (Moment::now(), Moment::now());
        assert_eq!(first.since(second), Duration::ZERO);
    }

    #[test]
    fn reset_counter_is_a_long_time() {
        let [before, after] = [u64::MAX, 0].map(|ticks| Moment(Reading::Ticks(ticks)));
        if tick().is_some() {
            assert_eq!(after.since(before), Duration::MAX);
        }
    }
}
