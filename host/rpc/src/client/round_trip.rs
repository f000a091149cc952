//! Round-trip estimation and retransmission time-outs (RFC 6298).

use std::time::Duration;

/// Minimum retransmission time-out after the first sample, so that a briefly busy server gets no duplicates.
const WAIT_MIN: Duration = Duration::from_millis(200);
/// Maximum retransmission time-out after any number of doublings, unless the first time-out is longer.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Clock granularity, `G`.
const GRANULARITY: Duration = Duration::from_millis(1);

/// An estimate of round trips. Samples are taken from calls sent only once (Karn).
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    /// Time-out before the first sample.
    first_wait: Duration,
    estimate: Option<Estimate>,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: Duration,
    variation: Duration,
    /// Shortest sample so far.
    least: Duration,
}

impl RoundTrip {
    pub(super) fn new(first_wait: Duration) -> Self {
        Self { first_wait, estimate: None }
    }

    /// Adds a sample (§2.2, §2.3).
    pub(super) fn sample(&mut self, time: Duration) {
        self.estimate = Some(match self.estimate {
            None => Estimate { smoothed: time, variation: time / 2, least: time },
            Some(Estimate { smoothed, variation, least }) => Estimate {
                least: least.min(time),
                variation: variation * 3 / 4 + smoothed.abs_diff(time) / 4,
                smoothed: smoothed * 7 / 8 + time / 8,
            },
        });
    }

    /// Returns the smoothed round trip; `None` before the first sample.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.smoothed)
    }

    /// Returns the shortest round trip; `None` before the first sample.
    pub(super) fn least(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.least)
    }

    /// Returns the time-out of a call sent `transmissions` times (§2.3, §5.5).
    pub(super) fn wait(&self, transmissions: u32) -> Duration {
        let once = match self.estimate {
            None => self.first_wait,
            Some(Estimate { smoothed, variation, .. }) => {
                (smoothed + (variation * 4).max(GRANULARITY)).max(WAIT_MIN)
            }
        };
        let doublings = transmissions.saturating_sub(1).min(16);
        once.saturating_mul(1 << doublings).min(WAIT_MAX.max(self.first_wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn round_trip_estimate_follows_samples() {
        let mut round_trip = RoundTrip::new(ms(1100));
        assert_eq!((round_trip.smoothed(), round_trip.wait(1)), (None, ms(1100)));
        round_trip.sample(ms(400));
        assert_eq!((round_trip.smoothed(), round_trip.wait(1)), (Some(ms(400)), ms(1200)));
        round_trip.sample(ms(800));
        assert_eq!(round_trip.smoothed(), Some(ms(450)));
        assert_eq!(round_trip.wait(1), ms(450 + 4 * 250));
    }

    #[test]
    fn steady_answers_bring_the_wait_down_to_its_least() {
        let mut round_trip = RoundTrip::new(ms(1100));
        (0..200).for_each(|_| round_trip.sample(ms(1)));
        assert_eq!(round_trip.wait(1), WAIT_MIN);
    }

    #[test]
    fn each_transmission_doubles_the_wait_up_to_a_bound() {
        let mut round_trip = RoundTrip::new(ms(1100));
        round_trip.sample(ms(100));
        let waits: Vec<_> = (1..5).map(|sent| round_trip.wait(sent)).collect();
        assert_eq!(waits, [ms(300), ms(600), ms(1200), ms(2400)]);
        assert_eq!(round_trip.wait(1000), WAIT_MAX);
    }
}
