//! Timer-driven work of the engine, and work deferred by callers: connecting, time-outs, retransmission,
//! interrupts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call_entry::{CallEntry, CallState};
use super::connection::{Connection, Phase};
use super::engine::{ConnectionIo, Engine};
use super::error::CallError;
use super::low_water::LowWater;
use super::options::{Interrupts, Recovery};
use super::reply_reader::ReplyReader;
use super::rpc_client::watch;
use super::state::{ClientState, NOT_RESPONDING, SILENT};
use super::wire::Socket;
use tombolo_core::Interrupt;
use tombolo_sys::Errno;

impl Engine {
    /// Runs all work that is due: connecting, time-outs, probes, interrupts and, if the engine's timer has
    /// expired (`is_due`), retransmissions. Then sets the timer.
    pub(super) fn run_due(&mut self, now: Instant, is_due: bool) {
        if self.shared.lock().ended {
            return self.end(now);
        }
        for index in 0..self.lanes.len() {
            self.run_due_connection(index, now);
        }
        if is_due {
            self.shared.lock().send_again(now);
        }
        if self.shared.lock().becomes_unresponsive(now) {
            tracing::warn!("server {} not responding, still trying", self.shared.host());
        }
        self.probe(now);
        self.fail_timed_out(now);
        self.watch_interrupts(now);
        self.interrupt(now);
        self.resume_waiting();
        let mut state = self.shared.lock();
        let state = &mut *state;
        state.timers.take_due(now, &mut self.finished.wakers);
        let next = state.next_deadline();
        state.armed = if is_due { next } else { [state.armed, next].into_iter().flatten().min() };
    }

    /// Closes a lost connection, logs its fault if calls will not report it, and has the engine reconnect.
    pub(super) fn lose(&mut self, index: usize, why: Errno) {
        let now = self.shared.wire.now();
        tracing::debug!(callee = &*self.shared.label, index, %why, "connection lost");
        // For a soft call, the fault becomes its error.
        let is_hard = self.shared.lock().options.recovery == Recovery::Hard;
        if let Some(fault) = self.lane(index).filter(|_| is_hard).and_then(|lane| lane.socket.fault())
            && let Some(suppressed) = self.shared.faults.allow()
        {
            tracing::warn!(suppressed, "server {}: {fault}", self.shared.host());
        }
        self.shared.lock().lose(index, Some(why), now, &mut self.finished);
        if let Some(lane) = self.lanes.get_mut(index) {
            *lane = None;
        }
        // The next attempt to connect may be due at once.
        self.shared.alarm.raise();
    }

    /// Completes connecting, if the socket is ready, and sends the queued calls.
    pub(super) fn go_on_connecting(&mut self, index: usize) {
        let is_connecting = {
            let state = self.shared.lock();
            state.connections.get(index).is_some_and(|c| matches!(c.phase, Phase::Connecting { .. }))
        };
        let Some(lane) = self.lane(index).filter(|_| is_connecting) else { return };
        match lane.socket.finish_connecting() {
            Ok(()) => {
                let now = self.shared.wire.now();
                let counters = &self.shared.counters;
                counters.connections.increment();
                let mut state = self.shared.lock();
                if let Some(connection) = state.connections.get_mut(index) {
                    counters.reconnects.add(u64::from(connection.generation > 0));
                    connection.phase = Phase::Up;
                    connection.alive_at = now;
                }
                drop(state);
                self.shared.pump(index, &mut self.finished);
                self.connect_others(now);
            }
            Err(Errno::AGAIN) => {}
            Err(error) => self.lose(index, error),
        }
    }

    /// Establishes the remaining connections once the server responds, before calls need them: the first
    /// call over each is spared the round trip of connecting.
    fn connect_others(&mut self, now: Instant) {
        for index in 0..self.lanes.len() {
            let is_new = {
                let state = self.shared.lock();
                state.connections.get(index).is_some_and(Connection::is_new)
            };
            if is_new {
                self.connect(index, now);
            }
        }
    }

