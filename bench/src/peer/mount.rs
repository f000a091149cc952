//! Directory mounted by a FUSE server.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::server::beside;
use super::{Program, Requests, Server, find};
use crate::error::{Doing, Result};

/// A FUSE mount with its server, unmounted on drop.
#[derive(Debug)]
pub struct Mount {
    server: Server,
    point: PathBuf,
    /// Control socket, if there is one.
    control: Option<PathBuf>,
    /// `true` if the server ends with the mount.
    is_all: bool,
}

impl Mount {
    /// Mounts `source` with libfuse's example, as it comes.
    pub fn by_libfuse(source: &Path, point: &Path) -> Result<Self> {
        let mut command = Command::new(find(Program::PassthroughLl)?);
        command.args(["-f", "-o", &format!("source={}", source.display())]).arg(point);
        Self::by(Program::PassthroughLl, command, point)
    }

    /// Mounts a URL with Tombolo's defaults: close-to-open, names and attributes for 1 s.
    pub fn of_url(url: &str, point: &Path) -> Result<Self> {
        let mut command = Command::new(find(Program::Tombolo)?);
        command.args(["mount", "-f", url]).arg(point);
        Self::by(Program::Tombolo, command, point)
    }

    /// Mounts a URL with options as after `-o`, and with a control socket next to the mount point.
    pub fn with(url: &str, options: &str, point: &Path) -> Result<Self> {
        let mut command = Command::new(find(Program::Tombolo)?);
        command.args(["mount", "-f", url]).arg(point).args(["-o", options]);
        Self::by_command(command, point)
    }

    /// Mounts with a command of ours, adding a control socket. It may run in another network.
    pub fn by_command(mut command: Command, point: &Path) -> Result<Self> {
        let control = beside(point, ".control");
        command.arg("--control").arg(&control);
        let mut mount = Self::by(Program::Tombolo, command, point)?;
        mount.control = Some(control);
        Ok(mount)
    }

    /// Mounts with a server that continues after the unmount, as it may have other front ends.
    pub fn of_server(command: Command, point: &Path) -> Result<Self> {
        let mut mount = Self::by_command(command, point)?;
        mount.is_all = false;
        Ok(mount)
    }

    /// Mounts with a command of any program.
    pub fn by(program: Program, mut command: Command, point: &Path) -> Result<Self> {
        fs::create_dir_all(point).doing_to("make", point)?;
        let before = fs::metadata(point).doing_to("look at", point)?.dev();
        let server = Server::start(program.name(), &mut command)?;
        let mut mount = Self { server, point: point.to_owned(), control: None, is_all: true };
        let mounted = || fs::metadata(point).is_ok_and(|there| there.dev() != before);
        mount.server.wait_until("mount", mounted)?;
        Ok(mount)
    }

    pub fn point(&self) -> &Path {
        &self.point
    }

    pub fn server(&self) -> u32 {
        self.server.id()
    }

    /// Returns the requests that its server has answered; none without a control socket.
    pub fn requests(&self) -> Result<Requests> {
        self.control.as_deref().map_or_else(|| Ok(Requests::default()), Requests::ask)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The server ends with the unmount; if not, its drop kills it, and at worst a dead mount point
        // remains.
        for _ in 0..3 {
            let unmount =
                Command::new("fusermount3").arg("-uq").arg(&self.point).stdin(Stdio::null()).status();
            if unmount.is_ok_and(|status| status.success()) || self.server.ended_within(Duration::ZERO) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if !self.is_all || !self.server.ended_within(Duration::from_secs(2)) {
            self.server.stop();
        }
    }
}
