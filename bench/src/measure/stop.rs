//! Early end of an interrupted run, so that its servers end with it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Doing, Error, Result};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Handles SIGINT and SIGTERM from now on: the run ends after the present turn; a second signal ends it at
/// once.
pub fn end_on_signals() -> Result<()> {
    tombolo_host_runtime::signals::on_stop(|_| ASKED.store(true, Ordering::Relaxed))
        .doing(|| "listen for signals".to_owned())
}

/// Fails if the run was interrupted.
pub fn go_on() -> Result<()> {
    if ASKED.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}
