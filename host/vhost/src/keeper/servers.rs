//! Successive servers as seen by sessions that wait for the next one, and their listening socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tombolo_host_runtime::listener::{ListenError, Listener};
use tombolo_host_runtime::lock;
use tombolo_sys::{Errno, open, socket};

/// Number and state of the current server, for the keeper's sessions and the thread that starts servers.
#[derive(Debug, Default)]
pub struct Servers {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Now {
    /// Number of the current server.
    server_number: u64,
    is_running: bool,
    has_ended: bool,
}

/// Time within which the death of a server is recorded after its sockets have closed; a server that lives
/// longer has disconnected the front end.
const DEATH_TIMEOUT: Duration = Duration::from_secs(1);

/// Outcome of waiting after a server has closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Successor {
    /// The server with this number runs.
    Server(u64),
    /// The former server still runs: it has disconnected the front end.
    Disconnected,
    /// There will be no further server.
    None,
}

impl Servers {
    /// Records the start of a server. Connections wait in the backlog of [`ServerSocket`] until it is ready.
    pub fn started(&self) {
        let mut now = lock(&self.now);
        now.server_number += 1;
        now.is_running = true;
        self.changed.notify_all();
    }

    /// Records the death of the server.
    pub fn died(&self) {
        lock(&self.now).is_running = false;
        self.changed.notify_all();
    }

    /// Declares that there will be no further server; waiting front ends are disconnected.
    pub fn end(&self) {
        lock(&self.now).has_ended = true;
        self.changed.notify_all();
    }

    pub(super) fn number(&self) -> u64 {
        lock(&self.now).server_number
    }

    /// Waits for the successor of server `server_number`, after that server has closed a connection; 0
    /// waits for the first server.
    pub(super) fn successor(&self, server_number: u64) -> Successor {
        let deadline = Instant::now() + DEATH_TIMEOUT;
        let mut now = lock(&self.now);
        loop {
            let is_same = now.is_running && now.server_number == server_number;
            let left = deadline.saturating_duration_since(Instant::now());
            match () {
                () if now.has_ended => return Successor::None,
                () if now.is_running && !is_same => return Successor::Server(now.server_number),
                () if is_same && left.is_zero() => return Successor::Disconnected,
                () if is_same => {
                    now = self.changed.wait_timeout(now, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                () => now = self.changed.wait(now).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// An unnamed listening socket that all successive servers inherit. Connections made between servers wait for
/// the next one.
#[derive(Debug)]
pub struct ServerSocket {
    listener: OwnedFd,
    /// The socket's file, unlinked so that nothing else can connect.
    file: OwnedFd,
}

/// Counter for unique socket names within this process.
static COUNT: AtomicU32 = AtomicU32::new(0);

impl ServerSocket {
    /// Creates a socket, which is named briefly in the directory of `socket`.
    pub fn beside(socket: &Path) -> Result<ServerSocket, ListenError> {
        let failed = |errno: Errno| ListenError::Io { path: socket.to_owned(), source: errno.into() };
        let dir = socket.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = open::open_root(dir).map_err(failed)?;
        let name = format!(".tombolo-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // A path within the length limit, wherever the directory is.
        let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()));
        let named = Listener::bind(&path, 0o600)?;
        let file = open::open_place(dir.as_fd(), name.as_bytes()).map_err(failed)?;
        let listener = socket::heritable(named.socket()).map_err(failed)?;
        Ok(ServerSocket { listener, file })
    }

    /// Returns the descriptor number under which child processes started now inherit the socket.
    pub fn descriptor(&self) -> i32 {
        self.listener.as_raw_fd()
    }

    /// Returns the listening socket, for a server within this process.
    pub fn listener(&self) -> io::Result<UnixListener> {
        Ok(self.listener.try_clone()?.into())
    }

    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}
