use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send, sockopt::socket_domain,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Tells the front end that the device's configuration space has changed, so that it reads it anew and tells
/// its guest. Does nothing for one that has opened no way back to us.
#[derive(Debug, Clone, Default)]
pub struct ConfigChange(Arc<Mutex<Option<OwnedFd>>>);

/// Numbers of messages (vhost-user specification).
const SET_BACKEND_REQ_FD: u32 = 21;
const BACKEND_CONFIG_CHANGE: u32 = 2;

const HEADER_LEN: usize = 12;
const VERSION: u32 = 1;

impl ConfigChange {
    /// Tells it now; does not wait. A front end that does not read its messages is not told.
    pub fn notify(&self) {
        let mut message = [0; HEADER_LEN];
        let words = [BACKEND_CONFIG_CHANGE, VERSION, 0];
        message
            .chunks_exact_mut(4)
            .zip(words)
            .for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        let way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(way) = way.as_ref() else { return };
        if let Err(error) = send(way, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            tracing::warn!(%error, "the front end cannot be told of a change of its device");
        }
    }

    /// Looks at the message that `stream` has next, or waits for one, and takes it that way back from one
    /// that opens it. The message stays: the vhost crate reads it, and has no message for changes.
    pub(crate) fn look_at_next(&self, stream: &UnixStream) -> io::Result<()> {
        let mut header = [0; HEADER_LEN];
        recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut header)],
            &mut RecvAncillaryBuffer::default(),
            RecvFlags::PEEK,
        )?;
        if !header.starts_with(&SET_BACKEND_REQ_FD.to_le_bytes()) {
            return Ok(());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
        recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut control, flags)?;
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        // What is no socket is refused by the crate.
        let way = descriptors.last().filter(|way| socket_domain(way).is_ok());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = way;
        Ok(())
    }
}
