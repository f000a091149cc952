//! Other mounts of remote trees: sshfs, and rclone with its full cache. All are measured without encryption.

use std::path::Path;

use tempfile::TempDir;
use tombolo_wan::Side as End;

use crate::error::Result;
use crate::peer::{Mount, Program, Server, find};

/// A mount with its server and cache.
pub type Mounted = (Mount, Server, TempDir);

const PORT: u16 = 2048;
/// Adapter that connects sftp-server(8) to one client, by its standard input and output.
const SFTP_SERVER: &str = "
import os, socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('0.0.0.0', int(sys.argv[1]))); s.listen(1)
c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
os.dup2(c.fileno(), 0); os.dup2(c.fileno(), 1); os.execv('/usr/lib/openssh/sftp-server', ['sftp-server'])";

pub fn sshfs(far: &End, near: &End, shared: &Path, point: &Path) -> Result<Mounted> {
    let mut command = near.command(find(Program::Sshfs)?);
    let mut serve = far.command("python3");
    let server =
        Server::listening("sftp-server", serve.args(["-c", SFTP_SERVER, &PORT.to_string()]), &[PORT])?;
    let port = format!("directport={PORT},kernel_cache");
    command.args(["-f", "-o", &port]).arg(format!("{}:{}", far.address(), shared.display())).arg(point);
    Ok((Mount::by(Program::Sshfs, command, point)?, server, kept(point)?))
}

pub fn rclone(far: &End, near: &End, shared: &Path, point: &Path) -> Result<Mounted> {
    let program = find(Program::Rclone)?;
    let address = format!("{}:{PORT}", far.address());
    let mut serve = far.command(&program);
    serve.args(["--config", "/dev/null", "serve", "webdav", "--addr", &address]).arg(shared);
    let (server, cache) = (Server::listening("rclone serve", &mut serve, &[PORT])?, kept(point)?);
    let mut command = near.command(program);
    command.args(["--config", "/dev/null", "mount", ":webdav:", "--webdav-url"]);
    command.arg(format!("http://{address}")).arg(point).arg("--cache-dir").arg(cache.path());
    command.args(["--vfs-cache-mode", "full", "--file-perms", "0755"]);
    Ok((Mount::by(Program::Rclone, command, point)?, server, cache))
}

fn kept(point: &Path) -> Result<TempDir> {
    crate::table::folder(point.parent().unwrap_or(point))
}
