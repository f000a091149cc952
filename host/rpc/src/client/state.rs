//! The state of every call, under one lock that is never held while sending, receiving or waking.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::batch::Stage;
use super::call::{ReceiveBuffer, Reply};
use super::call_entry::{CallEntry, CallState, NewCall};
use super::connection::Connection;
use super::counters::Counts;
use super::error::{Callee, Failure, Garbage};
use super::finished::Finished;
use super::limit::Limit;
use super::options::{Options, Target, Transport};
use super::pending::{Cell, Outcome};
use super::reply_reader::ProtocolError;
use super::round_trip::RoundTrip;
use super::timers::Timers;

/// Entries are reused after so many calls: the waiter of an outcome may not be done with it yet.
const SPARE_MIN: usize = 8;

/// Entries and buffers that are kept for the next calls.
const SPARE_MAX: usize = 256;

/// A buffer that is longer is not kept.
const SPARE_BYTES_MAX: usize = 16 << 10;

/// What is known of a client's calls.
pub(super) struct State {
    pub(super) options: Options,
    pub(super) target: Target,
    pub(super) calls: HashMap<u32, Box<CallEntry>, BuildHasherDefault<XidHasher>>,
    pub(super) connections: Vec<Connection>,
    /// Bulk calls that wait for the limit, and perhaps some that have ended since.
    waiting: VecDeque<u32>,
    pub(super) waiting_count: u32,
    /// Bulk calls that do not wait for it.
    pub(super) bulk_out: u32,
    pub(super) limit: Limit,
    /// Of small calls, and of bulk calls.
    pub(super) round_trips: [RoundTrip; 2],
    /// The waiters for a permit.
    pub(super) permit_waiters: Vec<Waker>,
    pub(super) timers: Timers,
    /// When the engine looks at the clock next, at the latest.
    pub(super) armed: Option<Instant>,
    /// Calls whose interrupt may have been raised.
    pub(super) raised: Vec<u32>,
    /// The interrupts of all calls are watched, because the server is silent.
    pub(super) watching: bool,
    /// Since when the server has not been responding, once that has been told.
    pub(super) unresponsive_since: Option<Instant>,
    /// The server has answered a call.
    pub(super) known: bool,
    /// When to look again whether the server can be reached, while it is silent.
    pub(super) probe_at: Option<Instant>,
    /// The wire has no probes.
    pub(super) has_no_probes: bool,
    /// Times that the server was silent for long.
    pub(super) silences: u64,
    pub(super) ended: bool,
    /// Calls that were sent again.
    pub(super) retransmissions: u64,
    label: Arc<str>,
    next_xid: u32,
    next_serial: u64,
    spare: VecDeque<Box<CallEntry>>,
    heads: Vec<Vec<u8>>,
}

/// What a reply has to know of its call.
pub(super) struct Known {
    pub(super) receive_buffer: Option<ReceiveBuffer>,
    /// For the results.
    pub(super) spare: Vec<u8>,
}

impl State {
    pub(super) fn new(options: Options, target: Target, now: Instant, random: u64) -> Self {
        Self {
            label: options.label.as_str().into(),
            connections: (0..options.connections).map(|_| Connection::new(now)).collect(),
            calls: HashMap::default(),
            waiting: VecDeque::new(),
            waiting_count: 0,
            bulk_out: 0,
            limit: Limit::new(options.in_flight),
            round_trips: [RoundTrip::new(options.timeout); 2],
            permit_waiters: Vec::new(),
            timers: Timers::default(),
            armed: None,
            raised: Vec::new(),
            watching: false,
            unresponsive_since: None,
            known: false,
            probe_at: None,
            has_no_probes: target.transport == Transport::Udp,
            silences: 1,
            ended: false,
            retransmissions: 0,
            next_xid: random as u32,
            next_serial: 0,
            spare: VecDeque::new(),
            heads: Vec::new(),
            options,
            target,
        }
    }

    pub(super) fn datagrams(&self) -> bool {
        self.target.transport == Transport::Udp
    }

