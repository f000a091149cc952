//! A raw client that resends the same bytes over a new connection when its connection breaks, until answered.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tombolo_nfs_tests::client::{Caller, Message, Stream};
use tombolo_wire_nfs3::{Call, mount};
use tombolo_wire_rpc::{Accepted, ReplyHeader};
use tombolo_wire_xdr::{Decode, Decoder};

use crate::failure::{Failure, Result, wrong};

/// Time for which a call is repeated. The server is down for a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);

/// A reply.
#[derive(Debug)]
pub struct Answer {
    record: Vec<u8>,
    /// Number of times the call was sent.
    pub sends: u32,
}

impl Answer {
    /// Decodes the results of the procedure.
    pub fn results<'a, T: Decode<'a>>(&'a self) -> Result<T> {
        let mut xdr = Decoder::new(&self.record);
        let header: ReplyHeader<'_> = xdr.value()?;
        match header.accepted() {
            Some(Accepted::Success) => Ok(xdr.value()?),
            _ => wrong(format!("the call was not accepted: {:?}", header.body)),
        }
    }

    /// Returns the whole record, with file data at the offsets given in the results.
    pub fn record(&self) -> &[u8] {
        &self.record
    }
}

/// Extra behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// One reply per call.
    Plain,
    /// Occasionally breaks a connection during a call, or sends a call twice at once.
    Rude,
}

/// One client, of one user, on one connection at a time.
#[derive(Debug)]
pub struct Client {
    server: SocketAddr,
    stream: Option<Stream>,
    next_xid: u32,
    random: Rng,
    behaviour: Behaviour,
    /// Number of calls resent because a connection broke.
    pub resent: u64,
    /// Number of calls sent twice at once.
    pub doubled: u64,
    /// Number of replies.
    pub answered: u64,
}

impl Client {
    /// Creates a client that is not connected yet.
    pub fn new(server: SocketAddr, mut random: Rng, behaviour: Behaviour) -> Self {
        let next_xid = random.u64(..) as u32;
        Self { server, stream: None, next_xid, random, behaviour, resent: 0, doubled: 0, answered: 0 }
    }

    /// Makes a call of the NFS program; `data` is the payload of a WRITE.
    pub fn nfs(&mut self, call: &Call<'_>, data: &[u8]) -> Message {
        Message::nfs(self.fresh_xid(), &Caller::ROOT, call, data)
    }

    /// Makes a call of the MOUNT program.
    pub fn mount(&mut self, call: &mount::Call<'_>) -> Message {
        Message::mount(self.fresh_xid(), &Caller::ROOT, call)
    }

    fn fresh_xid(&mut self) -> u32 {
        self.next_xid = self.next_xid.wrapping_add(1);
        self.next_xid
    }

    /// Sends a call until it is answered.
    pub fn exchange(&mut self, message: &Message) -> Result<Answer> {
        let deadline = Instant::now() + PATIENCE;
        let mut sends = 0;
        loop {
            match self.attempt(message, &mut sends) {
                Ok(record) => {
                    self.answered += 1;
                    self.resent += u64::from(sends > 1);
                    return Ok(Answer { record, sends });
                }
                Err(Failure::Io(error)) if Instant::now() > deadline => return Err(Failure::Silent(error)),
                Err(Failure::Io(_)) => {
                    self.stream = None;
                    thread::sleep(PAUSE);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    fn attempt(&mut self, message: &Message, sends: &mut u32) -> Result<Vec<u8>> {
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => Stream::connect(self.server)?,
        };
        let stream = self.stream.insert(stream);
        *sends += 1;
        stream.send(&message.to_bytes())?;
        if self.behaviour == Behaviour::Plain {
            return received(stream, message.xid);
        }
        if self.random.usize(..100) == 0 {
            thread::sleep(Duration::from_micros(self.random.u64(..300)));
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "broken by the test").into());
        }
        // An earlier copy may still be executing; a second one certainly is.
        if self.random.usize(..if *sends > 1 { 3 } else { 50 }) != 0 {
            return received(stream, message.xid);
        }
        self.doubled += 1;
        stream.send(&message.to_bytes())?;
        let replies = [received(stream, message.xid)?, received(stream, message.xid)?];
        let [first, second] = [status(&replies[0])?, status(&replies[1])?];
        if first != second {
            return wrong(format!("one call, sent twice at once, was answered {first} and {second}"));
        }
        let [first, _] = replies;
        Ok(first)
    }
}

/// Receives the reply to a call, skipping replies to abandoned calls.
fn received(stream: &mut Stream, xid: u32) -> Result<Vec<u8>> {
    loop {
        let record = stream.receive()?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        if Decoder::new(&record).u32()? == xid {
            return Ok(record);
        }
    }
}

fn status(record: &[u8]) -> Result<u32> {
    let mut xdr = Decoder::new(record);
    xdr.value::<ReplyHeader<'_>>()?;
    Ok(xdr.u32()?)
}
