//! Events of a VMM, and the reason for its end.

use std::fmt;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::monitor::{Monitor, MonitorError};

/// Name of a reset as the reason for a VMM's end.
const RESET: &str = "guest-reset";

/// Reason for the end of a VMM (`ShutdownCause` of QEMU).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest was reset, by itself or by a kernel panic, and must be booted again.
    Reset,
    /// A reason other than the above, in QEMU's words: `guest-shutdown`, `guest-panic`, `host-qmp-quit`,
    /// `host-signal`…
    Other(String),
    /// No reason is known: the VMM was killed, failed or violated the protocol, or its events could not be
    /// received.
    Unknown,
}

impl fmt::Display for End {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Reset => RESET,
            Self::Other(reason) => reason,
            Self::Unknown => "no reason reported",
        })
    }
}

/// Event stream of a VMM, received by a thread.
#[derive(Debug)]
pub struct Events(JoinHandle<End>);

impl Events {
    pub(crate) fn new(listening: JoinHandle<End>) -> Self {
        Self(listening)
    }

    /// Blocks until the VMM has ended; returns the reason.
    #[must_use]
    pub fn ended(self) -> End {
        self.0.join().unwrap_or(End::Unknown)
    }
}

/// Receive time-out, after which receiving is repeated: [`Monitor`] requires a limit.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Logged events, about the machine and its devices. A guest can cause any number of other events; these are
/// bounded, since a reset ends the VMM (`-no-reboot`).
const LOGGED: [&str; 8] = [
    "DEVICE_DELETED",
    "DEVICE_UNPLUG_GUEST_ERROR",
    "GUEST_PANICKED",
    "MIGRATION",
    "RESET",
    "RESUME",
    "SHUTDOWN",
    "STOP",
];

/// Logs an event, for the analysis of a guest that does not respond.
fn log_event(message: &Value) {
    if let Some(event) = message["event"].as_str().filter(|event| LOGGED.contains(event)) {
        tracing::info!(event, data = %message["data"], "VMM event");
    }
}

/// Receives the events of a VMM on its monitor until the VMM closes the connection, usually because it ends,
/// or violates the protocol. All events are read, so that a full connection does not block the VMM.
pub(crate) fn receive_events(mut stream: UnixStream) -> End {
    // The command takes effect once the VMM has sent its greeting; a failed write shows when events are
    // received.
    let _ = stream.write_all(b"{\"execute\": \"qmp_capabilities\"}\n");
    let mut monitor = Monitor::from_stream(stream, RECEIVE_TIMEOUT);
    let mut end = End::Unknown;
    loop {
        match monitor.message("event", Instant::now() + RECEIVE_TIMEOUT) {
            Ok(message) if message["event"] == "SHUTDOWN" => {
                log_event(&message);
                end = match message["data"]["reason"].as_str() {
                    Some(RESET) => End::Reset,
                    Some(reason) => End::Other(reason.into()),
                    None => End::Unknown,
                };
            }
            Ok(message) => log_event(&message),
            Err(MonitorError::Late { .. }) => {}
            Err(_) => return end,
        }
    }
}
