//! Mounting in the background: this program starts itself once more, and waits until that one is ready.
//!
//! A second program instead of a fork: nothing of it runs between fork and exec, and its errors go straight to the user,
//! because it leaves the terminal only when it has mounted (`docs/decisions/0061`).

use std::env;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use crate::cli::LogArgs;
use crate::failure::{Failure, Outcome};

use super::Mount;

/// What the server says on its standard output when the mount is ready.
pub const READY: &str = "ready\n";

/// Starts the server and returns once it is ready, or has failed and said why.
pub fn start(mount: &Mount, options: &[String], log: LogArgs) -> Outcome {
    let mounting = format!("mount {}", mount.source);
    let mut server = spawn(mount, options, log).map_err(|error| Failure::cannot(&mounting, &error))?;
    let mut said = String::new();
    if let Some(output) = &mut server.stdout {
        // It ends when the server ends, or when it leaves us behind.
        output.read_to_string(&mut said).map_err(|error| Failure::cannot(&mounting, &error))?;
    }
    if said == READY {
        return Ok(());
    }
    let status = server.wait().map_err(|error| Failure::cannot(&mounting, &error))?;
    match status.code() {
        Some(_) => Err(Failure::silent()),
        None => Err(Failure::cannot(&mounting, format!("the server died ({status})"))),
    }
}

fn spawn(mount: &Mount, options: &[String], log: LogArgs) -> std::io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["mount", "--background-server"]).stdin(Stdio::null()).stdout(Stdio::piped());
    command.args(std::iter::repeat_n("-v", log.verbose.into()));
    command.args(std::iter::repeat_n("-q", log.quiet.into()));
    for list in options {
        command.args(["-o", list]);
    }
    if let Some(control) = &mount.control {
        command.arg("--control").arg(control);
    }
    command.arg("--").arg(mount.source.to_string()).arg(&mount.point.path).spawn()
}
