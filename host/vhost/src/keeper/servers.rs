//! The servers that follow each other, as those see it that wait for the next; and the place where they
//! listen.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_host_runtime::listener::{ListenError, Listener};
use tombolo_sys::{Errno, open, socket};

/// Which server runs.
#[derive(Debug, Default)]
pub struct Servers {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Now {
    /// Counts them.
    life: u64,
    runs: bool,
    ended: bool,
}

/// How long a server may take to die after its sockets have closed.
const DEATH_TIMEOUT: Duration = Duration::from_secs(1);

/// What comes after a server that has closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// A server of that number.
    Server(u64),
    /// It still runs: it does not want that front end.
    CutOff,
    /// There will be none.
    None,
}

impl Servers {
    /// A server was started. What connects to its place waits there until it is ready.
    pub fn came(&self) {
        let mut now = self.now();
        now.life += 1;
        now.runs = true;
        self.changed.notify_all();
    }

    /// It has died.
    pub fn went(&self) {
        self.now().runs = false;
        self.changed.notify_all();
    }

    /// There will be no other: front ends that wait for one are let go.
    pub fn end(&self) {
        self.now().ended = true;
        self.changed.notify_all();
    }

    /// Waits for the server after that one, which has closed a connection.
    pub(super) fn after(&self, life: u64) -> Next {
        let deadline = Instant::now() + DEATH_TIMEOUT;
        let mut now = self.now();
        loop {
            let is_same = now.runs && now.life == life;
            let left = deadline.saturating_duration_since(Instant::now());
            match () {
                () if now.ended => return Next::None,
                () if now.runs && !is_same => return Next::Server(now.life),
                () if is_same && left.is_zero() => return Next::CutOff,
                () if is_same => {
                    now = self.changed.wait_timeout(now, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                () => now = self.changed.wait(now).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listening socket without a name, for all servers one after the other: they inherit it. What connects
/// while there is none waits for the next.
#[derive(Debug)]
pub struct Place {
    listener: OwnedFd,
    /// Its file, which has been removed: nothing else connects there.
    file: OwnedFd,
}

/// Tells the names apart that one process makes.
static COUNT: AtomicU32 = AtomicU32::new(0);

impl Place {
    /// Makes one. It has a name for a moment, in the directory of that socket.
    pub fn beside(socket: &Path) -> Result<Place, ListenError> {
        let failed = |errno: Errno| ListenError::Io { path: socket.to_owned(), source: errno.into() };
        let dir = socket.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = open::open_root(dir).map_err(failed)?;
        let name = format!(".tombolo-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // A path that is short enough wherever the directory is.
        let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()));
        let named = Listener::bind(&path, 0o600)?;
        let file = open::open_place(dir.as_fd(), name.as_bytes()).map_err(failed)?;
        let listener = socket::heritable(named.socket()).map_err(failed)?;
        Ok(Place { listener, file })
    }

    /// The descriptor as which programs that are started now have the listening socket.
    pub fn descriptor(&self) -> i32 {
        self.listener.as_raw_fd()
    }

    /// The listening socket, for a server within this process.
    pub fn listener(&self) -> io::Result<UnixListener> {
        Ok(self.listener.try_clone()?.into())
    }

    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}
