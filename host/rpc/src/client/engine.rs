//! [`Engine`]: receiving, connecting and time-outs, run by one thread; deterministic given the wire's
//! behaviour.
//!
//! Only the engine decides that a call ends, so no receive buffer returns to its owner while the engine
//! receives into it. (If another thread is sending the call, that thread delivers the outcome afterwards.)
//! The engine holds no lock while it receives, sends or wakes. The lock covers the look-up of the calls that
//! the received replies answer, and the copying of short replies.

use std::sync::Arc;
use std::time::Instant;

use super::finished::Finished;
use super::low_water::LowWater;
use super::probe::Probe;
use super::reply_reader::{ProtocolError, Received, ReplyReader, Step};
use super::shared::SharedClient;
use super::state::ClientState;
use super::wire::{Event, Socket, SocketToken};
use tombolo_sys::Errno;

/// Numbers of replies and bytes after which waiters are woken before more is received.
const TURN_REPLIES: usize = 64;
const TURN_BYTES: usize = 2 << 20;

/// Event handler of a client, run by the receiver thread, or by the caller of
/// [`RpcClient::over`](super::RpcClient::over), who owns it.
///
/// The owner reports events with [`ready`](Self::ready), and calls [`expire`](Self::expire) when
/// [`next_deadline`](Self::next_deadline) is reached; any call made or ended may bring the deadline forward.
pub struct Engine {
    pub(super) shared: Arc<SharedClient>,
    /// Receiving sides by the connection's index; `None` while a connection has no socket.
    pub(super) lanes: Vec<Option<ConnectionIo>>,
    pub(super) finished: Finished,
    pub(super) probe: Probe,
    pub(super) ended: bool,
}

/// Receiving side of one connection.
pub(super) struct ConnectionIo {
    pub(super) token: SocketToken,
    pub(super) socket: Arc<dyn Socket>,
    pub(super) reader: ReplyReader,
    /// `true` if there may be more to receive.
    pub(super) readable: bool,
    pub(super) low_water: LowWater,
    /// `true` if the peer has ended its stream: no further event reports that, so receiving continues up to
    /// the end.
    pub(super) finished: bool,
}

/// Reason for the end of receiving from one connection.
enum ReceiveEnd {
    /// The socket has no more data.
    Empty,
    /// The quota is used up: the waiters are woken before receiving continues.
    Used,
    Lost(Errno),
}

impl Engine {
    pub(super) fn new(shared: Arc<SharedClient>) -> Self {
        let count = shared.lock().connections.len();
        let lanes = (0..count).map(|_| None).collect();
        Self { shared, lanes, finished: Finished::default(), probe: Probe::default(), ended: false }
    }

    /// Handles an event of a socket. Events of sockets that the engine no longer uses are ignored.
    pub fn ready(&mut self, token: SocketToken, event: Event) {
        let index = token.index();
        let Some(lane) = self.lane(index).filter(|lane| lane.token == token) else { return };
        lane.readable |= event.readable;
        self.go_on_connecting(index);
        if event.writable {
            self.writable(index);
        }
        self.turn(index);
        self.wake_finished();
    }

    /// Records that the peer has ended its stream. The owner must call this before [`ready`](Self::ready) for
    /// the same event, which otherwise stops receiving after a short read, before the end of the stream.
    pub fn finished(&mut self, token: SocketToken) {
        if let Some(lane) = self.lane(token.index()).filter(|lane| lane.token == token) {
            lane.finished = true;
        }
    }

    /// Tries to receive without an event, if exactly one connection has a socket. Returns `true` if there was
    /// work.
    pub(super) fn poll_once(&mut self) -> bool {
        let mut places =
            self.lanes.iter_mut().enumerate().filter_map(|(index, lane)| Some((index, lane.as_mut()?)));
        let (Some((index, lane)), None) = (places.next(), places.next()) else { return false };
        lane.readable = true;
        let worked = self.turn(index);
        self.wake_finished();
        worked
    }

    /// Runs timers that are due and work deferred by callers.
    pub fn expire(&mut self) {
        let now = self.shared.wire.now();
        let is_called = self.shared.alarm.take();
        let is_due = self.shared.lock().armed.is_some_and(|armed| armed <= now);
        if is_called || is_due {
            self.run_due(now, is_due);
        }
        for index in 0..self.lanes.len() {
            self.turn(index);
        }
        self.wake_finished();
    }

