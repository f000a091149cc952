//! Server of a directory over shared-memory links, at a socket or over memory that both sides can write.

use std::path::{Path, PathBuf};
use std::process::Command;

use tombolo_shm::doorbell::Mode;

use super::server::{accepts_in, beside};
use super::{Program, Server, find};
use crate::error::Result;

/// A server of links with its socket or memory.
#[derive(Debug)]
pub struct Shm {
    server: Server,
    place: PathBuf,
    export: String,
}

impl Shm {
    pub fn tombolo(shared: &Path, socket: &Path, options: &[&str]) -> Result<Self> {
        Self::by_command(serve(shared, options)?, shared, socket)
    }

    /// Starts a server that waits in this mode, as its clients should, at a socket.
    pub fn waiting(shared: &Path, socket: &Path, mode: Mode) -> Result<Self> {
        Self::tombolo(shared, socket, &["--doorbell", mode.name()])
    }

    /// Starts a server over a new file of `bytes`, without a doorbell; `bell` is a bell beside it.
    pub fn over_memory(
        shared: &Path,
        (memory, bytes): (&Path, u64),
        mode: Mode,
        bell: Option<&Path>,
    ) -> Result<Self> {
        let bell = bell.map_or_else(|| ",bell=off".to_owned(), |bell| format!(",bell={}", bell.display()));
        let mut command = serve(shared, &["--doorbell", mode.name()])?;
        command.arg("--shm-file").arg(format!("{},size={bytes}{bell}", memory.display()));
        Self::start(command, shared, memory, |_| memory.exists())
    }

    /// Starts a command of ours that serves `shared`, which is its last argument. It may run in another
    /// network.
    pub fn by_command(mut command: Command, shared: &Path, socket: &Path) -> Result<Self> {
        command.arg("--shm").arg(socket);
        Self::start(command, shared, socket, |network| accepts_in(network, socket))
    }

    fn start(
        mut command: Command,
        shared: &Path,
        place: &Path,
        is_open: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let control = beside(place, ".control");
        command.arg("--control").arg(&control);
        let mut server = Server::start(Program::Tombolo.name(), &mut command)?;
        let network = server.id().to_string();
        server.wait_until("links", || is_open(&network) && accepts_in(&network, &control))?;
        let name = shared.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self { server, place: place.to_owned(), export: format!("/{name}") })
    }

    /// Returns its socket, or the file of its memory.
    pub fn place(&self) -> &Path {
        &self.place
    }

    pub fn export(&self) -> &str {
        &self.export
    }

    pub fn url(&self) -> String {
        format!("shm:{}{}", self.place.display(), self.export)
    }

    pub fn server(&self) -> u32 {
        self.server.id()
    }
}

fn serve(shared: &Path, options: &[&str]) -> Result<Command> {
    let mut command = Command::new(find(Program::Tombolo)?);
    command.arg("serve").arg(shared).args(options);
    Ok(command)
}
