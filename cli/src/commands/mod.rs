//! One module per command, each with its arguments and its `run`.

pub mod broker;
pub mod cache;
pub mod completions;
pub mod disk;
pub mod doctor;
pub mod files;
pub mod image;
pub mod keys;
mod keys_of_tls;
pub mod links;
pub mod man;
pub mod mount;
pub mod mounter;
pub mod names;
pub mod proxy;
mod ready;
pub mod serve;
pub mod session;
pub mod top;
pub mod tune;
pub mod umount;
pub mod upgrade;
pub mod vm;

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Returns a command that runs this program again as a helper process: with this log, if given, as its
/// standard error, and in `/`, so that it keeps no directory busy.
fn beside(name: &str, log: Option<&File>) -> std::io::Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tombolo").arg(name).current_dir("/");
    if let Some(log) = log {
        command.stderr(log.try_clone()?);
    }
    Ok(command)
}
