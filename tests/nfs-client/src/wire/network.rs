//! The network and its clock: events in flight and their times.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::conditions::Conditions;
use super::datagrams::DatagramSocket;
use super::rng::Rng;
use super::stream::{Connection, End};
use super::trace::Trace;

/// Id of a client's socket and of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    /// Number of the client.
    pub client: u16,
    /// Number of the socket in the network.
    pub number: u64,
}

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "socket {} of client {}", self.number, self.client)
    }
}

/// A network with one server. Clones are the same network.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

/// Result of a step, for its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// No event for an endpoint.
    Nothing,
    /// A client's socket is ready.
    Client(SocketId, Ready),
    /// The server has a new connection.
    Accepted(SocketId),
    /// The server's end of a connection is ready.
    Server(SocketId, Ready),
    /// The server has received a datagram from this socket.
    Datagram(SocketId, Vec<u8>),
}

/// Readiness of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Bytes, an end or an error can be received.
    pub readable: bool,
    /// There is buffer space again, or the connection is established.
    pub writable: bool,
}

impl Ready {
    pub(super) fn add(&mut self, other: Self) {
        self.readable |= other.readable;
        self.writable |= other.writable;
    }
}

/// A pending event of the network.
pub(super) enum Event {
    Syn(SocketId),
    Opened(SocketId, bool),
    Arrive { socket: SocketId, to: End, bytes: Vec<u8> },
    Fin { socket: SocketId, to: End },
    Break { socket: SocketId, to: End },
    Room { socket: SocketId, to: End },
    Notify { socket: SocketId, to: End },
    Datagram { socket: SocketId, to: End, bytes: Vec<u8> },
    Unreachable(SocketId),
    Alarm(u64),
}

pub(super) struct State {
    origin: Instant,
    pub now: Duration,
    pub rng: Rng,
    pub conditions: Conditions,
    queue: BTreeMap<(Duration, u64), Event>,
    last_number: u64,
    pub connections: BTreeMap<SocketId, Connection>,
    pub datagrams: BTreeMap<SocketId, DatagramSocket>,
    alarms: BTreeMap<u64, Waker>,
    pub trace: Trace,
    /// `true` while the server runs.
    pub listening: bool,
    /// End of the downtime of the server's machine.
    pub host_down_until: Duration,
    pub refuse_until: Duration,
    pub partition_until: Duration,
}

