//! Receiving side and life cycle of one connection, as owned by its event thread.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::{Calls, Destination, RunResult};
use super::common::{Common, Exchanges};
use super::options::Options;
use super::record_reader::{ReceiveArea, RecordReader, Step};
use super::security::{self, FirstCall, Security};
use super::service::{HEAD_BYTES, LONG_HEAD_BYTES, Outcome};
use super::shared_connection::SharedConnection;
use tombolo_mem::Source;
use tombolo_sys::{Errno, tcp};

use tombolo_host_runtime::buffer_pool::Lease;
use tombolo_host_runtime::waiters::{Queued, Waiter};

/// Maximum number of calls served in one turn, for fairness.
const TURN_CALLS_MAX: usize = 32;

/// Maximum number of bytes received in one turn.
const TURN_BYTES_MAX: usize = 2 << 20;

/// Number of queued reply bytes that triggers a send before the turn ends, so that their buffers are reused
/// while cached.
const FLUSH_BYTES: usize = 256 << 10;

/// Number of bytes of an incomplete call that counts as activity; a client that sends fewer within the
/// time-out counts as idle.
const TRICKLE_BYTES: usize = 16 << 10;

/// Limits on reading after the last reply: closing a socket with unread input could destroy that reply in
/// transit.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 8 << 20;

/// Resources of an event thread, shared by its connections.
pub(super) struct ThreadContext {
    pub(super) common: Arc<Common>,
    pub(super) calls: Box<dyn Calls>,
    pub(super) exchanges: Exchanges,
    pub(super) area: ReceiveArea,
}

/// Receiving side and phase of one connection.
pub(super) struct Connection {
    pub(super) shared: Arc<SharedConnection>,
    reader: RecordReader,
    /// A received call waiting for memory.
    deferred: Option<(Source, Option<Lease>)>,
    phase: Phase,
    security: Security,
    /// `true` if there may be data to receive.
    pub(super) readable: bool,
    /// `true` if the peer has stopped sending: no further event announces input, so receiving continues up to
    /// the end of the stream.
    pub(super) finished: bool,
    /// `true` if the connection is queued for a turn.
    pub(super) queued: bool,
    /// `true` while the connection waits to be woken, because a limit is reached or memory is short.
    waits: bool,
    /// Registration with the waiters for memory or calls.
    wait: Queued,
    /// `true` once a call became pending, or was completed with an outcome other than `Close`.
    answered: bool,
    /// Calls and bytes received since the last recorded activity.
    active_calls: usize,
    active_bytes: usize,
    /// Number of bytes that [`try_receive`](Self::try_receive) put into the thread's receive area, until the
    /// turn that follows immediately counts them.
    unserved_bytes: usize,
    /// Time of the connection's start or of its last recorded activity.
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Calls are received.
    Open,
    /// Receiving has ended; calls already begun are answered.
    Ended,
    /// The connection sends the queued replies; unlike in `Ended`, those of calls in progress are dropped.
    Sealed,
    /// All replies are sent; input is read and discarded.
    Lingering { until: Instant, bytes: usize },
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TurnResult {
    /// `true` if something was received or served.
    pub(super) worked: bool,
    pub(super) then: NextStep,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Wait for an event.
    #[default]
    Wait,
    /// Take another turn.
    Again,
    Close,
}

/// Reason for the end of a turn.
enum TurnEnd {
    /// The socket has no more input.
    Empty,
    /// The turn's quota is used up.
    Used,
    /// A limit was reached, or memory is short.
    Limits,
    /// The peer has stopped sending.
    Eof,
    /// Receiving must stop; queued replies are still sent.
    Seal,
    /// The stream has failed.
    Broken,
}

struct Work {
    calls: usize,
    bytes: usize,
}

impl Connection {
    pub(super) fn new(shared: Arc<SharedConnection>, common: &Common) -> Self {
        let since = Instant::now();
        shared.activity.note(common, since, false);
        Self {
            shared,
            reader: RecordReader::new(common.options.record_max_bytes),
            deferred: None,
            phase: Phase::Open,
            security: Security::of(&common.options),
            readable: true,
            finished: false,
            queued: false,
            waits: false,
            wait: Queued::default(),
            answered: false,
            active_calls: 0,
            active_bytes: 0,
            unserved_bytes: 0,
            since,
        }
    }

