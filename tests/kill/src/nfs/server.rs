//! The server, in a process of its own, started and killed as the test likes. Its tree and its state stay.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::nfs::failure::{Failure, Result};

const START_LIMIT: Duration = Duration::from_secs(20);

/// Where a server lives, and the server, when it runs.
#[derive(Debug)]
pub struct Server {
    binary: PathBuf,
    home: TempDir,
    address: SocketAddr,
    child: Option<Child>,
}

impl Server {
    /// A new home in `place`, without a server.
    pub fn new(binary: &Path, place: &Path) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("tombolo-crash.").tempdir_in(place)?;
        fs::create_dir(home.path().join("tree"))?;
        // Whatever port is free stays ours through all restarts.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        Ok(Self { binary: binary.into(), home, address, child: None })
    }

    /// Where it answers.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it exports, as the host sees it.
    pub fn tree(&self) -> PathBuf {
        self.home.path().join("tree")
    }

    /// A file of its home.
    pub fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The name of its export.
    pub const EXPORT: &'static str = "/tree";

    /// Starts it, below the words of `wrapper` if there are any, and waits until it listens.
    pub fn start(&mut self, wrapper: &[&str]) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.file("log"))?;
        let mut words = wrapper.iter().map(Path::new).chain([self.binary.as_path()]);
        let mut command = Command::new(words.next().unwrap_or(&self.binary));
        command.args(words.map(Path::as_os_str));
        command.arg("serve").arg(self.tree());
        command.args(["--nfs", &self.address.to_string(), "--squash", "none"]);
        command.arg("--state").arg(self.file("state"));
        command.arg("--control").arg(self.file("control"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = self.child.insert(command.spawn()?);
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = child.try_wait()? {
                return Err(Failure::Server(format!("ended, {status}: {}", self.log_end())));
            }
            if Instant::now() > deadline {
                return Err(Failure::Server(format!("does not listen: {}", self.log_end())));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Kills it on the spot.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Some(status) = child.try_wait()? {
            return Err(Failure::Server(format!("ended by itself, {status}: {}", self.log_end())));
        }
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Asks it to end, as an operator does.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .map_err(std::io::Error::from)?;
        }
        child.wait()?;
        Ok(())
    }

    /// The last of what it said.
    pub fn log_end(&self) -> String {
        let text = fs::read_to_string(self.file("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Leaves its home for somebody to look at, and says where it is.
    pub fn keep(&mut self) -> PathBuf {
        self.home.disable_cleanup(true);
        self.home.path().into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).ok();
        }
    }
}
