//! State of a client's calls, under one lock that is never held while sending, receiving or waking. Calls
//! over links are not in its table, but use its limit, timers and buffers.

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
use super::error::{Callee, Failure, InvalidReply};
use super::finished::Finished;
use super::limit::Limit;
use super::options::{Options, Target, Transport};
use super::pending::{Cell, Outcome};
use super::reply_reader::ProtocolError;
use super::round_trip::RoundTrip;
use super::timers::Timers;

/// Number of spare entries that must be newer than the oldest one before the oldest is reused, because the
/// waiter of the oldest entry's outcome may still be using the entry's cell.
const SPARE_MIN: usize = 8;

/// Maximum number of entries and of buffers retained for reuse.
const SPARE_MAX: usize = 256;

/// Maximum capacity of a retained buffer.
const SPARE_BYTES_MAX: usize = 16 << 10;

/// State of a client's calls.
pub(super) struct ClientState {
    pub(super) options: Options,
    pub(super) target: Target,
    pub(super) calls: HashMap<u32, Box<CallEntry>, BuildHasherDefault<XidHasher>>,
    pub(super) connections: Vec<Connection>,
    /// Bulk calls waiting for the limit; may contain calls that have ended, unlike `waiting_count`.
    waiting: VecDeque<u32>,
    pub(super) waiting_count: u32,
    /// Number of bulk calls within the limit.
    pub(super) bulk_out: u32,
    pub(super) limit: Limit,
    /// Estimates for calls that are not bulk, and for bulk calls.
    pub(super) round_trips: [RoundTrip; 2],
    pub(super) permit_waiters: Vec<Waker>,
    pub(super) timers: Timers,
    /// Time of the engine's next timer.
    pub(super) armed: Option<Instant>,
    /// Calls whose interrupt may have been raised.
    pub(super) raised: Vec<u32>,
    /// `true` if the interrupts of all calls are watched because the server is silent.
    pub(super) watching: bool,
    /// Start of the server's current silence, once it was logged.
    pub(super) unresponsive_since: Option<Instant>,
    /// `true` once the server has answered a call.
    pub(super) has_answered: bool,
    /// Time of the next probe of the silent server.
    pub(super) probe_at: Option<Instant>,
    /// `true` if the wire does not support probes.
    pub(super) has_no_probes: bool,
    /// Number of the server's current silence, or of the next one, from 1.
    pub(super) silences: u64,
    pub(super) ended: bool,
    pub(super) retransmissions: u64,
    label: Arc<str>,
    next_xid: u32,
    next_serial: u64,
    /// Entries of ended calls for reuse, oldest first.
    spare: VecDeque<Box<CallEntry>>,
    /// Empty buffers for encoded calls and for results.
    heads: Vec<Vec<u8>>,
}

/// Data of a call needed to receive its reply.
pub(super) struct ReplyContext {
    pub(super) receive_buffer: Option<ReceiveBuffer>,
    /// Buffer for the results.
    pub(super) spare: Vec<u8>,
}

impl ClientState {
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
            has_answered: false,
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

    /// Returns an empty buffer, reused if possible.
    pub(super) fn head(&mut self) -> Vec<u8> {
        self.heads.pop().unwrap_or_default()
    }

    pub(super) fn keep_head(&mut self, mut head: Vec<u8>) {
        if self.heads.len() < SPARE_MAX && (1..=SPARE_BYTES_MAX).contains(&head.capacity()) {
            head.clear();
            self.heads.push(head);
        }
    }

    /// Returns the transaction id for a call over a link, which is not stored in this table.
    pub(super) fn number(&mut self) -> u32 {
        let xid = self.next_xid;
        self.next_xid = xid.wrapping_add(1);
        xid
    }

    /// Counts a bulk call over a link that moves `bytes`. Returns `false`, without counting it, if the limit
    /// is reached.
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

