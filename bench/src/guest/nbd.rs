//! Cheap NBD client that leaves the server as the bottleneck.

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;

use tombolo_wire_nbd::status::Status;
use tombolo_wire_nbd::{
    ClientFlags, Command, CommandFlags, HeaderStyle, OptionCode, ReplyHead, ReplyStyle, Request,
    encode_option,
};

use super::PATIENCE;
use super::disk::{Requests as DiskRequests, Way};
use crate::error::{Doing, Result};
use crate::measure::Work;

/// Size of the receive buffer.
const RECEIVE_BYTES: usize = 1 << 20;
const GREETING_BYTES: usize = 18;
/// Size of the head of a simple reply.
const HEAD_BYTES: usize = 16;
/// Size of the export's description: size and flags.
const EXPORT_BYTES: usize = 10;

/// A connection to an export.
pub struct NbdClient {
    stream: UnixStream,
    disk_bytes: u64,
    /// Offset of the next, sequential request.
    next_offset: u64,
    data: Vec<u8>,
    received: Vec<u8>,
    /// Unprocessed part of `received`.
    start: usize,
    end: usize,
}

impl NbdClient {
    /// Connects, for requests of at most `data_bytes`.
    pub fn connect(socket: &Path, export: &str, data_bytes: u32) -> Result<Rc<RefCell<Self>>> {
        let greet = || -> io::Result<(UnixStream, u64)> {
            let mut stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.read_exact(&mut [0; GREETING_BYTES])?;
            let flags = ClientFlags::FIXED_NEWSTYLE | ClientFlags::NO_ZEROES;
            let mut ours = flags.bits().to_be_bytes().to_vec();
            encode_option(&mut ours, OptionCode::EXPORT_NAME, export);
            stream.write_all(&ours)?;
            let mut told = [0; EXPORT_BYTES];
            stream.read_exact(&mut told)?;
            let disk_bytes = told.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            Ok((stream, disk_bytes))
        };
        let (stream, disk_bytes) = greet().doing_to("connect to", socket)?;
        Ok(Rc::new(RefCell::new(Self {
            stream,
            disk_bytes,
            next_offset: 0,
            data: vec![0x5a; data_bytes as usize],
            received: vec![0; RECEIVE_BYTES],
            start: 0,
            end: 0,
        })))
    }

    /// Returns the operation of a row. A request's time is the stream's, divided by its number of requests.
    pub fn work(this: &Rc<RefCell<Self>>, requests: DiskRequests) -> Work<'static> {
        let client = Rc::clone(this);
        Work::new(move |count, clock| {
            clock.start();
            client.borrow_mut().requests(count, requests).doing(|| "ask the server".to_owned())?;
            clock.lap_of(count);
            Ok(())
        })
        .bytes((requests.bytes > 4096).then_some(u64::from(requests.bytes)))
    }

    fn requests(&mut self, count: u64, requests: DiskRequests) -> io::Result<()> {
        let (mut sent, mut answered) = (0, 0);
        while answered < count {
            let more = (count - sent).min(requests.depth as u64 - (sent - answered));
            self.send(more, requests)?;
            sent += more;
            // After all replies that were received together, as many requests are sent by one system call.
            answered += self.hear(requests)?;
        }
        Ok(())
    }

    fn send(&mut self, count: u64, DiskRequests { way, bytes, .. }: DiskRequests) -> io::Result<()> {
        let (command, len_bytes) =
            (if way == Way::Write { Command::WRITE } else { Command::READ }, bytes.into());
        let mut heads = Vec::new();
        let mut head_bytes = 0;
        for cookie in 0..count {
            if self.next_offset + len_bytes > self.disk_bytes {
                self.next_offset = 0;
            }
            let (flags, offset) = (CommandFlags::empty(), self.next_offset);
            let before = heads.len();
            Request { flags, command, cookie, offset, len_bytes }.encode(HeaderStyle::Compact, &mut heads);
            head_bytes = heads.len() - before;
            self.next_offset += len_bytes;
        }
        if way == Way::Read || count == 0 {
            return self.stream.write_all(&heads);
        }
        let data = &self.data[..bytes as usize];
        let mut slices: Vec<_> =
            heads.chunks(head_bytes).flat_map(|head| [IoSlice::new(head), IoSlice::new(data)]).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let gone = self.stream.write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, gone);
        }
        Ok(())
    }

    /// Waits for a reply; returns the number of complete replies received with it.
    fn hear(&mut self, DiskRequests { way, bytes, .. }: DiskRequests) -> io::Result<u64> {
        let data_bytes = if way == Way::Read { bytes as usize } else { 0 };
        let mut heard = 0;
        while heard == 0 || self.end - self.start >= HEAD_BYTES + data_bytes {
            self.fill(HEAD_BYTES)?;
            match ReplyHead::decode(ReplyStyle::Simple, &self.received[self.start..self.end]) {
                Ok(Some((ReplyHead::Simple { status: Status::Ok, .. }, used))) => self.start += used,
                other => return Err(io::Error::other(format!("wrong answer: {other:?}"))),
            }
            self.skip(data_bytes)?;
            heard += 1;
        }
        Ok(heard)
    }

    /// Receives until `wanted` bytes are available.
    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        if self.start + wanted > self.received.len() {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < wanted {
            match self.stream.read(&mut self.received[self.end..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                came => self.end += came,
            }
        }
        Ok(())
    }

    fn skip(&mut self, mut count: usize) -> io::Result<()> {
        loop {
            let here = count.min(self.end - self.start);
            self.start += here;
            count -= here;
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            }
            if count == 0 {
                return Ok(());
            }
            self.fill(1)?;
        }
    }
}