    /// Returns `true` if a turn would be futile until the connection is woken.
    pub(super) fn must_wait(&self) -> bool {
        self.waits && self.phase == Phase::Open
    }

    pub(super) fn is_shaking_hands(&self) -> bool {
        self.security == Security::Handshaking
    }

    /// Handles a disconnect or an error reported by epoll.
    pub(super) fn hung_up(&mut self) -> NextStep {
        self.readable = true;
        match self.phase {
            // The next receive returns the error.
            Phase::Open if !self.waits => NextStep::Again,
            Phase::Lingering { .. } => NextStep::Again,
            // No reply can be delivered any more, and a waiting connection would not read the error.
            _ => NextStep::Close,
        }
    }

    /// Tries to receive at the least possible cost. Returns `true` if the connection needs a turn, which must
    /// be the next one: the receive area may contain its data.
    pub(super) fn try_receive(&mut self, context: &mut ThreadContext) -> bool {
        if self.phase != Phase::Open || self.waits {
            return false;
        }
        self.readable = true;
        if self.reader.is_within_record() || self.is_shaking_hands() {
            return true;
        }
        match self.receive(context) {
            Ok(bytes @ 1..) => {
                self.unserved_bytes = bytes;
                true
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                false
            }
            // The turn receives again, and handles the end of the stream or the error.
            Ok(0) | Err(_) => true,
        }
    }

    /// Receives and serves calls, up to a limit. On a connection that is ending, advances to the next
    /// phase.
    pub(super) fn turn(&mut self, context: &mut ThreadContext) -> TurnResult {
        let mut turn = TurnResult::default();
        if self.phase == Phase::Open && self.shared.is_sealed() {
            // A call that was answered later has sealed the connection.
            self.phase = Phase::Sealed;
        }
        let is_dead = self.shared.is_dead();
        if self.unserved_bytes > 0 && (is_dead || self.phase != Phase::Open) {
            // The data can no longer be served, and the area must be free for the next connection.
            self.unserved_bytes = 0;
            self.reader.end_turn(&mut context.area, &self.shared.buffers);
        }
        if is_dead {
            turn.then = NextStep::Close;
            return turn;
        }
        if self.phase == Phase::Open {
            self.serve(context, &mut turn);
        }
        self.advance_phase(&mut turn);
        if matches!(self.phase, Phase::Lingering { .. }) {
            turn.then = self.discard(context);
        }
        turn
    }

    /// Stops receiving; calls already begun are answered, others that were received are dropped.
    pub(super) fn end(&mut self) -> NextStep {
        if self.phase == Phase::Open {
            self.phase = Phase::Ended;
            self.shared.wait_for_end();
        }
        if self.shared.has_calls() { NextStep::Wait } else { NextStep::Close }
    }

    /// Returns `true` if the connection should be checked early: it waits for memory or at a limit, or has
    /// unsent replies.
    pub(super) fn needs_early_sweep(&self) -> bool {
        self.must_wait() || self.shared.has_unsent_replies()
    }

    /// Checks the time-outs, and releases unused memory.
    pub(super) fn sweep(&mut self, common: &Common, now: Instant) -> NextStep {
        let (options, counters) = (&common.options, &common.counters);
        // Before the first answered call, only the data of a call count.
        if self.is_active() && (self.answered || self.reader.is_within_record()) {
            self.since = now;
            self.shared.activity.note(common, now, self.answered);
        }
        if let Phase::Lingering { until, .. } = self.phase {
            return if now >= until { NextStep::Close } else { NextStep::Wait };
        }
        let has_calls = self.shared.has_calls();
        let is_short = self.shared.is_memory_short();
        let stuck_timeout = if is_short {
            options.stuck_after_if_short.min(options.stuck_after)
        } else {
            options.stuck_after
        };
        if self.shared.is_stuck(stuck_timeout, now) {
            counters.closed_stuck.increment();
            if let Some(suppressed) = common.lines.stuck.allow() {
                tracing::warn!(peer = ?self.shared.peer, suppressed, "closing connection: replies not received");
            }
            return NextStep::Close;
        }
        if !has_calls && now.saturating_duration_since(self.since) >= self.idle_timeout(options) {
            counters.closed_silent.increment();
            tracing::debug!(peer = ?self.shared.peer, "closing idle connection");
            return NextStep::Close;
        }
        if !has_calls {
            self.shared.trim();
        }
        NextStep::Wait
    }

