//! [`RpcClient`], the interface of the client: its start, calls, counters, and its end.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::batch::Message;
use super::call::Call;
use super::call_entry::NewCall;
use super::connection::Connection;
use super::counters::Counts;
use super::engine::Engine;
use super::error::CallError;
use super::finished::Finished;
use super::limit::Limit;
use super::link_call::{Linked, LinkedCall, Request};
use super::options::{InFlight, Interrupts, Options, Target, Transport};
use super::pending::{Cell, Pending};
use super::permit::NextPermit;
use super::receiver;
use super::shared::SharedClient;
use super::state::ClientState;
use super::system_wire::SystemWire;
use super::timers::Sleep;
use super::wire::Wire;
use crate::alarm::Alarm;
use crate::link::Route;
use tombolo_core::Interrupt;
use tombolo_sys::udp::DATAGRAM_MAX_BYTES;
use tombolo_wire_rpc::{CallHeader, Mark, Xid};
use tombolo_wire_xdr::Encoder;

/// A client of one program of one server. Clones, and clients [of other programs](Self::of_program), share
/// its connections, which are closed when the last of these clients is dropped.
#[derive(Clone)]
pub struct RpcClient(Arc<Handle>);

struct Handle {
    shared: Arc<SharedClient>,
    /// Guard that ends the engine, dropped with the last of the clients that share it.
    user: Arc<User>,
    /// Transport over links; with it calls bypass the engine, which then only runs timers.
    linked: Option<Arc<Linked>>,
    target: Target,
    interrupts: Interrupts,
}

