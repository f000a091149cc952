//! The error type of this crate.

/// The error number of a failed system call.
///
/// `core` maps every number to the waist's error, in one place.
pub use rustix::io::Errno;

/// The result of every wrapper in this crate.
pub type Result<T> = core::result::Result<T, Errno>;

/// Repeats `call` while it is interrupted by a signal.
///
/// Correct only for calls that have had no effect when they fail with EINTR, unlike `close`.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// Converts the return value of a raw system call: −1 means that the thread's errno has the error.
pub(crate) fn check(outcome: libc::c_long) -> Result<usize> {
    usize::try_from(outcome).map_err(|_| last_error())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