    /// Returns `true` if a call, or at least [`TRICKLE_BYTES`], was received since the last `true`.
    fn is_active(&mut self) -> bool {
        let active = self.active_calls > 0 || self.active_bytes >= TRICKLE_BYTES;
        if active {
            (self.active_calls, self.active_bytes) = (0, 0);
        }
        active
    }

    /// Returns the maximum time without activity.
    fn idle_timeout(&self, options: &Options) -> Duration {
        match self.reader.is_within_record() {
            // A client must complete a record that it has begun, because other connections may be waiting for
            // its memory. A connection that this server makes wait is exempt until it has that memory.
            true if !self.waits || self.reader.is_receiving_long() => {
                options.stuck_after.min(options.silent_after)
            }
            // Closed only at the limit of connections.
            _ if self.answered => Duration::MAX,
            _ if self.is_shaking_hands() => options.stuck_after.min(options.silent_after),
            _ => options.silent_after,
        }
    }

    fn serve(&mut self, context: &mut ThreadContext, turn: &mut TurnResult) {
        let (shared, mut work) =
            (self.shared.clone(), Work { calls: 0, bytes: mem::take(&mut self.unserved_bytes) });
        self.waits = false;
        self.reader.begin_turn(&mut context.area);
        let end = self.receive_and_run(context, &mut work);
        if work.bytes + work.calls > 0 || !matches!(end, TurnEnd::Limits) {
            // A connection woken in vain keeps `wait`, by which it then goes to the front of its queue.
            self.wait = Queued::default();
        }
        if work.bytes + work.calls > 0 {
            context.common.counters.received_bytes.add_len(work.bytes);
            context.common.counters.calls.add_len(work.calls);
            turn.worked = true;
            self.active_calls += work.calls;
            self.active_bytes += work.bytes;
        }
        shared.flush();
        self.reader.end_turn(&mut context.area, &shared.buffers);
        // A connection that was woken for memory or a call, but has used neither, passes the wake-up on.
        shared.client.pass_on();
        match end {
            TurnEnd::Empty => {}
            TurnEnd::Used => turn.then = NextStep::Again,
            TurnEnd::Limits => turn.then = self.register_wakeup(),
            TurnEnd::Eof => {
                self.phase = Phase::Ended;
                shared.wait_for_end();
            }
            TurnEnd::Seal => {
                shared.seal();
                self.phase = Phase::Sealed;
            }
            TurnEnd::Broken => turn.then = NextStep::Close,
        }
    }

    fn receive_and_run(&mut self, context: &mut ThreadContext, work: &mut Work) -> TurnEnd {
        let shared = self.shared.clone();
        loop {
            if work.calls >= TURN_CALLS_MAX || work.bytes >= TURN_BYTES_MAX {
                return TurnEnd::Used;
            }
            // A long record in progress already has its memory. It must proceed even at the client's limit of
            // calls, or connections might deadlock on memory.
            if !shared.is_below_limits()
                || !(self.reader.is_receiving_long() || shared.client.is_below_limit())
            {
                return TurnEnd::Limits;
            }
            if let Some((record, lease)) = self.deferred.take() {
                if !shared.buffers.account().has_room() {
                    self.deferred = Some((record, lease));
                    return TurnEnd::Limits;
                }
                work.calls += 1;
                if !self.run(context, record, lease) {
                    return TurnEnd::Seal;
                }
            }
            if self.is_shaking_hands()
                && let Some(end) = self.shake_hands(context)
            {
                return end;
            }
            match self.reader.next(&mut context.area, &shared.buffers) {
                Ok(Step::Serve(record, _))
                    if self.security == Security::Unprobed && !self.accept_plain(context, &record) =>
                {
                    work.calls += 1;
                    if !self.begin_tls(context, &record) {
                        return TurnEnd::Seal;
                    }
                }
                // RFC 9289 §4.1: a probe within a session is silently discarded.
                Ok(Step::Serve(record, _))
                    if self.security == Security::Secured && security::is_probe(&record) => {}
                Ok(Step::Serve(record, lease)) => {
                    if !shared.buffers.account().has_room() && needs_buffer(&*context.calls, &record) {
                        self.deferred = Some(detach(record, lease));
                        return TurnEnd::Limits;
                    }
                    work.calls += 1;
                    if !self.run(context, record, Some(lease)) {
                        return TurnEnd::Seal;
                    }
                }
                Ok(Step::Receive) if !self.readable => return TurnEnd::Empty,
                Ok(Step::Receive) => match self.receive(context) {
                    Ok(0) => return TurnEnd::Eof,
                    Ok(bytes) => work.bytes += bytes,
                    Err(Errno::AGAIN) => self.readable = false,
                    Err(error) => {
                        tracing::debug!(peer = ?shared.peer, %error, "receive failed");
                        return TurnEnd::Broken;
                    }
                },
                Ok(Step::NoMemory) => return TurnEnd::Limits,
                Err(fault) => {
                    context.common.counters.closed_too_long.increment();
                    if let Some(suppressed) = context.common.lines.too_long.allow() {
                        tracing::warn!(peer = ?shared.peer, %fault, suppressed, "closing connection: invalid record");
                    }
                    return TurnEnd::Seal;
                }
            }
        }
    }

