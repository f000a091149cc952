//! Server of a directory over shared-memory links at a socket.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::{accepts_in, beside};
use super::{Program, Server, find};
use crate::error::Result;

/// A server of links with its socket.
#[derive(Debug)]
pub struct Shm {
    server: Server,
    socket: PathBuf,
    export: String,
}

impl Shm {
    pub fn tombolo(shared: &Path, socket: &Path, options: &[&str]) -> Result<Self> {
        let mut command = Command::new(find(Program::Tombolo)?);
        command.arg("serve").arg(shared).args(options);
        Self::by_command(command, shared, socket)
    }

    /// Starts a command of ours that serves `shared`, which is its last argument. It may run in another
    /// network.
    pub fn by_command(mut command: Command, shared: &Path, socket: &Path) -> Result<Self> {
        let control = beside(socket, ".control");
        command.arg("--shm").arg(socket).arg("--control").arg(&control);
        let mut server = Server::start(Program::Tombolo.name(), &mut command)?;
        let network = server.id().to_string();
        let accepts = || accepts_in(&network, socket) && accepts_in(&network, &control);
        server.wait_until("sockets", accepts)?;
        let name = shared.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self { server, socket: socket.to_owned(), export: format!("/{name}") })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn export(&self) -> &str {
        &self.export
    }

    pub fn url(&self) -> String {
        format!("shm:{}{}", self.socket.display(), self.export)
    }

    pub fn server(&self) -> u32 {
        self.server.id()
    }
}