    pub(super) fn callee(&self, procedure: u32) -> Callee {
        Callee { label: self.label.clone(), procedure }
    }

    /// An empty buffer that was used before, if there is one.
    pub(super) fn head(&mut self) -> Vec<u8> {
        self.heads.pop().unwrap_or_default()
    }

    /// Keeps a buffer for the next call.
    pub(super) fn keep_head(&mut self, mut head: Vec<u8>) {
        if self.heads.len() < SPARE_MAX && (1..=SPARE_BYTES_MAX).contains(&head.capacity()) {
            head.clear();
            self.heads.push(head);
        }
    }

    /// The transaction id of a call that is not kept here.
    pub(super) fn number(&mut self) -> u32 {
        let xid = self.next_xid;
        self.next_xid = xid.wrapping_add(1);
        xid
    }

    /// A bulk call that is not kept here, and moves so many bytes, is made; false if the limit is reached.
    pub(super) fn begin_bulk(&mut self, bytes: usize) -> bool {
        if self.bulk_out >= self.limit.count() {
            return false;
        }
        self.bulk_out += 1;
        self.limit.begun(bytes);
        if self.bulk_out >= self.limit.count() {
            self.limit.filled();
        }
        true
    }

    /// It has ended. The waiters for a permit to wake.
    pub(super) fn end_bulk(&mut self, now: Instant, bytes: usize, took: Duration) -> Vec<Waker> {
        self.bulk_out = self.bulk_out.saturating_sub(1);
        self.limit.answered(now, bytes, took);
        if self.has_many_permits() { mem::take(&mut self.permit_waiters) } else { Vec::new() }
    }

