//! Execution of calls, and delivery of their replies. The event thread polls a call once; a call that is then
//! pending becomes a task.

use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use super::clients::Client;
use super::common::Common;
use super::service::{Exchange, Outcome, Peer, Service};
use super::shared_connection::SharedConnection;
use tombolo_host_runtime::buffer_pool::ConnectionAccount;
use tombolo_host_runtime::task;
use tombolo_sys::gather::Gather;
use tombolo_sys::udp::{self, Route};

/// Estimated memory of a pending call in addition to its buffers: future, exchange and task.
const LATER_BYTES: usize = 4 << 10;

/// An executor for the calls of one event thread.
pub(super) trait Calls: Send {
    /// Begins a call. `destination` is evaluated only if the call is not answered at once.
    fn run(
        &mut self,
        peer: &Arc<Peer>,
        exchange: Box<Exchange>,
        destination: &dyn Fn() -> Destination,
    ) -> RunResult;

    /// Returns `true` if the reply to a call beginning with `head` may need a buffer.
    fn needs_buffer(&self, head: &[u8]) -> bool;
}

/// Result of beginning a call.
pub(super) enum RunResult {
    Done(Box<Exchange>, Outcome),
    /// The call is pending. Once it is complete, its reply, if there is one, goes to its [`Destination`].
    Later,
    Panicked,
}

/// Returns an executor for the calls of one service.
pub(super) fn calls_of<S: Service>(service: Arc<S>, common: Arc<Common>) -> Box<dyn Calls> {
    let asked = service.clone();
    let needs_buffer = Box::new(move |head: &[u8]| asked.needs_buffer(head));
    let begin = move |peer, exchange| S::serve(service.clone(), peer, exchange);
    Box::new(Runner { begin, needs_buffer, common, slots: Vec::new() })
}

/// Memory of a call's future, pinned before the first poll and reused from call to call.
type Slot<F> = Pin<Box<Option<F>>>;

/// A predicate on a call's head ([`Service::needs_buffer`]).
type NeedsBuffer = dyn Fn(&[u8]) -> bool + Send;

struct Runner<B, F> {
    begin: B,
    needs_buffer: Box<NeedsBuffer>,
    common: Arc<Common>,
    /// Unused slots, at most one: a pending call keeps its slot.
    slots: Vec<Slot<F>>,
}

impl<B, F> Calls for Runner<B, F>
where
    B: Fn(Arc<Peer>, Box<Exchange>) -> F + Send,
    F: Future<Output = (Box<Exchange>, Outcome)> + Send + 'static,
{
    fn run(
        &mut self,
        peer: &Arc<Peer>,
        exchange: Box<Exchange>,
        destination: &dyn Fn() -> Destination,
    ) -> RunResult {
        let mut slot = self.slots.pop().unwrap_or_else(|| Box::pin(None));
        let (begin, peer) = (&self.begin, peer.clone());
        let begun = catch_unwind(AssertUnwindSafe(|| slot.as_mut().set(Some(begin(peer, exchange)))));
        let polled = match begun {
            Ok(()) => poll(&mut slot, &mut Context::from_waker(Waker::noop())),
            Err(_) => Poll::Ready(None),
        };
        match polled {
            Poll::Ready(Some((exchange, outcome))) => {
                self.slots.push(slot);
                RunResult::Done(exchange, outcome)
            }
            Poll::Ready(None) => {
                // Dropping the future may panic again.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(slot)));
                self.common.counters.panics.increment();
                RunResult::Panicked
            }
            Poll::Pending => {
                self.common.counters.later.increment();
                spawn_pending(slot, Finish::new(destination(), self.common.clone()));
                RunResult::Later
            }
        }
    }

    fn needs_buffer(&self, head: &[u8]) -> bool {
        (self.needs_buffer)(head)
    }
}

