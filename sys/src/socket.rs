//! Listening unix sockets, and the credentials of peers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::fchmod;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen as start_listening, shutdown, socket_with, sockopt,
};

use crate::errno::{Errno, Result, retry};
use crate::open::permission;
use crate::umask;

/// The peer process of a unix socket, as of its connect(2), or its listen(2) if it is the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id; 0 for a process in another pid namespace.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// Listens on a unix socket at `path`, whose file has the permission bits `mode` from its creation on; the
/// process's umask applies only where it cannot be [masked](umask::mask). EADDRINUSE if the path exists,
/// whether or not a process listens on it; ENAMETOOLONG beyond 107 bytes.
pub fn listen_unix(path: &Path, mode: u32, backlog: i32) -> Result<OwnedFd> {
    listen_as(SocketType::STREAM, SocketFlags::empty(), path, mode, backlog)
}

/// Returns a duplicate of an inherited listening unix socket. The original stays open, but is not inherited
/// by child programs. EBADF if it is not open, ENOTSOCK or EINVAL if it is something else.
pub fn inherited_listener(fd: i32) -> Result<OwnedFd> {
    // SAFETY: an invalid number causes an error, and no other owner has the new descriptor.
    let socket = match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => return Err(last_errno()),
        // SAFETY: the kernel has just created this descriptor for this call, and no other owner has it.
        new => unsafe { OwnedFd::from_raw_fd(new) },
    };
    let kind = (sockopt::socket_domain(&socket)?, sockopt::socket_type(&socket)?);
    if kind != (AddressFamily::UNIX, SocketType::STREAM) || !sockopt::socket_acceptconn(&socket)? {
        return Err(Errno::INVAL);
    }
    // SAFETY: changes a flag of a descriptor that was open a moment ago.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(last_errno());
    }
    Ok(socket)
}

/// Duplicates the socket as a descriptor that child programs inherit under the same number.
pub fn heritable(socket: impl AsFd) -> Result<OwnedFd> {
    rustix::io::dup(socket)
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Returns `true` if a process listens on the unix socket at `path`, even if it is too busy to accept. Does
/// not block.
pub fn listens(path: &Path) -> Result<bool> {
    listens_as(SocketType::STREAM, path)
}

/// Listens with a socket of type `kind`, as [`listen_unix`] does.
pub(crate) fn listen_as(
    kind: SocketType,
    flags: SocketFlags,
    path: &Path,
    mode: u32,
    backlog: i32,
) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, kind, flags | SocketFlags::CLOEXEC, None)?;
    // The file gets its mode from the socket (unix(7)), so that it is never more accessible than intended.
    // The umask is 0 meanwhile, if the kernel allows that, so that it removes no rights that `mode` grants.
    let masked = umask::mask(0, mode);
    fchmod(&socket, permission(masked.mode()))?;
    bind(&socket, &address)?;
    drop(masked);
    start_listening(&socket, backlog)?;
    Ok(socket)
}

/// Returns `true` if a process listens at `path` with a socket of type `kind`; EPROTOTYPE for another type.
pub(crate) fn listens_as(kind: SocketType, path: &Path) -> Result<bool> {
    match connect_as(kind, path) {
        Ok(_) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Connects a non-blocking stream to the unix socket at `path`. EAGAIN if the listener's backlog is full,
/// ENOENT if the path does not exist, ECONNREFUSED if no process listens on it any more.
pub fn connect_unix(path: &Path) -> Result<OwnedFd> {
    connect_as(SocketType::STREAM, path)
}

/// Connects a nonblocking socket of type `kind`, as [`connect_unix`] does.
pub(crate) fn connect_as(kind: SocketType, path: &Path) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    retry(|| connect(&socket, &address))?;
    Ok(socket)
}

/// Returns the credentials of the peer process.
pub fn peer(socket: BorrowedFd<'_>) -> Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len_bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // rustix's function is unsuitable: its `Pid` has no 0, which the kernel reports for a process in another
    // namespace.
    // SAFETY: the kernel writes at most `len_bytes` bytes to `credentials`, which has that size and allows
    // any values, and a length to `len_bytes`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len_bytes,
        )
    };
    if outcome != 0 {
        return Err(last_errno());
    }
    Ok(Peer { pid: credentials.pid, uid: credentials.uid, gid: credentials.gid })
}

