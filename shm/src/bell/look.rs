//! Looking for a message, for as long as it is likely to pay.
//!
//! What decisions 0012, 0032 and 0095 found for other transports holds here, at a smaller scale: a wake-up costs more than most
//! requests, so who waits looks for a while first; who shares a processor with the peer must yield, or looks in vain until it is
//! preempted; where somebody else needs the processor, looking harms both.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use crate::bell::sleeper::Awaited;
use crate::bell::{Mode, umwait};

/// The longest time that an adaptive consumer looks before it sleeps.
pub const WINDOW_MAX: Duration = Duration::from_micros(50);
/// Below this a window is not worth its system calls.
const WINDOW_MIN: Duration = Duration::from_micros(4);
/// For so long it looks without yielding; most answers come sooner.
const EAGER_US: u32 = 2;
/// So long it looks between two yields.
const SLICE_US: u32 = 1;
/// A yield longer than this met somebody who needs the processor.
const YIELD_MAX: Duration = Duration::from_micros(200);
/// Short sleeps before the window opens again after such a yield: at first, and at most.
const PENALTY: (u32, u32) = (256, 1 << 16);

/// How long one consumer looks, as it has learnt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    length: Duration,
    /// Short sleeps to go until it may open.
    closed_for: u32,
    /// The last penalty.
    penalty: u32,
}

impl Default for Window {
    fn default() -> Window {
        Window { length: WINDOW_MAX, closed_for: 0, penalty: 0 }
    }
}

impl Window {
    /// Is looking worth it now?
    pub(super) fn is_open(&self) -> bool {
        self.length >= WINDOW_MIN
    }

    /// A sleep ended, with a message or because the time was up. Looking longer would have spared it if it was short.
    pub(super) fn slept(&mut self, short: bool) {
        if !short {
            self.length /= 2;
        } else if self.closed_for > 0 {
            self.closed_for -= 1;
        } else {
            self.length = WINDOW_MAX;
        }
    }

    /// Whether to go on after a yield that took so long.
    fn yielded(&mut self, how_long: Duration) -> bool {
        if how_long <= YIELD_MAX {
            return true;
        }
        self.penalty = self.penalty.saturating_mul(2).clamp(PENALTY.0, PENALTY.1);
        self.closed_for = self.penalty;
        self.length = Duration::ZERO;
        false
    }
}

/// Looks as the mode and the window say. Says whether the message is there; if not, the time has come to sleep, or, in a mode
/// that never sleeps, `is_over` has said so, which is asked every few microseconds.
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
            if !window.yielded(after - before) || after - start >= window.length {
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

/// How often to look in a microsecond: a clock would take longer than a look, in some guests a system call. Found once, in some
/// 50 µs.
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
    fn long_sleeps_close_the_window_and_a_short_one_opens_it() {
        let mut window = Window::default();
        assert!(window.is_open());
        (0..8).for_each(|_| window.slept(false));
        assert!(!window.is_open());
        window.slept(true);
        assert!(window.is_open());
    }

    #[test]
    fn where_others_need_the_processor_looking_ends_for_longer_each_time() {
        let mut window = Window::default();
        for penalty in [PENALTY.0, 2 * PENALTY.0, 4 * PENALTY.0] {
            assert!(window.yielded(Duration::from_micros(20)) && window.is_open());
            assert!(!window.yielded(Duration::from_millis(3)));
            for _ in 0..penalty {
                window.slept(true);
                assert!(!window.is_open());
            }
            window.slept(true);
            assert!(window.is_open());
        }
    }

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
