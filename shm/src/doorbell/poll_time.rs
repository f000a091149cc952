use std::thread::available_parallelism;
use std::time::Duration;

use crate::link::Ends;

/// Maximum time that an adaptive consumer polls before it sleeps on a futex or a descriptor.
const POLL_TIME_MAX: Duration = Duration::from_micros(50);
/// Maximum time that an adaptive consumer polls before it sleeps on a bell. Waking it takes a few system
/// calls and an interrupt of a guest, together well over 100 µs, and a guest needs more than
/// [`POLL_TIME_MAX`] from an answer to its next request.
const BELL_POLL_TIME_MAX: Duration = Duration::from_micros(500);
/// Minimum polling time that is worth its system calls.
const POLL_TIME_MIN: Duration = Duration::from_micros(4);
/// Duration of a yield beyond which another thread must have used the processor.
const YIELD_MAX: Duration = Duration::from_micros(200);
/// The same over a bell, if the process may use one processor only: a guest yields it to the very program
/// that is to send the next request.
const ONLY_PROCESSOR_YIELD_MAX: Duration = Duration::from_millis(2);
/// Initial and maximum number of short sleeps before polling resumes after a long yield.
const PENALTY: (u32, u32) = (16, 1 << 16);
/// Number of short yields after which the penalty is halved; otherwise a few long yields would end the
/// polling of a long-lived link for good. A long yield costs a time slice of up to 3 ms, as much as 300 polls
/// of 25 yields save, 10 µs each. In a guest with one processor a poll has one or two yields and saves more
/// than 100 µs.
const FORGIVEN_AFTER: u32 = 8192;
const ONLY_PROCESSOR_FORGIVEN_AFTER: u32 = 256;

/// The learnt polling time of one consumer: halved whenever polling found nothing in time, down to zero, and
/// restored after a sleep so short that polling would have avoided it.
///
/// During a long yield a busy thread used the processor. The scheduler prefers a woken sleeper to such a
/// thread, but not a thread that yielded. A long yield therefore disables polling for the next few short
/// sleeps, and each further one for twice as many, unless there have been many short ones since.
#[derive(Debug, Clone, Copy)]
pub struct PollTime {
    max: Duration,
    /// Maximum duration of a short yield.
    yield_max: Duration,
    /// Number of short yields after which `penalty` is halved.
    forgiven_after: u32,
    /// Current polling time.
    length: Duration,
    /// Number of short sleeps until polling may resume.
    closed_for: u32,
    /// Value of `closed_for` set by the last long yield, halved since by short ones; 0 before the first.
    penalty: u32,
    /// Number of short yields since the last long one, or since `penalty` was halved.
    short_yields: u32,
}

impl Default for PollTime {
    fn default() -> PollTime {
        PollTime {
            max: POLL_TIME_MAX,
            yield_max: YIELD_MAX,
            forgiven_after: FORGIVEN_AFTER,
            length: POLL_TIME_MAX,
            closed_for: 0,
            penalty: 0,
            short_yields: 0,
        }
    }
}

impl PollTime {
    /// Returns the polling time of a consumer of this link.
    pub fn of(ends: &Ends) -> PollTime {
        let is_only = || available_parallelism().is_ok_and(|processors| processors.get() == 1);
        if ends.bell.is_some() { PollTime::over_bell(is_only()) } else { PollTime::default() }
    }

    fn over_bell(is_only_processor: bool) -> PollTime {
        let (yield_max, forgiven_after) = match is_only_processor {
            true => (ONLY_PROCESSOR_YIELD_MAX, ONLY_PROCESSOR_FORGIVEN_AFTER),
            false => (YIELD_MAX, FORGIVEN_AFTER),
        };
        let (max, length) = (BELL_POLL_TIME_MAX, BELL_POLL_TIME_MAX);
        PollTime { max, length, yield_max, forgiven_after, ..PollTime::default() }
    }

    /// Returns the maximum. A sleep shorter than this is one that polling would have avoided.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Returns `true` if the consumer should poll before it sleeps.
    pub fn is_open(&self) -> bool {
        self.length >= POLL_TIME_MIN
    }

    /// Returns the time for which the consumer should poll at most.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Records the end of a sleep, by a message or timeout. `short`: less than the maximum, so that polling
    /// longer would have avoided it.
    pub fn slept(&mut self, short: bool) {
        if !short {
            self.length /= 2;
        } else if self.closed_for > 0 {
            self.closed_for -= 1;
        } else {
            self.length = self.max;
        }
    }

    /// Records a yield of this duration, and ends polling if it was longer than 200 µs (2 ms over a bell on a
    /// machine with one processor). Returns `true` if polling should continue.
    pub fn yielded(&mut self, how_long: Duration) -> bool {
        if how_long <= self.yield_max {
            self.short_yields += 1;
            if self.short_yields >= self.forgiven_after {
                (self.penalty, self.short_yields) = (self.penalty / 2, 0);
            }
            return true;
        }
        self.short_yields = 0;
        self.penalty = self.penalty.saturating_mul(2).clamp(PENALTY.0, PENALTY.1);
        self.closed_for = self.penalty;
        self.length = Duration::ZERO;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_yields_disable_polling_for_increasing_periods() {
        let mut time = PollTime::default();
        for penalty in [PENALTY.0, 2 * PENALTY.0, 4 * PENALTY.0] {
            assert!(time.yielded(Duration::from_micros(20)) && time.is_open());
            assert!(!time.yielded(Duration::from_millis(3)));
            for _ in 0..penalty {
                time.slept(true);
                assert!(!time.is_open());
            }
            time.slept(true);
            assert!(time.is_open());
        }
        (0..2 * FORGIVEN_AFTER).for_each(|_| assert!(time.yielded(Duration::from_micros(20))));
        assert!(!time.yielded(Duration::from_millis(3)));
        assert_eq!(time.closed_for, 2 * PENALTY.0, "a quarter of the last");
    }

    #[test]
    fn on_the_only_processor_yields_may_be_longer() {
        for (is_only_processor, is_short) in [(true, true), (false, false)] {
            let mut time = PollTime::over_bell(is_only_processor);
            assert_eq!(time.yielded(Duration::from_millis(1)), is_short);
            assert!(!time.yielded(Duration::from_millis(3)));
        }
    }
}