    /// Takes a call in; its transaction id, and where its outcome will be told.
    pub(super) fn insert(&mut self, mut call: NewCall, now: Instant) -> (u32, Arc<Cell>) {
        while self.calls.contains_key(&self.next_xid) {
            self.next_xid = self.next_xid.wrapping_add(1);
        }
        let xid = self.next_xid;
        self.next_xid = xid.wrapping_add(1);
        // Behind the record mark (RFC 5531 §9).
        if let Some(place) = call.message.head.get_mut(4..8) {
            place.copy_from_slice(&xid.to_be_bytes());
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let mut spare = if self.spare.len() > SPARE_MIN { self.spare.pop_front() } else { None };
        let cell = Cell::renewed(spare.as_mut().and_then(|spare| spare.cell.take()));
        let mut entry = CallEntry::new(call, cell.clone(), serial, now);
        // One that moves little does not wait for those that move much, where it has a connection without
        // them.
        entry.bulk &= self.connections.len() == 1 || entry.moves_much();
        let bulk = entry.bulk;
        let entry = match spare {
            Some(mut spare) => {
                *spare = entry;
                spare
            }
            None => Box::new(entry),
        };
        self.calls.insert(xid, entry);
        if bulk && (self.bulk_out >= self.limit.count() || self.waiting_count > 0) {
            self.waiting.push_back(xid);
            self.waiting_count += 1;
        } else {
            self.admit(xid, now);
        }
        (xid, cell)
    }

    /// Lets bulk calls go on that waited for the limit, as far as it allows.
    pub(super) fn admit_waiting(&mut self, now: Instant) {
        while self.bulk_out < self.limit.count() {
            let Some(xid) = self.waiting.pop_front() else { break };
            if self.calls.get(&xid).is_some_and(|entry| entry.state == CallState::Waiting) {
                self.waiting_count -= 1;
                self.admit(xid, now);
            }
        }
    }

    /// Puts a call in the queue of the connection that has least to do. The first of several has none that
    /// move much, so that over a slow line nothing small waits behind them.
    fn admit(&mut self, xid: u32, now: Instant) {
        let Some(entry) = self.calls.get_mut(&xid) else { return };
        let load = |(_, connection): &(usize, &mut Connection)| {
            // One that is idle is worth making if all others are busy.
            (connection.calls > 0, connection.calls > 0 && !connection.is_up(), connection.bytes)
        };
        let first = usize::from(self.connections.len() > 1 && entry.moves_much());
        let connections = self.connections.iter_mut().enumerate().skip(first);
        let Some((index, connection)) = connections.min_by_key(load) else { return };
        entry.connection = index;
        entry.state = CallState::Queued;
        entry.begun_at = now;
        if connection.calls == 0 {
            connection.waiting_since = now;
        }
        connection.calls += 1;
        connection.bytes += entry.bytes;
        connection.landings += usize::from(entry.has_long_buffer);
        if entry.bulk {
            self.bulk_out += 1;
            self.limit.begun(entry.bytes);
            if self.bulk_out >= self.limit.count() {
                self.limit.filled();
            }
        }
        connection.queue(entry.bulk).push_back(xid);
    }

    /// What there is to know of the call that a reply over this connection answers; none if it answers
    /// nothing.
    pub(super) fn lookup(&mut self, index: usize, xid: u32) -> Option<Known> {
        let entry = self.calls.get(&xid).filter(|entry| entry.can_be_answered(index))?;
        let receive_buffer = entry.receive_buffer.clone();
        Some(Known { receive_buffer, spare: self.head() })
    }

    /// The reply of a call has come over this connection. False if there is no such call.
    pub(super) fn answer(
        &mut self,
        index: usize,
        xid: u32,
        outcome: Result<Reply, Failure>,
        now: Instant,
        finished: &mut Finished,
    ) -> bool {
        let Some(entry) = self.calls.get(&xid).filter(|entry| entry.can_be_answered(index)) else {
            return false;
        };
        if let Some(connection) = self.connections.get_mut(index) {
            connection.answered();
        }
        self.known = true;
        let took = now.saturating_duration_since(entry.sent_at);
        if entry.transmissions == 1 {
            self.round_trips[usize::from(entry.bulk)].sample(took);
        }
        if entry.bulk {
            let moved = outcome.as_ref().map_or(0, |reply| reply.data_bytes) + entry.call_bytes;
            // With the time in line for the socket: a limit that is too high makes that longer.
            self.limit.answered(now, moved, now.saturating_duration_since(entry.begun_at));
        }
        let procedure = entry.procedure;
        let outcome = outcome.map_err(|failure| failure.of(self.callee(procedure)));
        self.end(xid, outcome, now, finished);
        true
    }

    /// The stream of this connection makes no sense from a reply on: the call that it names fails, or else it
    /// would be sent again for the same. Connecting anew is in no hurry, whatever was answered before. False
    /// if it names no call.
    pub(super) fn fail_malformed(
        &mut self,
        index: usize,
        fault: &ProtocolError,
        now: Instant,
        finished: &mut Finished,
    ) -> bool {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.useful = false;
        }
        let entry = self.calls.get(&fault.xid).filter(|entry| entry.can_be_answered(index));
        let Some(procedure) = entry.map(|entry| entry.procedure) else { return false };
        let failure = Failure::Garbage(Garbage::Record(fault.why));
        self.end(fault.xid, Err(failure.of(self.callee(procedure))), now, finished);
        true
    }

    /// Ends a call, now or when the sending thread is done with its memory.
    pub(super) fn end(&mut self, xid: u32, outcome: Outcome, now: Instant, finished: &mut Finished) {
        let Some(entry) = self.calls.get_mut(&xid) else { return };
        let index = entry.connection;
        let mut broken = false;
        if entry.message.is_none()
            && let Some(connection) = self.connections.get_mut(index)
        {
            if connection.sending {
                entry.decided.get_or_insert(outcome);
                return;
            }
            match connection.batch.stage(xid) {
                Stage::Whole => entry.message = connection.batch.remove(xid),
                // The rest of it goes out as it is; what answers it is not known any more.
                Stage::Begun => {}
                // Its memory may change from now on, so the record must never be complete.
                Stage::BegunWithData => broken = true,
            }
        }
        self.remove(xid, outcome, finished);
        if broken {
            self.lose(index, None, now, finished);
        }
    }

