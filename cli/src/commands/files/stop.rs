//! Orderly end of a command by signals: the first one calls an action of the command, the second one kills.

use std::io;
use std::sync::{Mutex, OnceLock};

use tombolo_core::lock;
use tombolo_host_runtime::signals::{self, StopSignal};

type Stop = Box<dyn FnOnce(StopSignal) + Send>;

/// Action for the first signal to stop, set by the last call of [`on_signal`].
static CURRENT: Mutex<Option<Stop>> = Mutex::new(None);
static CAME: OnceLock<StopSignal> = OnceLock::new();
static WATCHING: Mutex<bool> = Mutex::new(false);

/// Calls `stop` at the first SIGINT or SIGTERM, in place of an earlier action; the second signal kills.
pub fn on_signal(stop: impl FnOnce(StopSignal) + Send + 'static) -> io::Result<()> {
    *lock(&CURRENT) = Some(Box::new(stop));
    let mut watching = lock(&WATCHING);
    if !*watching {
        signals::on_stop(|signal| {
            let _ = CAME.set(signal);
            let stop = lock(&CURRENT).take();
            if let Some(stop) = stop {
                stop(signal);
            }
        })?;
        *watching = true;
    }
    Ok(())
}

/// Returns the first signal to stop that has arrived since [`on_signal`] was called; `None` before.
pub fn came() -> Option<StopSignal> {
    CAME.get().copied()
}
