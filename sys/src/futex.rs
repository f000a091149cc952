//! Sleeping on a word until another thread wakes the sleeper: in shared memory, across processes, or within
//! this process.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tombolo_mem::Word;

use crate::errno::{Errno, Result, check};

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A wake-up or a signal; the word may be unchanged.
    Maybe,
    /// The word had another value already.
    Changed,
    /// The timeout expired.
    TimedOut,
}

/// Sleeps while the word has the value `expected`, until another thread [wakes](wake) the sleepers on the
/// same memory, at most for `timeout`. The word may be in a read-only mapping. EFAULT if the file behind it
/// was truncated.
pub fn wait(word: &Word, expected: u32, timeout: Option<Duration>) -> Result<Woken> {
    sleep(word.address().cast(), libc::FUTEX_WAIT, expected, timeout)
}

/// Sleeps as [`wait`] does, on a word that only this process wakes. Unlike a condition variable with a
/// timeout it reads no clock, which is a system call in some guests.
pub fn wait_here(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Result<Woken> {
    sleep(word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, timeout)
}

/// Sleeps on a word, borrowed by the caller.
fn sleep(
    word: *const u32,
    operation: libc::c_int,
    expected: u32,
    timeout: Option<Duration>,
) -> Result<Woken> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word's address is valid while it is borrowed, and so is the timeout; the kernel only reads
    // both.
    let outcome = unsafe { libc::syscall(libc::SYS_futex, word, operation, expected, timeout) };
    match check(outcome) {
        Ok(_) | Err(Errno::INTR) => Ok(Woken::Maybe),
        Err(Errno::AGAIN) => Ok(Woken::Changed),
        Err(Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(errno) => Err(errno),
    }
}

/// Wakes one of the threads that sleep on the word's memory, in any process. Returns the number of woken
/// threads. EFAULT if the file behind it was truncated.
pub fn wake(word: &Word) -> Result<usize> {
    // SAFETY: the word's address is valid while it is borrowed; the kernel only looks up its mapping.
    check(unsafe { libc::syscall(libc::SYS_futex, word.address(), libc::FUTEX_WAKE, 1) })
}

/// Wakes one of this process's threads that sleep on the word by [`wait_here`].
pub fn wake_here(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is borrowed; the kernel takes its address as a number.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
}
