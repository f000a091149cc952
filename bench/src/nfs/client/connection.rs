//! Pipelined calls on a connection ([`Connection`]).
//!
//! [`Records`] splits the stream of replies by its record marks (RFC 5531 §11), and stores the start of each
//! reply only: `wire/rpc`'s assembler stores complete records, which would copy all file data.

use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use tombolo_wire_rpc::Mark;

use super::{Call, Reply};
use crate::error::{Doing, Error, Result};
use crate::nfs::{Stream, Wait};

const READ_BYTES: usize = 256 << 10;
/// Bytes of a reply that are examined when many are outstanding.
const HEAD_BYTES: usize = 128;
/// Maximum size of a batch of calls without data that are sent together.
const BATCH_BYTES: usize = 64 << 10;
/// Maximum number of outstanding calls: the slot is the low part of the xid, by which a reply finds it.
const OUTSTANDING_MAX: u32 = 64;

/// A connection to an NFS or MOUNT server.
pub struct Connection {
    stream: Stream,
    buffer: Vec<u8>,
    out: Vec<u8>,
    /// High part of xids. It starts randomly: a server may take equal calls with equal xids for repetitions.
    turn: u32,
    /// Expected xid of each slot.
    awaited: [Option<u32>; OUTSTANDING_MAX as usize],
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Connection {
    pub fn connect(address: SocketAddr, wait: Wait) -> Result<Self> {
        let stream = Stream::connect(address, wait).doing(|| format!("connect to {address}"))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            stream,
            buffer: vec![0; READ_BYTES],
            out: Vec::new(),
            turn: now.subsec_nanos(),
            awaited: [None; OUTSTANDING_MAX as usize],
        })
    }

    /// Sends one call and waits for its complete reply.
    pub fn call(&mut self, call: &mut Call, reply: &mut Reply) -> Result<()> {
        let xid = self.give_xid(0);
        call.set_xid(xid);
        self.stream.write_parts(&mut call.parts()).doing(|| format!("send {}", call.name()))?;
        let mut records = Records::new(usize::MAX);
        let mut come = false;
        while !come {
            let count = self.read()?;
            records.feed(&self.buffer[..count], |record| {
                come = true;
                self.awaited[0] = None;
                reply.take(call, xid, record.head)
            })?;
        }
        Ok(())
    }

    /// Makes a call `count` times with `outstanding` in flight, and calls `lap` after each reply. `before`
    /// receives the call and its number before it is sent. Replies may arrive in any order; all must be
    /// successful, and of equal length if they contain data.
    pub fn repeat(
        &mut self,
        call: &mut Call,
        outstanding: u32,
        count: u64,
        mut before: impl FnMut(&mut Call, u64),
        mut lap: impl FnMut(),
    ) -> Result<()> {
        let places = u64::from(outstanding.clamp(1, OUTSTANDING_MAX)).min(count) as u32;
        let mut free: Vec<u32> = (0..places).collect();
        let mut records = Records::new(HEAD_BYTES);
        let (mut sent, mut done) = (0, 0);
        loop {
            while sent < count
                && let Some(place) = free.pop()
            {
                before(call, sent);
                self.queue(call, place)?;
                sent += 1;
            }
            self.flush(call.name())?;
            if done == count {
                return Ok(());
            }
            let got = self.read()?;
            records.feed(&self.buffer[..got], |record| {
                let place = finish(&mut self.awaited, call, record)?;
                lap();
                done += 1;
                free.push(place);
                Ok::<(), Error>(())
            })?;
        }
    }

    /// Receives available replies to calls of [`Connection::send`] without waiting; returns the freed slots.
    pub fn receive(&mut self, call: &Call, records: &mut Records) -> Result<Vec<u32>> {
        let mut places = Vec::new();
        while let Some(got) = self.stream.try_read(&mut self.buffer).doing(|| "receive".to_owned())? {
            if got == 0 {
                return Err(left());
            }
            records.feed(&self.buffer[..got], |record| {
                places.push(finish(&mut self.awaited, call, record)?);
                Ok::<(), Error>(())
            })?;
            if got < self.buffer.len() {
                break;
            }
        }
        Ok(places)
    }

    /// Sends one call without waiting, in a free slot.
    pub fn send(&mut self, call: &mut Call, place: u32) -> Result<()> {
        self.queue(call, place)?;
        self.flush(call.name())
    }

    fn queue(&mut self, call: &mut Call, place: u32) -> Result<()> {
        call.set_xid(self.give_xid(place));
        if call.has_data() {
            return self.stream.write_parts(&mut call.parts()).doing(|| format!("send {}", call.name()));
        }
        self.out.extend_from_slice(call.head());
        if self.out.len() >= BATCH_BYTES { self.flush(call.name()) } else { Ok(()) }
    }

    fn flush(&mut self, name: &str) -> Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let written = self.stream.write_parts(&mut [IoSlice::new(&self.out)]);
        self.out.clear();
        written.doing(|| format!("send {name}"))
    }

    fn give_xid(&mut self, place: u32) -> u32 {
        self.turn = self.turn.wrapping_add(1);
        let xid = self.turn.wrapping_mul(OUTSTANDING_MAX) | place;
        if let Some(awaited) = self.awaited.get_mut(place as usize) {
            *awaited = Some(xid);
        }
        xid
    }

    fn read(&mut self) -> Result<usize> {
        match self.stream.read(&mut self.buffer).doing(|| "receive".to_owned())? {
            0 => Err(left()),
            count => Ok(count),
        }
    }
}

