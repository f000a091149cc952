//! Running calls: on the event thread while they are ready, as tasks when they are not; and where their
//! replies go.

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

/// What a call that goes on holds beside its buffers, by estimate: its future, its exchange, its task.
const LATER_BYTES: usize = 4 << 10;

/// Runs the calls of one event thread.
pub(super) trait Calls: Send {
    /// Begins a call. `destination` is asked only if it is not answered at once.
    fn run(
        &mut self,
        peer: &Arc<Peer>,
        exchange: Box<Exchange>,
        destination: &dyn Fn() -> Destination,
    ) -> Ran;

    /// Whether the reply to a call that begins so may need a buffer.
    fn needs_buffer(&self, head: &[u8]) -> bool;
}

/// What became of a call.
pub(super) enum Ran {
    /// It is answered.
    Done(Box<Exchange>, Outcome),
    /// It will be, by the thread that wakes it.
    Later,
    /// Its service panicked.
    Panicked,
}

/// The calls of one service.
pub(super) fn calls_of<S: Service>(service: Arc<S>, common: Arc<Common>) -> Box<dyn Calls> {
    let asked = service.clone();
    let needs_buffer = Box::new(move |head: &[u8]| asked.needs_buffer(head));
    let begin = move |peer, exchange| S::serve(service.clone(), peer, exchange);
    Box::new(Runner { begin, needs_buffer, common, slots: Vec::new() })
}

/// Memory of a call's future. It is made where it will be polled, and its memory serves one call after the
/// other.
type Slot<F> = Pin<Box<Option<F>>>;

/// Whether a call with this head needs a buffer of its own for the reply.
type NeedsBuffer = dyn Fn(&[u8]) -> bool + Send;

struct Runner<B, F> {
    begin: B,
    needs_buffer: Box<NeedsBuffer>,
    common: Arc<Common>,
    /// Slots that no call has. There is one at most: calls that go on take theirs along.
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
    ) -> Ran {
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
                Ran::Done(exchange, outcome)
            }
            Poll::Ready(None) => {
                // What is left of it may panic once more.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(slot)));
                self.common.counters.panics.add(1);
                Ran::Panicked
            }
            Poll::Pending => {
                self.common.counters.later.add(1);
                go_on(slot, Finish::new(destination(), self.common.clone()));
                Ran::Later
            }
        }
    }

    fn needs_buffer(&self, head: &[u8]) -> bool {
        (self.needs_buffer)(head)
    }
}

/// Polls a call. None once it has panicked; then, as when it is ready, its future is gone.
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

/// Polls the call again, now with a waker that means it, until it is ready. The thread that wakes it then
/// sends its reply.
fn go_on<F>(mut slot: Slot<F>, finish: Finish)
where
    F: Future<Output = (Box<Exchange>, Outcome)> + Send + 'static,
{
    task::spawn(async move {
        match poll_fn(|context| poll(&mut slot, context)).await {
            Some((exchange, outcome)) => finish.answer(exchange, outcome),
            None => {
                let _ = catch_unwind(AssertUnwindSafe(|| drop(slot)));
                finish.common.counters.panics.add(1);
            }
        }
    });
}

/// Where a call's reply goes.
pub(super) enum Destination {
    /// To a connection.
    SharedConnection(Arc<SharedConnection>),
    /// To the sender of a datagram.
    Datagram(Arc<Datagrams>, Return),
}

/// Ends a call, also one that panicked or was forgotten.
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
                    shared.call_attention();
                }
            }
            Destination::Datagram(datagrams, back) => datagrams.answer(back, &exchange, outcome),
        }
        // Its buffers go back before it waits for its next use.
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

    /// Gives back memory, and with it what else the call had.
    fn give_back(&self, bytes: usize) {
        self.account().give_back(bytes);
        if let Destination::SharedConnection(shared) = self {
            shared.ease();
        }
    }
}

/// One UDP socket, shared by the threads that answer its calls.
pub(super) struct Datagrams {
    socket: OwnedFd,
    pub(super) common: Arc<Common>,
    pub(super) calls: AtomicUsize,
}

/// How the reply gets back.
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

    /// Whether there is a call that is not answered.
    pub(super) fn has_calls(&self) -> bool {
        self.calls.load(Ordering::SeqCst) > 0
    }

    /// Sends a reply, if there is one; a client retransmits after a lost datagram.
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
            Ok(bytes) => counters.sent_bytes.add(bytes),
            Err(error) => {
                counters.datagrams_dropped.add(1);
                if let Some(suppressed) = self.common.lines.dropped.allow() {
                    let peer = route.peer();
                    tracing::warn!(%peer, %error, suppressed, "cannot send a UDP reply");
                }
            }
        }
    }
}
