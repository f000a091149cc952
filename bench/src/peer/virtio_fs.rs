//! A server that offers a directory to one guest, by virtio-fs over a vhost-user socket.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::{accepts_at, beside};
use super::{Program, Server, find};
use crate::error::Result;

/// A virtio-fs server and its socket.
#[derive(Debug)]
pub struct VirtioFs {
    server: Server,
    socket: PathBuf,
}

impl VirtioFs {
    /// Our own server. `coherence` is `strict`, `auto` or `always`.
    pub fn tombolo(shared: &Path, socket: &Path, coherence: &str, options: &[&str]) -> Result<Self> {
        let mut command = Command::new(find(Program::Tombolo)?);
        command.arg("serve").arg(shared).arg("--virtiofs").arg(socket).args(["--coherence", coherence]);
        command.arg("--control").arg(beside(socket, ".control")).args(options);
        Self::start(Program::Tombolo, socket, &mut command)
    }

    /// virtiofsd. `cache` is `never`, `auto` or `always`.
    pub fn virtiofsd(shared: &Path, socket: &Path, cache: &str, options: &[&str]) -> Result<Self> {
        let mut command = Command::new(find(Program::Virtiofsd)?);
        command.arg("--shared-dir").arg(shared).arg("--socket-path").arg(socket);
        command.args(["--cache", cache, "--sandbox", "none", "--announce-submounts", "--log-level", "error"]);
        // As ours is called unless told otherwise.
        command.args(["--tag", "tombolo"]).args(options);
        Self::start(Program::Virtiofsd, socket, &mut command)
    }

    fn start(program: Program, socket: &Path, command: &mut Command) -> Result<Self> {
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
