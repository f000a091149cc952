//! Sending side of one connection, shared by its event thread and the threads that complete its calls.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tombolo_core::lock;

use super::clients::{Activity, Client, ConnectionPermit};
use super::common::Common;
use super::reply_batch::{Batch, SendState, Sent};
use super::service::{Exchange, Outcome, Peer};
use super::thread_queue::{ThreadQueue, Token};
use tombolo_host_runtime::buffer_pool::Buffers;
use tombolo_host_runtime::waiters::Waiter;
use tombolo_host_tls::Session;
use tombolo_mem::Sink;
use tombolo_sys::{Errno, tcp};

/// Number of unsent reply bytes at which a connection begins no further calls: about one long reply may wait
/// to be sent.
const UNSENT_MAX_BYTES: usize = 1 << 20;

/// The part of a connection shared with the threads that complete its calls.
pub(super) struct SharedConnection {
    pub(super) peer: Arc<Peer>,
    pub(super) client: Arc<Client>,
    pub(super) buffers: Buffers,
    pub(super) token: Token,
    pub(super) activity: Activity,
    stream: OwnedFd,
    /// TLS session, once there is one.
    pub(super) session: OnceLock<Box<Session>>,
    /// The permit is declared after the stream, and so dropped after it, so that the connection counts until
    /// its descriptor is closed. Pending calls keep the descriptor open.
    _admitted: ConnectionPermit,
    common: Arc<Common>,
    queue: Arc<ThreadQueue>,
    /// Number of calls received whose replies are not sent.
    calls: AtomicUsize,
    /// Bytes of replies waiting while the socket is full.
    unsent_bytes: AtomicUsize,
    /// `true` if the event thread must be woken once the connection is below its limits.
    waits: AtomicBool,
    /// `true` if the connection ends: the event thread must be woken when the last call is completed.
    ending: AtomicBool,
    /// The send queue's phase, readable without its lock: no reply is added (`sealed`), nothing is sent
    /// (`dead`).
    sealed: AtomicBool,
    dead: AtomicBool,
    send_queue: Mutex<SendQueue>,
}

#[derive(Default)]
struct SendQueue {
    /// Replies for the next batch.
    queue: Batch,
    /// Remainder of a partly sent batch; empty while a thread sends.
    remainder: Batch,
    phase: Phase,
    /// `true` while a thread sends; that thread also sends replies queued meanwhile, unless the socket is
    /// full.
    sending: bool,
    /// `true` if the socket became writable while a thread was sending; that thread then retries.
    again: bool,
    /// Time of the last progress, while the socket is full.
    progress: Option<Instant>,
    /// Bytes of unsent replies charged to the client.
    charged: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// No further reply is added.
    Sealed,
    /// Nothing more is sent.
    Dead,
}

impl SharedConnection {
    pub(super) fn new(
        stream: OwnedFd,
        peer: Arc<Peer>,
        token: Token,
        (common, admitted): (Arc<Common>, ConnectionPermit),
        queue: Arc<ThreadQueue>,
    ) -> Arc<Self> {
        let client = admitted.client().clone();
        let buffers = Buffers::of(client.share.account());
        Arc::new(Self {
            peer,
            client,
            buffers,
            token,
            activity: Activity::default(),
            stream,
            session: OnceLock::new(),
            _admitted: admitted,
            common,
            queue,
            calls: AtomicUsize::new(0),
            unsent_bytes: AtomicUsize::new(0),
            waits: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            send_queue: Mutex::default(),
        })
    }

    pub(super) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Receives from the stream or the TLS session, as [`tcp::receive`] does.
    pub(super) fn receive(&self, into: &[&Sink]) -> Result<usize, Errno> {
        match self.session.get() {
            None => tcp::receive(self.stream(), into),
            Some(session) => session.receive(self.stream(), into),
        }
    }

