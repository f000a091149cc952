//! Detaching from the terminal.

use std::fs::File;
use std::io;
use std::path::Path;

use tombolo_sys::process;

use crate::syslog;

/// Detaches from the terminal: new session, working directory `/`, standard input and output from and to
/// `/dev/null`, log to `log` and, if logging was started with
/// [`Destination::Background`](crate::logging::Destination::Background), to the system log. A process that
/// waits for the end of this process's standard output continues.
pub fn leave_terminal(log: &File) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    process::leave_session()?;
    std::env::set_current_dir(Path::new("/"))?;
    process::redirect_standard_streams(&null, log)?;
    syslog::begin();
    Ok(())
}