/// Checks a reply cheaply; returns its slot.
fn finish(awaited: &mut [Option<u32>], call: &Call, record: Record<'_>) -> Result<u32> {
    let xid = record.head.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let place = xid.unwrap_or_default() % OUTSTANDING_MAX;
    let slot = awaited.get_mut(place as usize);
    if xid.is_none() || slot.is_none_or(|slot| slot.take() != xid) {
        let answer = "a reply without a call".to_owned();
        return Err(Error::Wrong { what: call.name().to_owned(), answer });
    }
    call.check(record.head, record.len)?;
    Ok(place)
}

fn left() -> Error {
    Error::Io { what: "receive".to_owned(), source: ErrorKind::UnexpectedEof.into() }
}

/// Splitter of a stream into records, of which it stores the beginning.
#[derive(Debug)]
pub struct Records {
    /// Number of bytes stored per record.
    keep_bytes: usize,
    /// Incomplete record mark.
    mark: Vec<u8>,
    /// Remaining bytes of the fragment.
    left_bytes: usize,
    last: bool,
    head: Vec<u8>,
    len: usize,
}

/// The start of a complete record (`head`), and the record's length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub head: &'a [u8],
    pub len: usize,
}

impl Records {
    /// Creates a splitter that stores the first `keep_bytes` of each record.
    pub fn new(keep_bytes: usize) -> Self {
        Self { keep_bytes, mark: Vec::new(), left_bytes: 0, last: false, head: Vec::new(), len: 0 }
    }

    /// Processes received bytes, and calls `each` for every record that ends in them.
    pub fn feed<E>(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Record<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        while !bytes.is_empty() {
            if self.left_bytes == 0 && !self.last {
                if self.len == 0 && self.mark.is_empty() {
                    bytes = self.whole(bytes, &mut each)?;
                }
                bytes = self.take_mark(bytes);
            }
            let (now, rest) = bytes.split_at(bytes.len().min(self.left_bytes));
            let room = self.keep_bytes.saturating_sub(self.head.len());
            self.head.extend_from_slice(now.get(..room).unwrap_or(now));
            self.len += now.len();
            self.left_bytes -= now.len();
            bytes = rest;
            if self.last && self.left_bytes == 0 {
                each(Record { head: &self.head, len: self.len })?;
                self.head.clear();
                (self.len, self.last) = (0, false);
            }
        }
        Ok(())
    }