    pub(super) fn begin_call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.client.begin_call();
    }

    /// Queues the reply to a call, if there is one; the caller must call [`flush`](Self::flush). Returns the
    /// number of bytes in the next batch, or 0 if no reply was queued.
    pub(super) fn add_reply(&self, exchange: &mut Exchange, outcome: Outcome) -> usize {
        // The call no longer counts against the client's limit of calls. Until its reply is sent, it counts
        // against the connection's limit, and its buffers against the client's memory.
        self.client.end_calls(1);
        if outcome == Outcome::Reply {
            let mut send_queue = lock(&self.send_queue);
            if send_queue.phase == Phase::Open {
                send_queue.queue.push(exchange);
                let waiting = send_queue.queue.len();
                if send_queue.progress.is_some() {
                    self.charge(&mut send_queue);
                }
                return waiting;
            }
        }
        if outcome == Outcome::Close {
            self.seal();
        }
        self.release(1);
        0
    }

    /// Ends a call without a reply, and with it the connection.
    pub(super) fn fail_call(&self) {
        self.client.end_calls(1);
        self.seal();
        self.release(1);
        self.schedule_turn();
    }

    /// Sends the queued replies, unless another thread is sending or the socket is full.
    pub(super) fn flush(&self) {
        let batch = {
            let mut send_queue = lock(&self.send_queue);
            if send_queue.progress.is_some() { None } else { send_queue.begin_sending() }
        };
        if let Some(batch) = batch {
            self.send(batch);
        }
    }

    /// Sends the queued replies once the socket is writable. A thread already sending retries.
    pub(super) fn writable(&self) {
        let batch = {
            let mut send_queue = lock(&self.send_queue);
            send_queue.again = send_queue.sending;
            send_queue.begin_sending()
        };
        if let Some(batch) = batch {
            self.send(batch);
        }
    }

    /// Schedules a turn of this connection on its event thread.
    pub(super) fn schedule_turn(&self) {
        self.queue.check_connection(self.token);
    }

    /// Returns `true` if calls, buffers and unsent replies are below their limits.
    pub(super) fn is_below_limits(&self) -> bool {
        let options = &self.common.options;
        self.calls.load(Ordering::SeqCst) < options.connection_calls_max
            && self.buffers.account().lent_bytes() < options.connection_bytes_max
            && self.unsent_bytes.load(Ordering::SeqCst) < UNSENT_MAX_BYTES
    }

    /// Returns `true` if replies wait because the socket is full.
    pub(super) fn has_unsent_replies(&self) -> bool {
        self.unsent_bytes.load(Ordering::SeqCst) > 0
    }

    /// Returns `true` if more than half of the client's share, or of the memory of all clients, is in use.
    pub(super) fn is_memory_short(&self) -> bool {
        self.client.share.is_short()
    }

    /// Schedules a turn if the connection waits for its limits, has at most three quarters of the permitted
    /// calls, and is below the other limits.
    pub(super) fn resume_if_low(&self) {
        // Hysteresis: the thread resumes with a batch of calls, not with each one.
        let left = self.calls.load(Ordering::SeqCst);
        let is_low = left <= self.common.options.connection_calls_max / 4 * 3 && self.is_below_limits();
        if is_low && self.waits.load(Ordering::SeqCst) && self.waits.swap(false, Ordering::SeqCst) {
            self.schedule_turn();
        }
    }

    /// Requests a wake-up of the event thread once the connection is below its limits. The caller must
    /// check the limits again afterwards, because the connection may already be below them.
    pub(super) fn wait_for_limits(&self) {
        self.waits.store(true, Ordering::SeqCst);
    }

    /// Returns `true` if a received call is unanswered, or its reply is not sent yet.
    pub(super) fn has_calls(&self) -> bool {
        self.calls.load(Ordering::SeqCst) > 0
    }

    /// Requests a wake-up after the last call. The caller must check for calls afterwards, because the last
    /// may just have ended.
    pub(super) fn wait_for_end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Stops accepting replies; queued ones are sent.
    pub(super) fn seal(&self) {
        let mut send_queue = lock(&self.send_queue);
        if send_queue.phase == Phase::Open {
            send_queue.phase = Phase::Sealed;
            self.sealed.store(true, Ordering::SeqCst);
        }
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::SeqCst)
    }

    /// Returns `true` if all replies are sent.
    pub(super) fn is_flushed(&self) -> bool {
        lock(&self.send_queue).is_idle()
    }

    /// Returns `true` if no reply is queued and none will be accepted.
    pub(super) fn is_finished(&self) -> bool {
        let send_queue = lock(&self.send_queue);
        match send_queue.phase {
            Phase::Open => false,
            Phase::Sealed => send_queue.is_idle(),
            Phase::Dead => true,
        }
    }

    /// Returns `true` if replies wait and the peer has received nothing for `time`.
    pub(super) fn is_stuck(&self, time: Duration, now: Instant) -> bool {
        lock(&self.send_queue).progress.is_some_and(|last| now.saturating_duration_since(last) >= time)
    }

    /// Returns `true` once the connection is unusable.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Marks the connection as unusable, and drops the queued replies. Calls in progress continue, and
    /// their replies are dropped.
    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        let mut send_queue = lock(&self.send_queue);
        send_queue.phase = Phase::Dead;
        let dropped = send_queue.queue.drain() + send_queue.remainder.drain();
        self.clear_full(&mut send_queue);
        drop(send_queue);
        self.release(dropped);
    }

    /// Frees memory that an idle connection does not need.
    pub(super) fn trim(&self) {
        let mut send_queue = lock(&self.send_queue);
        if send_queue.is_idle() {
            (send_queue.queue, send_queue.remainder) = (Batch::default(), Batch::default());
        }
    }

    /// Sends this batch and replies queued meanwhile.
    fn send(&self, mut batch: Batch) {
        loop {
            let sent = batch.send(|gather| match self.session.get() {
                None => tcp::send(self.stream(), gather),
                Some(session) => session.send(self.stream(), gather),
            });
            self.common.counters.sent_bytes.add_len(sent.bytes);
            self.release(sent.replies);
            match self.after_sending(batch, sent) {
                Some(next) => batch = next,
                None => return,
            }
        }
    }

    /// Records the result of sending `batch`. Returns the next batch to send, if any.
    fn after_sending(&self, mut batch: Batch, sent: Sent) -> Option<Batch> {
        let mut send_queue = lock(&self.send_queue);
        if send_queue.phase == Phase::Dead || matches!(sent.state, SendState::Broken(_)) {
            if let SendState::Broken(error) = sent.state {
                tracing::debug!(peer = ?self.peer, %error, "send failed");
            }
            send_queue.phase = Phase::Dead;
            self.dead.store(true, Ordering::SeqCst);
            let dropped = batch.drain() + send_queue.queue.drain();
            send_queue.sending = false;
            self.clear_full(&mut send_queue);
            drop(send_queue);
            self.release(dropped);
            self.schedule_turn();
            return None;
        }
        if sent.state == SendState::Full {
            if mem::take(&mut send_queue.again) {
                return Some(batch);
            }
            send_queue.remainder = batch;
            send_queue.sending = false;
            if sent.bytes > 0 || send_queue.progress.is_none() {
                send_queue.progress = Some(Instant::now());
            }
            self.charge(&mut send_queue);
            return None;
        }
        self.clear_full(&mut send_queue);
        send_queue.remainder = batch;
        let next = send_queue.next_batch();
        send_queue.sending = next.is_some();
        if next.is_none() && send_queue.phase == Phase::Sealed {
            drop(send_queue);
            self.schedule_turn();
        }
        next
    }

    /// Updates the client's charge for the unsent replies of this connection.
    fn charge(&self, send_queue: &mut SendQueue) {
        self.unsent_bytes.store(send_queue.queue.len() + send_queue.remainder.len(), Ordering::SeqCst);
        let waiting = send_queue.queue.uncounted_bytes() + send_queue.remainder.uncounted_bytes();
        let account = self.buffers.account();
        account.charge(waiting);
        account.give_back(mem::replace(&mut send_queue.charged, waiting));
    }

    fn clear_full(&self, send_queue: &mut SendQueue) {
        send_queue.progress = None;
        send_queue.again = false;
        if send_queue.charged > 0 {
            self.buffers.account().give_back(mem::take(&mut send_queue.charged));
        }
        if self.unsent_bytes.swap(0, Ordering::SeqCst) > 0 {
            self.resume_if_low();
        }
    }

    /// Subtracts completed calls from the count.
    fn release(&self, calls: usize) {
        if calls == 0 {
            return;
        }
        let left = self.calls.fetch_sub(calls, Ordering::SeqCst) - calls;
        self.resume_if_low();
        if left == 0 && self.ending.load(Ordering::SeqCst) {
            self.schedule_turn();
        }
    }
}

impl SendQueue {
    fn is_idle(&self) -> bool {
        !self.sending && self.queue.is_empty() && self.remainder.is_empty()
    }

    /// Returns a batch to send, unless a thread is already sending or nothing is queued.
    fn begin_sending(&mut self) -> Option<Batch> {
        if self.sending {
            return None;
        }
        let batch = self.next_batch()?;
        self.sending = true;
        Some(batch)
    }

    /// Returns the remainder of the last batch, or else the queued replies; the queue then reuses the memory
    /// of the empty remainder.
    fn next_batch(&mut self) -> Option<Batch> {
        if self.remainder.is_empty() {
            if self.queue.is_empty() {
                return None;
            }
            mem::swap(&mut self.queue, &mut self.remainder);
        }
        Some(mem::take(&mut self.remainder))
    }
}

impl Waiter for SharedConnection {
    fn wake(&self) -> bool {
        if self.is_dead() {
            return false;
        }
        self.schedule_turn();
        true
    }
}