    fn run_due_connection(&mut self, index: usize, now: Instant) {
        let (phase, calls, token, is_silent, timeout) = {
            let state = self.shared.lock();
            let timeout = state.options.timeout;
            let Some(connection) = state.connections.get(index) else { return };
            let silent = connection.silent_since().filter(|_| !self.shared.datagrams);
            let is_silent = silent.is_some_and(|since| now.saturating_duration_since(since) >= timeout);
            (connection.phase, connection.calls, connection.token(index), is_silent, timeout)
        };
        // A sending thread may have found the socket broken, and closed it.
        if let Some(lane) = self.lanes.get_mut(index)
            && lane.as_ref().is_some_and(|lane| lane.token != token)
        {
            *lane = None;
        }
        match phase {
            Phase::Idle if calls > 0 => self.connect(index, now),
            Phase::Waiting { .. } if calls == 0 => {
                if let Some(connection) = self.shared.lock().connections.get_mut(index) {
                    connection.phase = Phase::Idle;
                }
            }
            Phase::Waiting { until } if until <= now => self.connect(index, now),
            Phase::Connecting { since } if now.saturating_duration_since(since) >= timeout => {
                self.lose(index, Errno::TIMEDOUT);
            }
            Phase::Up if is_silent => self.lose(index, Errno::TIMEDOUT),
            _ => {}
        }
    }

    fn connect(&mut self, index: usize, now: Instant) {
        let (target, token, reserved_port) = {
            let mut state = self.shared.lock();
            let (target, reserved_port) = (state.target, state.options.reserved_port);
            let Some(connection) = state.connections.get_mut(index) else { return };
            connection.phase = Phase::Connecting { since: now };
            (target, connection.token(index), reserved_port)
        };
        match self.shared.wire.connect(&target, token, reserved_port) {
            Ok(socket) => {
                let socket: Arc<dyn Socket> = Arc::from(socket);
                let mut state = self.shared.lock();
                let reader = ReplyReader::new(state.options.reply_bytes_max);
                if let Some(connection) = state.connections.get_mut(index) {
                    connection.socket = Some(socket.clone());
                }
                drop(state);
                if let Some(place) = self.lanes.get_mut(index) {
                    *place = Some(ConnectionIo {
                        token,
                        socket,
                        reader,
                        low_water: LowWater::new(),
                        readable: false,
                        finished: false,
                    });
                }
            }
            Err(error) => self.lose(index, error),
        }
    }

    /// Ends a call, also while its data are being received.
    fn end_call(&mut self, xid: u32, error: CallError, now: Instant) {
        for lane in self.lanes.iter_mut().flatten().filter(|lane| lane.reader.direct_xid() == Some(xid)) {
            lane.reader.abandon_direct();
        }
        self.shared.lock().end(xid, Err(error), now, &mut self.finished);
    }

    /// Fails calls that have timed out, with [`Recovery::Soft`].
    fn fail_timed_out(&mut self, now: Instant) {
        let lost = self.shared.lock().timed_out_calls(now);
        for (xid, error) in lost {
            self.end_call(xid, error, now);
        }
    }

    /// Watches, with [`Interrupts::WhenSilent`], the interrupts of all calls once the server is silent, and
    /// those of overdue calls at any time.
    fn watch_interrupts(&mut self, now: Instant) {
        let watched = self.shared.lock().newly_watched(now);
        for (xid, interrupt) in watched {
            watch(&self.shared, xid, &interrupt);
        }
    }

    /// Ends calls whose interrupt was raised, if interrupts apply to them.
    fn interrupt(&mut self, now: Instant) {
        let interrupted = self.shared.lock().interrupted(now);
        for (xid, error) in interrupted {
            self.end_call(xid, error, now);
        }
    }

    /// Ends all calls and connections after the last client is dropped.
    fn end(&mut self, now: Instant) {
        self.lanes.iter_mut().for_each(|lane| *lane = None);
        let mut state = self.shared.lock();
        let state = &mut *state;
        let mut calls: Vec<_> = state.calls.iter().map(|(xid, entry)| (*xid, entry.procedure)).collect();
        calls.sort_unstable();
        for index in 0..state.connections.len() {
            state.lose(index, None, now, &mut self.finished);
        }
        for (xid, procedure) in calls {
            let ended = Err(CallError::Ended { callee: state.callee(procedure) });
            state.end(xid, ended, now, &mut self.finished);
        }
        state.timers.take_all(&mut self.finished.wakers);
        self.finished.wakers.append(&mut state.permit_waiters);
        state.armed = None;
        self.ended = true;
    }
}

