//! Network namespace of the run. nfs-ganesha registers with rpcbind, of which there is one per network: in
//! its own namespace it conflicts with no other, and ends with the run. The programs compared with it run
//! there too.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::super::measure::go_on;
use crate::error::{Doing, Error, Result};
use crate::peer::this_program;

/// Shell commands that prepare the namespaces: rpcbind writes below /run, and its files must not remain.
const PREPARE: &str =
    "ip link set lo up && mount -t tmpfs -o mode=755 tombolo-bench /run && exec \"$0\" \"$@\"";
const LOOK: Duration = Duration::from_millis(20);

/// Runs this program again with `arguments` in new network and mount namespaces, and forwards its output.
/// Standard error is inherited. Fails with [`Error::Absent`] if that is not permitted.
pub fn run_inside(arguments: &[impl AsRef<OsStr>], out: &mut dyn Write) -> Result<()> {
    allowed()?;
    let mut command = isolated(&this_program()?);
    command.args(arguments).stdout(Stdio::piped());
    let mut child = command.spawn().doing(|| "start unshare".to_owned())?;
    let printed = printed_by(&mut child);
    let passed_on = pass_on(&printed, out);
    if passed_on.is_err() {
        // It ends its servers by itself.
        let _gone = tombolo_sys::process::terminate(child.id());
    }
    let status = child.wait().doing(|| "wait for the run".to_owned())?;
    passed_on?;
    good(status)
}

/// Returns the output piece by piece, read by a thread.
fn printed_by(child: &mut Child) -> Receiver<Vec<u8>> {
    let (to, printed) = channel();
    let output = child.stdout.take();
    std::thread::spawn(move || {
        let Some(mut output) = output else { return };
        let mut piece = vec![0; 1 << 16];
        while let Ok(count @ 1..) = output.read(&mut piece) {
            if to.send(piece[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    printed
}

/// Passes on the output until it ends or this run is interrupted.
fn pass_on(printed: &Receiver<Vec<u8>>, out: &mut dyn Write) -> Result<()> {
    loop {
        match printed.recv_timeout(LOOK) {
            Ok(piece) => {
                out.write_all(&piece).and_then(|()| out.flush()).doing(|| "print".to_owned())?;
            }
            Err(RecvTimeoutError::Timeout) => go_on()?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn good(status: ExitStatus) -> Result<()> {
    if status.success() { Ok(()) } else { Err(failed(format!("ended with {status} in its own network"))) }
}

fn failed(what: String) -> Error {
    Error::Server { program: "tombolo-bench".to_owned(), what }
}

fn allowed() -> Result<()> {
    let tried = isolated(Path::new("true")).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = tried.doing(|| "start unshare (of util-linux)".to_owned());
    let refused = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Error::Absent(format!("a new network namespace requires root, unshare and ip: {refused}")))
}

/// Returns a command that runs `program` in new namespaces, as the same process.
fn isolated(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--", "sh", "-c", PREPARE]).arg(program).stdin(Stdio::null());
    command
}