    fn receive(&mut self, context: &mut ThreadContext) -> Result<usize, Errno> {
        let shared = &self.shared;
        let received =
            self.reader.receive(&mut context.area, &shared.buffers, |into| shared.receive(into))?;
        // Decrypted data may be left in the session.
        self.readable = received.more || self.finished || self.security == Security::Secured;
        Ok(received.bytes)
    }

    /// Accepts a plain first call if this address may do without TLS. Returns `true` if so; the connection
    /// then stays unencrypted.
    fn accept_plain(&mut self, context: &ThreadContext, first: &Source) -> bool {
        let is_plain =
            !security::is_probe(first) && context.common.options.admits_plain(&self.shared.peer.origin);
        if is_plain {
            self.security = Security::Plain;
        }
        is_plain
    }

    /// Answers the first call of a connection that requires TLS. Returns `false` if receiving must stop.
    fn begin_tls(&mut self, context: &mut ThreadContext, record: &Source) -> bool {
        let begun = self.accept_probe(context, record);
        if let Err(why) = &begun {
            security::log_insecure(&context.common, &self.shared.peer, why);
        }
        begun.is_ok()
    }

    /// Answers the first call, and begins a handshake if the call is a probe. Returns the reason if no
    /// handshake begins. A probe is not answered if no handshake can follow.
    fn accept_probe(&mut self, context: &mut ThreadContext, record: &Source) -> Result<(), String> {
        let first = FirstCall::of(record);
        let session = match (&first, &context.common.options.tls) {
            // Data behind the probe was injected, or sent too early.
            (FirstCall::Probe(_), Some(_)) if !self.reader.is_empty(&context.area) => {
                return Err("data sent before the TLS handshake".into());
            }
            (FirstCall::Probe(_), Some(tls)) => Some(tls.session().map_err(|error| error.to_string())?),
            _ => None,
        };
        let mut exchange = context.exchanges.take(&self.shared.buffers);
        self.shared.begin_call();
        let outcome = first.answer(&mut exchange.reply);
        self.shared.add_reply(&mut exchange, outcome);
        self.shared.flush();
        context.exchanges.put(exchange);
        let Some(session) = session else { return Err("TLS not requested".into()) };
        if !self.shared.is_flushed() || self.shared.session.set(Box::new(session)).is_err() {
            return Err("cannot answer the TLS probe".into());
        }
        self.security = Security::Handshaking;
        Ok(())
    }

