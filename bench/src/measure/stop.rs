//! A run that is asked to end ends early, so that the servers that it started end with it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Doing, Error, Result};

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT and SIGTERM end the run after the turn that is under way; a second one ends it at once.
pub fn end_on_signals() -> Result<()> {
    tombolo_host_runtime::signals::on_stop(|_| ASKED.store(true, Ordering::Relaxed))
        .doing(|| "listen for signals".to_owned())
}

/// An error once the run has been asked to end.
pub fn go_on() -> Result<()> {
    if ASKED.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}
