//! One connection, as its event thread has it: receiving, and its life.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::{Calls, Destination, Ran};
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

/// Calls of one turn; then other connections have theirs.
const TURN_CALLS_MAX: usize = 32;

/// Bytes received in one turn.
const TURN_BYTES_MAX: usize = 2 << 20;

/// So many bytes of replies are sent before the turn ends: their buffers come back while they are warm.
const FLUSH_BYTES: usize = 256 << 10;

/// A client that sends a call slowly has to send so much of it now and then, or it counts as idle.
const TRICKLE_BYTES: usize = 16 << 10;

/// What a peer may still send after we have said our last word: closing before it is read could destroy that
/// word.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 8 << 20;

/// What an event thread serves its connections with.
pub(super) struct ThreadContext {
    pub(super) common: Arc<Common>,
    pub(super) calls: Box<dyn Calls>,
    pub(super) exchanges: Exchanges,
    pub(super) area: ReceiveArea,
}

/// One connection.
pub(super) struct Connection {
    pub(super) shared: Arc<SharedConnection>,
    reader: RecordReader,
    /// A call that was received and waits for memory.
    postponed: Option<(Source, Option<Lease>)>,
    phase: Phase,
    security: Security,
    /// There may be something to receive.
    pub(super) readable: bool,
    /// The peer sends no more: the end follows what was received last, and no further event will come.
    pub(super) finished: bool,
    /// It is in the queue of those that have a turn.
    pub(super) queued: bool,
    /// It waits for its limits or for memory, and will be told.
    waits: bool,
    /// Where it waits for memory or calls.
    wait: Queued,
    /// It has been of use: a call was answered.
    answered: bool,
    /// Calls received since it was last seen active, and bytes.
    active_calls: usize,
    active_bytes: usize,
    /// Bytes on the area that a look found; the turn that follows at once counts them.
    found_bytes: usize,
    /// When it came, or was seen active last.
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Calls are received.
    Open,
    /// No call is received any more; those that were are answered.
    Ended,
    /// The replies that wait are sent, and nothing else.
    Sealed,
    /// Everything is sent; what still comes is thrown away.
    Lingering { until: Instant, bytes: usize },
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TurnResult {
    /// There was something to do.
    pub(super) worked: bool,
    /// How it goes on.
    pub(super) then: NextStep,
}

/// How a connection goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Something must happen first.
    #[default]
    Wait,
    /// There is more to do.
    Again,
    /// It is to be closed.
    Close,
}

/// Why a turn ended.
enum End {
    /// Nothing more was there.
    Empty,
    /// Others have their turn.
    Used,
    /// It has to wait for limits or memory.
    Limits,
    /// The peer sends no more.
    Eof,
    /// Nothing more shall be received.
    Seal,
    Broken,
}

