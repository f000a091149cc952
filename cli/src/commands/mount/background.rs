//! Mounting in the background: this program starts itself once more, and waits until that one is ready.
//!
//! That one is the [`supervisor`](super::supervisor), which starts the [`server`](super::server). A second
//! program instead of a fork: nothing of it runs between fork and exec, and its errors go straight to the
//! user, because it leaves the terminal only when it has mounted (`docs/decisions/service-processes.md`).

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::cli::LogArgs;
use crate::failure::{Failure, Outcome};

use super::Mount;

/// What supervisor and server say on their standard output when the mount is ready.
pub const READY: &str = "ready\n";

/// What a program that we start is to be.
#[derive(Clone, Copy, Debug)]
pub enum Role<'a> {
    /// See [`supervisor`](super::supervisor).
    Supervisor,
    /// See [`server`](super::server).
    Server {
        /// Where it goes on logging once it has left the terminal.
        log: &'a Path,
        /// Whether there was one before it, so that no command waits for this one.
        again: bool,
    },
}

/// Starts the supervisor and returns once the mount is ready, or has failed and has said why.
pub fn start(mount: &Mount, options: &[String], log: LogArgs) -> Outcome {
    let mounting = format!("mount {}", mount.source);
    let cannot = |error: &io::Error| Failure::cannot(&mounting, error);
    let mut supervisor = spawn(mount, options, log, Role::Supervisor).map_err(|error| cannot(&error))?;
    let mut said = String::new();
    if let Some(output) = &mut supervisor.stdout {
        // It ends when the supervisor ends, or when it leaves us behind.
        output.read_to_string(&mut said).map_err(|error| cannot(&error))?;
    }
    if said == READY {
        return Ok(());
    }
    let status = supervisor.wait().map_err(|error| cannot(&error))?;
    match status.code() {
        Some(_) => Err(Failure::silent()),
        None => Err(Failure::cannot(&mounting, format!("it died ({status})"))),
    }
}

pub fn spawn(mount: &Mount, options: &[String], log: LogArgs, role: Role<'_>) -> io::Result<Child> {
    // Also when the program's file was replaced meanwhile: both ends of a pipe speak the same version.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tombolo").arg("mount").stdin(Stdio::null()).stdout(Stdio::piped());
    match role {
        Role::Supervisor => command.arg("--supervisor"),
        Role::Server { log, again } => {
            command.arg("--background-log").arg(log).args(again.then_some("--again"))
        }
    };
    command.args(std::iter::repeat_n("-v", log.verbose.into()));
    command.args(std::iter::repeat_n("-q", log.quiet.into()));
    for list in options {
        command.args(["-o", list]);
    }
    if let Some(control) = &mount.control {
        command.arg("--control").arg(control);
    }
    if let Some(metrics) = &mount.metrics {
        command.arg("--metrics").arg(metrics.to_string());
    }
    command.arg("--").arg(mount.source.to_string()).arg(&mount.point.path).spawn()
}