    /// Handles complete single-fragment records in place. Returns the remaining bytes.
    fn whole<'b, E>(
        &self,
        mut bytes: &'b [u8],
        each: &mut impl FnMut(Record<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<&'b [u8], E> {
        while let Some((mark, rest)) = bytes.split_first_chunk() {
            let mark = Mark::from_bytes(*mark);
            let Some((record, rest)) = rest.split_at_checked(mark.len_bytes as usize) else { break };
            if !mark.last {
                break;
            }
            each(Record { head: record.get(..self.keep_bytes).unwrap_or(record), len: record.len() })?;
            bytes = rest;
        }
        Ok(bytes)
    }

    fn take_mark<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (now, rest) = bytes.split_at(bytes.len().min(4 - self.mark.len()));
        self.mark.extend_from_slice(now);
        if let Ok(mark) = <[u8; 4]>::try_from(self.mark.as_slice()) {
            let mark = Mark::from_bytes(mark);
            (self.left_bytes, self.last) = (mark.len_bytes as usize, mark.last);
            self.mark.clear();
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs::client::getattr;
    use std::convert::Infallible;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use tombolo_wire_nfs3::FileHandle;
    use tombolo_wire_rpc::{ReplyHeader, Xid};
    use tombolo_wire_xdr::Encoder;

    /// Starts a server that waits for `batch` calls and answers them in reverse order, with each xid changed
    /// by `change`.
    fn answers_backwards(call_bytes: usize, batch: usize, change: fn(u32) -> u32) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut calls = vec![0; call_bytes * batch];
            while stream.read_exact(&mut calls).is_ok() {
                for call in calls.chunks(call_bytes).rev() {
                    let xid = u32::from_be_bytes(*call[Mark::BYTES..].first_chunk().unwrap());
                    let mut reply = Vec::new();
                    Encoder::new(&mut reply).value(&ReplyHeader::success(Xid(change(xid)))).u32(0);
                    stream.write_all(&Mark::whole(reply.len()).unwrap().to_bytes()).unwrap();
                    stream.write_all(&reply).unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn replies_in_any_order_find_their_calls() {
        let mut call = getattr(&FileHandle::new(b"handle").unwrap().to_owned());
        for wait in [Wait::Sleep, Wait::SpinBriefly, Wait::Spin] {
            let address = answers_backwards(call.bytes(), 8, |xid| xid);
            let mut connection = Connection::connect(address, wait).unwrap();
            let mut replies = 0;
            connection.repeat(&mut call, 8, 64, |_, _| {}, || replies += 1).unwrap();
            assert_eq!(replies, 64);
        }
    }

    #[test]
    fn reply_without_a_call_is_an_error() {
        let mut call = getattr(&FileHandle::new(b"handle").unwrap().to_owned());
        let address = answers_backwards(call.bytes(), 1, |xid| xid ^ 0x100);
        let mut connection = Connection::connect(address, Wait::Sleep).unwrap();
        let error = connection.repeat(&mut call, 1, 1, |_, _| {}, || {}).unwrap_err();
        assert!(error.to_string().contains("a reply without a call"), "{error}");
    }

    fn mark(len: usize) -> [u8; 4] {
        Mark::whole(len).unwrap().to_bytes()
    }

    #[test]
    fn records_do_not_depend_on_stream_chunks() {
        let mut stream = Vec::new();
        for record in [&b"abcdefgh"[..], b"", b"0123456789"] {
            stream.extend(mark(record.len()));
            stream.extend(record);
        }
        // A record of two fragments.
        stream.extend([0, 0, 0, 3]);
        stream.extend(b"xyz");
        stream.extend(mark(2));
        stream.extend(b"!?");
        stream.extend(mark(1));
        stream.extend(b".");
        let expected = [("abcd", 8), ("", 0), ("0123", 10), ("xyz!", 5), (".", 1)];
        for piece in 1..stream.len() {
            let mut records = Records::new(4);
            let mut found = Vec::new();
            for bytes in stream.chunks(piece) {
                let fed: std::result::Result<(), Infallible> = records.feed(bytes, |record| {
                    found.push((String::from_utf8(record.head.to_vec()).unwrap(), record.len));
                    Ok(())
                });
                fed.unwrap();
            }
            let found: Vec<_> = found.iter().map(|(head, len)| (head.as_str(), *len)).collect();
            assert_eq!(found, expected, "in pieces of {piece}");
        }
    }
}
