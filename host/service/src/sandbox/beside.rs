//! A process beside one in a sandbox, which does for it what it may not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use tombolo_sys::{Errno, Result, packet};

/// How a process in a sandbox asks the one beside it.
#[derive(Debug)]
pub struct Beside(Mutex<OwnedFd>);

/// What is asked or answered has at most so many bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// What the one beside says once it is there.
const READY: &[u8] = b"ready";

impl Beside {
    /// Starts `command`, which is to call [`answer_all`] with its standard input, and waits until it does. It ends with this process.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let (ours, theirs) = packet::pair()?;
        // It is left to end by itself.
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
        // The other end that is ours goes with the command's settings.
        command.stdin(Stdio::null());
        if receive(&ours, &mut [0; READY.len()])?.len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self(Mutex::new(ours)))
    }

    /// Asks, and waits for the answer. One at a time. EIO when there is no answer, EMSGSIZE for a request that is too long.
    pub fn ask(&self, request: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        if request.len() > MESSAGE_BYTES_MAX {
            return Err(Errno::MSGSIZE);
        }
        let gone = |errno| {
            tracing::error!(%errno, "the process beside this one does not answer: restart the server");
            Errno::IO
        };
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        packet::send(&*socket, request, descriptors).map_err(gone)?;
        let mut answer = vec![0; MESSAGE_BYTES_MAX];
        let answered = receive(&socket, &mut answer).map_err(gone)?;
        if answered.len == 0 || answered.truncated {
            return Err(gone(Errno::PIPE));
        }
        answer.truncate(answered.len);
        Ok((answer, answered.descriptors.into_iter().next()))
    }
}

/// Answers what a [`Beside`] at the other end of `socket` asks, until that ends.
pub fn answer_all(
    socket: &OwnedFd,
    mut answer: impl FnMut(&[u8], &[OwnedFd]) -> (Vec<u8>, Option<OwnedFd>),
) -> io::Result<()> {
    match answer_each(socket, &mut answer) {
        // It ended while it was answered.
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
