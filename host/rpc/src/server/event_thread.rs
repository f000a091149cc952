//! An event thread: waits for events of its connections and sockets, and serves them in turn.
//!
//! Turns are limited, so that a busy connection does not delay the others. Before the thread sleeps it may
//! poll for a while ([`tombolo_host_runtime::polling`]). If a single connection was active lately, most polls
//! try to receive from it directly, which saves a system call; all other polls cover all connections.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::clients::ConnectionPermit;
use super::common::Common;
use super::connection::{Connection, NextStep, ThreadContext};
use super::datagrams::DatagramReader;
use super::listening::Listening;
use super::service::{Peer, Transport};
use super::shared_connection::SharedConnection;
use super::thread_queue::{Commands, ThreadQueue, Token, USES, Watched};
use tombolo_host_runtime::polling::PollWindow;
use tombolo_sys::epoll::{Epoll, Event, EventFd, Interest};
use tombolo_sys::moment::Moment;
use tombolo_sys::{Result, socket};

/// Number of polls of which one covers all connections even if the others read a single busy one directly.
const POLLS: u32 = 8;

/// Number of passes of the main loop between checks for a due sweep; the thread also checks before it sleeps.
const SWEEP_PASSES: u64 = 64;

/// Interval of sweeps while a stuck connection may be occupying memory that others wait for.
const EARLY_SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Interval of checks for the end of calls while the server stops, and pause after a failed epoll_wait.
const STOP_PAUSE: Duration = Duration::from_millis(5);

/// State of one event thread: its connections, its sockets and the queue of turns.
pub(super) struct EventThread {
    context: ThreadContext,
    queue: Arc<ThreadQueue>,
    epoll: Epoll,
    events: Vec<Event>,
    commands: Commands,
    connections: ConnectionTable,
    listening: Listening,
    sockets: Vec<DatagramReader>,
    /// Connections and sockets queued for a turn, in order.
    ready: VecDeque<Token>,
    busy: Busy,
    window: PollWindow,
    next_sweep: Option<Instant>,
    /// Deadline of running calls, set once the server stops.
    stops_at: Option<Instant>,
}

/// The most recently active connection or socket.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    last: Option<Token>,
    /// Number of its consecutive turns with work, not counting the first.
    times: u32,
}

impl Busy {
    fn worked(&mut self, token: Token) {
        let same = self.last == Some(token);
        self.times = if same { self.times.saturating_add(1) } else { 0 };
        self.last = Some(token);
    }

    /// Returns the connection or socket if it was the only recently active one.
    fn only(&self) -> Option<Token> {
        self.last.filter(|_| self.times > 0)
    }
}

impl EventThread {
    pub(super) fn new(
        context: ThreadContext,
        queue: Arc<ThreadQueue>,
        listening: Listening,
        sockets: Vec<DatagramReader>,
    ) -> Result<Self> {
        let epoll = Epoll::new()?;
        if let Some(wakeup) = &queue.alarm.wakeup {
            epoll.add(wakeup, Token::WAKEUP.number(), Interest::Readable)?;
        }
        listening.watch(&epoll)?;
        for (index, reader) in sockets.iter().enumerate() {
            epoll.add(reader.datagrams.socket(), Token::socket(index).number(), Interest::Readable)?;
        }
        Ok(Self {
            context,
            queue,
            epoll,
            events: Vec::new(),
            commands: Commands::default(),
            connections: ConnectionTable::default(),
            listening,
            sockets,
            ready: VecDeque::new(),
            busy: Busy::default(),
            window: PollWindow::default(),
            next_sweep: None,
            stops_at: None,
        })
    }

    /// Serves until the server stops.
    pub(super) fn run(mut self) {
        for pass in 1.. {
            self.run_commands();
            if pass % SWEEP_PASSES == 0u64 {
                // A thread that is never idle must also close stuck connections.
                self.sweep(Instant::now());
            }
            for _ in 0..self.ready.len() {
                if let Some(token) = self.ready.pop_front() {
                    self.turn(token);
                }
            }
            if self.has_stopped() {
                break;
            }
            if !self.ready.is_empty() {
                // New events queue up behind connections with more to do.
                self.poll_events(Some(Duration::ZERO));
            } else if !self.spin() {
                self.sleep();
            }
        }
        let tokens: Vec<_> = self.connections.iter_mut().map(|connection| connection.shared.token).collect();
        tokens.into_iter().for_each(|token| self.close(token));
    }

    fn common(&self) -> &Arc<Common> {
        &self.context.common
    }

    fn run_commands(&mut self) {
        if !self.queue.alarm.is_raised() {
            return;
        }
        let mut commands = mem::take(&mut self.commands);
        self.queue.take(&mut commands);
        for (stream, address, admitted) in commands.new_connections.drain(..) {
            self.take_in(stream, address, admitted);
        }
        for token in &commands.tokens {
            self.enqueue(*token);
        }
        if commands.stop && self.stops_at.is_none() {
            self.begin_to_stop();
        }
        self.commands = commands;
    }