/// What was done in one turn.
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
            postponed: None,
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
            found_bytes: 0,
            since,
        }
    }

    /// Whether a turn would be in vain until it is told.
    pub(super) fn must_wait(&self) -> bool {
        self.waits && self.phase == Phase::Open
    }

    /// Whether it waits for the peer's part of a handshake.
    pub(super) fn is_shaking_hands(&self) -> bool {
        self.security == Security::Handshaking
    }

    /// The peer is gone, or the connection broke.
    pub(super) fn hung_up(&mut self) -> NextStep {
        self.readable = true;
        match self.phase {
            // Receiving tells more.
            Phase::Open if !self.waits => NextStep::Again,
            Phase::Lingering { .. } => NextStep::Again,
            _ => NextStep::Close,
        }
    }

    /// Tries to receive, with as little ado as can be. True if it needs a turn, before anyone else has one.
    pub(super) fn look(&mut self, context: &mut ThreadContext) -> bool {
        if self.phase != Phase::Open || self.waits {
            return false;
        }
        self.readable = true;
        if self.reader.is_within_record() || self.is_shaking_hands() {
            return true;
        }
        match self.receive(context) {
            Ok(bytes @ 1..) => {
                self.found_bytes = bytes;
                true
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                false
            }
            // The turn finds the same, or the end after an error.
            Ok(0) | Err(_) => true,
        }
    }

    /// Receives and serves what there is, up to a limit.
    pub(super) fn turn(&mut self, context: &mut ThreadContext) -> TurnResult {
        let mut turn = TurnResult::default();
        if self.phase == Phase::Open && self.shared.is_sealed() {
            // By a call that was answered later.
            self.phase = Phase::Sealed;
        }
        let is_dead = self.shared.is_dead();
        if self.found_bytes > 0 && (is_dead || self.phase != Phase::Open) {
            // Too late; and the area is the next connection's.
            self.found_bytes = 0;
            self.reader.leave(&mut context.area, &self.shared.buffers);
        }
        if is_dead {
            turn.then = NextStep::Close;
            return turn;
        }
        if self.phase == Phase::Open {
            self.serve(context, &mut turn);
        }
        self.move_on(&mut turn);
        if matches!(self.phase, Phase::Lingering { .. }) {
            turn.then = self.throw_away(context);
        }
        turn
    }

    /// Receives no more, and answers what it has received.
    pub(super) fn end(&mut self) -> NextStep {
        if self.phase == Phase::Open {
            self.phase = Phase::Ended;
            self.shared.wait_for_end();
        }
        if self.shared.has_calls() { NextStep::Wait } else { NextStep::Close }
    }

    /// Whether it is to be looked at again soon, if memory gets short: it waits, or lets replies wait.
    pub(super) fn is_doubtful(&self) -> bool {
        self.must_wait() || self.shared.is_untaken()
    }

    /// Looks whether it is to be closed, now and then; and gives up memory that it does not need.
    pub(super) fn sweep(&mut self, common: &Common, now: Instant) -> NextStep {
        let (options, counters) = (&common.options, &common.counters);
        if self.is_active() && (self.answered || self.reader.is_within_record()) {
            self.since = now;
            self.shared.activity.note(common, now, self.answered);
        }
        if let Phase::Lingering { until, .. } = self.phase {
            return if now >= until { NextStep::Close } else { NextStep::Wait };
        }
        let has_calls = self.shared.has_calls();
        let is_short = self.shared.is_memory_short();
        let patience = if is_short {
            options.stuck_after_if_short.min(options.stuck_after)
        } else {
            options.stuck_after
        };
        if self.shared.is_stuck(patience, now) {
            counters.closed_stuck.add(1);
            if let Some(suppressed) = common.lines.stuck.allow() {
                tracing::warn!(peer = ?self.shared.peer, suppressed, "closing connection: replies not received");
            }
            return NextStep::Close;
        }
        if !has_calls && now.saturating_duration_since(self.since) >= self.patience(options) {
            counters.closed_silent.add(1);
            tracing::debug!(peer = ?self.shared.peer, "closing idle connection");
            return NextStep::Close;
        }
        if !has_calls {
            self.shared.rest();
        }
        NextStep::Wait
    }

    /// Whether something of note was received since this was last so: calls, or more of one than a trickle.
    fn is_active(&mut self) -> bool {
        let active = self.active_calls > 0 || self.active_bytes >= TRICKLE_BYTES;
        if active {
            (self.active_calls, self.active_bytes) = (0, 0);
        }
        active
    }

    /// How long the peer may say nothing.
    fn patience(&self, options: &Options) -> Duration {
        match self.reader.is_within_record() {
            // The rest of the record should follow, and its memory may be what others wait for.
            true if !self.waits || self.reader.has_begun() => options.stuck_after.min(options.silent_after),
            _ if self.answered => Duration::MAX,
            _ if self.is_shaking_hands() => options.stuck_after.min(options.silent_after),
            _ => options.silent_after,
        }
    }

    fn serve(&mut self, context: &mut ThreadContext, turn: &mut TurnResult) {
        let (shared, mut work) =
            (self.shared.clone(), Work { calls: 0, bytes: mem::take(&mut self.found_bytes) });
        self.waits = false;
        self.reader.arrive(&mut context.area);
        let end = self.receive_and_run(context, &mut work);
        if work.bytes + work.calls > 0 || !matches!(end, End::Limits) {
            self.wait = Queued::default();
        }
        if work.bytes + work.calls > 0 {
            context.common.counters.received_bytes.add(work.bytes);
            context.common.counters.calls.add(work.calls);
            turn.worked = true;
            self.active_calls += work.calls;
            self.active_bytes += work.bytes;
        }
        shared.flush();
        self.reader.leave(&mut context.area, &shared.buffers);
        // Also where it did not wait: it may have been woken for limits that it does not need.
        shared.client.pass_on();
        match end {
            End::Empty => {}
            End::Used => turn.then = NextStep::Again,
            End::Limits => turn.then = self.wait_for_room(),
            End::Eof => {
                self.phase = Phase::Ended;
                shared.wait_for_end();
            }
            End::Seal => {
                shared.seal();
                self.phase = Phase::Sealed;
            }
            End::Broken => turn.then = NextStep::Close,
        }
    }

    fn receive_and_run(&mut self, context: &mut ThreadContext, work: &mut Work) -> End {
        let shared = self.shared.clone();
        loop {
            if work.calls >= TURN_CALLS_MAX || work.bytes >= TURN_BYTES_MAX {
                return End::Used;
            }
            // What has begun to come in has its memory. It must go on, or all might wait for each other.
            if !shared.is_below_limits() || !(self.reader.has_begun() || shared.client.is_below_limit()) {
                return End::Limits;
            }
            if let Some((record, lease)) = self.postponed.take() {
                if !shared.buffers.account().has_room() {
                    self.postponed = Some((record, lease));
                    return End::Limits;
                }
                work.calls += 1;
                if !self.run(context, record, lease) {
                    return End::Seal;
                }
            }
            if self.is_shaking_hands()
                && let Some(end) = self.shake_hands(context)
            {
                return end;
            }
            match self.reader.next(&mut context.area, &shared.buffers) {
                Ok(Step::Serve(record, _))
                    if self.security == Security::Unprobed && !self.goes_without_tls(context, &record) =>
                {
                    work.calls += 1;
                    if !self.begin_tls(context, &record) {
                        return End::Seal;
                    }
                }
                // RFC 9289 §4.1: within a session it is silently discarded.
                Ok(Step::Serve(record, _))
                    if self.security == Security::Secured && security::is_probe(&record) => {}
                Ok(Step::Serve(record, lease)) => {
                    if !shared.buffers.account().has_room() && needs_buffer(&*context.calls, &record) {
                        self.postponed = Some(set_aside(record, lease));
                        return End::Limits;
                    }
                    work.calls += 1;
                    if !self.run(context, record, Some(lease)) {
                        return End::Seal;
                    }
                }
                Ok(Step::Receive) if !self.readable => return End::Empty,
                Ok(Step::Receive) => match self.receive(context) {
                    Ok(0) => return End::Eof,
                    Ok(bytes) => work.bytes += bytes,
                    Err(Errno::AGAIN) => self.readable = false,
                    Err(error) => {
                        tracing::debug!(peer = ?shared.peer, %error, "receive failed");
                        return End::Broken;
                    }
                },
                Ok(Step::NoRoom) => return End::Limits,
                Err(fault) => {
                    context.common.counters.closed_too_long.add(1);
                    if let Some(suppressed) = context.common.lines.too_long.allow() {
                        tracing::warn!(peer = ?shared.peer, %fault, suppressed, "closing connection: invalid record");
                    }
                    return End::Seal;
                }
            }
        }
    }

    fn receive(&mut self, context: &mut ThreadContext) -> Result<usize, Errno> {
        let shared = &self.shared;
        let received =
            self.reader.receive(&mut context.area, &shared.buffers, |into| shared.receive(into))?;
        // What was received may be decrypted in part.
        self.readable = received.more || self.finished || self.security == Security::Secured;
        Ok(received.bytes)
    }

    /// Whether this is the first call of a connection that may do without TLS, and does. From then on it has
    /// none.
    fn goes_without_tls(&mut self, context: &ThreadContext, first: &Source) -> bool {
        let is_plain =
            !security::is_probe(first) && context.common.options.admits_plain(&self.shared.peer.origin);
        if is_plain {
            self.security = Security::Plain;
        }
        is_plain
    }

    /// Answers the first call of a connection that must have TLS. False if nothing more shall be received.
    fn begin_tls(&mut self, context: &mut ThreadContext, record: &Source) -> bool {
        let first = FirstCall::of(record);
        let session = match (&first, &context.common.options.tls) {
            // What stands behind the probe was sent by another than the one that shakes hands, or too early.
            (FirstCall::Probe(_), Some(tls)) if self.reader.is_empty(&context.area) => Some(tls.session()),
            _ => None,
        };
        let mut exchange = context.exchanges.take(&self.shared.buffers);
        self.shared.begin_call();
        let outcome = first.answer(&mut exchange.reply);
        self.shared.add_reply(&mut exchange, outcome);
        self.shared.flush();
        context.exchanges.put(exchange);
        if let Some(Ok(session)) = session
            && self.shared.is_flushed()
            && self.shared.session.set(Box::new(session)).is_ok()
        {
            self.security = Security::Handshaking;
            return true;
        }
        security::refused(&context.common, &self.shared.peer, &"no TLS was asked for");
        false
    }

    /// Goes on with the handshake. How the turn ends, if that is not done.
    fn shake_hands(&mut self, context: &ThreadContext) -> Option<End> {
        let (shared, session) = (&self.shared, self.shared.session.get()?);
        if !self.readable {
            return Some(End::Empty);
        }
        match session.handshake(shared.stream()) {
            Ok(()) => {
                self.security = Security::Secured;
                security::secured(&shared.peer, session);
                None
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Some(End::Empty)
            }
            Err(error) => {
                match session.fault() {
                    Some(fault) => security::refused(&context.common, &shared.peer, &fault),
                    None => security::refused(&context.common, &shared.peer, &error),
                }
                // What was said last is the reason, which the peer shall read.
                Some(End::Seal)
            }
        }
    }

    /// Serves a call. False if nothing more shall be received.
    fn run(&mut self, context: &mut ThreadContext, record: Source, lease: Option<Lease>) -> bool {
        let shared = &self.shared;
        let mut exchange = context.exchanges.take(&shared.buffers);
        exchange.fill(record, lease);
        shared.begin_call();
        let destination = || Destination::SharedConnection(shared.clone());
        match context.calls.run(&shared.peer, exchange, &destination) {
            Ran::Done(mut exchange, outcome) => {
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
            Ran::Later => {
                self.answered = true;
                true
            }
            Ran::Panicked => {
                tracing::error!(peer = ?shared.peer, "call panicked: closing its connection");
                shared.fail_call();
                false
            }
        }
    }

    /// Asks to be told when it may go on. If that is now, it does.
    fn wait_for_room(&mut self) -> NextStep {
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

    /// Whether the present phase is over.
    fn move_on(&mut self, turn: &mut TurnResult) {
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

    fn throw_away(&mut self, context: &mut ThreadContext) -> NextStep {
        let Phase::Lingering { bytes, .. } = &mut self.phase else { return NextStep::Wait };
        while self.readable {
            match context.area.throw_away(self.shared.stream()) {
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

/// A call that is served later. A short one lies in the buffer that all connections are received into, and
/// leaves it.
fn set_aside(record: Source, lease: Lease) -> (Source, Option<Lease>) {
    match record.len() {
        len @ ..=HEAD_BYTES => (Source::from(record.to_vec(len)), None),
        _ => (record, Some(lease)),
    }
}