    /// Continues the handshake. Returns the end of the turn if the handshake is not complete or has failed.
    fn shake_hands(&mut self, context: &ThreadContext) -> Option<TurnEnd> {
        let (shared, session) = (&self.shared, self.shared.session.get()?);
        if !self.readable {
            return Some(TurnEnd::Empty);
        }
        match session.handshake(shared.stream()) {
            Ok(()) => {
                self.security = Security::Secured;
                security::record_certificate(&shared.peer, session);
                None
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Some(TurnEnd::Empty)
            }
            Err(error) => {
                match session.fault() {
                    Some(fault) => security::log_insecure(&context.common, &shared.peer, &fault),
                    None => security::log_insecure(&context.common, &shared.peer, &error),
                }
                // An alert with the reason, if TLS has one, is already sent, unless the socket is full.
                Some(TurnEnd::Seal)
            }
        }
    }

    /// Serves a call. Returns `false` if receiving must stop.
    fn run(&mut self, context: &mut ThreadContext, record: Source, lease: Option<Lease>) -> bool {
        let shared = &self.shared;
        let mut exchange = context.exchanges.take(&shared.buffers);
        exchange.fill(record, lease);
        shared.begin_call();
        let destination = || Destination::SharedConnection(shared.clone());
        match context.calls.run(&shared.peer, exchange, &destination) {
            RunResult::Done(mut exchange, outcome) => {
                if shared.add_reply(&mut exchange, outcome) >= FLUSH_BYTES {
                    shared.flush();
                }
                context.exchanges.put(exchange);
                let goes_on = outcome != Outcome::Close;
                if goes_on && !mem::replace(&mut self.answered, true) {
                    self.shared.activity.note(&context.common, Instant::now(), true);
                }
                goes_on
            }
            RunResult::Later => {
                // Noted by the next sweep: a call in progress itself keeps the connection from being closed.
                self.answered = true;
                true
            }
            RunResult::Panicked => {
                tracing::error!(peer = ?shared.peer, "call panicked: closing its connection");
                shared.fail_call();
                false
            }
        }
    }

    /// Registers for a wake-up. Returns `Again` if the connection may already proceed.
    fn register_wakeup(&mut self) -> NextStep {
        let shared = &self.shared;
        self.waits = true;
        if !shared.is_below_limits() {
            self.wait = Queued::default();
            shared.wait_for_limits();
            return if shared.is_below_limits() { NextStep::Again } else { NextStep::Wait };
        }
        let (client, account) = (&shared.client, shared.buffers.account());
        let waiter: Arc<dyn Waiter> = shared.clone();
        match client.is_below_limit() {
            true => account.wait_for_room(&waiter, &mut self.wait),
            false => client.wait_for_calls(&waiter, &mut self.wait),
        }
        if client.is_below_limit() && account.has_room() { NextStep::Again } else { NextStep::Wait }
    }

    /// Advances the phase if the current one is complete.
    fn advance_phase(&mut self, turn: &mut TurnResult) {
        match self.phase {
            Phase::Sealed if self.shared.is_finished() => {
                if tcp::end_sending(self.shared.stream()).is_err() {
                    turn.then = NextStep::Close;
                }
                self.phase = Phase::Lingering { until: Instant::now() + LINGER, bytes: 0 };
                self.readable = true;
            }
            Phase::Ended if !self.shared.has_calls() => turn.then = NextStep::Close,
            _ => {}
        }
    }

    fn discard(&mut self, context: &mut ThreadContext) -> NextStep {
        let Phase::Lingering { bytes, .. } = &mut self.phase else { return NextStep::Wait };
        while self.readable {
            match context.area.discard(self.shared.stream()) {
                Ok(some @ 1..) => *bytes += some,
                Err(Errno::AGAIN) => self.readable = false,
                Ok(0) | Err(_) => return NextStep::Close,
            }
            if *bytes > LINGER_BYTES_MAX {
                return NextStep::Close;
            }
        }
        NextStep::Wait
    }
}

fn needs_buffer(calls: &dyn Calls, record: &Source) -> bool {
    let mut head = [0; LONG_HEAD_BYTES];
    let len = record.read_at(0, &mut head);
    calls.needs_buffer(head.get(..len).unwrap_or_default())
}

/// Prepares a call for serving later. A short one is copied, since it mostly lies in the shared receive area,
/// which would be replaced; a longer one keeps its buffer.
fn detach(record: Source, lease: Lease) -> (Source, Option<Lease>) {
    match record.len() {
        len @ ..=HEAD_BYTES => (Source::from(record.to_vec(len)), None),
        _ => (record, Some(lease)),
    }
}
