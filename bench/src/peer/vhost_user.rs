//! A server that gives one guest a device over a vhost-user socket.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::accepts_at;
use super::{Program, Server};
use crate::error::Result;

/// A vhost-user server and its socket.
#[derive(Debug)]
pub struct VhostUser {
    server: Server,
    socket: PathBuf,
}

impl VhostUser {
    /// Starts it, and waits until it accepts a guest.
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
