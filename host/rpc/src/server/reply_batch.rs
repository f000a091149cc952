//! Batches of replies to send.

use std::collections::VecDeque;
use std::mem;

use super::service::{Exchange, ReplyData};
use tombolo_sys::Errno;
use tombolo_sys::gather::Gather;
use tombolo_wire_rpc::Mark;

/// Maximum length of a reply copied into the batch; the buffer of a longer one is moved.
const COPY_MAX_BYTES: usize = 4 << 10;

/// Capacity retained for small replies.
const RETAINED_MAX_BYTES: usize = 64 << 10;

/// Padding of data to a multiple of four bytes (RFC 4506 §3).
const PADDING: [u8; 3] = [0; 3];

/// Replies in the order in which they are sent.
///
/// Small replies share one buffer, so that a run of them takes a single I/O vector of the system call. Long
/// replies and file data are sent from their own buffers.
#[derive(Default)]
pub(super) struct Batch {
    /// Small replies with their record marks.
    small: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// Number of bytes of the first piece already sent.
    sent: usize,
    /// Number of bytes of `small` that belong to pieces already sent.
    small_sent: usize,
    /// Number of bytes not sent yet.
    len: usize,
}

/// Consecutive replies, of which only the last may be long or followed by file data.
struct Piece {
    /// Number of bytes in the buffer of small replies.
    small: usize,
    /// Long reply of this piece, with its mark in `small`.
    long: Option<Vec<u8>>,
    /// File data behind the replies.
    data: Option<ReplyData>,
    replies: usize,
}

/// Result of sending a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// Number of replies sent completely.
    pub(super) replies: usize,
    pub(super) bytes: usize,
    pub(super) state: SendState,
}

/// State of the socket after sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// Everything is sent.
    Done,
    /// The socket buffer is full.
    Full,
    /// The connection is broken.
    Broken(Errno),
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the number of bytes to send.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory of the encoded replies, in bytes. That of file data is not included, as the pool
    /// accounts for their buffers.
    pub(super) fn uncounted_bytes(&self) -> usize {
        let long = self.pieces.iter().filter_map(|piece| piece.long.as_ref());
        self.small.len() + long.map(Vec::len).sum::<usize>()
    }

    /// Adds the exchange's reply. A small reply is copied, and its buffer stays with the exchange.
    pub(super) fn push(&mut self, exchange: &mut Exchange) {
        let data = exchange.data.take().filter(|data| !data.source.is_empty());
        let data_len = data.as_ref().map_or(0, |data| data.source.len().next_multiple_of(4));
        // RFC 5531 §11: the length has 31 bits. No reply is that long.
        let mark = Mark::whole(exchange.reply.len() + data_len).map_or([0; Mark::BYTES], Mark::to_bytes);
        let reply_len = mark.len() + exchange.reply.len();
        self.len += reply_len + data_len;
        self.small.extend_from_slice(&mark);
        let (small, long) = if exchange.reply.len() > COPY_MAX_BYTES {
            (mark.len(), Some(mem::take(&mut exchange.reply)))
        } else {
            self.small.extend_from_slice(&exchange.reply);
            (reply_len, None)
        };
        match self.pieces.back_mut() {
            // Replies are added only while this batch is not being sent.
            Some(last) if last.long.is_none() && last.data.is_none() => {
                last.small += small;
                (last.long, last.data) = (long, data);
                last.replies += 1;
            }
            _ => self.pieces.push_back(Piece { small, long, data, replies: 1 }),
        }
    }

    /// Sends until everything is sent, the socket is full, or an error occurs. `send` sends a prefix of its
    /// argument and returns the length of that prefix.
    pub(super) fn send(&mut self, mut send: impl FnMut(&mut Gather<'_>) -> Result<usize, Errno>) -> Sent {
        let (mut replies, mut bytes) = (0, 0);
        let state = loop {
            let mut gather = self.gather();
            let wanted = gather.len_bytes();
            if wanted == 0 {
                break SendState::Done;
            }
            match send(&mut gather) {
                Ok(sent) => {
                    drop(gather);
                    bytes += sent;
                    replies += self.advance(sent);
                }
                Err(Errno::AGAIN) => break SendState::Full,
                Err(error) => break SendState::Broken(error),
            }
        };
        if self.is_empty() {
            self.clear();
        }
        Sent { replies, bytes, state }
    }

    /// Drops all replies, and returns their number.
    pub(super) fn drain(&mut self) -> usize {
        let replies = self.pieces.iter().map(|piece| piece.replies).sum();
        self.clear();
        replies
    }

    fn gather(&self) -> Gather<'_> {
        let mut gather = Gather::new(self.sent);
        let mut at = self.small_sent;
        for piece in &self.pieces {
            if gather.is_full() {
                break;
            }
            gather.bytes(self.small.get(at..at + piece.small).unwrap_or_default());
            at += piece.small;
            if let Some(long) = &piece.long {
                gather.bytes(long);
            }
            if let Some(data) = &piece.data {
                gather.source(&data.source);
                gather.bytes(&PADDING[..padding(data)]);
            }
        }
        gather
    }

    /// Advances by `bytes` sent bytes. Returns the number of replies completed.
    fn advance(&mut self, bytes: usize) -> usize {
        self.len -= bytes;
        self.sent += bytes;
        let mut replies = 0;
        while let Some(first) = self.pieces.front().filter(|piece| piece.len() <= self.sent) {
            self.sent -= first.len();
            self.small_sent += first.small;
            replies += first.replies;
            self.pieces.pop_front();
        }
        replies
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.small.clear();
        self.small.shrink_to(RETAINED_MAX_BYTES);
        (self.sent, self.small_sent, self.len) = (0, 0, 0);
    }
}

