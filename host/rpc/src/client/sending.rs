//! Sending over a connection, and recovery of its calls when it is lost.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use super::batch::{Batch, Message, Progress};
use super::call_entry::CallState;
use super::connection::Phase;
use super::finished::Finished;
use super::pending::Outcome;
use super::state::ClientState;
use super::wire::Socket;
use tombolo_sys::Errno;

/// Maximum number of calls of a batch, and size beyond which no call is added to it. Between batches,
/// urgent calls overtake queued bulk calls.
const BATCH_COUNT_MAX: usize = 16;
const BATCH_BYTES_MAX: usize = 256 << 10;

/// A batch being sent, with no lock held.
pub(super) struct Job {
    pub(super) index: usize,
    generation: u64,
    pub(super) socket: Arc<dyn Socket>,
    pub(super) batch: Batch,
}

impl ClientState {
    /// Prepares the next batch of a connection, unless a thread is already sending, the socket is not ready
    /// or nothing is queued. The caller must send it.
    pub(super) fn begin_sending(&mut self, index: usize, now: Instant) -> Option<Job> {
        let limits = if self.datagrams() { (1, 0) } else { (BATCH_COUNT_MAX, BATCH_BYTES_MAX) };
        let connection = self.connections.get_mut(index).filter(|connection| connection.wants_to_send())?;
        let socket = connection.socket.clone()?;
        let mut bytes = 0;
        while connection.batch.count() < limits.0 && bytes <= limits.1 {
            let Some(xid) = connection.next() else { break };
            let queued = self.calls.get_mut(&xid).filter(|entry| entry.state == CallState::Queued);
            let Some(entry) = queued else { continue };
            let Some(message) = entry.message.take() else { continue };
            bytes += message.len();
            self.retransmissions += u64::from(entry.transmissions > 0);
            entry.state = CallState::Sending;
            entry.out = true;
            entry.transmissions = entry.transmissions.saturating_add(1);
            entry.sent_at = now;
            connection.batch.push(xid, message);
        }
        if connection.batch.is_empty() {
            return None;
        }
        connection.sending = true;
        let batch = mem::take(&mut connection.batch);
        Some(Job { index, generation: connection.generation, socket, batch })
    }

    /// Records the progress of a sent batch. Returns the next one, if any.
    pub(super) fn after_sending(
        &mut self,
        mut job: Job,
        progress: Progress,
        now: Instant,
        finished: &mut Finished,
    ) -> Option<Job> {
        let index = job.index;
        let connection = self.connections.get_mut(index)?;
        connection.sending = false;
        if connection.generation != job.generation {
            // The connection was lost meanwhile; its calls are queued for the next one.
            self.take_back(&mut job.batch, finished);
            self.connections.get_mut(index)?.batch = job.batch;
            return self.begin_sending(index, now);
        }
        while let Some((xid, message)) = job.batch.pop_sent() {
            self.put_back(xid, message, CallState::Sent, finished);
        }
        let is_full = match progress {
            Progress::Failed(error) if self.datagrams() => {
                self.drop_datagram(index, &mut job.batch, error, finished);
                false
            }
            _ => progress == Progress::Full,
        };
        let connection = self.connections.get_mut(index)?;
        connection.batch = job.batch;
        connection.full = is_full && !mem::take(&mut connection.again);
        connection.again = false;
        while let Some((xid, outcome)) = self.take_decided(index) {
            self.end(xid, outcome, now, finished);
        }
        match progress {
            Progress::Failed(error) if !self.datagrams() => self.lose(index, Some(error), now, finished),
            _ => {}
        }
        self.begin_sending(index, now)
    }

    /// Closes a connection's socket, and queues the connection's calls for its next socket. `why` is `None`
    /// if this client closed the socket on purpose.
    pub(super) fn lose(&mut self, index: usize, why: Option<Errno>, now: Instant, finished: &mut Finished) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if matches!(connection.phase, Phase::Idle | Phase::Waiting { .. }) {
            return;
        }
        if let Some(socket) = connection.socket.take() {
            connection.last_fault = socket.fault();
            socket.shut_down();
        }
        let has_failed = !connection.useful && why.is_some();
        connection.generation += 1;
        connection.phase = Phase::Waiting { until: connection.next_attempt(now) };
        (connection.useful, connection.full, connection.again) = (false, false, false);
        connection.urgent.clear();
        connection.bulk.clear();
        let mut batch = mem::take(&mut connection.batch);
        self.take_back(&mut batch, finished);
        let mut order = Vec::new();
        for (xid, entry) in &mut self.calls {
            if entry.connection == index && entry.state != CallState::Waiting {
                (entry.state, entry.out) = (CallState::Queued, false);
                entry.failures += u32::from(has_failed);
                order.push((entry.serial, *xid, entry.bulk));
            }
        }
        order.sort_unstable();
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.batch = batch;
        order.iter().for_each(|(_, xid, bulk)| connection.queue(*bulk).push_back(*xid));
        if connection.calls == 0 {
            connection.phase = Phase::Idle;
        }
        connection.last_error = why.or(connection.last_error);
        self.limit.lost();
    }

    /// Returns the messages of a batch to their calls.
    fn take_back(&mut self, batch: &mut Batch, finished: &mut Finished) {
        while let Some((xid, message)) = batch.pop() {
            self.put_back(xid, message, CallState::Queued, finished);
        }
    }

    /// Returns a message to its call, and ends the call if that was decided meanwhile.
    fn put_back(&mut self, xid: u32, message: Message, call_state: CallState, finished: &mut Finished) {
        let Some(entry) = self.calls.get_mut(&xid) else {
            finished.data.extend(message.data);
            return self.keep_head(message.head);
        };
        entry.message = Some(message);
        entry.state = call_state;
        if let Some(outcome) = entry.decided.take() {
            self.remove(xid, outcome, finished);
        }
    }

    /// Returns a call in this connection's batch whose end was decided while it was being sent.
    fn take_decided(&mut self, index: usize) -> Option<(u32, Outcome)> {
        let batch = &self.connections.get(index)?.batch;
        batch.xids().find_map(|xid| Some((xid, self.calls.get_mut(&xid)?.decided.take()?)))
    }

    /// Treats a datagram that could not be sent as lost in transit.
    fn drop_datagram(&mut self, index: usize, batch: &mut Batch, error: Errno, finished: &mut Finished) {
        let Some((xid, message)) = batch.pop() else { return };
        self.put_back(xid, message, CallState::Sent, finished);
        self.note_error(index, error);
    }
}
