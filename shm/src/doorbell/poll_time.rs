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
/// Initial and maximum number of short sleeps before polling resumes after a yield longer than
/// [`YIELD_MAX`].
const PENALTY: (u32, u32) = (16, 1 << 16);

/// The learnt polling time of one consumer: halved whenever polling found nothing in time, down to zero, and
/// restored after a sleep so short that polling would have avoided it.
///
/// During a long yield a busy thread used the processor. The scheduler prefers a woken sleeper to such a
/// thread, but not a thread that yielded. A long yield therefore disables polling for the next few short
/// sleeps, and each further one for twice as many.
#[derive(Debug, Clone, Copy)]
pub struct PollTime {
    max: Duration,
    /// Current polling time.
    length: Duration,
    /// Number of short sleeps until polling may resume.
    closed_for: u32,
    /// Value of `closed_for` set by the last long yield; 0 before the first.
    penalty: u32,
}

impl Default for PollTime {
    fn default() -> PollTime {
        PollTime::up_to(POLL_TIME_MAX)
    }
}

impl PollTime {
    /// Returns the polling time of a consumer of this link.
    pub fn of(ends: &Ends) -> PollTime {
        PollTime::up_to(if ends.bell.is_some() { BELL_POLL_TIME_MAX } else { POLL_TIME_MAX })
    }

    fn up_to(max: Duration) -> PollTime {
        PollTime { max, length: max, closed_for: 0, penalty: 0 }
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

    /// Records a yield of this duration, and ends polling if it was longer than 200 µs. Returns `true` if
    /// polling should continue.
    pub fn yielded(&mut self, how_long: Duration) -> bool {
        if how_long <= YIELD_MAX {
            return true;
        }
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
    }
}
