//! Looking for a message, for as long as it is likely to pay.
//!
//! What docs/decisions/runtime-polling.md found for other transports holds here, at a smaller scale: a
//! wake-up costs more than most requests, so a waiter looks for a while first; one that shares a processor
//! with the peer must yield, or looks in vain until it is preempted; where another thread needs the
//! processor, looking harms both.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::thread::yield_now;
use std::time::Instant;

use crate::doorbell::sleeper::Awaited;
use crate::doorbell::{Mode, Window, umwait};

/// For so long it looks without yielding; most answers come sooner.
const EAGER_US: u32 = 2;
/// So long it looks between two yields.
const SLICE_US: u32 = 1;

/// Looks as the mode and the window say. Says whether the message is there; if not, the time has come to
/// sleep, or, in a mode that never sleeps, `is_over` has said so, which is asked every few microseconds.
pub(super) fn look(
    mode: Mode,
    window: &mut Window,
    awaited: &mut impl Awaited,
    mut is_over: impl FnMut() -> bool,
) -> bool {
    if awaited.is_ready() {
        return true;
    }
    if mode == Mode::Event || mode == Mode::Adaptive && !window.is_open() {
        return false;
    }
    if mode == Mode::Umwait && umwait::is_available() {
        return rest(awaited, is_over);
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
            if !window.yielded(after - before) || after - start >= window.length() {
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

/// Looks for about so long.
fn spin(for_us: u32, awaited: &mut impl Awaited) -> bool {
    for _ in 0..for_us.saturating_mul(looks_per_us()) {
        if awaited.is_ready() {
            return true;
        }
        spin_loop();
    }
    false
}

fn rest(awaited: &mut impl Awaited, mut is_over: impl FnMut() -> bool) -> bool {
    while !awaited.is_ready() {
        if is_over() {
            return false;
        }
        umwait::rest(awaited.line(), || awaited.is_ready());
        if awaited.is_ready() {
            break;
        }
        // The peer may be waiting for this very processor.
        yield_now();
    }
    true
}

/// How often to look in a microsecond: a clock would take longer than a look, in some guests a system call.
/// Found once, in some 50 µs.
pub(super) fn looks_per_us() -> u32 {
    const LOOKS: u32 = 256;
    static FOUND: OnceLock<u32> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let time = || {
            let start = Instant::now();
            (0..LOOKS).for_each(|_| spin_loop());
            start.elapsed()
        };
        // The shortest: others may take the processor in between.
        let shortest = (0..5).map(|_| time()).min().unwrap_or_default();
        let nanos = u32::try_from(shortest.as_nanos()).unwrap_or(u32::MAX).max(1);
        (LOOKS * 1000 / nanos).clamp(1, 1000)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mode_that_never_sleeps_looks_until_it_is_told_that_it_is_over() {
        for (mode, asked) in [(Mode::Poll, 3), (Mode::Event, 0), (Mode::Adaptive, 0)] {
            let mut times = 0;
            let is_over = || {
                times += 1;
                times == 3
            };
            assert!(!look(mode, &mut Window::default(), &mut || false, is_over));
            assert_eq!(times, asked, "{mode}");
        }
    }

    #[test]
    fn whatever_comes_while_looking_is_found() {
        // Few looks for an adaptive one: a yield on a busy machine may end its looking.
        for (mode, afters) in
            [(Mode::Poll, [0, 1, 1000]), (Mode::Adaptive, [0, 1, 2]), (Mode::Umwait, [0, 1, 1000])]
        {
            for after in afters {
                let mut looks = 0;
                let mut awaited = || {
                    looks += 1;
                    looks > after
                };
                assert!(look(mode, &mut Window::default(), &mut awaited, || false), "{mode} {after}");
            }
        }
    }
}
