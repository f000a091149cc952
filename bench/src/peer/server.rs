//! Server process that ends with its owner.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::nfs::is_listening_in;
use crate::error::{Doing, Error, Result};

/// Time limit for start and end.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
}

impl Server {
    /// Starts the process. Its standard error is stored for [`Server::wait_until`].
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .doing(|| format!("start {name}"))?;
        Ok(Self { name: name.to_owned(), child })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the server is ready; fails with its output if it ends first, or on time-out.
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !ready() {
            if let Ok(Some(status)) = self.child.try_wait() {
                let said = self.said();
                return Err(self.failed(format!("ended with {status} before {what}: {said}")));
            }
            if begun.elapsed() > PATIENCE {
                return Err(self.failed(format!("no {what} after {} s", PATIENCE.as_secs())));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Starts a server, and waits until it listens at these TCP ports of its network.
    pub fn listening(name: &str, command: &mut Command, ports: &[u16]) -> Result<Self> {
        let mut server = Self::start(name, command)?;
        let network = server.id().to_string();
        server.wait_until("answer", || ports.iter().all(|port| is_listening_in(&network, *port)))?;
        Ok(server)
    }

    /// Terminates the process, waits, and kills it on time-out. Does nothing if it has ended.
    pub fn stop(&mut self) {
        if self.ended_within(Duration::ZERO) {
            return;
        }
        let _gone = tombolo_sys::process::terminate(self.child.id());
        if !self.ended_within(PATIENCE) {
            let _gone = self.child.kill();
            let _reaped = self.child.wait();
        }
    }

    pub fn ended_within(&mut self, patience: Duration) -> bool {
        let begun = Instant::now();
        loop {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            if begun.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn said(&mut self) -> String {
        let mut text = String::new();
        if let Some(errors) = &mut self.child.stderr {
            // Unreadable output is ignored.
            let _partial = errors.take(4096).read_to_string(&mut text);
        }
        text.trim().to_owned()
    }

    fn failed(&self, what: String) -> Error {
        Error::Server { program: self.name.clone(), what }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a program to its end, and returns its output; fails with the last line of its errors.
pub fn completed(what: &str, command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().doing(|| what.to_owned())?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    Err(Error::Wrong { what: what.to_owned(), answer: format!("{}: {last}", output.status) })
}

/// Returns `true` if a process accepts connections at a socket. An existing file is not enough, and a test
/// connection would occupy servers with a single client.
pub(super) fn accepts_at(socket: &Path) -> bool {
    accepts_in("self", socket)
}

/// Returns `true` if a process accepts connections in the network of `process`, whose table lists only its
/// own sockets.
pub(super) fn accepts_in(process: &str, socket: &Path) -> bool {
    /// Flag `__SO_ACCEPTCON` in /proc/net/unix.
    const ACCEPTS: &str = "00010000";
    let table = Path::new("/proc").join(process).join("net/unix");
    let table = std::fs::read_to_string(table).unwrap_or_default();
    let path = socket.to_string_lossy();
    table.lines().any(|line| line.split_whitespace().nth(3) == Some(ACCEPTS) && line.ends_with(path.as_ref()))
}

/// Appends text to the file name of a path.
pub(super) fn beside(path: &Path, more: &str) -> PathBuf {
    let mut longer = path.as_os_str().to_owned();
    longer.push(more);
    longer.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_counts_only_while_it_is_listened_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert!(!accepts_at(&path));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(accepts_at(&path));
        drop(listener);
        // A process that another test is about to start may have inherited the listener.
        while accepts_at(&path) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(path.exists());
    }

    #[test]
    fn early_exit_reports_server_output() {
        let mut server =
            Server::start("sh", Command::new("sh").args(["-c", "echo no luck >&2; exit 3"])).unwrap();
        let error = server.wait_until("socket", || false).unwrap_err().to_string();
        assert!(error.contains("no luck") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_server_ends_with_its_owner() {
        let server = Server::start("sleep", Command::new("sleep").arg("60")).unwrap();
        let process = format!("/proc/{}", server.id());
        assert!(std::path::Path::new(&process).exists());
        drop(server);
        assert!(!std::path::Path::new(&process).exists());
    }
}
