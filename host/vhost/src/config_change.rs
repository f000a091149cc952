//! Notification of the front end about a changed configuration space, which the vhost crate cannot send.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send, sockopt::socket_domain,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use tombolo_host_runtime::lock;

/// Notifier of changes of the device's configuration space: the front end reads the space again, and notifies
/// its guest. Does nothing without a back-end request channel.
#[derive(Debug, Clone, Default)]
pub struct ConfigChange(Arc<Mutex<Option<OwnedFd>>>);

/// Message numbers (vhost-user specification).
const SET_BACKEND_REQ_FD: u32 = 21;
const BACKEND_CONFIG_CHANGE: u32 = 2;

const HEADER_LEN: usize = 12;
const VERSION: u32 = 1;

impl ConfigChange {
    /// Sends the notification without blocking. It is lost if the front end does not read its messages.
    pub fn notify(&self) {
        let mut message = [0; HEADER_LEN];
        let words = [BACKEND_CONFIG_CHANGE, VERSION, 0];
        message
            .chunks_exact_mut(4)
            .zip(words)
            .for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        let channel = lock(&self.0);
        let Some(channel) = channel.as_ref() else { return };
        if let Err(error) = send(channel, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            tracing::warn!(%error, "cannot notify the front end of a configuration change");
        }
    }

    /// Waits for the next message on `stream`, and duplicates the back-end request channel if the message
    /// opens one. The message stays in the socket, for the vhost crate to receive.
    pub(crate) fn inspect_next(&self, stream: &UnixStream) -> io::Result<()> {
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
        // The crate refuses a descriptor that is no socket.
        let channel = descriptors.last().filter(|channel| socket_domain(channel).is_ok());
        *lock(&self.0) = channel;
        Ok(())
    }
}
