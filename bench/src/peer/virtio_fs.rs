//! virtio-fs servers of a directory for one guest, over a vhost-user socket.

use std::path::Path;
use std::process::Command;

use super::server::beside;
use super::{AtSocket, Program, find};
use crate::error::Result;

/// Starts our server. `coherence` is `strict`, `auto` or `always`.
pub fn tombolo(shared: &Path, socket: &Path, coherence: &str, options: &[&str]) -> Result<AtSocket> {
    let mut command = Command::new(find(Program::Tombolo)?);
    command.arg("serve").arg(shared).arg("--virtiofs").arg(socket).args(["--coherence", coherence]);
    command.arg("--control").arg(beside(socket, ".control")).args(options);
    AtSocket::start(Program::Tombolo, socket, &mut command)
}

/// Starts virtiofsd. `cache` is `never`, `auto` or `always`.
pub fn virtiofsd(shared: &Path, socket: &Path, cache: &str, options: &[&str]) -> Result<AtSocket> {
    let mut command = Command::new(find(Program::Virtiofsd)?);
    command.arg("--shared-dir").arg(shared).arg("--socket-path").arg(socket);
    command.args(["--cache", cache, "--sandbox", "none", "--announce-submounts", "--log-level", "error"]);
    // The default tag of our server.
    command.args(["--tag", "tombolo"]).args(options);
    AtSocket::start(Program::Virtiofsd, socket, &mut command)
}