/// Polls a call. The result `None` reports a panic, after which the caller drops the future; otherwise a
/// ready future is dropped at once.
fn poll<F>(slot: &mut Slot<F>, context: &mut Context<'_>) -> Poll<Option<(Box<Exchange>, Outcome)>>
where
    F: Future<Output = (Box<Exchange>, Outcome)>,
{
    let polled = catch_unwind(AssertUnwindSafe(|| match slot.as_mut().as_pin_mut() {
        Some(future) => {
            let polled = future.poll(context).map(Some);
            if polled.is_ready() {
                slot.as_mut().set(None);
            }
            polled
        }
        None => Poll::Ready(None),
    }));
    polled.unwrap_or(Poll::Ready(None))
}

/// Polls the pending call with a real waker until it is ready, and then delivers its reply.
fn spawn_pending<F>(mut slot: Slot<F>, finish: Finish)
where
    F: Future<Output = (Box<Exchange>, Outcome)> + Send + 'static,
{
    task::spawn(async move {
        match poll_fn(|context| poll(&mut slot, context)).await {
            Some((exchange, outcome)) => finish.answer(exchange, outcome),
            None => {
                let _ = catch_unwind(AssertUnwindSafe(|| drop(slot)));
                finish.common.counters.panics.increment();
            }
        }
    });
}

/// Destination of a call's reply.
pub(super) enum Destination {
    /// The connection over which the call was received.
    SharedConnection(Arc<SharedConnection>),
    /// The sender of a datagram.
    Datagram(Arc<Datagrams>, Return),
}

/// A pending call's completion; dropping it before [`answer`](Self::answer), as after a panic, fails the
/// call.
struct Finish {
    destination: Option<Destination>,
    common: Arc<Common>,
}

impl Finish {
    fn new(destination: Destination, common: Arc<Common>) -> Self {
        destination.account().charge(LATER_BYTES);
        Self { destination: Some(destination), common }
    }

    fn answer(mut self, mut exchange: Box<Exchange>, outcome: Outcome) {
        let Some(destination) = self.destination.take() else { return };
        match &destination {
            Destination::SharedConnection(shared) => {
                shared.add_reply(&mut exchange, outcome);
                shared.flush();
                if outcome == Outcome::Close {
                    shared.schedule_turn();
                }
            }
            Destination::Datagram(datagrams, back) => datagrams.answer(back, &exchange, outcome),
        }
        // Buffers are returned before the exchange is retained for reuse.
        exchange.clear();
        self.common.spare.give_back(exchange);
        destination.give_back(LATER_BYTES);
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        let Some(destination) = self.destination.take() else { return };
        match &destination {
            Destination::SharedConnection(shared) => shared.fail_call(),
            Destination::Datagram(datagrams, back) => datagrams.end_call(back),
        }
        destination.give_back(LATER_BYTES);
    }
}

impl Destination {
    fn account(&self) -> &ConnectionAccount {
        match self {
            Destination::SharedConnection(shared) => shared.buffers.account(),
            Destination::Datagram(_, back) => &back.client.datagrams,
        }
    }

    /// Returns memory to the account. A connection that waits for its limits is resumed if it is now below
    /// them.
    fn give_back(&self, bytes: usize) {
        self.account().give_back(bytes);
        if let Destination::SharedConnection(shared) = self {
            shared.resume_if_low();
        }
    }
}

/// One UDP socket, shared by the threads that answer its calls.
pub(super) struct Datagrams {
    socket: OwnedFd,
    pub(super) common: Arc<Common>,
    /// Number of calls begun and not answered.
    pub(super) calls: AtomicUsize,
}

/// The path of a reply to a datagram.
pub(super) struct Return {
    pub(super) client: Arc<Client>,
    pub(super) route: Route,
}

impl Datagrams {
    pub(super) fn new(socket: OwnedFd, common: Arc<Common>) -> Arc<Self> {
        Arc::new(Self { socket, common, calls: AtomicUsize::new(0) })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns `true` if calls are unanswered.
    pub(super) fn has_calls(&self) -> bool {
        self.calls.load(Ordering::SeqCst) > 0
    }

    /// Sends the reply, if there is one, and ends the call. A client whose reply is lost repeats the call.
    pub(super) fn answer(&self, back: &Return, exchange: &Exchange, outcome: Outcome) {
        if outcome == Outcome::Reply {
            self.send(exchange, &back.route);
        }
        self.end_call(back);
    }

    /// Ends a call without a reply.
    pub(super) fn end_call(&self, back: &Return) {
        back.client.end_calls(1);
        self.calls.fetch_sub(1, Ordering::SeqCst);
    }

    fn send(&self, exchange: &Exchange, route: &Route) {
        let mut gather = Gather::new(0);
        gather.bytes(&exchange.reply);
        if let Some(data) = &exchange.data {
            gather.source(&data.source);
            let padding = data.source.len().next_multiple_of(4) - data.source.len();
            gather.bytes(&[0; 3][..padding]);
        }
        let counters = &self.common.counters;
        match udp::send(self.socket.as_fd(), &mut gather, route) {
            Ok(bytes) => counters.sent_bytes.add_len(bytes),
            Err(error) => {
                counters.datagrams_dropped.increment();
                if let Some(suppressed) = self.common.lines.dropped.allow() {
                    let peer = route.peer();
                    tracing::warn!(%peer, %error, suppressed, "cannot send a UDP reply");
                }
            }
        }
    }
}