    fn take_in(&mut self, stream: OwnedFd, address: SocketAddr, admitted: ConnectionPermit) {
        let peer = Peer::new(address, Transport::Tcp);
        let (token, common) = (self.connections.next_token(), self.common().clone());
        let shared =
            SharedConnection::new(stream, peer, token, (common.clone(), admitted), self.queue.clone());
        let watched = self.epoll.add(shared.stream(), token.number(), Interest::Changes);
        shared.client.connections.insert(&shared);
        self.connections.insert(Connection::new(shared, &common));
        if let Err(error) = watched {
            tracing::warn!(peer = %address, %error, "cannot serve a new connection");
            self.close(token);
            return;
        }
        if self.stops_at.is_some() {
            self.close(token);
            return;
        }
        if self.next_sweep.is_none() {
            self.next_sweep = Some(Instant::now() + self.common().options.sweep_interval());
        }
        self.enqueue(token);
    }

    fn enqueue(&mut self, token: Token) {
        if let Some(connection) = self.connections.find(token)
            && !mem::replace(&mut connection.queued, true)
        {
            self.ready.push_back(token);
        }
    }

    /// Runs one turn of a connection, listener or datagram socket. Returns `true` if something was received
    /// or served.
    fn turn(&mut self, token: Token) -> bool {
        let worked = match token.watched() {
            Watched::Wakeup => false,
            Watched::Listener(index) => {
                self.listening.turn(index, &self.epoll);
                false
            }
            Watched::Socket(index) => {
                let Some(reader) = self.sockets.get_mut(index) else { return false };
                let context = &mut self.context;
                let (count, more) = reader.turn(&mut *context.calls, &mut context.exchanges);
                if more {
                    self.ready.push_back(token);
                }
                if count > 0 && self.next_sweep.is_none() {
                    self.next_sweep = Some(Instant::now() + self.common().options.sweep_interval());
                }
                count > 0
            }
            Watched::Connection { .. } => self.turn_of_connection(token),
        };
        if worked {
            self.busy.worked(token);
        }
        worked
    }

    fn turn_of_connection(&mut self, token: Token) -> bool {
        let Some(connection) = self.connections.find(token) else { return false };
        connection.queued = false;
        let turn = connection.turn(&mut self.context);
        if connection.needs_early_sweep() {
            let soon = Instant::now() + EARLY_SWEEP_INTERVAL;
            self.next_sweep = Some(self.next_sweep.map_or(soon, |sweep| sweep.min(soon)));
        }
        self.apply(token, turn.then);
        turn.worked
    }

    fn apply(&mut self, token: Token, then: NextStep) {
        match then {
            NextStep::Wait => {}
            NextStep::Again => self.enqueue(token),
            NextStep::Close => self.close(token),
        }
    }

    fn close(&mut self, token: Token) {
        let Some(connection) = self.connections.remove(token) else { return };
        if self.busy.last == Some(token) {
            self.busy = Busy::default();
        }
        let shared = &connection.shared;
        let _ = self.epoll.remove(shared.stream());
        shared.kill();
        // The socket is shut down, because pending calls keep the descriptor open and the peer must be
        // informed of the end.
        let _ = socket::shut_down(shared.stream());
        self.queue.connections.fetch_sub(1, Ordering::Relaxed);
        shared.client.connections.remove(shared);
        // The connection may have been woken for limits that it no longer needs.
        shared.client.pass_on();
    }

    /// Waits for events and handles them. Returns `true` if there were any.
    fn poll_events(&mut self, timeout: Option<Duration>) -> bool {
        if let Err(error) = self.epoll.wait(&mut self.events, timeout) {
            // At worst the kernel lacks memory, so the thread retries soon.
            tracing::error!(%error, "epoll_wait failed");
            std::thread::sleep(STOP_PAUSE);
        }
        let events = mem::take(&mut self.events);
        events.iter().for_each(|event| self.note(event));
        self.events = events;
        !self.events.is_empty()
    }

    fn note(&mut self, event: &Event) {
        let token = Token::from_number(event.token);
        match token.watched() {
            Watched::Wakeup => self.queue.alarm.wakeup.iter().for_each(EventFd::clear),
            // Level-triggered events repeat; one entry in the queue is enough.
            Watched::Listener(_) | Watched::Socket(_) => {
                if !self.ready.contains(&token) {
                    self.ready.push_back(token);
                }
            }
            Watched::Connection { .. } => {
                let Some(connection) = self.connections.find(token) else { return };
                connection.readable |= event.readable || event.writable && connection.is_shaking_hands();
                connection.finished |= event.finished;
                if event.writable {
                    connection.shared.writable();
                }
                let then = match event.ended {
                    true => connection.hung_up(),
                    false if connection.readable && !connection.must_wait() => NextStep::Again,
                    false => NextStep::Wait,
                };
                self.apply(token, then);
            }
        }
    }

