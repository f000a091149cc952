//! Polling for a message while that is likely to pay.
//!
//! The results of docs/decisions/runtime-polling.md for other transports apply, at a smaller scale: a wake-up
//! costs more than most requests, so a consumer polls for a while first; a consumer that shares a processor
//! with the peer must yield, or it polls in vain until preempted; where another thread needs the processor,
//! polling harms both.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::thread::yield_now;
use std::time::Instant;

use crate::doorbell::sleeper::Awaited;
use crate::doorbell::{Mode, PollTime, umwait};

/// Initial polling time without yields, in µs; most answers arrive sooner.
const EAGER_US: u32 = 2;
/// Polling time between two yields, in µs.
const SLICE_US: u32 = 1;

/// Polls as `mode` and `poll_time` prescribe. Returns `true` once the message has arrived, and `false` if the
/// caller should sleep now. The modes that never sleep poll until `is_over` returns `true`.
pub(super) fn poll(
    mode: Mode,
    poll_time: &mut PollTime,
    awaited: &mut impl Awaited,
    mut is_over: impl FnMut() -> bool,
) -> bool {
    if awaited.is_ready() {
        return true;
    }
    if mode == Mode::Event || mode == Mode::Adaptive && !poll_time.is_open() {
        return false;
    }
    if mode == Mode::Umwait && umwait::is_available() {
        return wait_for_write(awaited, is_over);
    }
    if spin(EAGER_US, awaited) {
        return true;
    }
    let start = Instant::now();
    let mut before = start;
    loop {
        yield_now();
        if mode == Mode::Adaptive {
            let after = Instant::now();
            if !poll_time.yielded(after - before) || after - start >= poll_time.length() {
                return awaited.is_ready();
            }
            before = after;
        } else if is_over() {
            return awaited.is_ready();
        }
        if spin(SLICE_US, awaited) {
            return true;
        }
    }
}

/// Polls for about `for_us` microseconds. Returns `true` as soon as the condition holds.
fn spin(for_us: u32, awaited: &mut impl Awaited) -> bool {
    for _ in 0..for_us.saturating_mul(polls_per_us()) {
        if awaited.is_ready() {
            return true;
        }
        spin_loop();
    }
    false
}

fn wait_for_write(awaited: &mut impl Awaited, mut is_over: impl FnMut() -> bool) -> bool {
    while !awaited.is_ready() {
        if is_over() {
            return false;
        }
        umwait::rest(awaited.line(), || awaited.is_ready());
        if awaited.is_ready() {
            break;
        }
        // The peer may be waiting for this processor.
        yield_now();
    }
    true
}

/// Returns the approximate number of polls per microsecond, to measure short times: reading a clock takes
/// longer than a poll, and is a system call in some guests. Calibrated once, in well under a millisecond.
pub(super) fn polls_per_us() -> u32 {
    const POLLS: u32 = 256;
    static CALIBRATED: OnceLock<u32> = OnceLock::new();
    *CALIBRATED.get_or_init(|| {
        let time = || {
            let start = Instant::now();
            (0..POLLS).for_each(|_| spin_loop());
            start.elapsed()
        };
        // The shortest of several: other threads may use the processor during a measurement.
        let shortest = (0..5).map(|_| time()).min().unwrap_or_default();
        let nanos = u32::try_from(shortest.as_nanos()).unwrap_or(u32::MAX).max(1);
        (POLLS * 1000 / nanos).clamp(1, 1000)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sleepless_modes_poll_until_told_to_stop() {
        for (mode, asked) in [(Mode::Poll, 3), (Mode::Event, 0), (Mode::Adaptive, 0)] {
            let mut times = 0;
            let is_over = || {
                times += 1;
                times == 3
            };
            assert!(!poll(mode, &mut PollTime::default(), &mut || false, is_over));
            assert_eq!(times, asked, "{mode}");
        }
    }

    #[test]
    fn messages_arriving_during_polling_are_found() {
        // A small number for adaptive mode: on a busy machine a yield may end its polling.
        for (mode, afters) in
            [(Mode::Poll, [0, 1, 1000]), (Mode::Adaptive, [0, 1, 2]), (Mode::Umwait, [0, 1, 1000])]
        {
            for after in afters {
                let mut looks = 0;
                let mut awaited = || {
                    looks += 1;
                    looks > after
                };
                assert!(poll(mode, &mut PollTime::default(), &mut awaited, || false), "{mode} {after}");
            }
        }
    }
}
