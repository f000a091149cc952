//! A timer that signals one thread (timer_create(2)): for tests of interruptible system calls.

use std::ptr;
use std::time::Duration;

use crate::errno::{Result, check};

/// A periodic signal to the thread that created it, whose handler does nothing. The signals stop when this
/// is dropped.
#[derive(Debug)]
pub struct ThreadTimer(libc::timer_t);

extern "C" fn do_nothing(_: libc::c_int) {}

impl ThreadTimer {
    /// Signals the calling thread once each `period`, which must be less than a second. `restarts`: the
    /// kernel restarts interrupted calls where possible (SA_RESTART). The signal handlers, of SIGUSR1 with
    /// `restarts` and of SIGUSR2 without, remain installed.
    pub fn start(period: Duration, restarts: bool) -> Result<Self> {
        let (number, flags) = if restarts { (libc::SIGUSR1, libc::SA_RESTART) } else { (libc::SIGUSR2, 0) };
        // SAFETY: all of these structures may be zero.
        let (mut action, mut event, mut timer) =
            unsafe { std::mem::zeroed::<(libc::sigaction, libc::sigevent, libc::timer_t)>() };
        action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = flags;
        // SAFETY: the handler does nothing, and lives as long as the program.
        let set = unsafe { libc::sigaction(number, &raw const action, ptr::null_mut()) };
        check(set.into())?;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = number;
        // SAFETY: has no arguments.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        // SAFETY: both structures live through the call.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        check(made.into())?;
        let timer = Self(timer);
        let period = libc::timespec { tv_sec: 0, tv_nsec: period.subsec_nanos().into() };
        let when = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer exists, and the structure lives through the call.
        let set = unsafe { libc::timer_settime(timer.0, 0, &raw const when, ptr::null_mut()) };
        check(set.into()).map(|_| timer)
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}
