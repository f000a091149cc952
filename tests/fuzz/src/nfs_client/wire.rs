//! A server with the fuzzer's answers, and a clock that advances only when all threads wait for it.
//!
//! The input is a list of entries: a byte that selects the reaction to a call, and where needed a number of
//! bytes (two bytes) and the bytes. The server closes when the input is used up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_host_rpc::client::{Event, Socket, SocketToken, Target, Wire};
use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result};
use tombolo_wire_rpc::{Accepted, AuthStat, Mark, RecordAssembler, Rejected, ReplyHeader, Xid};
use tombolo_wire_xdr::{Encode, Encoder};

/// The server and its clock.
pub struct Fuzzed {
    input: Arc<Mutex<VecDeque<u8>>>,
    origin: Instant,
    passed: Mutex<Duration>,
    sockets: Mutex<Vec<(SocketToken, Arc<Stream>)>>,
}

/// One connection.
struct Stream {
    input: Arc<Mutex<VecDeque<u8>>>,
    /// An incomplete record from the client.
    calls: Mutex<(Vec<u8>, RecordAssembler)>,
    answers: Mutex<VecDeque<u8>>,
    closed: AtomicBool,
    told: AtomicBool,
}

impl Fuzzed {
    pub fn new(bytes: &[u8]) -> Self {
        let input = Arc::new(Mutex::new(bytes.iter().copied().collect()));
        Self { input, origin: Instant::now(), passed: Mutex::default(), sockets: Mutex::default() }
    }

    /// Returns the sockets with pending events.
    pub fn ready(&self) -> Vec<(SocketToken, Event)> {
        let sockets = lock(&self.sockets);
        let event = |stream: &Stream| {
            let writable = !stream.told.swap(true, Ordering::Relaxed);
            let readable = stream.closed.load(Ordering::Relaxed) || !lock(&stream.answers).is_empty();
            Event { readable, writable }
        };
        let told = sockets.iter().map(|(token, stream)| (*token, event(stream)));
        let ready: Vec<_> = told.filter(|(_, event)| event.readable || event.writable).collect();
        drop(sockets);
        // An end is reported once.
        lock(&self.sockets).retain(|(_, stream)| !stream.closed.load(Ordering::Relaxed));
        ready
    }

    /// Advances the clock.
    pub fn sleep_until(&self, instant: Instant) {
        let mut passed = lock(&self.passed);
        *passed = (*passed).max(instant.saturating_duration_since(self.origin));
    }
}

impl Wire for Fuzzed {
    fn connect(&self, _: &Target, token: SocketToken, _: Option<bool>) -> Result<Box<dyn Socket>> {
        if lock(&self.input).is_empty() {
            return Err(Errno::CONNREFUSED);
        }
        let stream = Arc::new(Stream {
            input: self.input.clone(),
            calls: Mutex::new((Vec::new(), RecordAssembler::new(1 << 20))),
            answers: Mutex::default(),
            closed: AtomicBool::new(false),
            told: AtomicBool::new(false),
        });
        lock(&self.sockets).push((token, stream.clone()));
        Ok(Box::new(Held(stream)))
    }

    fn now(&self) -> Instant {
        self.origin + *lock(&self.passed)
    }

    fn random(&self) -> u64 {
        0x0123_4567_89ab_cdef
    }
}

/// The client's end.
struct Held(Arc<Stream>);

impl Socket for Held {
    fn finish_connecting(&self) -> Result<()> {
        Ok(())
    }

    fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        let bytes = gather.to_vec(usize::MAX);
        let (received, assembler) = &mut *lock(&self.0.calls);
        received.extend_from_slice(&bytes);
        let mut rest = received.as_slice();
        while let Ok(Some(record)) = assembler.next(&mut rest) {
            if let Some(xid) = record.first_chunk() {
                self.0.answer(Xid(u32::from_be_bytes(*xid)));
            }
        }
        let used = received.len() - rest.len();
        received.drain(..used);
        Ok(bytes.len())
    }

    fn receive(&self, into: &[&Sink]) -> Result<usize> {
        let mut answers = lock(&self.0.answers);
        if answers.is_empty() {
            return if self.0.closed.load(Ordering::Relaxed) { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let mut count = 0;
        for sink in into {
            let len = sink.len().min(answers.len());
            let bytes: Vec<u8> = answers.drain(..len).collect();
            sink.write_at(0, &bytes);
            count += len;
        }
        Ok(count)
    }

    fn shut_down(&self) {
        self.0.closed.store(true, Ordering::Relaxed);
    }
}

impl Stream {
    /// Handles a call as the input specifies.
    fn answer(&self, xid: Xid) {
        let mut input = lock(&self.input);
        let Some(what) = input.pop_front() else {
            self.closed.store(true, Ordering::Relaxed);
            return;
        };
        match what % 8 {
            // Success with results; the most frequent reaction, so that sessions continue.
            0..=3 => {
                let results = chunk(&mut input);
                self.record(&ReplyHeader::success(xid), &results);
            }
            4 => {
                let message = chunk(&mut input);
                self.record(&xid.0, &message);
            }
            5 => lock(&self.answers).extend(chunk(&mut input)),
            6 => {
                let why = input.pop_front().unwrap_or_default();
                let header = match why % 4 {
                    0 => ReplyHeader::reject(xid, Rejected::Auth(AuthStat::TooWeak)),
                    1 => ReplyHeader::reject(xid, Rejected::RpcMismatch { low: 3, high: 4 }),
                    2 => ReplyHeader::accept(xid, Accepted::SystemErr),
                    _ => ReplyHeader::accept(xid, Accepted::ProcUnavail),
                };
                self.record(&header, &[]);
            }
            // Silence, or the end.
            _ => {
                let end = input.pop_front().is_some_and(|byte| byte % 2 == 0);
                self.closed.fetch_or(end, Ordering::Relaxed);
            }
        }
    }

    fn record(&self, header: &impl Encode, rest: &[u8]) {
        let mut message = Vec::new();
        Encoder::new(&mut message).value(header).raw(rest);
        let mark = Mark::whole(message.len()).expect("a record").to_bytes();
        lock(&self.answers).extend(mark.into_iter().chain(message));
    }
}

/// Takes a byte count, and as many bytes as available.
fn chunk(input: &mut VecDeque<u8>) -> Vec<u8> {
    let len =
        u16::from_le_bytes([input.pop_front().unwrap_or_default(), input.pop_front().unwrap_or_default()]);
    let len = usize::from(len).min(input.len());
    input.drain(..len).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