impl Network {
    /// Creates a network from a seed; records its events as text if `is_read`.
    pub fn new(seed: u64, conditions: Conditions, is_read: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            origin: Instant::now(),
            now: Duration::ZERO,
            rng: Rng::new(seed),
            conditions,
            queue: BTreeMap::new(),
            last_number: 0,
            connections: BTreeMap::new(),
            datagrams: BTreeMap::new(),
            alarms: BTreeMap::new(),
            trace: Trace::new(is_read),
            listening: true,
            host_down_until: Duration::ZERO,
            refuse_until: Duration::ZERO,
            partition_until: Duration::ZERO,
        })))
    }

    /// Returns the simulated time since the start.
    pub fn now(&self) -> Duration {
        self.state().now
    }

    /// Returns the simulated time as an `Instant`.
    pub fn instant(&self) -> Instant {
        let state = self.state();
        state.origin + state.now
    }

    /// Converts an instant of this network to simulated time.
    pub fn time_of(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.state().origin)
    }

    /// Returns the time of the next pending event.
    pub fn next_at(&self) -> Option<Duration> {
        self.state().queue.first_key_value().map(|(key, _)| key.0)
    }

    /// Advances the clock.
    pub fn advance(&self, to: Duration) {
        let mut state = self.state();
        state.now = state.now.max(to);
    }

    /// Processes the next event; returns `None` if none is pending.
    pub fn step(&self) -> Option<Happening> {
        let (happening, waker) = {
            let mut state = self.state();
            let ((at, _), event) = state.queue.pop_first()?;
            state.now = state.now.max(at);
            match event {
                Event::Alarm(number) => (Happening::Nothing, state.alarms.remove(&number)),
                event => (state.happen(event), None),
            }
        };
        // Without the lock: a woken task may send.
        waker.into_iter().for_each(Waker::wake);
        Some(happening)
    }

    /// Returns a future that completes after `time`.
    pub fn sleep(&self, time: Duration) -> Sleep {
        Sleep { network: self.clone(), time: Some(time), alarm: 0 }
    }

    /// Schedules a step at `at` at the latest.
    pub fn nudge(&self, at: Duration) {
        let mut state = self.state();
        let at = at.max(state.now);
        state.schedule(at, Event::Alarm(0));
    }

    /// Replaces the conditions.
    pub fn set_weather(&self, conditions: Conditions) {
        self.state().conditions = conditions;
    }

    /// Returns the conditions.
    pub fn conditions(&self) -> Conditions {
        self.state().conditions
    }

    /// Samples a duration from the range.
    pub fn random_between(&self, range: (Duration, Duration)) -> Duration {
        self.state().rng.between(range)
    }

    /// Adds an event of another component to the trace.
    pub fn note(&self, number: u64, words: impl FnOnce() -> String) {
        let mut state = self.state();
        let now = state.now;
        state.trace.add(now, 0, number, words);
    }

    /// Returns the recorded events as text.
    pub fn trace(&self) -> String {
        self.state().trace.to_string()
    }

    /// Returns a digest of the run's events.
    pub fn digest(&self) -> u64 {
        self.state().trace.digest()
    }

    /// Ends partitions, refusals and pending cuts.
    pub fn heal(&self) {
        let mut state = self.state();
        let now = state.now;
        state.partition_until = state.partition_until.min(now);
        state.refuse_until = state.refuse_until.min(now);
        for connection in state.connections.values_mut() {
            connection.forget_cuts();
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Schedules an event.
    pub fn schedule(&mut self, at: Duration, event: Event) {
        let number = self.number();
        self.queue.insert((at, number), event);
    }

    /// Drops datagrams in flight to the server. A duplicate delivered after a restart would be executed
    /// again, since the server has lost its replies; NFS over UDP permits that.
    pub fn lose_datagrams_to_server(&mut self) {
        self.queue.retain(|_, event| !matches!(event, Event::Datagram { to: End::Server, .. }));
    }

    pub fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Samples the arrival time of something sent now.
    pub fn arrival(&mut self) -> Duration {
        let (conditions, sent_at) = (self.conditions, self.now.max(self.partition_until));
        sent_at + conditions.delay(&mut self.rng)
    }

    /// Adds an event to the trace.
    pub fn note(&mut self, kind: u8, number: u64, words: impl FnOnce() -> String) {
        let now = self.now;
        self.trace.add(now, kind, number, words);
    }

    fn happen(&mut self, event: Event) -> Happening {
        match event {
            Event::Syn(socket) => self.syn(socket),
            Event::Opened(socket, stands) => self.opened(socket, stands),
            Event::Arrive { socket, to, bytes } => self.arrive(socket, to, bytes),
            Event::Fin { socket, to } => self.fin(socket, to),
            Event::Break { socket, to } => self.broken(socket, to),
            Event::Room { socket, to } => self.room(socket, to),
            Event::Notify { socket, to } => self.notify(socket, to),
            Event::Datagram { socket, to, bytes } => self.datagram(socket, to, bytes),
            Event::Unreachable(socket) => self.unreachable(socket),
            Event::Alarm(_) => Happening::Nothing,
        }
    }
}

/// Future of [`Network::sleep`].
pub struct Sleep {
    network: Network,
    /// `None` once the alarm is set.
    time: Option<Duration>,
    alarm: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.network.state();
        match this.time.take() {
            Some(Duration::ZERO) => Poll::Ready(()),
            Some(time) => {
                this.alarm = state.number();
                state.alarms.insert(this.alarm, context.waker().clone());
                let at = state.now + time;
                let event = Event::Alarm(this.alarm);
                state.schedule(at, event);
                Poll::Pending
            }
            None => match state.alarms.get_mut(&this.alarm) {
                Some(waker) => {
                    waker.clone_from(context.waker());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            },
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = self.network.state().alarms.remove(&self.alarm);
        drop(waker);
    }
}
