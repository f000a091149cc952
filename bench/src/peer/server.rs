//! Server process that ends with its owner; servers with one UNIX socket, for vhost-user guests or NBD
//! clients; and servers of links in shared memory.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tombolo_shm::doorbell::Mode;

use crate::error::{Doing, Error, Result};
use crate::peer::nfs::is_listening_in;
use crate::peer::{TOMBOLO, find, peers};

/// Time limit for start and end.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// A child process, which is stopped on drop.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
}

impl Server {
    /// Starts the process. Its standard error is stored for [`Server::wait_until`].
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        Self::spawn(name, command.stdout(Stdio::null()))
    }

    /// Starts a process whose output the caller reads.
    pub fn talking(name: &str, command: &mut Command) -> Result<(Self, ChildStdout)> {
        let mut server = Self::spawn(name, command.stdout(Stdio::piped()))?;
        let output = server.child.stdout.take().ok_or_else(|| server.failed("no output".to_owned()))?;
        Ok((server, output))
    }

    fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        Ok(Self { name: name.to_owned(), child: child.doing(|| format!("start {name}"))? })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the server is ready; fails on time-out, or with its standard error if it ends first.
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

    /// Returns the first 4 KiB of the process's standard error; blocks until it has them or the stream ends.
    pub fn said(&mut self) -> String {
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

/// Runs a program to its end, and returns its standard output; fails with the last line of its standard
/// error, or of its output if that is empty.
pub fn completed(what: &str, command: &mut Command) -> Result<String> {
    let program = PathBuf::from(command.get_program());
    let output = command.stdin(Stdio::null()).output().doing(|| what.to_owned());
    let output = output.map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            Error::Absent(format!("{} is not installed", program.display()))
        }
        other => other,
    })?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    let last = said.trim().lines().next_back().unwrap_or_default();
    Err(Error::Wrong { what: what.to_owned(), answer: format!("{}: {last}", output.status) })
}

/// Returns `true` if a process accepts connections at a socket. It reads the kernel's table, since the file
/// may exist earlier, and a test connection would occupy a server that serves only one client.
pub(super) fn accepts_at(socket: &Path) -> bool {
    accepts_in("self", socket)
}

/// Returns `true` if a process accepts connections at a socket in the network namespace of `process`.
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

/// A server, and the socket or shared file at which its clients connect.
#[derive(Debug)]
pub struct AtSocket {
    pub server: Server,
    /// Path of the socket, or of the shared file.
    pub place: PathBuf,
    /// Path of the export, `/NAME`; empty unless it is a server of links.
    pub export: String,
}

impl AtSocket {
    /// Starts a virtio-fs server of a directory, with the mount tag `tombolo`. `mode` is a policy of ours or
    /// a cache mode of virtiofsd.
    pub fn virtio_fs(
        program: &str,
        shared: &Path,
        socket: &Path,
        mode: &str,
        options: &[&str],
    ) -> Result<Self> {
        Self::tagged((program, options), shared, socket, mode, "tombolo")
    }

    /// Starts a virtio-fs server as [`virtio_fs`](Self::virtio_fs) does, with this mount tag.
    pub fn tagged(
        (program, options): (&str, &[&str]),
        shared: &Path,
        socket: &Path,
        mode: &str,
        tag: &str,
    ) -> Result<Self> {
        let words = [("shared", &*shared.to_string_lossy()), ("mode", mode), ("tag", tag)];
        Self::start("virtio-fs", program, socket, &words, options)
    }

    /// Starts a virtio-blk server of an image, through the page cache or with direct I/O.
    pub fn virtio_blk(program: &str, image: &Path, socket: &Path, is_direct: bool) -> Result<Self> {
        let (ours, direct) = if is_direct { ("none", "on") } else { ("host", "off") };
        let words = [("image", &*image.to_string_lossy()), ("ours", ours), ("direct", direct)];
        Self::start("virtio-blk", program, socket, &words, &[])
    }

    /// Starts our virtio-blk server with a new overlay over the image.
    pub fn redo_log(image: &Path, overlay: &Path, socket: &Path) -> Result<Self> {
        let mut create = Command::new(find(TOMBOLO)?);
        create.args(["disk", "create"]).arg(overlay).arg("--base").arg(image);
        completed("tombolo disk create", &mut create)?;
        Self::virtio_blk(TOMBOLO, overlay, socket, false)
    }

    /// Starts an NBD server of an image.
    pub fn nbd(program: &str, image: &Path, socket: &Path) -> Result<Self> {
        Self::start("nbd", program, socket, &[("image", &image.to_string_lossy())], &[])
    }

    /// Starts a server, whose command line has these words, and waits until it accepts connections.
    fn start(
        protocol: &str,
        program: &str,
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
        let mut server = Server::start(program, command.args(options))?;
        server.wait_until("socket", || accepts_at(socket))?;
        Ok(Self { server, place: socket.to_owned(), export: String::new() })
    }

    /// Starts a server of links at a socket.
    pub fn links(shared: &Path, socket: &Path, options: &[&str]) -> Result<Self> {
        Self::by_command(serve(shared, options)?, shared, socket)
    }

    /// Starts a server of links that waits in this mode, as its clients should, at a socket.
    pub fn waiting(shared: &Path, socket: &Path, mode: Mode) -> Result<Self> {
        Self::links(shared, socket, &["--doorbell", mode.name()])
    }

    /// Starts a server of a link over a new shared file of `bytes`, without doorbells of the kernel; `bell`
    /// is the socket of a bell, a doorbell over a stream of bytes, if there is one.
    pub fn over_memory(
        shared: &Path,
        (memory, bytes): (&Path, u64),
        mode: Mode,
        bell: Option<&Path>,
    ) -> Result<Self> {
        let bell = bell.map_or_else(|| ",bell=off".to_owned(), |bell| format!(",bell={}", bell.display()));
        let mut command = serve(shared, &["--doorbell", mode.name()])?;
        command.arg("--shm-file").arg(format!("{},size={bytes}{bell}", memory.display()));
        Self::start_links(command, shared, memory, |_| memory.exists())
    }

    /// Starts a command of ours that serves `shared`, its last argument. It may run in another network.
    pub fn by_command(mut command: Command, shared: &Path, socket: &Path) -> Result<Self> {
        command.arg("--shm").arg(socket);
        Self::start_links(command, shared, socket, |network| accepts_in(network, socket))
    }

    fn start_links(
        mut command: Command,
        shared: &Path,
        place: &Path,
        is_open: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let control = beside(place, ".control");
        command.arg("--control").arg(&control);
        let mut server = Server::start(TOMBOLO, &mut command)?;
        let network = server.id().to_string();
        server.wait_until("links", || is_open(&network) && accepts_in(&network, &control))?;
        let name = shared.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self { server, place: place.to_owned(), export: format!("/{name}") })
    }

    pub fn url(&self) -> String {
        format!("shm:{}{}", self.place.display(), self.export)
    }
}

fn serve(shared: &Path, options: &[&str]) -> Result<Command> {
    let mut command = Command::new(find(TOMBOLO)?);
    command.arg("serve").arg(shared).args(options);
    Ok(command)
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
