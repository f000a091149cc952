//! Server with one UNIX socket, for vhost-user guests or NBD clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::accepts_at;
use super::{Program, Server};
use crate::error::Result;

/// A server with its socket.
#[derive(Debug)]
pub struct AtSocket {
    server: Server,
    socket: PathBuf,
}

impl AtSocket {
    /// Starts the server, and waits until it accepts connections.
    pub(super) fn start(program: Program, socket: &Path, command: &mut Command) -> Result<Self> {
        let mut server = Server::start(program.name(), command)?;
        server.wait_until("socket", || accepts_at(socket))?;
        Ok(Self { server, socket: socket.to_owned() })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn server(&self) -> u32 {
        self.server.id()
    }
}
