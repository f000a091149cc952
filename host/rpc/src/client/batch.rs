//! Batches of calls to send over one connection.

use std::collections::VecDeque;

use super::wire::Socket;
use tombolo_mem::Source;
use tombolo_sys::Errno;
use tombolo_sys::gather::Gather;
use tombolo_wire_rpc::Mark;

/// Padding of data to a multiple of four bytes (RFC 4506 §3).
const PADDING: [u8; 3] = [0; 3];

/// An encoded call. The data are in use as long as the message exists.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// Record mark, header and arguments.
    pub(super) head: Vec<u8>,
    /// File data sent after the encoded bytes.
    pub(super) data: Option<Source>,
}

/// Calls in sending order. While a thread sends them, it owns the batch and holds no lock.
#[derive(Debug, Default)]
pub(super) struct Batch {
    items: VecDeque<(u32, Message)>,
    /// Number of bytes already sent, from the beginning of the first call; [`pop_sent`](Self::pop_sent)
    /// removes calls that are completely sent.
    sent: usize,
}

/// Result of sending a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything is sent; over UDP, the first call.
    Done,
    /// The socket buffer is full.
    Full,
    /// The connection is broken, or this datagram could not be sent.
    Failed(Errno),
}

impl Message {
    /// Returns the length in a stream.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.data.as_ref().map_or(0, |data| data.len().next_multiple_of(4))
    }

    fn gather<'a>(&'a self, gather: &mut Gather<'a>, skip_mark: bool) {
        gather.bytes(self.head.get(if skip_mark { Mark::BYTES } else { 0 }..).unwrap_or_default());
        if let Some(data) = &self.data {
            gather.source(data);
            gather.bytes(&PADDING[..data.len().next_multiple_of(4) - data.len()]);
        }
    }
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.items.len()
    }

    pub(super) fn push(&mut self, xid: u32, message: Message) {
        self.items.push_back((xid, message));
    }

    /// Sends until everything is sent, the socket is full, or an error occurs; over UDP the first call only,
    /// without record mark. Returns the number of bytes sent, and the result.
    pub(super) fn send(&mut self, socket: &dyn Socket, datagrams: bool) -> (usize, Progress) {
        let mut bytes = 0;
        loop {
            let mut gather = Gather::new(self.sent);
            let limit = if datagrams { 1 } else { usize::MAX };
            for (_, message) in self.items.iter().take(limit) {
                message.gather(&mut gather, datagrams);
                if gather.is_full() {
                    break;
                }
            }
            if gather.len_bytes() == 0 {
                return (bytes, Progress::Done);
            }
            match socket.send(&mut gather) {
                Ok(sent) => {
                    bytes += sent;
                    self.sent += sent;
                    if datagrams {
                        // A datagram is sent as a whole.
                        self.sent = self.items.front().map_or(0, |(_, message)| message.len());
                        return (bytes, Progress::Done);
                    }
                }
                Err(Errno::AGAIN) => return (bytes, Progress::Full),
                Err(error) => return (bytes, Progress::Failed(error)),
            }
        }
    }

    /// Removes the first call, if it is completely sent.
    pub(super) fn pop_sent(&mut self) -> Option<(u32, Message)> {
        let (_, first) = self.items.front()?;
        self.sent = self.sent.checked_sub(first.len())?;
        self.items.pop_front()
    }

    /// Removes the first call, sent or not.
    pub(super) fn pop(&mut self) -> Option<(u32, Message)> {
        self.sent = 0;
        self.items.pop_front()
    }

    pub(super) fn xids(&self) -> impl Iterator<Item = u32> + '_ {
        self.items.iter().map(|(xid, _)| *xid)
    }

    /// Returns the progress of a call in this batch.
    pub(super) fn stage(&self, xid: u32) -> Stage {
        match self.items.front() {
            Some((first, message)) if *first == xid && self.sent > 0 => match message.data {
                Some(_) => Stage::BegunWithData,
                None => Stage::Begun,
            },
            _ => Stage::Whole,
        }
    }

    /// Removes a call, of which nothing must have been sent ([`Stage::Whole`]).
    pub(super) fn remove(&mut self, xid: u32) -> Option<Message> {
        let at = self.items.iter().position(|(item, _)| *item == xid)?;
        self.items.remove(at).map(|(_, message)| message)
    }
}

/// Progress of sending a call of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No byte of the message is sent.
    Whole,
    /// The message is partly sent. The remainder is in the client's own memory, so it can still be sent after
    /// the call has ended.
    Begun,
    /// The message is partly sent. The remainder may include data in the caller's memory.
    BegunWithData,
}