/// Returns the supplementary groups of the peer process, as of its connection (SO_PEERGROUPS).
pub fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut len_bytes = libc::socklen_t::try_from(size_of_val(&*groups)).map_err(|_| Errno::INVAL)?;
        // SAFETY: the kernel writes at most `len_bytes` bytes to `groups`, which has that size, and a length
        // to `len_bytes`.
        let outcome = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len_bytes,
            )
        };
        let count = usize::try_from(len_bytes).map_err(|_| Errno::INVAL)? / size_of::<u32>();
        let failed = (outcome != 0).then(std::io::Error::last_os_error).and_then(|it| it.raw_os_error());
        match failed.map(Errno::from_raw_os_error) {
            None if outcome == 0 => {
                groups.truncate(count);
                return Ok(groups);
            }
            // The kernel has stored the number of groups.
            Some(Errno::RANGE) if count > groups.len() => groups.resize(count, 0),
            errno => return Err(errno.unwrap_or(Errno::IO)),
        }
    }
}

/// Sets the size of the send buffer, limited by the system (`net.core.wmem_max`).
pub fn set_send_buffer(socket: impl AsFd, bytes: usize) -> Result<()> {
    sockopt::set_socket_send_buffer_size(socket, bytes)
}

/// Shuts a socket down in both directions: threads that wait on it (also in `accept`) return at once.
pub fn shut_down(socket: impl AsFd) -> Result<()> {
    retry(|| shutdown(&socket, Shutdown::Both))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn socket_file_mode_and_peer_credentials() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let listener = UnixListener::from(listen_unix(&path, 0o600, 8).expect("listen"));
        assert_eq!(path.metadata().expect("the socket").permissions().mode() & 0o777, 0o600);
        let open = dir.path().join("open");
        let _open_to_all = listen_unix(&open, 0o666, 8).expect("listen");
        assert_eq!(open.metadata().expect("the socket").permissions().mode() & 0o777, 0o666);
        let _client = UnixStream::connect(&path).expect("connect");
        let (server, _) = listener.accept().expect("accept");
        let peer = peer(server.as_fd()).expect("peer");
        assert_eq!(peer.pid.unsigned_abs(), std::process::id());
        let mut groups = peer_groups(server.as_fd()).expect("groups");
        let mut own: Vec<u32> =
            rustix::process::getgroups().expect("groups").iter().map(|group| group.as_raw()).collect();
        groups.sort_unstable();
        own.sort_unstable();
        assert_eq!(groups, own);
        assert_eq!(listen_unix(&path, 0o600, 8).err(), Some(Errno::ADDRINUSE));
        assert_eq!(listens(&path), Ok(true));
        drop(listener);
        assert_eq!(listens(&path), Ok(false));
    }

    #[test]
    fn only_a_socket_that_listens_is_inherited() {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::from(listen_unix(&dir.path().join("s"), 0o600, 8).expect("listen"));
        let inherited = UnixListener::from(inherited_listener(listener.as_raw_fd()).expect("it listens"));
        let _client = UnixStream::connect(dir.path().join("s")).expect("connect");
        inherited.accept().expect("accept");
        let (one, _other) = UnixStream::pair().expect("a pair");
        assert_eq!(inherited_listener(one.as_raw_fd()).err(), Some(Errno::INVAL));
        let file = std::fs::File::open("/dev/null").expect("open");
        assert_eq!(inherited_listener(file.as_raw_fd()).err(), Some(Errno::NOTSOCK));
        assert_eq!(inherited_listener(-1).err(), Some(Errno::BADF));
    }

    #[test]
    fn shutting_down_wakes_a_thread_that_accepts() {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::from(listen_unix(&dir.path().join("s"), 0o600, 8).expect("listen"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| listener.accept().is_err());
            std::thread::sleep(std::time::Duration::from_millis(20));
            shut_down(&listener).expect("shut down");
            assert!(waiting.join().expect("join"));
        });
    }
}
