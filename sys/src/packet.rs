//! Unix sockets of messages (SOCK_SEQPACKET) that carry descriptors. Nonblocking except where stated.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, accept_with, recvmsg, sendmsg, socketpair,
};
use smallvec::SmallVec;

use crate::errno::{Errno, Result, retry};
use crate::socket::{connect_as, listen_as, listens_as};

/// Maximum number of descriptors sent with a message. [`receive`] may return a few more from a peer that
/// ignores the limit.
pub const DESCRIPTORS_MAX: usize = 4;

/// A received message, whose bytes are in the caller's buffer.
#[derive(Debug)]
pub struct Packet {
    /// Number of bytes in the buffer. 0 if the peer has closed its end, which is indistinguishable from an
    /// empty message.
    pub len: usize,
    /// Received descriptors.
    pub descriptors: SmallVec<[OwnedFd; 1]>,
    /// `true` if bytes or descriptors were lost, because they exceeded the buffers or this process's limit on
    /// descriptors. The lost descriptors are closed.
    pub truncated: bool,
}

/// Listens at `path`, whose file has the permission bits `mode` from its creation on; the process's umask
/// applies only where it cannot be [masked](crate::umask::mask). EADDRINUSE if the path exists, whether or
/// not a process listens on it; ENAMETOOLONG beyond 107 bytes.
pub fn listen(path: &Path, mode: u32, backlog: i32) -> Result<OwnedFd> {
    listen_as(SocketType::SEQPACKET, SocketFlags::NONBLOCK, path, mode, backlog)
}

/// Returns `true` if a process listens at `path`, even if it is too busy to accept, or if a process has a
/// socket of another type there. Does not block.
pub fn listens(path: &Path) -> Result<bool> {
    match listens_as(SocketType::SEQPACKET, path) {
        Err(Errno::PROTOTYPE) => Ok(true),
        outcome => outcome,
    }
}

/// Connects to the listener at `path`. EAGAIN if its backlog is full, ENOENT if the path does not exist,
/// ECONNREFUSED if no process listens on it any more, EPROTOTYPE for a socket of another type.
pub fn connect(path: &Path) -> Result<OwnedFd> {
    connect_as(SocketType::SEQPACKET, path)
}

/// Accepts the next connection; EAGAIN if there is none.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd> {
    retry(|| accept_with(&listener, SocketFlags::CLOEXEC))
}

/// Creates a pair of connected sockets.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Blocks until a message can be received, or the peer has closed its end. Also returns on a signal.
pub fn wait(socket: impl AsFd) -> Result<()> {
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Blocks at most for `time`, also across signals. Returns `true` if a message can be received, or the peer
/// has closed its end.
pub fn wait_for(socket: impl AsFd, time: Duration) -> Result<bool> {
    let end = Instant::now() + time;
    loop {
        let left =
            Timespec::try_from(end.saturating_duration_since(Instant::now())).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return ready.map(|ready| ready > 0),
        }
    }
}

/// Sends a message of at least one byte and at most [`DESCRIPTORS_MAX`] descriptors. EAGAIN if the peer does
/// not read, EPIPE if it has disconnected.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(Errno::INVAL);
    }
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    retry(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags)).map(|_| ())
}

/// Receives the next message; EAGAIN if there is none.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Packet> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = retry(|| recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags))?;
    let mut descriptors = SmallVec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let truncated = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Packet { len: got.bytes.min(buffer.len()), descriptors, truncated })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    #[test]
    fn messages_stay_whole_and_bring_descriptors() {
        let (ours, theirs) = pair().expect("a pair");
        let mut buffer = [0; 64];
        assert_eq!(receive(&ours, &mut buffer).err(), Some(Errno::AGAIN));
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        send(&theirs, b"one", &[writer.as_fd()]).expect("send");
        send(&theirs, b"second", &[]).expect("send");
        drop(writer);
        wait(&ours).expect("it is there");
        let first = receive(&ours, &mut buffer).expect("a message");
        assert_eq!((&buffer[..first.len], first.descriptors.len(), first.truncated), (&b"one"[..], 1, false));
        let second = receive(&ours, &mut buffer).expect("a message");
        assert_eq!((&buffer[..second.len], second.descriptors.len()), (&b"second"[..], 0));
        std::io::Write::write_all(&mut File::from(first.descriptors.into_iter().next().expect("one")), b"x")
            .expect("write");
        let mut got = String::new();
        reader.read_to_string(&mut got).expect("read");
        assert_eq!(got, "x");
        drop(theirs);
        assert_eq!(receive(&ours, &mut buffer).expect("the end").len, 0);
        assert_eq!(send(&ours, b"x", &[]), Err(Errno::PIPE));
    }

    #[test]
    fn excess_descriptors_are_reported_and_closed() {
        let (ours, theirs) = pair().expect("a pair");
        let mut buffer = [0; 4];
        send(&theirs, b"too long", &[]).expect("send");
        let packet = receive(&ours, &mut buffer).expect("a message");
        assert_eq!((packet.len, packet.truncated), (4, true));
        let many = [theirs.as_fd(); DESCRIPTORS_MAX + 1];
        assert_eq!(send(&theirs, b"x", &many), Err(Errno::INVAL));
    }

    #[test]
    fn listener_detection_and_peer_credentials() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let listener = listen(&path, 0o600, 8).expect("listen");
        assert_eq!(accept(&listener).err(), Some(Errno::AGAIN));
        assert_eq!(listens(&path), Ok(true));
        drop(accept(&listener));
        let client = connect(&path).expect("connect");
        let server = accept(&listener).expect("accept");
        let peer = crate::socket::peer(server.as_fd()).expect("a peer");
        assert_eq!(peer.pid.unsigned_abs(), std::process::id());
        assert_eq!(crate::socket::listens(&path), Err(Errno::PROTOTYPE));
        // The kernel admits one connection more than the backlog.
        let _waiting: Vec<_> = (0..9).map(|_| connect(&path).expect("a place")).collect();
        assert_eq!(connect(&path).err(), Some(Errno::AGAIN));
        assert_eq!(listens(&path), Ok(true));
        drop((listener, client));
        assert_eq!(listens(&path), Ok(false));
        assert_eq!(connect(&path).err(), Some(Errno::CONNREFUSED));
    }
}
