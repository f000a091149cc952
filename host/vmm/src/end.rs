//! Why a VMM ended, in its own words.

use std::fmt;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::monitor::{Monitor, MonitorError};

/// Why a VMM ended, as it says itself (`ShutdownCause` of QEMU).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest was reset, by itself or by a panic of its kernel: it is to boot.
    Reset,
    /// Something else, in QEMU's words: `guest-shutdown`, `guest-panic`, `host-qmp-quit`, `host-signal`…
    Other(String),
    /// It has not said: it was killed, or has failed.
    Unsaid,
}

impl fmt::Display for End {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Reset => RESET,
            Self::Other(reason) => reason,
            Self::Unsaid => "unsaid",
        })
    }
}

const RESET: &str = "guest-reset";

/// What a VMM says of its end, which a thread listens for.
#[derive(Debug)]
pub struct Events(JoinHandle<End>);

impl Events {
    pub(crate) fn new(listening: JoinHandle<End>) -> Self {
        Self(listening)
    }

    /// Why it ended. Waits until it has.
    #[must_use]
    pub fn ended(self) -> End {
        self.0.join().unwrap_or(End::Unsaid)
    }
}

/// Between two looks; the length does not matter.
const LISTEN: Duration = Duration::from_secs(3600);

/// Events that are written down: of what becomes of the machine and of its devices. Others a guest has as
/// often as it likes.
const NOTED: [&str; 8] = [
    "DEVICE_DELETED",
    "DEVICE_UNPLUG_GUEST_ERROR",
    "GUEST_PANICKED",
    "MIGRATION",
    "RESET",
    "RESUME",
    "SHUTDOWN",
    "STOP",
];

/// Writes an event down, so that of a guest that does not answer it is known what has come to pass.
fn note(message: &Value) {
    if let Some(event) = message["event"].as_str().filter(|event| NOTED.contains(event)) {
        tracing::info!(event, data = %message["data"], "the VMM tells");
    }
}

/// Listens to a VMM that serves its monitor on the other end until it closes that, as a rule by its end. What
/// it says of anything else is read, so that it is never held up, and written down if it is of the machine.
pub(crate) fn heard(mut stream: UnixStream) -> End {
    // It is taken once the VMM has greeted. One that has gone already says nothing.
    let _ = stream.write_all(b"{\"execute\": \"qmp_capabilities\"}\n");
    let mut monitor = Monitor::over(stream, LISTEN);
    let mut end = End::Unsaid;
    loop {
        match monitor.message("why it ends", Instant::now() + LISTEN) {
            Ok(message) if message["event"] == "SHUTDOWN" => {
                note(&message);
                end = match message["data"]["reason"].as_str() {
                    Some(RESET) => End::Reset,
                    reason => End::Other(reason.unwrap_or("without a reason").into()),
                };
            }
            Ok(message) => note(&message),
            Err(MonitorError::Late { .. }) => {}
            Err(_) => return end,
        }
    }
}