impl Piece {
    fn len(&self) -> usize {
        let data = self.data.as_ref().map_or(0, |data| data.source.len() + padding(data));
        self.small + self.long.as_ref().map_or(0, Vec::len) + data
    }
}

fn padding(data: &ReplyData) -> usize {
    data.source.len().next_multiple_of(4) - data.source.len()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use tombolo_host_runtime::buffer_pool::{BufferLimits, Buffers};
    use tombolo_sys::tcp;

    fn reply(buffers: &Buffers, reply: &[u8], data: Option<usize>) -> Exchange {
        let mut exchange = Exchange::new(buffers.clone());
        exchange.reply = reply.to_vec();
        exchange.data = data.map(|len| {
            let lease = buffers.take(len).expect("a buffer");
            lease.sink(0..len).write_at(0, &vec![7; len]);
            ReplyData::new(lease, len)
        });
        exchange
    }

    #[test]
    fn partially_sent_replies_arrive_in_order_and_padded() {
        let buffers = Buffers::new(BufferLimits::default());
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        theirs.set_nonblocking(true).expect("set");
        let replies =
            [(3, None), (8, Some(5)), (4096, None), (5000, None), (70_000, Some(300_001)), (0, None)];
        let (mut batch, mut wanted) = (Batch::default(), Vec::new());
        for (index, (len, data)) in replies.iter().enumerate() {
            let head = vec![index as u8; *len];
            batch.push(&mut reply(&buffers, &head, *data));
            let data = vec![7u8; data.unwrap_or(0)];
            let padding = data.len().next_multiple_of(4) - data.len();
            let whole = 0x8000_0000 | (head.len() + data.len() + padding) as u32;
            wanted.extend([&whole.to_be_bytes()[..], &head, &data, &PADDING[..padding]].concat());
        }
        assert_eq!(batch.len(), wanted.len());
        let (mut all, mut sent_replies, mut rounds) = (Vec::<u8>::new(), 0, 0);
        while all.len() < wanted.len() {
            let sent = batch.send(|gather| tcp::send(ours.as_fd(), gather));
            assert!(!matches!(sent.state, SendState::Broken(_)));
            sent_replies += sent.replies;
            let mut some = vec![0; 50_000];
            let n = theirs.read(&mut some).expect("read");
            all.extend(&some[..n]);
            rounds += 1;
        }
        assert!(rounds > 2, "it was cut");
        assert!(all == wanted);
        sent_replies += batch.send(|gather| tcp::send(ours.as_fd(), gather)).replies;
        assert_eq!(sent_replies, replies.len());
        assert_eq!((batch.len(), buffers.account().lent_bytes()), (0, 0), "the buffers went back");
        drop(theirs);
        batch.push(&mut reply(&buffers, b"x", None));
        let sent = batch.send(|gather| tcp::send(ours.as_fd(), gather));
        assert!(matches!(sent.state, SendState::Broken(_)));
        assert_eq!(batch.drain(), 1);
    }
}
