//! Network namespace of the run. nfs-ganesha registers with rpcbind, of which there is one per network: in
//! its own namespace it conflicts with no other, and ends with the run. The programs compared with it run
//! there too.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::measure::go_on;
use crate::error::{Doing, Error, Result};
use crate::peer::this_program;

/// Shell commands that prepare the namespaces: rpcbind writes below /run, and its files must not remain.
const PREPARE: &str =
    "ip link set lo up && mount -t tmpfs -o mode=755 tombolo-bench /run && exec \"$0\" \"$@\"";
const LOOK: Duration = Duration::from_millis(20);

/// Runs this program again with `arguments` in new network and mount namespaces, with the same output. Fails
/// with [`Error::Absent`] if that is not permitted.
pub fn run_inside(arguments: &[impl AsRef<OsStr>]) -> Result<()> {
    allowed()?;
    let mut child =
        isolated(&this_program()?).args(arguments).spawn().doing(|| "start unshare".to_owned())?;
    let status = loop {
        if let Some(status) = child.try_wait().doing(|| "wait for the run".to_owned())? {
            break status;
        }
        if let Err(interrupted) = go_on() {
            // It ends its servers by itself.
            let _gone = tombolo_sys::process::terminate(child.id());
            let _ended = child.wait();
            return Err(interrupted);
        }
        std::thread::sleep(LOOK);
    };
    if status.success() {
        return Ok(());
    }
    let what = format!("ended with {status} in its own network");
    Err(Error::Server { program: "tombolo-bench".to_owned(), what })
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