impl ClientState {
    /// Records data received over this connection. Returns `true` if the server was reported as not
    /// responding.
    pub(super) fn record_received(&mut self, index: usize, now: Instant) -> bool {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.alive_at = now;
        }
        if self.watching {
            self.watching = false;
            self.silences += 1;
        }
        self.unresponsive_since.take().is_some()
    }

    /// Returns `true` if the server must now be reported as not responding, once for each silence.
    fn becomes_unresponsive(&mut self, now: Instant) -> bool {
        let since = self.silent_since().filter(|_| self.unresponsive_since.is_none());
        let since = since.filter(|since| now.saturating_duration_since(*since) >= NOT_RESPONDING);
        self.unresponsive_since = self.unresponsive_since.or(since);
        since.is_some()
    }

    /// Returns `true` if this connection awaits data with a long receive buffer.
    pub(super) fn awaits_data(&self, index: usize) -> bool {
        !self.datagrams() && self.connections.get(index).is_some_and(|connection| connection.long_buffers > 0)
    }

    /// Records the error of an earlier datagram.
    pub(super) fn note_error(&mut self, index: usize, error: Errno) {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.last_error = Some(error);
        }
    }

    /// Returns the time of the next timer; `None` if nothing is awaited.
    fn next_deadline(&self) -> Option<Instant> {
        let (timeout, total_timeout) = (self.options.timeout, self.total_timeout());
        let soft = self.options.recovery == Recovery::Soft;
        let of_connections = self.connections.iter().filter_map(|connection| match connection.phase {
            Phase::Connecting { since } => Some(since + timeout),
            Phase::Waiting { until } => Some(until),
            Phase::Up if !self.datagrams() => Some(connection.silent_since()? + timeout),
            _ => None,
        });
        let of_calls = self.calls.values().flat_map(|entry| {
            let again = (entry.state == CallState::Sent).then(|| entry.sent_at + self.wait_for(entry));
            // Over UDP the last retransmission time-out counts instead.
            let patient = soft && !self.datagrams() && entry.state != CallState::Waiting;
            let lost = patient.then(|| entry.begun_at + total_timeout);
            let old = self.is_to_be_watched(entry).then(|| entry.begun_at + SILENT);
            [again, lost, old].into_iter().flatten()
        });
        let silence = match self.options.interrupts {
            Interrupts::WhenSilent if !self.watching => self.silent_since().map(|since| since + SILENT),
            _ => None,
        };
        let silent = self.silent_since().filter(|_| self.unresponsive_since.is_none());
        let unresponsive = silent.map(|since| since + NOT_RESPONDING);
        let probe = self.probe_deadline();
        let all = of_connections.chain(of_calls).chain(silence).chain(unresponsive).chain(probe);
        all.chain(self.timers.next()).min()
    }

    /// Returns the time from a transmission of this call to the next one.
    fn wait_for(&self, entry: &CallEntry) -> Duration {
        match self.datagrams() {
            true => self.round_trips[usize::from(entry.bulk)].wait(entry.transmissions),
            false => self.options.timeout,
        }
    }

    /// Queues overdue calls for retransmission.
    fn send_again(&mut self, now: Instant) {
        let is_due = |entry: &CallEntry| {
            entry.state == CallState::Sent
                && now.saturating_duration_since(entry.sent_at) >= self.wait_for(entry)
        };
        let mut due: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, entry)| is_due(entry))
            .map(|(xid, entry)| (entry.serial, *xid))
            .collect();
        due.sort_unstable();
        if !due.is_empty() {
            self.limit.lost();
        }
        for (_, xid) in due {
            let Some(entry) = self.calls.get_mut(&xid) else { continue };
            let Some(connection) = self.connections.get_mut(entry.connection) else { continue };
            entry.state = CallState::Queued;
            connection.queue(entry.bulk).push_back(xid);
        }
    }

    /// Returns the calls that have timed out, with their errors.
    fn timed_out_calls(&self, now: Instant) -> Vec<(u32, CallError)> {
        if self.options.recovery == Recovery::Hard {
            return Vec::new();
        }
        let (total_timeout, retries) = (self.total_timeout(), self.options.retries);
        let silence = self.silent_since().map(|since| now.saturating_duration_since(since));
        let is_lost = |entry: &CallEntry| match entry.state {
            CallState::Waiting => silence.is_some_and(|silence| silence >= total_timeout),
            _ if self.datagrams() => {
                entry.transmissions > retries
                    && now.saturating_duration_since(entry.sent_at) >= self.wait_for(entry)
            }
            // Repeated failures to connect to a server that never answered are final. A server that has
            // answered may be restarting.
            _ => {
                now.saturating_duration_since(entry.begun_at) >= total_timeout
                    || !self.has_answered && entry.failures > retries
            }
        };
        let entries = self.calls.iter().map(|(xid, entry)| (*xid, &**entry));
        let mut lost: Vec<_> = entries.filter(|(_, entry)| is_lost(entry)).collect();
        lost.sort_unstable_by_key(|(_, entry)| entry.serial);
        let error = |entry: &CallEntry| {
            let callee = self.callee(entry.procedure);
            let connection = self.connections.get(entry.connection);
            let failing = connection.filter(|connection| !connection.is_up() || self.datagrams());
            match failing.map(|connection| (connection.last_fault.clone(), connection.last_error)) {
                Some((Some(fault), _)) => fault.of(callee),
                Some((None, Some(source))) => CallError::Unreachable { callee, source },
                _ => CallError::TimedOut { callee },
            }
        };
        lost.into_iter().map(|(xid, entry)| (xid, error(entry))).collect()
    }

    /// Returns `true` if the server has been silent for long enough that interrupts end calls.
    fn is_silent(&self, now: Instant) -> bool {
        self.silent_since().is_some_and(|since| now.saturating_duration_since(since) >= SILENT)
    }

    /// Returns `true` if an interrupt ends this call now. A server that answers other calls may still never
    /// answer this one.
    fn may_interrupt(&self, entry: &CallEntry, now: Instant) -> bool {
        match self.options.interrupts {
            Interrupts::Always => true,
            Interrupts::WhenSilent => self.is_silent(now) || is_old(entry, now),
            Interrupts::Never => false,
        }
    }

    /// Returns `true` if the call's interrupt must be watched once the call is overdue.
    fn is_to_be_watched(&self, entry: &CallEntry) -> bool {
        let when_silent = self.options.interrupts == Interrupts::WhenSilent;
        when_silent && !entry.is_watched && entry.interrupt.can_be_raised()
    }

    /// Returns calls whose interrupts must be watched from now on, because the server is silent or the calls
    /// are overdue.
    fn newly_watched(&mut self, now: Instant) -> Vec<(u32, Interrupt)> {
        if self.options.interrupts != Interrupts::WhenSilent {
            return Vec::new();
        }
        let is_silent = self.is_silent(now);
        self.watching |= is_silent;
        let silences = self.silences;
        let mut watched = Vec::new();
        for (xid, entry) in &mut self.calls {
            if entry.is_watched || !entry.interrupt.can_be_raised() {
                continue;
            }
            entry.is_watched = is_old(entry, now);
            if entry.is_watched || is_silent && entry.watched_in != silences {
                entry.watched_in = silences;
                watched.push((*xid, entry.interrupt.clone()));
            }
        }
        watched.sort_unstable_by_key(|(xid, _)| *xid);
        watched
    }

    /// Returns the calls ended by their interrupts.
    fn interrupted(&mut self, now: Instant) -> Vec<(u32, CallError)> {
        let raised = std::mem::take(&mut self.raised);
        let mut ending = Vec::new();
        for xid in raised {
            let entry = self.calls.get(&xid).filter(|entry| entry.interrupt.is_raised());
            if let Some(entry) = entry.filter(|entry| self.may_interrupt(entry, now)) {
                ending.push((xid, CallError::Interrupted { callee: self.callee(entry.procedure) }));
            }
        }
        ending
    }
}

/// Returns `true` if a call is so overdue that an interrupt ends it, even if the server responds to others.
fn is_old(entry: &CallEntry, now: Instant) -> bool {
    now.saturating_duration_since(entry.begun_at) >= SILENT
}
