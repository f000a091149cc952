//! A server that offers a directory to one guest, by virtio-fs over a vhost-user socket.

use std::path::{Path, PathBuf};
use std::process::Command;

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
        let mut control = socket.as_os_str().to_owned();
        control.push(".control");
        command.arg("--control").arg(control).args(options);
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
        server.wait_until("socket", || is_listening(socket))?;
        Ok(Self { server, socket: socket.to_owned() })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn server(&self) -> u32 {
        self.server.id()
    }
}

/// Whether a process accepts connections at a socket. To be there is not enough, and to connect would be to be the one
/// client that some servers have.
fn is_listening(socket: &Path) -> bool {
    /// `__SO_ACCEPTCON` in the flags of /proc/net/unix.
    const ACCEPTS: &str = "00010000";
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let path = socket.to_string_lossy();
    table.lines().any(|line| line.split_whitespace().nth(3) == Some(ACCEPTS) && line.ends_with(path.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_counts_only_while_it_is_listened_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert!(!is_listening(&path));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(is_listening(&path));
        drop(listener);
        assert!(path.exists() && !is_listening(&path));
    }
}
