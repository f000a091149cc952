//! Signals that end a server, and user signals.

use std::fmt;
use std::io;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{self, signal_name};

/// A signal that requests termination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopSignal(i32);

impl StopSignal {
    /// Returns `true` for SIGINT, as sent by the terminal.
    pub fn is_interrupt(self) -> bool {
        self.0 == SIGINT
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(signal_name(self.0).unwrap_or("a signal"))
    }
}

/// Calls `stop` at the first SIGINT or SIGTERM, from a thread of its own. Once `stop` has returned, a second
/// SIGINT or SIGTERM kills the process, for impatient users. SIGHUP is logged and ignored, so that a server
/// survives its terminal; a configuration is read only at the start.
pub fn on_stop(stop: impl FnOnce(StopSignal) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut stop = Some(stop);
        for signal in signals.forever() {
            if signal == SIGHUP {
                tracing::info!("SIGHUP ignored: restart the server to read its configuration again");
            } else if let Some(stop) = stop.take() {
                stop(StopSignal(signal));
            } else {
                tracing::warn!(signal = signal_name(signal), "second signal: exiting at once");
                let _ = low_level::emulate_default_handler(signal);
            }
        }
    })?;
    Ok(())
}

/// Stops this process as SIGTERM does. Works in a sandbox that forbids sending signals to processes.
pub fn stop_this_process() -> io::Result<()> {
    low_level::raise(SIGTERM)
}

/// A signal with an application-defined meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserSignal {
    /// SIGUSR1.
    One,
    /// SIGUSR2.
    Two,
}

/// Calls `work` at each SIGUSR1 and SIGUSR2, on its own thread. Equal signals during `work` are merged.
pub fn on_user_signals(mut work: impl FnMut(UserSignal) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGUSR1, SIGUSR2])?;
    std::thread::Builder::new().name("user-signals".into()).spawn(move || {
        for signal in signals.forever() {
            work(if signal == SIGUSR1 { UserSignal::One } else { UserSignal::Two });
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn sighup_is_ignored_and_sigterm_stops() {
        let (sender, receiver) = mpsc::channel();
        on_stop(move |signal| sender.send(signal.to_string()).expect("send")).expect("install");
        low_level::raise(SIGHUP).expect("raise");
        assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err());
        low_level::raise(SIGTERM).expect("raise");
        assert_eq!(receiver.recv_timeout(Duration::from_secs(5)).as_deref(), Ok("SIGTERM"));
    }
}
