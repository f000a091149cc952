//! Processes that a command starts, which report on standard output that they are ready.

use std::fs::File;
use std::io::{self, Write};
use std::process::Child;

use tombolo_host_service::daemon;

use crate::failure::{Failure, OrCannot, Outcome};

/// Message of a ready process.
const READY: &str = "ready\n";

/// Waits until a started process, such as `its supervisor`, is ready, or has failed, with the reason printed.
pub fn await_ready(process: io::Result<Child>, name: &str, doing: &str) -> Outcome {
    let mut process = process.or_cannot(doing)?;
    if is_ready(&mut process).or_cannot(doing)? {
        return Ok(());
    }
    let status = process.wait().or_cannot(doing)?;
    match status.code() {
        Some(_) => Err(Failure::silent()),
        None => Err(Failure::cannot(doing, format!("{name} died ({status})"))),
    }
}

/// Returns `true` once a process is ready, `false` if it ends before. Its output ends when it detaches.
pub fn is_ready(process: &mut Child) -> io::Result<bool> {
    let said = process.stdout.take().map(io::read_to_string).transpose()?;
    Ok(said.as_deref() == Some(READY))
}

/// Reports that this process is ready, and detaches from the terminal.
pub fn leave_terminal(log: &File) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(READY.as_bytes()).and_then(|()| out.flush())?;
    daemon::leave_terminal(log)
}
