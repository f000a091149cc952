//! Why a VMM ended, in its own words.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

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

/// What a VMM says of its end, which a thread listens for. What it says of anything else is read, so that it is never held up, and forgotten.
#[derive(Debug)]
pub struct Events(JoinHandle<End>);

/// Between two looks; the length does not matter.
const LISTEN: Duration = Duration::from_secs(3600);

impl Events {
    /// Of a VMM that serves its monitor on the other end.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn listen(mut stream: UnixStream) -> io::Result<Self> {
        let listening = thread::Builder::new().name("vmm-events".into()).spawn(move || {
            // It is taken once the VMM has greeted. One that has gone already says nothing.
            let _ = stream.write_all(b"{\"execute\": \"qmp_capabilities\"}\n");
            let mut monitor = Monitor::over(stream, LISTEN);
            let mut end = End::Unsaid;
            loop {
                match monitor.message("why it ends", Instant::now() + LISTEN) {
                    Ok(message) if message["event"] == "SHUTDOWN" => {
                        end = match message["data"]["reason"].as_str() {
                            Some(RESET) => End::Reset,
                            reason => End::Other(reason.unwrap_or("without a reason").into()),
                        };
                    }
                    Ok(_) | Err(MonitorError::Late { .. }) => {}
                    Err(_) => return end,
                }
            }
        })?;
        Ok(Self(listening))
    }

    /// Why it ended. Waits until it has.
    #[must_use]
    pub fn ended(self) -> End {
        self.0.join().unwrap_or(End::Unsaid)
    }
}
