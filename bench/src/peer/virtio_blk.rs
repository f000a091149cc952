//! virtio-blk servers of a disk for one guest, over a vhost-user socket.

use std::path::Path;
use std::process::{Command, Stdio};

use super::server::beside;
use super::{AtSocket, Program, find};
use crate::error::{Doing, Error, Result};

/// Starts our server, with the image through the page cache or direct I/O.
pub fn tombolo(image: &Path, socket: &Path, is_direct: bool) -> Result<AtSocket> {
    let mut command = Command::new(find(Program::Tombolo)?);
    command.arg("disk").arg(image).arg("--vhost-user").arg(socket);
    command.arg("--control").arg(beside(socket, ".control"));
    if is_direct {
        command.args(["--cache", "none"]);
    }
    AtSocket::start(Program::Tombolo, socket, &mut command)
}

/// Starts our server with a new overlay over the image.
pub fn redo_log(image: &Path, overlay: &Path, socket: &Path) -> Result<AtSocket> {
    let mut create = Command::new(find(Program::Tombolo)?);
    create.args(["disk", "create"]).arg(overlay).arg("--base").arg(image).stdout(Stdio::null());
    let made = create.status().doing_to("make", overlay)?;
    if !made.success() {
        let what = format!("tombolo disk create {}", overlay.display());
        return Err(Error::Wrong { what, answer: made.to_string() });
    }
    tombolo(overlay, socket, false)
}

/// Starts QEMU's storage daemon, with the same caching and io_uring.
pub fn storage_daemon(image: &Path, socket: &Path, is_direct: bool) -> Result<AtSocket> {
    let (image, at, direct) = (image.display(), socket.display(), if is_direct { "on" } else { "off" });
    let mut command = Command::new(find(Program::StorageDaemon)?);
    command.args([
        "--blockdev",
        &format!("driver=file,filename={image},node-name=d0,aio=io_uring,cache.direct={direct}"),
    ]);
    command.args(["--object", "iothread,id=io0", "--export"]);
    command.arg(format!(
        "type=vhost-user-blk,id=e0,node-name=d0,addr.type=unix,addr.path={at},writable=on,num-queues=1,iothread=io0"
    ));
    AtSocket::start(Program::StorageDaemon, socket, &mut command)
}
