//! Going into the background, once there is something to go there with.

use std::fs::File;
use std::io;
use std::path::Path;

use tombolo_sys::process;

use crate::syslog;

/// Leaves the terminal: a session of its own, `/` as working directory, standard input and output from and to
/// nowhere, the log to `log`, and to the system's log. A process that waits for the end of our standard
/// output sees it now.
pub fn leave_terminal(log: &File) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    process::leave_session()?;
    std::env::set_current_dir(Path::new("/"))?;
    process::redirect_standard_streams(&null, log)?;
    syslog::begin();
    Ok(())
}
