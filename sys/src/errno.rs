//! The one error type of this crate.

/// The error number of a failed system call.
///
/// `core` maps it to the error of the waist, exhaustively and in one place; nothing above names a number.
pub use rustix::io::Errno;

/// What every wrapper in this crate returns.
pub type Result<T> = core::result::Result<T, Errno>;

/// Runs `call` again for as long as a signal interrupts it.
///
/// For calls that did nothing when they say EINTR; not for `close`.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// The outcome of a raw system call: −1 means that the thread's error number says why.
pub(crate) fn check(outcome: libc::c_long) -> Result<usize> {
    usize::try_from(outcome).map_err(|_| last_error())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
