//! A server's listening Unix socket, removed when it is closed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;
use tombolo_sys::{Errno, packet, socket};

/// Reason why a socket cannot be bound.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another server is listening at the address.
    #[error("{}: another server is listening", path.display())]
    Busy {
        /// Socket path.
        path: PathBuf,
    },
    /// The path names something other than a socket, which must not be removed.
    #[error("{}: exists and is not a socket", path.display())]
    NotSocket {
        /// The path.
        path: PathBuf,
    },
    /// The path exceeds the length of a Unix socket address.
    #[error("{}: a socket path has at most 107 bytes", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Socket path.
        path: PathBuf,
        /// System error.
        #[source]
        source: io::Error,
    },
}

/// A listening Unix socket. Dropping it closes the socket and removes its file, unless another file has
/// replaced it.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode numbers of the socket file.
    identity: (u64, u64),
}

impl Listener {
    /// Listens at `path`; the file gets the permission bits `mode`. A stale socket of a killed server is
    /// replaced; two servers that find it at the same time do not replace each other's socket.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, ListenError> {
        Self::bind_as(&STREAM, path, mode)
    }

    /// Listens as [`bind`](Self::bind) does, but with a packet socket (SOCK_SEQPACKET) that does not block
    /// in `accept`.
    pub fn bind_packets(path: &Path, mode: u32) -> Result<Self, ListenError> {
        Self::bind_as(&PACKETS, path, mode)
    }

    fn bind_as(kind: &Kind, path: &Path, mode: u32) -> Result<Self, ListenError> {
        let io = |source: io::Error| ListenError::Io { path: path.to_owned(), source };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let _lock = lock_directory(directory).map_err(io)?;
        let socket = match (kind.listen)(path, mode, BACKLOG) {
            Err(Errno::ADDRINUSE) => {
                remove_stale(kind, path)?;
                (kind.listen)(path, mode, BACKLOG)
            }
            outcome => outcome,
        };
        let socket = socket.map_err(|error| match error {
            Errno::NAMETOOLONG => ListenError::TooLong { path: path.to_owned() },
            error => io(error.into()),
        })?;
        let metadata = fs::symlink_metadata(path).map_err(io)?;
        let identity = (metadata.dev(), metadata.ino());
        Ok(Self { socket: socket.into(), path: path.to_owned(), identity })
    }

    /// Returns the socket.
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// Returns the socket path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

/// A type of socket: functions to listen at a path, and to detect that a server is listening at a path.
struct Kind {
    listen: fn(&Path, u32, i32) -> tombolo_sys::Result<OwnedFd>,
    listens: fn(&Path) -> tombolo_sys::Result<bool>,
}

const STREAM: Kind = Kind { listen: socket::listen_unix, listens: socket::listens };
const PACKETS: Kind = Kind { listen: packet::listen, listens: packet::listens };

const BACKLOG: i32 = 16;
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Locks the directory until the returned file is closed, so that one server at a time checks for a stale
/// socket and binds. Any program can lock a directory like /tmp, so the wait is bounded.
fn lock_directory(directory: &Path) -> io::Result<File> {
    let directory = File::open(directory)?;
    let end = Instant::now() + LOCK_TIMEOUT;
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(directory),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() > end => {
                return Err(io::Error::other("its directory is locked by another program"));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_RETRY),
        }
    }
}

fn remove_stale(kind: &Kind, path: &Path) -> Result<(), ListenError> {
    let io = |source: io::Error| ListenError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NotSocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    if (kind.listens)(path).map_err(|error| io(error.into()))? {
        return Err(ListenError::Busy { path: path.to_owned() });
    }
    fs::remove_file(path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_replaces_only_stale_socket() {
        for bind in [Listener::bind, Listener::bind_packets] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("s");
            drop(UnixListener::bind(&path).expect("a socket that will be stale"));
            let live = bind(&path, 0o600).expect("the stale one is replaced");
            assert!(matches!(bind(&path, 0o600), Err(ListenError::Busy { .. })));
            assert!(matches!(Listener::bind_packets(&path, 0o600), Err(ListenError::Busy { .. })));
            drop(live);
            assert!(!path.exists());
        }
    }

    #[test]
    fn listener_preserves_foreign_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        fs::write(&path, "precious").expect("write");
        assert!(matches!(Listener::bind(&path, 0o600), Err(ListenError::NotSocket { .. })));
        assert_eq!(fs::read(&path).expect("read"), b"precious");
        fs::remove_file(&path).expect("remove");

        let mine = Listener::bind(&path, 0o600).expect("bind");
        fs::remove_file(&path).expect("remove");
        let _other = UnixListener::bind(&path).expect("another program's");
        drop(mine);
        assert!(path.exists());
    }

    #[test]
    fn concurrent_listeners_over_stale_socket_yield_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).expect("a socket that will be stale"));
        let listeners: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..8).map(|_| scope.spawn(|| Listener::bind(&path, 0o600))).collect();
            started.into_iter().map(|thread| thread.join().expect("join")).collect()
        });
        assert_eq!(listeners.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        assert!(socket::listens(&path).expect("look"));
    }

    #[test]
    fn a_path_too_long_is_refused_with_its_limit() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s".repeat(120));
        assert!(matches!(Listener::bind(&path, 0o600), Err(ListenError::TooLong { .. })));
    }
}
