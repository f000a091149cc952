//! A directory that a FUSE server mounts elsewhere.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::server::beside;
use super::{Program, Requests, Server, find};
use crate::error::{Doing, Result};

/// A FUSE mount and its server. Unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    server: Server,
    point: PathBuf,
    /// Where it says how it does, if it was told to.
    control: Option<PathBuf>,
    /// Whether its server ends with it.
    is_all: bool,
}

impl Mount {
    /// Mounts `source` at `point` with what the program does by default: close-to-open, names and attributes
    /// for 1 s.
    pub fn new(program: Program, source: &Path, point: &Path) -> Result<Self> {
        let mut command = Command::new(find(program)?);
        match program {
            Program::Tombolo => {
                let mut from = std::ffi::OsString::from("dir:");
                from.push(source);
                command.arg("mount").arg("-f").arg(from).arg(point);
            }
            _ => {
                let mut from = std::ffi::OsString::from("source=");
                from.push(source);
                command.arg("-f").arg("-o").arg(from).arg(point);
            }
        }
        Self::by(program, command, point)
    }

    /// Tombolo's mount of a URL, by one client of ours.
    pub fn of_url(url: &str, point: &Path) -> Result<Self> {
        let mut command = Command::new(find(Program::Tombolo)?);
        command.args(["mount", "-f", url]).arg(point);
        Self::by(Program::Tombolo, command, point)
    }

    /// The same with options as after `-o`, and with a control socket beside the mount point.
    pub fn with(url: &str, options: &str, point: &Path) -> Result<Self> {
        let mut command = Command::new(find(Program::Tombolo)?);
        command.args(["mount", "-f", url]).arg(point).args(["-o", options]);
        Self::by_command(command, point)
    }

    /// What a command of ours mounts, which is given a control socket too. It may run in another network.
    pub fn by_command(mut command: Command, point: &Path) -> Result<Self> {
        let control = beside(point, ".control");
        command.arg("--control").arg(&control);
        let mut mount = Self::by(Program::Tombolo, command, point)?;
        mount.control = Some(control);
        Ok(mount)
    }

    /// The same of a server that goes on when it is unmounted, as it may have other front ends.
    pub fn of_server(command: Command, point: &Path) -> Result<Self> {
        let mut mount = Self::by_command(command, point)?;
        mount.is_all = false;
        Ok(mount)
    }

    /// What a command of any of them mounts.
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

    /// The requests that its server has answered; none where it has no control socket.
    pub fn requests(&self) -> Result<Requests> {
        self.control.as_deref().map_or_else(|| Ok(Requests::default()), Requests::ask)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The server ends when it is unmounted; what remains is done by its own drop, and then a dead mount
        // point is all that could be left.
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
