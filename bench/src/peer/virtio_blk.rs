//! A server that gives one guest a disk, by virtio-blk over a vhost-user socket.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::{accepts_at, beside};
use super::{Program, Server, find};
use crate::error::Result;

/// A virtio-blk server and its socket.
#[derive(Debug)]
pub struct VirtioBlk {
    server: Server,
    socket: PathBuf,
}

impl VirtioBlk {
    /// Our own server.
    pub fn tombolo(image: &Path, socket: &Path) -> Result<Self> {
        let mut command = Command::new(find(Program::Tombolo)?);
        command.arg("disk").arg(image).arg("--vhost-user").arg(socket);
        command.arg("--control").arg(beside(socket, ".control"));
        Self::start(Program::Tombolo, socket, &mut command)
    }

    /// QEMU's, with the image through the page cache and io_uring.
    pub fn storage_daemon(image: &Path, socket: &Path) -> Result<Self> {
        let (image, at) = (image.display(), socket.display());
        let mut command = Command::new(find(Program::StorageDaemon)?);
        command.args([
            "--blockdev",
            &format!("driver=file,filename={image},node-name=d0,aio=io_uring,cache.direct=off"),
        ]);
        command.args(["--object", "iothread,id=io0", "--export"]);
        command.arg(format!(
            "type=vhost-user-blk,id=e0,node-name=d0,addr.type=unix,addr.path={at},writable=on,num-queues=1,iothread=io0"
        ));
        Self::start(Program::StorageDaemon, socket, &mut command)
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
