//! The server and the mount, in processes of their own. Tree, state and socket stay where they are.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::links::args::{RunArgs, Way};
use crate::links::failure::{Failure, Result};

/// Far longer than anything takes on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Where everything lies.
#[derive(Debug)]
pub struct Home {
    /// The directory.
    pub path: PathBuf,
    program: PathBuf,
    way: Way,
}

/// A server that runs.
#[derive(Debug)]
pub struct Server(Child);

impl Home {
    /// At a directory that is empty yet.
    pub fn new(path: &Path, args: &RunArgs) -> Result<Self> {
        for name in ["tree", "mnt", "run"] {
            fs::create_dir(path.join(name))?;
        }
        Ok(Self { path: path.into(), program: args.program.clone(), way: args.way })
    }

    /// The tree as the host sees it.
    pub fn tree(&self) -> PathBuf {
        self.path.join("tree")
    }

    /// What the client asks at: the socket, or the mount point.
    pub fn at(&self) -> PathBuf {
        self.path.join(if self.is_mount() { "mnt" } else { "links" })
    }

    /// Whether the client goes through a mount.
    pub fn is_mount(&self) -> bool {
        self.way != Way::Library
    }

    fn command(&self, words: &[&str]) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.path.join("said"))?;
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(&self.path).stdin(Stdio::null()).stderr(log);
        command.env("XDG_RUNTIME_DIR", self.path.join("run"));
        command.env("XDG_STATE_HOME", self.path.join("mounts"));
        Ok(command)
    }

    /// Starts a server, and waits until it says that it serves.
    pub fn serve(&self) -> Result<Server> {
        let place: &[&str] = match self.way {
            Way::File => &["--shm-file", "memory,size=32M"],
            Way::Library | Way::Socket => &["--shm", "links"],
        };
        let words = [&["serve", "tree", "--state", "state", "--control", "control"], place].concat();
        let mut child = self.command(&words)?.stdout(Stdio::piped()).spawn()?;
        let mut said = BufReader::new(child.stdout.take().ok_or_else(|| self.problem("no output"))?).lines();
        let ready = said.any(|line| line.is_ok_and(|line| line.starts_with("ready control")));
        let server = Server(child);
        if ready { Ok(server) } else { Err(self.problem("the server does not start")) }
    }

    /// Mounts, if the client goes through a mount.
    pub fn mount(&self) -> Result<()> {
        let source = match self.way {
            Way::Library => return Ok(()),
            Way::Socket => "shm:links/tree",
            Way::File => "shm+file:memory/tree",
        };
        self.run(&["mount", source, "mnt"])
    }

    /// Takes the mount away.
    pub fn unmount(&self) -> Result<()> {
        if self.is_mount() { self.run(&["umount", "mnt"]) } else { Ok(()) }
    }

    /// Runs a command that must succeed.
    pub fn run(&self, words: &[&str]) -> Result<()> {
        let status = self.command(words)?.stdout(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(self.problem(&words.join(" "))) }
    }

    /// A failure, and the last that was said.
    pub fn problem(&self, what: &str) -> Failure {
        let text = fs::read_to_string(self.path.join("said")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        Failure::Process(format!("{what}\n{}", lines[lines.len().saturating_sub(20)..].join("\n")))
    }
}

impl Server {
    /// Kills it on the spot.
    pub fn kill(mut self) -> Result<()> {
        if let Some(status) = self.0.try_wait()? {
            return Err(Failure::Process(format!("the server ended by itself: {status}")));
        }
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Keeps it from running for a while.
    pub fn pause(&self, time: Duration) -> Result<()> {
        pause(&self.0, time)
    }

    /// Waits until it has nothing of any client any more.
    pub fn wait_until_free(&self) -> Result<()> {
        let maps = format!("/proc/{}/maps", self.0.id());
        let until = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(&maps)?;
            let regions = text.lines().filter(|line| line.contains("memfd:tombolo")).count();
            if regions == 0 {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Failure::Left(format!("{regions} regions of links in the server")));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks it to end, as an operator does.
    pub fn stop(mut self) -> Result<()> {
        signal(&self.0, Signal::TERM)?;
        match self.0.wait()?.code() {
            Some(0) => Ok(()),
            code => Err(Failure::Process(format!("the server ended with {code:?}"))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.0.kill().and_then(|()| self.0.wait()).ok();
        }
    }
}

/// Keeps a process from running for a while.
pub fn pause(child: &Child, time: Duration) -> Result<()> {
    signal(child, Signal::STOP)?;
    thread::sleep(time);
    signal(child, Signal::CONT)
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(child.id().cast_signed())
        .ok_or_else(|| Failure::Process("a process without a number".into()))?;
    rustix::process::kill_process(pid, signal).map_err(std::io::Error::from)?;
    Ok(())
}
