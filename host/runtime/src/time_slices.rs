//! How soon a server's threads run when they wake.

use std::time::Duration;

use tombolo_sys::scheduling;

/// A thread of a server needs the processor often and for a short time: with a slice this short it waits no
/// longer for a thread that has it.
const SLICE: Duration = Duration::from_micros(100);

/// To be called once, before a server starts any thread: all that it starts then have short time slices. On a
/// busy processor they run when there is a request, or word of a change, and not when the slice of another is
/// over (1.4 to 4 ms; Linux 6.12). They get no more of it in all.
pub fn ask_for_short() {
    if let Err(error) = scheduling::take_short_turns(SLICE) {
        tracing::debug!(%error, "the time slices stay as they are");
    }
}