    /// Forgets a call, and has its outcome told.
    pub(super) fn remove(&mut self, xid: u32, outcome: Outcome, finished: &mut Finished) {
        let Some(mut entry) = self.calls.remove(&xid) else { return };
        if entry.state == CallState::Waiting {
            self.waiting_count -= 1;
        } else {
            self.bulk_out -= u32::from(entry.bulk);
            if let Some(connection) = self.connections.get_mut(entry.connection) {
                connection.calls -= 1;
                connection.bytes -= entry.bytes;
                connection.landings -= usize::from(entry.has_long_buffer);
            }
        }
        if let Some(message) = &mut entry.message {
            self.keep_head(mem::take(&mut message.head));
        }
        finished.calls.push((entry, outcome));
    }

    /// Keeps what an ended call has left for the next.
    pub(super) fn keep_entry(&mut self, entry: Box<CallEntry>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push_back(entry);
        }
    }

    /// Whether a bulk call would go on at once.
    pub(super) fn has_permit(&self) -> bool {
        self.bulk_out + self.waiting_count < self.limit.count()
    }

    /// Whether the waiters for permits are to be woken: a quarter of the limit is free, so that they have
    /// some to do.
    pub(super) fn has_many_permits(&self) -> bool {
        let limit = self.limit.count();
        self.bulk_out + self.waiting_count <= limit - limit.div_ceil(4)
    }

    /// Since when the server has said nothing although calls wait for it; none while it speaks or nothing is
    /// wanted.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        // One connection that hears something is enough.
        let silent = self.connections.iter().filter_map(Connection::silent_since).max()?;
        let heard = self.connections.iter().map(|connection| connection.heard_at).max()?;
        Some(silent.max(heard))
    }

    /// How long a call of this client is worth waiting for, with [`Recovery::Soft`](super::Recovery::Soft).
    pub(super) fn patience(&self) -> Duration {
        self.options.timeout.saturating_mul(self.options.retries.saturating_add(1))
    }

    /// When the engine should look at the clock for a call that is made now.
    pub(super) fn alarm_for_call(&self, bulk: bool, now: Instant) -> Instant {
        let wait = match self.datagrams() {
            true => self.round_trips[usize::from(bulk)].wait(1),
            false => self.options.timeout,
        };
        now + wait.min(SILENT)
    }

    /// Has the engine look at the clock then, at the latest. Whether that is news.
    pub(super) fn arm(&mut self, at: Instant) -> bool {
        let is_news = self.armed.is_none_or(|armed| armed > at);
        if is_news {
            self.armed = Some(at);
        }
        is_news
    }

    /// The shortest round trip of calls that are not bulk.
    pub(super) fn round_trip_min(&self) -> Option<Duration> {
        self.round_trips[usize::from(false)].least()
    }

    /// What there is now.
    pub(super) fn read_gauges(&self, now: Instant, counts: &mut Counts) {
        counts.retransmissions = self.retransmissions;
        counts.outstanding = self.calls.len() as u64;
        counts.waiting = u64::from(self.waiting_count);
        counts.in_flight = u64::from(self.limit.count());
        let smoothed = self.round_trips.iter().filter_map(RoundTrip::smoothed);
        counts.round_trip = smoothed.max().unwrap_or_default();
        let unresponsive = self.unresponsive_since.map(|since| now.saturating_duration_since(since));
        counts.unresponsive = unresponsive.unwrap_or_default();
    }
}

/// A server that says nothing for so long is one that calls may be interrupted for.
pub(super) const SILENT: Duration = Duration::from_secs(2);

/// A server that says nothing for so long is told of: it is away, or so slow that people wonder.
pub(super) const NOT_RESPONDING: Duration = Duration::from_secs(5);

/// Transaction ids follow each other, and a server cannot choose them: spreading them is enough.
#[derive(Default)]
pub(super) struct XidHasher(u64);

impl Hasher for XidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
