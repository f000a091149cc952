//! Scheduling latency of a server's threads.

use std::time::Duration;

use tombolo_sys::scheduling;

/// Time slice of a server's threads, which run often and briefly: with a slice this short they preempt a
/// running thread sooner.
const SLICE: Duration = Duration::from_micros(100);

/// Requests short time slices for this thread and those that it starts later; a server calls this once,
/// before it starts any thread. On a busy processor they then mostly run when there is a request or a
/// notification, rather than at the end of another thread's slice (1.4 to 4 ms; Linux 6.12). Their total
/// share is unchanged.
pub fn request_short_slices() {
    if let Err(error) = scheduling::use_short_slices(SLICE) {
        tracing::debug!(%error, "cannot shorten the time slices");
    }
}