    /// Returns the time of the next [`expire`](Self::expire); `None` if no timer is set.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.ended {
            return None;
        }
        let is_busy = self.lanes.iter().flatten().any(|lane| lane.readable);
        if is_busy || self.shared.alarm.is_raised() {
            return Some(self.shared.wire.now());
        }
        self.shared.lock().armed
    }

    /// Returns `true` once the last client is dropped and the engine has ended all calls. A call that another
    /// thread is sending at that time ends when the thread has finished sending.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn lane(&mut self, index: usize) -> Option<&mut ConnectionIo> {
        self.lanes.get_mut(index)?.as_mut()
    }

    fn wake_finished(&mut self) {
        self.finished.wake(&self.shared);
    }

    fn writable(&mut self, index: usize) {
        let now = self.shared.wire.now();
        if let Some(connection) = self.shared.lock().connections.get_mut(index) {
            connection.again = connection.sending;
            if connection.full {
                // The peer has received data, so it is alive. Data accepted by the socket buffer alone would
                // not prove that.
                connection.alive_at = now;
            }
            connection.full = false;
        }
        self.shared.pump(index, &mut self.finished);
    }

    /// Receives from a connection, up to a limit, and sends calls that waited for the in-flight limit.
    /// Returns `true` if there was work.
    fn turn(&mut self, index: usize) -> bool {
        if !self.lane(index).is_some_and(|lane| lane.readable) {
            return false;
        }
        let mut bytes = 0;
        let end = self.receive(index, &mut bytes);
        let now = self.shared.wire.now();
        if let Some(lane) = self.lane(index) {
            lane.readable = matches!(end, ReceiveEnd::Used);
            if bytes > 0 && matches!(end, ReceiveEnd::Empty) {
                lane.low_water.after_turn(&*lane.socket, bytes, lane.reader.missing_data(), now);
            }
        }
        match end {
            ReceiveEnd::Empty if bytes == 0 => return false,
            ReceiveEnd::Lost(why) => self.lose(index, why),
            _ => {}
        }
        self.shared.counters.turns.increment();
        self.resume_waiting();
        true
    }

    fn receive(&mut self, index: usize, bytes: &mut usize) -> ReceiveEnd {
        let Self { shared, lanes, finished, .. } = self;
        let Some(Some(lane)) = lanes.get_mut(index) else { return ReceiveEnd::Empty };
        let mut replies = 0;
        let mut awaits_data = shared.lock().awaits_data(index);
        while replies < TURN_REPLIES && *bytes < TURN_BYTES {
            let received = match lane.reader.receive(&*lane.socket, awaits_data) {
                Ok(Received { bytes: 0, .. }) if !shared.datagrams => {
                    return ReceiveEnd::Lost(Errno::CONNRESET);
                }
                Ok(received) => received,
                Err(Errno::AGAIN) => return ReceiveEnd::Empty,
                Err(error) if shared.datagrams => {
                    // The error concerns a datagram sent earlier.
                    shared.lock().note_error(index, error);
                    replies += 1;
                    continue;
                }
                Err(error) => return ReceiveEnd::Lost(error),
            };
            *bytes += received.bytes;
            shared.counters.received_bytes.add_len(received.bytes);
            shared.counters.landed_bytes.add_len(received.direct);
            let now = shared.wire.now();
            let mut state = shared.lock();
            let is_back = state.record_received(index, now);
            let answered = answer_all(shared, &mut state, lane, now, finished);
            awaits_data = state.awaits_data(index);
            drop(state);
            if is_back {
                tracing::warn!("server {} OK", shared.host());
            }
            match answered {
                Ok(_) if received.is_less && lane.socket.is_emptied_by_less() && !lane.finished => {
                    return ReceiveEnd::Empty;
                }
                Ok(count) => replies += count,
                Err(fault) => {
                    tracing::warn!(callee = &*shared.label, fault = %fault.why, "closing connection: protocol violation by server");
                    let is_ours = shared.lock().fail_malformed(index, &fault, now, finished);
                    let counters = &shared.counters;
                    if is_ours { &counters.garbage } else { &counters.unknown_replies }.increment();
                    return ReceiveEnd::Lost(Errno::BADMSG);
                }
            }
        }
        ReceiveEnd::Used
    }

    /// Queues calls that waited for the in-flight limit, wakes waiters for permits if many are free, and
    /// sends the queued calls.
    pub(super) fn resume_waiting(&mut self) {
        let now = self.shared.wire.now();
        let mut next = 0;
        loop {
            let mut state = self.shared.lock();
            if next == 0 {
                let state = &mut *state;
                state.admit_waiting(now);
                if state.has_many_permits() {
                    self.finished.wakers.append(&mut state.permit_waiters);
                }
            }
            let sender = |index: &usize| state.connections.get(*index).is_some_and(|c| c.wants_to_send());
            let Some(index) = (next..self.lanes.len()).find(sender) else { return };
            let job = state.begin_sending(index, now);
            drop(state);
            self.shared.send(job, &mut self.finished);
            next = index + 1;
        }
    }
}

/// Completes the calls whose replies were received. Returns their number, or an error if the stream is
/// malformed.
fn answer_all(
    shared: &SharedClient,
    state: &mut ClientState,
    lane: &mut ConnectionIo,
    now: Instant,
    finished: &mut Finished,
) -> Result<usize, ProtocolError> {
    let index = lane.token.index();
    let mut count = 0;
    loop {
        let mut lookup = |xid| state.lookup(index, xid);
        let step = match shared.datagrams {
            true => lane.reader.datagram(&mut lookup),
            false => lane.reader.next(&mut lookup)?,
        };
        match step {
            Step::Receive => return Ok(count),
            Step::Unknown => shared.counters.unknown_replies.increment(),
            Step::Reply(incoming) => {
                count += 1;
                shared.counters.copied_bytes.add_len(incoming.copied_bytes);
                shared.counters.garbage.add(u64::from(incoming.is_garbage()));
                match state.answer(index, incoming.xid, incoming.outcome, now, finished) {
                    true => shared.counters.replies.increment(),
                    false => shared.counters.unknown_replies.increment(),
                }
            }
        }
        if shared.datagrams {
            return Ok(count);
        }
    }
}
