//! Background mounts: this program starts itself again, and waits until that process is ready.
//!
//! The new process is the [`supervisor`](super::supervisor), which starts the [`server`](super::server).
//! Unlike after a fork, no state is inherited, and errors are printed directly, because the process detaches
//! from the terminal only once it has mounted, or retries in the background
//! (`docs/decisions/service-processes.md`).

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::assembly::options::bell::BellArg;
use crate::cli::LogArgs;
use crate::commands::ready::await_ready;
use crate::failure::Outcome;

use super::Mount;

/// Role of a started process.
#[derive(Clone, Copy, Debug)]
pub enum Role<'a> {
    /// The [`supervisor`](super::supervisor).
    Supervisor,
    /// The [`server`](super::server).
    Server {
        /// Log file, used after detaching from the terminal.
        log: &'a Path,
        /// `true` for a restart, which no command waits for.
        again: bool,
    },
}

/// Starts the supervisor and returns once the mount is ready, or with `bg` the server has been found
/// unreachable, or the mount has failed, with the reason printed.
pub fn start(mount: &Mount, options: &[String], log: LogArgs) -> Outcome {
    let supervisor = spawn(mount, options, log, Role::Supervisor);
    await_ready(supervisor, "the process", &format!("mount {}", mount.source))
}

pub fn spawn(mount: &Mount, options: &[String], log: LogArgs, role: Role<'_>) -> io::Result<Child> {
    // Works even if the program's file was replaced meanwhile: both ends of the pipe run the same version.
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
    // A relative path in `options` is overridden, because the supervisor has another working directory.
    if let BellArg::At(path) = &mount.options.bell {
        command.arg("-o").arg(format!("bell={}", path.display()));
    }
    if let Some(control) = &mount.control {
        command.arg("--control").arg(control);
    }
    if let Some(metrics) = &mount.metrics {
        command.arg("--metrics").arg(metrics.to_string());
    }
    command.arg("--").arg(mount.source.to_string()).arg(&mount.point.path).spawn()
}