impl RpcClient {
    /// Starts a client over sockets, with its own receiver thread. It connects with the first call.
    ///
    /// # Errors
    /// The system lacks a thread or descriptor, or the options combine TLS with a tunnel, which would carry
    /// the calls without it.
    pub fn start(target: Target, options: Options) -> io::Result<Self> {
        if options.tls.is_some() && options.tunnel.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no TLS through a tunnel"));
        }
        let alarm = Alarm::with_wakeup()?;
        let wire = Arc::new(SystemWire::new(alarm.wakeup.as_ref(), &options)?);
        let (client, engine) = Self::with(wire.clone(), target, options, alarm, None);
        receiver::start(engine, wire)?;
        Ok(client)
    }

    /// Starts a client over links in shared memory. The route may be shared with clients of other programs of
    /// the same server.
    ///
    /// # Errors
    /// The system lacks a thread or descriptor.
    pub fn over_links(
        route: Arc<Route>,
        (program, version): (u32, u32),
        mut options: Options,
    ) -> io::Result<Self> {
        if options.label.is_empty() {
            options.label = route.label().to_string();
        }
        let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let target = Target { address, transport: Transport::Tcp, program, version };
        let alarm = Alarm::with_wakeup()?;
        let wire = Arc::new(SystemWire::new(alarm.wakeup.as_ref(), &options)?);
        let (client, engine) = Self::with(wire.clone(), target, options, alarm, Some(route));
        receiver::start(engine, wire)?;
        Ok(client)
    }

    /// Creates a client over any wire, without a thread: the owner of the [`Engine`] runs it.
    #[must_use]
    pub fn over(wire: Arc<dyn Wire>, target: Target, options: Options) -> (Self, Engine) {
        Self::with(wire, target, options, Alarm::default(), None)
    }

    fn with(
        wire: Arc<dyn Wire>,
        target: Target,
        options: Options,
        alarm: Alarm,
        route: Option<Arc<Route>>,
    ) -> (Self, Engine) {
        let options = options.checked(&target);
        let interrupts = options.interrupts;
        let linked = route.map(|route| Linked::new(route, &options));
        let state = ClientState::new(options, target, wire.now(), wire.random());
        let shared = SharedClient::new(wire, state, alarm);
        let engine = Engine::new(shared.clone());
        let user = Arc::new(User(shared.clone()));
        (Self(Arc::new(Handle { shared, user, linked, target, interrupts })), engine)
    }

    /// Returns a client of another program at the same address, over the same connections.
    #[must_use]
    pub fn of_program(&self, (program, version): (u32, u32)) -> Self {
        let Handle { shared, user, linked, target, interrupts } = &*self.0;
        Self(Arc::new(Handle {
            shared: shared.clone(),
            user: user.clone(),
            linked: linked.clone(),
            target: Target { program, version, ..*target },
            interrupts: *interrupts,
        }))
    }

    /// Makes a call. This thread encodes it, and sends it at once if the in-flight limit and the socket
    /// allow; otherwise the call is queued. `encode_arguments` writes everything before [`Call::data`],
    /// including the length of the data.
    ///
    /// Does not block, except for the kernel to copy what is sent.
    pub fn call(&self, call: Call<'_>, encode_arguments: impl FnOnce(&mut Encoder<'_>)) -> Pending {
        if let Some(linked) = &self.0.linked {
            return self.call_over(linked, call, encode_arguments);
        }
        let shared = &self.0.shared;
        let mut head = shared.lock().head();
        head.extend_from_slice(&[0; Mark::BYTES]);
        let mut xdr = Encoder::new(&mut head);
        let (program, version) = self.program_of(&call);
        // The xid is assigned when the call is queued.
        xdr.value(&CallHeader::new(Xid(0), program, version, call.procedure, call.credential));
        encode_arguments(&mut xdr);
        let mut message = Message { head, data: call.data.filter(|data| !data.is_empty()) };
        let len_bytes = message.len() - Mark::BYTES;
        let fits = !shared.datagrams || len_bytes <= DATAGRAM_MAX_BYTES;
        let mark = Mark::whole(len_bytes).filter(|_| fits).map(Mark::to_bytes);
        match (mark, message.head.first_chunk_mut()) {
            (Some(mark), Some(place)) => *place = mark,
            _ => {
                let callee = shared.lock().callee(call.procedure);
                return Pending::new(Cell::with_outcome(Err(CallError::TooLong { callee, len_bytes })));
            }
        }
        let interrupt = (self.0.interrupts == Interrupts::Always).then(|| call.interrupt.clone());
        let Call { procedure, receive_buffer, bulk, interrupt: wish, .. } = call;
        let new = NewCall { procedure, message, receive_buffer, bulk, interrupt: wish };
        let (xid, cell) = self.insert(new);
        if let Some(interrupt) = interrupt {
            watch(shared, xid, &interrupt);
        }
        Pending::new(cell)
    }

    /// Makes a call over a link.
    fn call_over(
        &self,
        linked: &Arc<Linked>,
        call: Call<'_>,
        encode_arguments: impl FnOnce(&mut Encoder<'_>),
    ) -> Pending {
        let (program, version) = self.program_of(&call);
        let Call { procedure, credential, data, receive_buffer, results_bytes, bulk, interrupt, .. } = call;
        let shared = &self.0.shared;
        let data_bytes = receive_buffer.as_ref().map_or(0, |receive_buffer| receive_buffer.sink.len());
        // Results before file data are expected to fit in the frame.
        let buffer_bytes = if data_bytes > 0 { data_bytes.next_multiple_of(4) } else { results_bytes };
        let data = data.filter(|data| !data.is_empty());
        let (xid, head) = (0, Vec::new());
        let mut request = Request { procedure, xid, head, data, receive_buffer, interrupt, buffer_bytes };
        let counted = {
            let mut state = shared.lock();
            (request.xid, request.head) = (state.number(), state.head());
            bulk && state.begin_bulk(request.moved_bytes())
        };
        shared.counters.calls.increment();
        let mut xdr = Encoder::new(&mut request.head);
        xdr.value(&CallHeader::new(Xid(request.xid), program, version, procedure, credential));
        encode_arguments(&mut xdr);
        Pending::linked(LinkedCall::begin(shared, linked, request, bulk, counted))
    }

    fn program_of(&self, call: &Call<'_>) -> (u32, u32) {
        call.program.unwrap_or((self.0.target.program, self.0.target.version))
    }

    /// Queues a call, and sends it if possible.
    fn insert(&self, call: NewCall) -> (u32, Arc<Cell>) {
        let shared = &self.0.shared;
        let (bulk, now) = (call.bulk, shared.wire.now());
        shared.counters.calls.increment();
        let mut state = shared.lock();
        let alarm_at = state.alarm_for_call(bulk, now);
        let (xid, cell) = state.insert(call, now);
        let is_earlier = state.arm(alarm_at) || state.watching;
        let index = state.calls.get(&xid).map_or(0, |entry| entry.connection);
        let is_made = state.connections.get(index).is_none_or(Connection::is_made);
        let job = state.begin_sending(index, now);
        drop(state);
        if is_earlier || !is_made {
            shared.alarm.raise();
        }
        if job.is_some() {
            let mut finished = Finished::default();
            shared.send(job, &mut finished);
            finished.wake(shared);
        }
        (xid, cell)
    }

    /// Returns the wire's time. Time-outs of this client's users must be based on it, because a simulation's
    /// clock differs from the system's.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.shared.wire.now()
    }

    /// Returns a future that is ready after `time`, or once the client has ended.
    #[must_use]
    pub fn sleep(&self, time: Duration) -> Sleep {
        Sleep::new(self.0.shared.clone(), self.now() + time)
    }

    /// Returns `true` if a bulk call would not have to wait for the in-flight limit.
    #[must_use]
    pub fn has_permit(&self) -> bool {
        self.0.shared.lock().has_permit()
    }

    /// Returns a future that is ready when a bulk call may begin, or the client has ended.
    #[must_use]
    pub fn permit(&self) -> NextPermit {
        NextPermit::new(self.0.shared.clone())
    }

    /// Changes the in-flight limit. Outstanding calls are not affected.
    pub fn set_in_flight(&self, limit: InFlight) {
        self.0.shared.lock().limit = Limit::new(limit);
        // Waiting calls may now proceed.
        self.0.shared.alarm.raise();
    }

    /// Returns the current in-flight limit.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.0.shared.lock().limit.count()
    }

    /// Returns the shortest round trip of a non-bulk call, an upper bound of the network's round-trip time.
    /// `None` before the first reply to such a call, and over links.
    #[must_use]
    pub fn round_trip_min(&self) -> Option<Duration> {
        self.0.shared.lock().round_trip_min()
    }

    /// Returns a snapshot of the client's counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.0.shared.counters.read();
        let now = self.0.shared.wire.now();
        self.0.shared.lock().read_gauges(now, &mut counts);
        counts
    }

    /// Returns the link route, if calls use one.
    #[must_use]
    pub fn route(&self) -> Option<&Arc<Route>> {
        self.0.linked.as_ref().map(|linked| &linked.route)
    }

    /// Returns the callee; over links and tunnels the address is meaningless.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.0.target
    }

    /// Retains a buffer of results for reuse by later calls.
    pub fn recycle(&self, results: Vec<u8>) {
        self.0.shared.lock().keep_head(results);
    }
}

/// A guard that ends the engine when it is dropped.
struct User(Arc<SharedClient>);

impl Drop for User {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.alarm.raise();
    }
}

/// A waker that notifies the engine of a raised interrupt.
struct Watch {
    shared: Weak<SharedClient>,
    xid: u32,
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().raised.push(self.xid);
            shared.alarm.raise();
        }
    }
}

/// Notifies the engine when `interrupt` is raised, or at once if it is raised already.
pub(super) fn watch(shared: &Arc<SharedClient>, xid: u32, interrupt: &Interrupt) {
    if !interrupt.can_be_raised() {
        return;
    }
    let waker = Waker::from(Arc::new(Watch { shared: Arc::downgrade(shared), xid }));
    let raised = pin!(interrupt.raised());
    if let Poll::Ready(()) = raised.poll(&mut Context::from_waker(&waker)) {
        waker.wake();
    }
}
