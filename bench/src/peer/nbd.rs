//! A server that has a disk for clients of NBD at a unix socket.

use std::path::Path;
use std::process::Command;

use super::server::beside;
use super::{AtSocket, Program, find};
use crate::error::Result;

/// What the disk is called.
pub const EXPORT: &str = "disk.img";

/// Our own server.
pub fn tombolo(image: &Path, socket: &Path) -> Result<AtSocket> {
    let mut command = Command::new(find(Program::Tombolo)?);
    command.arg("disk").arg(image).arg("--nbd").arg(socket);
    command.arg("--control").arg(beside(socket, ".control"));
    AtSocket::start(Program::Tombolo, socket, &mut command)
}

/// nbdkit with its plug-in for files, which has 16 threads for a connection.
pub fn nbdkit(image: &Path, socket: &Path) -> Result<AtSocket> {
    let mut command = Command::new(find(Program::Nbdkit)?);
    command.arg("--foreground").arg("--unix").arg(socket).args(["--exportname", EXPORT, "file"]).arg(image);
    AtSocket::start(Program::Nbdkit, socket, &mut command)
}
