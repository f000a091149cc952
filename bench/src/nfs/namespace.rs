//! A network of the run's own. nfs-ganesha registers with rpcbind, which is one for each network: in a namespace of its
//! own it meets no other, and ends with the run. Whoever is compared with it runs in there too.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::measure::go_on;
use crate::error::{Doing, Error, Result};

/// What prepares the new namespaces: rpcbind wants to write below /run, and nothing that it does there shall stay.
const PREPARE: &str =
    "ip link set lo up && mount -t tmpfs -o mode=755 tombolo-bench /run && exec \"$0\" \"$@\"";
const LOOK: Duration = Duration::from_millis(20);

/// Runs this program again with `arguments` in network and mount namespaces of its own, and returns what it prints. What it says
/// on standard error goes where ours goes. [`Error::Absent`] where that is not allowed.
pub fn run_inside(arguments: &[&str]) -> Result<String> {
    allowed()?;
    let program = std::env::current_exe().doing(|| "find this program".to_owned())?;
    let mut command = isolated(&program);
    command.args(arguments).stdout(Stdio::piped());
    let mut child = command.spawn().doing(|| "start unshare".to_owned())?;
    let mut output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = output.as_mut().map(|output| std::io::Read::read_to_string(output, &mut text));
        read.transpose().map(|_| text)
    });
    let status = loop {
        if let Some(status) = child.try_wait().doing(|| "wait for the run".to_owned())? {
            break status;
        }
        if let Err(error) = go_on() {
            // It ends its servers by itself.
            let _gone = tombolo_sys::process::terminate(child.id());
            let _reaped = child.wait();
            return Err(error);
        }
        std::thread::sleep(LOOK);
    };
    if !status.success() {
        let what = format!("ended with {status} in its own network");
        return Err(Error::Server { program: "tombolo bench".to_owned(), what });
    }
    let text = reader.join().unwrap_or_else(|_| Ok(String::new()));
    text.doing(|| "read what the run found".to_owned())
}

fn allowed() -> Result<()> {
    let tried = isolated(Path::new("true")).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = tried.doing(|| "start unshare (of util-linux)".to_owned());
    let refused = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Error::Absent(format!("a network of its own needs root, unshare and ip: {refused}")))
}

/// `program` with what is added to the command, in new namespaces, as the same process.
fn isolated(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--", "sh", "-c", PREPARE]).arg(program).stdin(Stdio::null());
    command
}