    /// Counts the end of a bulk call over a link. Returns the waiters for a permit to wake.
    pub(super) fn end_bulk(&mut self, now: Instant, bytes: usize, took: Duration) -> Vec<Waker> {
        self.bulk_out = self.bulk_out.saturating_sub(1);
        self.limit.answered(now, bytes, took);
        if self.has_many_permits() { mem::take(&mut self.permit_waiters) } else { Vec::new() }
    }

    /// Stores a call, and queues it unless it must wait for the limit. Returns its transaction id and the
    /// cell for its outcome.
    pub(super) fn insert(&mut self, mut call: NewCall, now: Instant) -> (u32, Arc<Cell>) {
        while self.calls.contains_key(&self.next_xid) {
            self.next_xid = self.next_xid.wrapping_add(1);
        }
        let xid = self.next_xid;
        self.next_xid = xid.wrapping_add(1);
        // The transaction id follows the record mark (RFC 5531 §9).
        if let Some(place) = call.message.head.get_mut(4..8) {
            place.copy_from_slice(&xid.to_be_bytes());
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let mut spare = if self.spare.len() > SPARE_MIN { self.spare.pop_front() } else { None };
        let cell = Cell::renewed(spare.as_mut().and_then(|spare| spare.cell.take()));
        let mut entry = CallEntry::new(call, cell.clone(), serial, now);
        // A call that moves little does not wait behind large ones if there is a connection reserved for
        // small calls.
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

    /// Queues waiting bulk calls, as far as the limit allows.
    pub(super) fn admit_waiting(&mut self, now: Instant) {
        while self.bulk_out < self.limit.count() {
            let Some(xid) = self.waiting.pop_front() else { break };
            if self.calls.get(&xid).is_some_and(|entry| entry.state == CallState::Waiting) {
                self.waiting_count -= 1;
                self.admit(xid, now);
            }
        }
    }

    /// Assigns a call to the least loaded connection. The first of several carries no large calls, so that
    /// small calls over a slow network are not delayed by them.
    fn admit(&mut self, xid: u32, now: Instant) {
        let Some(entry) = self.calls.get_mut(&xid) else { return };
        let load = |(_, connection): &(usize, &mut Connection)| {
            // An idle connection is worth establishing if all others are busy.
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
        connection.long_buffers += usize::from(entry.has_long_buffer);
        if entry.bulk {
            self.bulk_out += 1;
            self.limit.begun(entry.bytes);
            if self.bulk_out >= self.limit.count() {
                self.limit.filled();
            }
        }
        connection.queue(entry.bulk).push_back(xid);
    }

    /// Returns the data needed to receive a reply over this connection, or `None` if no such call is
    /// outstanding.
    pub(super) fn lookup(&mut self, index: usize, xid: u32) -> Option<ReplyContext> {
        let entry = self.calls.get(&xid).filter(|entry| entry.can_be_answered(index))?;
        let receive_buffer = entry.receive_buffer.clone();
        Some(ReplyContext { receive_buffer, spare: self.head() })
    }

    /// Completes a call with its reply. Returns `false` if no such call is outstanding.
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
        self.has_answered = true;
        let took = now.saturating_duration_since(entry.sent_at);
        if entry.transmissions == 1 {
            self.round_trips[usize::from(entry.bulk)].sample(took);
        }
        if entry.bulk {
            let moved = outcome.as_ref().map_or(0, |reply| reply.data_bytes) + entry.call_bytes;
            // The duration includes the time queued for the socket, which too high a limit lengthens.
            self.limit.answered(now, moved, now.saturating_duration_since(entry.begun_at));
        }
        let procedure = entry.procedure;
        let outcome = outcome.map_err(|failure| failure.of(self.callee(procedure)));
        self.end(xid, outcome, now, finished);
        true
    }

    /// Fails the call named by a malformed reply; it would otherwise be retransmitted and fail again. The
    /// reconnect is delayed, regardless of earlier answers. Returns `false` if no such call is outstanding.
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
        let failure = Failure::InvalidReply(InvalidReply::Record(fault.why));
        self.end(fault.xid, Err(failure.of(self.callee(procedure))), now, finished);
        true
    }

    /// Ends a call, now or once the sending thread no longer uses its memory.
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
                // The remainder of the message is still sent; the reply will be ignored as unknown.
                Stage::Begun => {}
                // The caller may change the memory of the data from now on, so the record must never be
                // completed.
                Stage::BegunWithData => broken = true,
            }
        }
        self.remove(xid, outcome, finished);
        if broken {
            self.lose(index, None, now, finished);
        }
    }

    /// Removes a call from the table, and adds it with its outcome to `finished`.
    pub(super) fn remove(&mut self, xid: u32, outcome: Outcome, finished: &mut Finished) {
        let Some(mut entry) = self.calls.remove(&xid) else { return };
        if entry.state == CallState::Waiting {
            self.waiting_count -= 1;
        } else {
            self.bulk_out -= u32::from(entry.bulk);
            if let Some(connection) = self.connections.get_mut(entry.connection) {
                connection.calls -= 1;
                connection.bytes -= entry.bytes;
                connection.long_buffers -= usize::from(entry.has_long_buffer);
            }
        }
        if let Some(message) = &mut entry.message {
            self.keep_head(mem::take(&mut message.head));
        }
        finished.calls.push((entry, outcome));
    }

    /// Retains the entry of an ended call for reuse.
    pub(super) fn keep_entry(&mut self, entry: Box<CallEntry>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push_back(entry);
        }
    }

    /// Returns `true` if a bulk call would proceed at once.
    pub(super) fn has_permit(&self) -> bool {
        self.bulk_out + self.waiting_count < self.limit.count()
    }

    /// Returns `true` if at least a quarter of the limit is free, which makes waking the permit waiters
    /// worthwhile.
    pub(super) fn has_many_permits(&self) -> bool {
        let limit = self.limit.count();
        self.bulk_out + self.waiting_count <= limit - limit.div_ceil(4)
    }

    /// Returns the time since which the server has been silent with calls outstanding, a recent one if it
    /// responds; `None` if nothing is outstanding.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        // One responding connection proves that the server is alive.
        let silent = self.connections.iter().filter_map(Connection::silent_since).max()?;
        let alive = self.connections.iter().map(|connection| connection.alive_at).max()?;
        Some(silent.max(alive))
    }

    /// Returns the total time-out of a call with [`Recovery::Soft`](super::Recovery::Soft).
    pub(super) fn total_timeout(&self) -> Duration {
        self.options.timeout.saturating_mul(self.options.retries.saturating_add(1))
    }

    /// Returns the time at which the engine must run for a call made now: to retransmit it, or to watch its
    /// interrupt.
    pub(super) fn alarm_for_call(&self, bulk: bool, now: Instant) -> Instant {
        let wait = match self.datagrams() {
            true => self.round_trips[usize::from(bulk)].wait(1),
            false => self.options.timeout,
        };
        now + wait.min(SILENT)
    }

    /// Sets the engine's timer to `at` at the latest. Returns `true` if that brings it forward.
    pub(super) fn arm(&mut self, at: Instant) -> bool {
        let is_earlier = self.armed.is_none_or(|armed| armed > at);
        if is_earlier {
            self.armed = Some(at);
        }
        is_earlier
    }

    /// Returns the shortest round trip of calls that are not bulk.
    pub(super) fn round_trip_min(&self) -> Option<Duration> {
        self.round_trips[usize::from(false)].least()
    }

    /// Sets the gauges in `counts`, and the number of retransmissions.
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

/// Silence of the server after which calls may be interrupted and the server is probed; age of a call from
/// which it may be interrupted even if the server responds.
pub(super) const SILENT: Duration = Duration::from_secs(2);

/// Silence of the server after which it is reported as not responding.
pub(super) const NOT_RESPONDING: Duration = Duration::from_secs(5);

/// A hash of transaction ids, which are sequential and not chosen by the server, so that spreading them is
/// enough.
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
