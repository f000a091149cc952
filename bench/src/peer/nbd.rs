//! NBD servers of a disk at a UNIX socket.

use std::path::Path;
use std::process::Command;

use super::server::beside;
use super::{AtSocket, Program, find};
use crate::error::Result;

/// Export name of the disk.
pub const EXPORT: &str = "disk.img";

/// Starts our server.
pub fn tombolo(image: &Path, socket: &Path) -> Result<AtSocket> {
    let mut command = Command::new(find(Program::Tombolo)?);
    command.arg("disk").arg(image).arg("--nbd").arg(socket);
    command.arg("--control").arg(beside(socket, ".control"));
    AtSocket::start(Program::Tombolo, socket, &mut command)
}

/// Starts nbdkit with its file plug-in, which uses 16 threads per connection.
pub fn nbdkit(image: &Path, socket: &Path) -> Result<AtSocket> {
    let mut command = Command::new(find(Program::Nbdkit)?);
    command.arg("--foreground").arg("--unix").arg(socket).args(["--exportname", EXPORT, "file"]).arg(image);
    AtSocket::start(Program::Nbdkit, socket, &mut command)
}
