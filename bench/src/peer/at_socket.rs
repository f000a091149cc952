//! Server with one UNIX socket, for vhost-user guests or NBD clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::find::peers;
use super::server::{accepts_at, completed};
use super::{Program, Server, find};
use crate::error::Result;

/// Protocol at the socket: a section of `bench/peers/peers.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    VirtioFs,
    VirtioBlk,
    Nbd,
}

/// A server with its socket.
#[derive(Debug)]
pub struct AtSocket {
    server: Server,
    socket: PathBuf,
}

impl AtSocket {
    /// Starts a virtio-fs server of a directory. `mode` is a policy of ours or a cache mode of virtiofsd.
    pub fn virtio_fs(
        program: Program,
        shared: &Path,
        socket: &Path,
        mode: &str,
        options: &[&str],
    ) -> Result<Self> {
        let words = [("shared", &*shared.to_string_lossy()), ("mode", mode)];
        Self::start(Protocol::VirtioFs, program, socket, &words, options)
    }

    /// Starts a virtio-blk server of an image, through the page cache or with direct I/O.
    pub fn virtio_blk(program: Program, image: &Path, socket: &Path, is_direct: bool) -> Result<Self> {
        let (ours, direct) = if is_direct { ("none", "on") } else { ("host", "off") };
        let words = [("image", &*image.to_string_lossy()), ("ours", ours), ("direct", direct)];
        Self::start(Protocol::VirtioBlk, program, socket, &words, &[])
    }

    /// Starts our virtio-blk server with a new overlay over the image.
    pub fn redo_log(image: &Path, overlay: &Path, socket: &Path) -> Result<Self> {
        let mut create = Command::new(find(Program::Tombolo)?);
        create.args(["disk", "create"]).arg(overlay).arg("--base").arg(image);
        completed("tombolo disk create", &mut create)?;
        Self::virtio_blk(Program::Tombolo, overlay, socket, false)
    }

    /// Starts an NBD server of an image.
    pub fn nbd(program: Program, image: &Path, socket: &Path) -> Result<Self> {
        Self::start(Protocol::Nbd, program, socket, &[("image", &image.to_string_lossy())], &[])
    }

    /// Starts a server, whose command line has these words, and waits until it accepts connections.
    fn start(
        protocol: Protocol,
        program: Program,
        socket: &Path,
        words: &[(&str, &str)],
        options: &[&str],
    ) -> Result<Self> {
        let mut command = Command::new(find(program)?);
        for argument in peers().command(protocol, program)? {
            let filled =
                |text: String, (word, value): &(&str, &str)| text.replace(&format!("{{{word}}}"), value);
            let argument = argument.replace("{socket}", &socket.to_string_lossy());
            command.arg(words.iter().fold(argument, filled));
        }
        let mut server = Server::start(program.name(), command.args(options))?;
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