    /// Polls for work for as long as that pays. Returns `true` if there is some.
    fn spin(&mut self) -> bool {
        if !self.window.is_open() {
            return false;
        }
        let since = Moment::now();
        let mut polls = 0;
        while self.window.pause(since) {
            if self.queue.alarm.is_raised() {
                return true;
            }
            polls += 1;
            let found = match self.busy.only() {
                Some(token) if polls % POLLS != 0 => self.poll_connection(token),
                _ => self.poll_events(Some(Duration::ZERO)),
            };
            if found {
                return true;
            }
        }
        false
    }

    /// Tries to receive without checking for readiness first.
    fn poll_connection(&mut self, token: Token) -> bool {
        let is_futile = match self.connections.find(token) {
            Some(connection) => !connection.try_receive(&mut self.context),
            None => false,
        };
        if is_futile { false } else { self.turn(token) }
    }

    fn sleep(&mut self) {
        let now = Instant::now();
        self.sweep(now);
        if !self.ready.is_empty() {
            return;
        }
        let until = [self.next_sweep, self.listening.resumes_at(), self.stops_at.map(|_| now + STOP_PAUSE)];
        let timeout = until.into_iter().flatten().min().map(|time| time.saturating_duration_since(now));
        let queue = self.queue.clone();
        queue.alarm.sleep(|| {
            self.poll_events(timeout);
        });
        self.window.slept(now.elapsed());
    }

    /// Runs periodic tasks that are due.
    fn sweep(&mut self, now: Instant) {
        self.listening.resume(&self.epoll, now);
        if self.next_sweep.is_none_or(|time| now < time) {
            return;
        }
        let common = self.common().clone();
        let (mut closing, mut needs_early_sweep) = (Vec::new(), false);
        for connection in self.connections.iter_mut() {
            match connection.sweep(&common, now) {
                NextStep::Close => closing.push(connection.shared.token),
                _ => needs_early_sweep |= connection.needs_early_sweep(),
            }
        }
        closing.into_iter().for_each(|token| self.close(token));
        self.sockets.iter_mut().for_each(DatagramReader::trim);
        common.clients.sweep();
        common.pool.trim();
        let more = !self.connections.is_empty() || common.pool.has_spare() || !common.clients.is_empty();
        let interval = common.options.sweep_interval();
        let interval = if needs_early_sweep { interval.min(EARLY_SWEEP_INTERVAL) } else { interval };
        self.next_sweep = more.then(|| now + interval);
    }

    fn begin_to_stop(&mut self) {
        self.stops_at = Some(Instant::now() + self.common().options.grace);
        self.listening.close(&self.epoll);
        for reader in &self.sockets {
            let _ = self.epoll.remove(reader.datagrams.socket());
        }
        self.busy = Busy::default();
        self.ready.clear();
        let mut closing = Vec::new();
        for connection in self.connections.iter_mut() {
            connection.queued = false;
            if connection.end() == NextStep::Close {
                closing.push(connection.shared.token);
            }
        }
        closing.into_iter().for_each(|token| self.close(token));
    }

    fn has_stopped(&self) -> bool {
        let Some(end) = self.stops_at else { return false };
        let has_calls = self.sockets.iter().any(|reader| reader.datagrams.has_calls());
        (self.connections.is_empty() && !has_calls) || Instant::now() >= end
    }
}

/// Connections of an event thread by token. The token of a closed connection stays invalid when its slot is
/// reused.
#[derive(Default)]
pub(super) struct ConnectionTable {
    connections: Vec<Slot>,
    free: Vec<u32>,
    taken: usize,
}

#[derive(Default)]
struct Slot {
    use_count: u32,
    connection: Option<Box<Connection>>,
}

impl ConnectionTable {
    /// Returns the token of the next connection to be inserted.
    pub(super) fn next_token(&self) -> Token {
        let slot = self.free.last().copied().unwrap_or(self.connections.len() as u32);
        let use_count = self.connections.get(slot as usize).map_or(0, |slot| slot.use_count);
        Token::connection(slot, use_count)
    }

    pub(super) fn insert(&mut self, connection: Connection) {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None => {
                self.connections.push(Slot::default());
                self.connections.len() - 1
            }
        };
        self.connections[slot].connection = Some(Box::new(connection));
        self.taken += 1;
    }

    pub(super) fn find(&mut self, token: Token) -> Option<&mut Connection> {
        let Watched::Connection { slot, use_count } = token.watched() else { return None };
        let slot = self.connections.get_mut(slot as usize)?;
        if slot.use_count == use_count { slot.connection.as_deref_mut() } else { None }
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<Box<Connection>> {
        let Watched::Connection { slot: number, use_count } = token.watched() else { return None };
        let slot = self.connections.get_mut(number as usize).filter(|slot| slot.use_count == use_count)?;
        let connection = slot.connection.take()?;
        slot.use_count = (slot.use_count + 1) % USES;
        self.free.push(number);
        self.taken -= 1;
        Some(connection)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.connections.iter_mut().filter_map(|slot| slot.connection.as_deref_mut())
    }
}
