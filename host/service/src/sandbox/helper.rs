//! Helper processes that do for a sandboxed process what its sandbox forbids: [`Helper`] is the sandboxed
//! process's end, [`sockets`] and [`answer_all`] are the helper's. Each socket carries one request at a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};

use tombolo_host_runtime::lock;
use tombolo_sys::{Errno, Result, packet};

/// Client of a helper process.
#[derive(Debug)]
pub struct Helper {
    /// Sockets without a request under way.
    free: Mutex<Vec<OwnedFd>>,
    freed: Condvar,
}

/// Maximum size of a request and of a reply in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// First message of the helper on each socket.
const READY: &[u8] = b"ready";
/// Messages to the helper on its first socket, before `READY`: another socket is attached, or no more follow.
const SOCKET: &[u8] = b"socket";
const NO_MORE: &[u8] = b"no more";

impl Helper {
    /// Starts `command`, and waits until it serves: it must call [`sockets`] with its standard input, and
    /// [`answer_all`] with each of the returned sockets. The helper ends with this process. `requests_max` is
    /// the number of concurrent requests, at least 1.
    pub fn start(command: &mut Command, requests_max: usize) -> io::Result<Self> {
        let (ours, theirs) = packet::pair()?;
        // The child is not waited for: it ends once its socket is closed.
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
        // Drops the helper's end, which `command` still holds, so that the connection ends with the helper.
        command.stdin(Stdio::null());
        let mut free = Vec::new();
        for _ in 1..requests_max {
            let (another, theirs) = packet::pair()?;
            packet::send(&ours, SOCKET, &[theirs.as_fd()])?;
            free.push(another);
        }
        packet::send(&ours, NO_MORE, &[])?;
        free.push(ours);
        for socket in &free {
            if receive(socket, &mut [0; READY.len()])?.len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(Self { free: Mutex::new(free), freed: Condvar::new() })
    }

    /// Waits for a free socket if all have requests under way, sends a request, and waits for the reply.
    /// Returns EIO if the helper has ended, EMSGSIZE if the request is too long.
    pub fn ask(&self, request: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        if request.len() > MESSAGE_BYTES_MAX {
            return Err(Errno::MSGSIZE);
        }
        let socket = self.take();
        let answered = request_over(&socket, request, descriptors);
        lock(&self.free).push(socket);
        self.freed.notify_one();
        answered
    }

    fn take(&self) -> OwnedFd {
        let mut free = lock(&self.free);
        loop {
            match free.pop() {
                Some(socket) => return socket,
                None => free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

fn request_over(
    socket: &OwnedFd,
    request: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(Vec<u8>, Option<OwnedFd>)> {
    let gone = |errno| {
        tracing::error!(%errno, "a helper process of the sandbox does not answer: restart the server");
        Errno::IO
    };
    packet::send(socket, request, descriptors).map_err(gone)?;
    let mut answer = vec![0; MESSAGE_BYTES_MAX];
    let answered = receive(socket, &mut answer).map_err(gone)?;
    if answered.len == 0 || answered.truncated {
        return Err(gone(Errno::PIPE));
    }
    answer.truncate(answered.len);
    Ok((answer, answered.descriptors.into_iter().next()))
}

/// Returns the sockets of a [`Helper`] at the other end of `first`, including `first`.
pub fn sockets(first: OwnedFd) -> io::Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    let mut word = [0; SOCKET.len() + NO_MORE.len()];
    loop {
        let received = receive(&first, &mut word)?;
        match (word.get(..received.len), received.descriptors.into_iter().next()) {
            (Some(SOCKET), Some(socket)) if sockets.len() < SOCKETS_MAX => sockets.push(socket),
            (Some(NO_MORE), None) => break,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    sockets.push(first);
    Ok(sockets)
}

/// Maximum number of sockets accepted from a [`Helper`].
const SOCKETS_MAX: usize = 64;

/// Answers the requests of a [`Helper`] on `socket`, until its other end is closed.
pub fn answer_all(
    socket: &OwnedFd,
    mut answer: impl FnMut(&[u8], &[OwnedFd]) -> (Vec<u8>, Option<OwnedFd>),
) -> io::Result<()> {
    match answer_each(socket, &mut answer) {
        // The peer ended during a request.
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        outcome => Ok(outcome?),
    }
}

fn answer_each(
    socket: &OwnedFd,
    answer: &mut impl FnMut(&[u8], &[OwnedFd]) -> (Vec<u8>, Option<OwnedFd>),
) -> Result<()> {
    packet::send(socket, READY, &[])?;
    let mut request = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let asked = receive(socket, &mut request)?;
        let Some(request) = request.get(..asked.len).filter(|request| !request.is_empty()) else {
            return Ok(());
        };
        let request = if asked.truncated { &[] } else { request };
        let (answer, descriptor) = answer(request, &asked.descriptors);
        packet::send(socket, &answer, descriptor.as_ref().map(AsFd::as_fd).as_slice())?;
    }
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<packet::Packet> {
    loop {
        packet::wait(socket)?;
        match packet::receive(socket, buffer) {
            Err(Errno::AGAIN) => {}
            outcome => return outcome,
        }
    }
}
