//! A scripted wire with its own clock: single-threaded and deterministic.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tombolo_host_rpc::client::{
    Engine, Event, Options, Pending, RpcClient, Socket, SocketToken, Target, Transport, Wire,
};
use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result};
use tombolo_wire_rpc::{Accepted, CallHeader, RecordAssembler, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decoder, Encoder};

use super::common::target;

/// The environment of one client.
pub struct Script {
    pub client: RpcClient,
    pub engine: Engine,
    pub wire: Arc<ScriptWire>,
}

pub struct ScriptWire {
    datagrams: bool,
    now: Mutex<Instant>,
    lines: Mutex<Vec<Arc<Line>>>,
    refusal: Mutex<Option<Errno>>,
    /// `Some(true)` if probes succeed; `None` if they are not supported.
    reachable: Arc<Mutex<Option<bool>>>,
}

/// One socket, seen from its peer.
pub struct Line {
    token: SocketToken,
    datagrams: bool,
    inner: Mutex<Inner>,
}

struct Inner {
    connected: bool,
    /// Sent and not yet processed.
    sent: Vec<u8>,
    sent_datagrams: VecDeque<Vec<u8>>,
    /// Number of bytes still accepted.
    room: usize,
    /// Data available to receive, and the maximum per call.
    incoming: VecDeque<u8>,
    incoming_datagrams: VecDeque<Vec<u8>>,
    at_a_time: usize,
    /// Low-water mark.
    low_water: usize,
    closed: bool,
    shut_down: bool,
}

impl Script {
    pub fn new(transport: Transport, options: Options) -> Self {
        let wire = Arc::new(ScriptWire {
            datagrams: transport == Transport::Udp,
            now: Mutex::new(Instant::now()),
            lines: Mutex::default(),
            refusal: Mutex::default(),
            reachable: Arc::default(),
        });
        let target: Target = target(([127, 0, 0, 1], 1).into(), transport);
        let (client, engine) = RpcClient::over(wire.clone(), target, options);
        Self { client, engine, wire }
    }

    /// Returns a script with an established connection.
    pub fn connected(options: Options) -> (Self, Arc<Line>, Pending) {
        Self::connected_over(Transport::Tcp, options)
    }

    pub fn connected_over(transport: Transport, options: Options) -> (Self, Arc<Line>, Pending) {
        let mut script = Self::new(transport, options);
        let first = super::common::echo(&script.client, 1, b"first");
        script.turn();
        let line = script.line(0);
        script.connect(&line);
        (script, line, first)
    }

    /// Runs the engine until nothing is due.
    pub fn turn(&mut self) {
        while self.engine.next_deadline().is_some_and(|deadline| deadline <= self.now()) {
            self.engine.expire();
        }
    }

    /// Advances the clock, running the engine whenever a timer is due.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now() + time;
        loop {
            self.turn();
            match self.engine.next_deadline() {
                Some(deadline) if deadline <= end => *self.wire.now.lock().unwrap() = deadline,
                _ => break,
            }
        }
        *self.wire.now.lock().unwrap() = end;
    }

    pub fn now(&self) -> Instant {
        *self.wire.now.lock().unwrap()
    }

    /// Makes all attempts to connect fail, or succeed again.
    pub fn refuse(&self, refusal: Option<Errno>) {
        *self.wire.refusal.lock().unwrap() = refusal;
    }

    /// Makes probes succeed or fail.
    pub fn set_reachable(&self, reachable: bool) {
        *self.wire.reachable.lock().unwrap() = Some(reachable);
    }

    pub fn line_count(&self) -> usize {
        self.wire.lines.lock().unwrap().len()
    }

    /// Returns the socket with this index.
    pub fn line(&self, index: usize) -> Arc<Line> {
        self.wire.lines.lock().unwrap()[index].clone()
    }

    /// Advances the clock, and connects the latest socket.
    pub fn reconnected(&mut self, after: Duration) -> Arc<Line> {
        self.pass(after);
        let line = self.line(self.line_count() - 1);
        self.connect(&line);
        line
    }

    pub fn connect(&mut self, line: &Line) {
        line.lock().connected = true;
        self.engine.ready(line.token, Event { writable: true, readable: false });
        self.turn();
    }

    /// Accepts more sent bytes.
    pub fn take_more(&mut self, line: &Line, bytes: usize) {
        let room = line.lock().room;
        line.lock().room = room.saturating_add(bytes);
        self.engine.ready(line.token, Event { writable: true, readable: false });
        self.turn();
    }

    /// Delivers bytes of the stream.
    pub fn bring(&mut self, line: &Line, bytes: &[u8]) {
        match line.datagrams {
            true => line.lock().incoming_datagrams.push_back(bytes.to_vec()),
            false => line.lock().incoming.extend(bytes),
        }
        if line.is_quiet() {
            return;
        }
        self.engine.ready(line.token, Event { writable: false, readable: true });
        self.turn();
    }

    pub fn close(&mut self, line: &Line) {
        line.lock().closed = true;
        self.engine.ready(line.token, Event { writable: true, readable: true });
        self.turn();
    }
}

impl Line {
    /// Returns the completely sent calls.
    pub fn calls(&self) -> Vec<Called> {
        let mut inner = self.lock();
        if self.datagrams {
            return inner.sent_datagrams.drain(..).map(|record| Called::new(&record)).collect();
        }
        let sent = std::mem::take(&mut inner.sent);
        let (mut rest, mut assembler, mut calls) = (&sent[..], RecordAssembler::new(64 << 20), Vec::new());
        while let Some(record) = assembler.next(&mut rest).expect("records") {
            calls.push(Called::new(record));
        }
        inner.sent = rest.to_vec();
        calls
    }

