//! A server that offers a directory over links in shared memory, at a socket.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::{accepts_at, beside};
use super::{Program, Server, find};
use crate::error::Result;

/// A server of links, and where it is met.
#[derive(Debug)]
pub struct Shm {
    server: Server,
    socket: PathBuf,
    export: String,
}

impl Shm {
    pub fn tombolo(shared: &Path, socket: &Path, options: &[&str]) -> Result<Self> {
        let control = beside(socket, ".control");
        let mut command = Command::new(find(Program::Tombolo)?);
        command
            .arg("serve")
            .arg(shared)
            .arg("--shm")
            .arg(socket)
            .arg("--control")
            .arg(&control)
            .args(options);
        let mut server = Server::start(Program::Tombolo.name(), &mut command)?;
        server.wait_until("sockets", || accepts_at(socket) && accepts_at(&control))?;
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
