//! A directory for tree, state and logs, and its processes: killed, paused, or stopped.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::failure::{Failure, Result};

/// Time-out far above any duration on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A directory for tree, state and logs.
#[derive(Debug)]
pub struct Home {
    dir: TempDir,
    program: PathBuf,
}

/// A running process, killed on drop.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    /// The process.
    pub child: Child,
}

impl Home {
    /// Creates a directory in `place`, for servers that run `program`.
    pub fn new(program: &Path, place: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("tombolo-kill.").tempdir_in(place)?;
        for name in ["tree", "mnt", "run"] {
            fs::create_dir(dir.path().join(name))?;
        }
        Ok(Self { dir, program: std::path::absolute(program)? })
    }

    /// Returns the path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the exported tree on the host.
    pub fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    /// Opens the log to which all processes write their errors.
    pub fn log(&self) -> Result<File> {
        Ok(File::options().create(true).append(true).open(self.path("log"))?)
    }

    fn command(&self, wrapper: &[&str], words: &[&str]) -> Result<Command> {
        let mut all = wrapper.iter().map(Path::new).chain([self.program.as_path()]);
        let mut command = Command::new(all.next().unwrap_or(&self.program));
        command.args(all.map(Path::as_os_str)).args(words);
        command.current_dir(self.dir.path()).stdin(Stdio::null()).stderr(self.log()?);
        command.env("XDG_RUNTIME_DIR", self.path("run")).env("XDG_STATE_HOME", self.path("mounts"));
        Ok(command)
    }

    /// Starts a server of the tree, under the command `wrapper` if any, and waits until it reports that it
    /// serves.
    pub fn serve(&self, wrapper: &[&str], options: &[&str]) -> Result<Process> {
        let words = [&["serve", "tree", "--state", "state", "--control", "control"], options].concat();
        let mut server = Process::start("server", self.command(wrapper, &words)?.stdout(Stdio::piped()))?;
        let output = server.child.stdout.take().ok_or_else(|| self.problem("no output"))?;
        let mut lines = BufReader::new(output).lines();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            tell.send(lines.any(|line| line.is_ok_and(|line| line.starts_with("ready control"))))
        });
        match told.recv_timeout(PATIENCE) {
            Ok(true) => Ok(server),
            _ => Err(self.problem("the server does not start")),
        }
    }

    /// Runs a command that must succeed.
    pub fn run(&self, words: &[&str]) -> Result<()> {
        let status = self.command(&[], words)?.stdout(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(self.problem(&words.join(" "))) }
    }

    /// Returns a failure with the end of the log.
    pub fn problem(&self, what: &str) -> Failure {
        Failure::Process(format!("{what}\n{}", self.log_end()))
    }

    /// Returns the last lines of the log.
    pub fn log_end(&self) -> String {
        let text = fs::read_to_string(self.path("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Retains the directory for inspection after a failed run.
    pub fn keep(&mut self) {
        self.dir.disable_cleanup(true);
        eprintln!("the end of the log:\n{}\nfiles retained in {}", self.log_end(), self.dir.path().display());
    }
}

impl Process {
    /// Starts a process.
    pub fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        Ok(Self { name, child: command.spawn()? })
    }

    /// Fails if it has ended.
    pub fn is_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(Failure::Process(format!("the {} ended by itself: {status}", self.name))),
        }
    }

    /// Waits until it has ended by itself, without a failure.
    pub fn ended(mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(Failure::Process(format!("the {} ended: {status}", self.name))),
                None if Instant::now() > until => {
                    return Err(Failure::Process(format!("the {} does not end", self.name)));
                }
                None => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.is_alive()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops it with SIGSTOP for a while.
    pub fn pause(&self, time: Duration) -> Result<()> {
        self.signal(Signal::STOP)?;
        thread::sleep(time);
        self.signal(Signal::CONT)
    }

    /// Stops it with SIGTERM, as an operator does.
    pub fn stop(self) -> Result<()> {
        self.signal(Signal::TERM)?;
        self.ended()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed())
            .ok_or_else(|| Failure::Process("the process has no valid id".into()))?;
        rustix::process::kill_process(pid, signal).map_err(std::io::Error::from)?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().and_then(|()| self.child.wait()).ok();
        }
    }
}