    /// Returns the number of sent bytes not yet processed.
    pub fn sent_bytes(&self) -> usize {
        self.lock().sent.len()
    }

    /// Limits the bytes accepted from now on.
    pub fn set_room(&self, bytes: usize) {
        self.lock().room = bytes;
    }

    /// Limits the bytes received at a time.
    pub fn set_at_a_time(&self, bytes: usize) {
        self.lock().at_a_time = bytes;
    }

    /// Returns `true` if fewer bytes than the low-water mark are available.
    fn is_quiet(&self) -> bool {
        let inner = self.lock();
        !self.datagrams && inner.incoming.len() < inner.low_water
    }

    pub fn is_shut_down(&self) -> bool {
        self.lock().shut_down
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

impl Wire for ScriptWire {
    fn connect(&self, _: &Target, token: SocketToken, _: Option<bool>) -> Result<Box<dyn Socket>> {
        if let Some(refusal) = *self.refusal.lock().unwrap() {
            return Err(refusal);
        }
        let inner = Inner {
            connected: self.datagrams,
            sent: Vec::new(),
            sent_datagrams: VecDeque::new(),
            room: usize::MAX,
            incoming: VecDeque::new(),
            incoming_datagrams: VecDeque::new(),
            at_a_time: usize::MAX,
            low_water: 1,
            closed: false,
            shut_down: false,
        };
        let line = Arc::new(Line { token, datagrams: self.datagrams, inner: Mutex::new(inner) });
        self.lines.lock().unwrap().push(line.clone());
        Ok(Box::new(OurEnd(line)))
    }

    fn probe(&self, _: &Target) -> Result<Box<dyn Socket>> {
        let began_reachable = self.reachable.lock().unwrap().ok_or(Errno::OPNOTSUPP)?;
        Ok(Box::new(Probe(began_reachable)))
    }

    fn now(&self) -> Instant {
        *self.now.lock().unwrap()
    }

    fn random(&self) -> u64 {
        0xffff_fff0
    }
}

/// A probe, which succeeds if it began while the server was reachable.
struct Probe(bool);

impl Socket for Probe {
    fn finish_connecting(&self) -> Result<()> {
        if self.0 { Ok(()) } else { Err(Errno::AGAIN) }
    }

    fn send(&self, _: &mut Gather<'_>) -> Result<usize> {
        Err(Errno::NOTCONN)
    }

    fn receive(&self, _: &[&Sink]) -> Result<usize> {
        Err(Errno::NOTCONN)
    }

    fn shut_down(&self) {}
}

struct OurEnd(Arc<Line>);

impl Socket for OurEnd {
    fn finish_connecting(&self) -> Result<()> {
        if self.0.lock().connected { Ok(()) } else { Err(Errno::AGAIN) }
    }

    fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        let mut inner = self.0.lock();
        if inner.shut_down || inner.closed {
            return Err(Errno::PIPE);
        }
        if self.0.datagrams {
            let bytes = gather.to_vec(usize::MAX);
            inner.sent_datagrams.push_back(bytes);
            return Ok(gather.len_bytes());
        }
        if inner.room == 0 {
            return Err(Errno::AGAIN);
        }
        let bytes = gather.to_vec(inner.room);
        inner.room -= bytes.len();
        inner.sent.extend(&bytes);
        Ok(bytes.len())
    }

    fn receive(&self, into: &[&Sink]) -> Result<usize> {
        let mut inner = self.0.lock();
        if inner.shut_down {
            return Ok(0);
        }
        let bytes: Vec<u8> = if self.0.datagrams {
            inner.incoming_datagrams.pop_front().ok_or(Errno::AGAIN)?
        } else {
            let room: usize = into.iter().map(|sink| sink.len()).sum();
            assert!(room > 0, "there is always room to receive into");
            let count = room.min(inner.at_a_time).min(inner.incoming.len());
            if count == 0 {
                return if inner.closed { Ok(0) } else { Err(Errno::AGAIN) };
            }
            inner.incoming.drain(..count).collect()
        };
        let mut rest = &bytes[..];
        for sink in into {
            rest = &rest[sink.write_at(0, rest)..];
        }
        Ok(bytes.len() - rest.len())
    }

    fn set_low_water(&self, bytes: usize) {
        self.0.lock().low_water = bytes;
    }

    fn shut_down(&self) {
        self.0.lock().shut_down = true;
    }
}

/// A call as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    pub xid: u32,
    pub procedure: u32,
    pub arguments: Vec<u8>,
}

impl Called {
    fn new(record: &[u8]) -> Self {
        let mut xdr = Decoder::new(record);
        let header = CallHeader::receive(&mut xdr).expect("a call");
        Self { xid: header.xid.0, procedure: header.procedure, arguments: xdr.rest().to_vec() }
    }

    /// Returns the record of a reply with these results.
    pub fn reply(&self, results: &[u8]) -> Vec<u8> {
        framed(&message(self.xid, results))
    }
}

/// Returns a successful reply, without record mark.
pub fn message(xid: u32, results: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    Encoder::new(&mut reply).value(&ReplyHeader::accept(Xid(xid), Accepted::Success)).raw(results);
    reply
}

/// Returns a record of one fragment.
pub fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32 | 1 << 31).to_be_bytes()[..], message].concat()
}

/// Returns the results of a [`READ`](super::common::READ).
pub fn data_results(data: &[u8]) -> Vec<u8> {
    let padding = data.len().next_multiple_of(4) - data.len();
    [&7_u32.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data, &[0; 3][..padding]].concat()
}
