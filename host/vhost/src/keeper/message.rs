//! Encoding of vhost-user messages and descriptors (vhost-user specification, "Message Specification"), and a
//! socket that sends and receives whole messages.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use thiserror::Error as ThisError;

/// Request numbers of a front end ("Front-end message types").
pub(super) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_LOG_BASE: u32 = 6;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

const HEADER_LEN: usize = 12;
/// Maximum length of a body in bytes, as in QEMU and the vhost crate.
const BODY_MAX: u32 = 0x1000;
const DESCRIPTORS_MAX: usize = 32;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// A message in either direction.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) request: u32,
    pub(super) flags: u32,
    pub(super) body: Vec<u8>,
    pub(super) files: Vec<OwnedFd>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    request: u32,
    flags: u32,
    body_len: u32,
}

/// Error that ends a channel.
#[derive(Debug, ThisError)]
pub(super) enum ChannelError {
    /// The peer has closed its end, or died.
    #[error("it has left")]
    Left,
    #[error("invalid message of version {version} and {len} bytes")]
    Malformed {
        /// Version of the protocol; only 1 is known.
        version: u32,
        len: u32,
    },
    #[error("its socket fails")]
    Io(#[from] io::Error),
}

impl Header {
    fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, ChannelError> {
        let word = |at| word(bytes, at).unwrap_or_default();
        let header = Header { request: word(0), flags: word(4), body_len: word(8) };
        let (version, len) = (header.flags & VERSION_MASK, header.body_len);
        if version != VERSION || len > BODY_MAX {
            return Err(ChannelError::Malformed { version, len });
        }
        Ok(header)
    }

    fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let words = [self.request, self.flags, self.body_len];
        bytes
            .chunks_exact_mut(4)
            .zip(words)
            .for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        bytes
    }
}

impl Message {
    /// Creates a request of the keeper, without acknowledgement.
    pub(super) fn new(request: u32, body: Vec<u8>, files: Vec<OwnedFd>) -> Message {
        Message { request, flags: VERSION, body, files }
    }

    /// Returns `true` if the sender wants an acknowledgement, where that was negotiated.
    pub(super) fn wants_acknowledgement(&self) -> bool {
        self.flags & FLAG_NEED_REPLY != 0
    }

    /// Returns the first word of the body: in many messages a queue index or a count.
    pub(super) fn first_word(&self) -> Option<u32> {
        word(&self.body, 0)
    }

    /// Returns the body's number, if the body is one number of 64 bits.
    pub(super) fn number(&self) -> Option<u64> {
        Some(u64::from_le_bytes(self.body.as_slice().try_into().ok()?))
    }
}

/// Returns the little-endian word of 32 bits at byte `at`, or `None` beyond the end.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[derive(Debug)]
pub(super) struct Channel(UnixStream);

impl Channel {
    pub(super) fn new(stream: UnixStream) -> io::Result<Channel> {
        stream.set_nonblocking(false)?;
        // A peer that does not receive must not block this side forever.
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Channel(stream))
    }

    /// Waits for the next message; descriptors are attached to its first byte.
    pub(super) fn receive(&mut self) -> Result<Message, ChannelError> {
        let mut header = [0; HEADER_LEN];
        let (got, files) = self.receive_first(&mut header)?;
        self.fill(header.get_mut(got..).unwrap_or_default())?;
        let Header { request, flags, body_len } = Header::decode(&header)?;
        let mut body = vec![0; body_len as usize];
        self.fill(&mut body)?;
        Ok(Message { request, flags, body, files })
    }

    fn receive_first(
        &mut self,
        header: &mut [u8; HEADER_LEN],
    ) -> Result<(usize, Vec<OwnedFd>), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut places = [IoSliceMut::new(header)];
        let receive = || recvmsg(&self.0, &mut places, &mut control, RecvFlags::CMSG_CLOEXEC);
        let got = rustix::io::retry_on_intr(receive).map_err(io::Error::from)?.bytes;
        if got == 0 {
            return Err(ChannelError::Left);
        }
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        Ok((got, rights.flatten().collect()))
    }

    /// Reads the remainder of a message. A peer that dies within a message counts as disconnected.
    fn fill(&mut self, rest: &mut [u8]) -> Result<(), ChannelError> {
        self.0.read_exact(rest).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ChannelError::Left,
            _ => ChannelError::Io(error),
        })
    }

    /// Sends a message, whose descriptors remain open.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), ChannelError> {
        let body_len = u32::try_from(message.body.len()).unwrap_or(u32::MAX);
        let header = Header { request: message.request, flags: message.flags, body_len }.encode();
        let bytes = [&header[..], &message.body].concat();
        let files: Vec<BorrowedFd<'_>> = message.files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(ChannelError::Io(io::ErrorKind::InvalidInput.into()));
        }
        let sent = sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        let sent = sent.map_err(io::Error::from)?;
        Ok(self.0.write_all(bytes.get(sent..).unwrap_or_default())?)
    }

    pub(super) fn call(&mut self, message: &Message) -> Result<Message, ChannelError> {
        self.send(message)?;
        self.receive()
    }
}

const SEND_TIMEOUT: Duration = Duration::from_secs(10);

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (Channel::new(ours).expect("blocking"), Channel::new(theirs).expect("blocking"))
    }

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (mut ours, mut theirs) = pair();
        let file = std::fs::File::open("/dev/null").expect("open").into();
        let sent = Message::new(request::SET_VRING_KICK, 7u64.to_le_bytes().into(), vec![file]);
        for _ in 0..2 {
            ours.send(&sent).expect("sent");
            let got = theirs.receive().expect("a message");
            assert_eq!((got.request, got.number(), got.files.len()), (request::SET_VRING_KICK, Some(7), 1));
        }
    }

    #[test]
    fn malformed_message_is_refused_and_truncated_ends() {
        for (bytes, is_malformed) in [
            (&[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0][..], true),
            (&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0x10, 0, 0], true),
            (&[1, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], true),
            (&[1, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 5], false),
            (&[1, 0, 0], false),
        ] {
            let (mut ours, mut theirs) = pair();
            ours.0.write_all(bytes).expect("sent");
            drop(ours);
            let error = theirs.receive().expect_err("no message");
            assert_eq!(matches!(error, ChannelError::Malformed { .. }), is_malformed, "{error:?}");
            assert_eq!(matches!(error, ChannelError::Left), !is_malformed, "{error:?}");
        }
    }
}
