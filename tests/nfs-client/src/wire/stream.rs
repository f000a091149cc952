//! Streams: bytes in order, split and joined at random, until the connection breaks.

use std::collections::VecDeque;
use std::time::Duration;

use tombolo_sys::Errno;

use super::conditions::Fault;
use super::network::{Event, Happening, Network, Ready, SocketId, State};
use super::rng::Rng;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

impl End {
    /// Returns the other end.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A connection, from the client's connect until both ends are closed.
#[derive(Debug)]
pub(super) struct Connection {
    stands: bool,
    /// `true` if nothing is delivered any more.
    pub silent: bool,
    /// Direction towards each end, with that end's state.
    to_client: Pipe,
    to_server: Pipe,
}

/// One direction, with the state of the end that it leads to.
#[derive(Debug, Default)]
struct Pipe {
    arrived: VecDeque<u8>,
    under_way: usize,
    /// Arrival time of the last data in flight.
    last_due: Duration,
    /// Number of bytes delivered before the connection breaks.
    cut_after: Option<usize>,
    /// The sender found the buffer full.
    sender_waits: bool,
    /// The end of the stream has arrived.
    ended: bool,
    /// The receiver has closed its end.
    closed: bool,
    /// Error that the receiver has been or will be notified of.
    error: Option<Errno>,
    /// Readiness of which the receiver is about to be notified.
    notified: Option<Ready>,
}

impl Connection {
    fn pipe(&mut self, to: End) -> &mut Pipe {
        match to {
            End::Client => &mut self.to_client,
            End::Server => &mut self.to_server,
        }
    }

    pub fn forget_cuts(&mut self) {
        (self.to_client.cut_after, self.to_server.cut_after) = (None, None);
    }

    fn is_over(&self) -> bool {
        self.to_client.closed && (self.to_server.closed || self.silent)
    }
}

/// Stream operations of clients and the server.
impl Network {
    /// Starts connecting. The socket becomes writable once connected, or readable upon failure.
    pub fn connect(&self, client: u16) -> SocketId {
        let mut state = self.state();
        let socket = SocketId { client, number: state.number() };
        let connection = Connection {
            stands: false,
            silent: false,
            to_client: Pipe::default(),
            to_server: Pipe::default(),
        };
        state.connections.insert(socket, connection);
        state.note(1, socket.number, || format!("{socket} connects"));
        let at = state.arrival();
        state.schedule(at, Event::Syn(socket));
        socket
    }

    /// Returns `true` once the connection is established, or the error with which it failed.
    pub fn is_connected(&self, socket: SocketId) -> Result<bool, Errno> {
        let mut state = self.state();
        let connection = state.connections.get_mut(&socket).ok_or(Errno::BADF)?;
        match connection.to_client.error {
            Some(error) if !connection.stands => Err(error),
            _ => Ok(connection.stands),
        }
    }

    /// Sends a prefix of `bytes` from an end and returns its length. EAGAIN if the buffer is full.
    pub fn send(&self, socket: SocketId, from: End, bytes: &[u8]) -> Result<usize, Errno> {
        let mut state = self.state();
        let (conditions, to) = (state.conditions, from.other());
        let is_short = state.rng.chance(conditions.short_transfers);
        let connection = state.connections.get_mut(&socket).ok_or(Errno::BADF)?;
        if let Some(error) = connection.pipe(from).error {
            return Err(if error == Errno::CONNRESET { Errno::PIPE } else { error });
        }
        let stands = connection.stands;
        let pipe = connection.pipe(to);
        let room = conditions.window.saturating_sub(pipe.under_way + pipe.arrived.len());
        if !stands || room == 0 {
            pipe.sender_waits = true;
            return Err(Errno::AGAIN);
        }
        let most = room.min(bytes.len());
        let count = if is_short { state.rng.up_to(most) } else { most };
        state.launch(socket, to, &bytes[..count]);
        Ok(count)
    }

    /// Receives up to `limit` bytes at an end; none at the end of the stream. EAGAIN if none have arrived.
    pub fn receive(&self, socket: SocketId, at: End, limit: usize) -> Result<Vec<u8>, Errno> {
        let mut state = self.state();
        let conditions = state.conditions;
        let is_short = state.rng.chance(conditions.short_transfers);
        let connection = state.connections.get_mut(&socket).ok_or(Errno::BADF)?;
        let pipe = connection.pipe(at);
        let available = pipe.arrived.len().min(limit);
        if available == 0 {
            return match pipe {
                _ if limit == 0 => Ok(Vec::new()),
                Pipe { error: Some(error), .. } => Err(*error),
                Pipe { ended: true, .. } => Ok(Vec::new()),
                _ => Err(Errno::AGAIN),
            };
        }
        let count = if is_short { state.rng.up_to(available) } else { available };
        let Some(connection) = state.connections.get_mut(&socket) else { return Err(Errno::BADF) };
        let pipe = connection.pipe(at);
        let bytes = pipe.arrived.drain(..count).collect();
        let has_room = pipe.under_way + pipe.arrived.len() <= conditions.window / 2;
        if pipe.sender_waits && has_room && !connection.silent {
            connection.pipe(at).sender_waits = false;
            let at_time = state.arrival();
            state.schedule(at_time, Event::Room { socket, to: at.other() });
        }
        Ok(bytes)
    }

    /// Processes a notification: the end is notified again if something is still to be received.
    pub fn looked_at(&self, socket: SocketId, end: End) {
        let mut state = self.state();
        let Some(connection) = state.connections.get_mut(&socket) else { return };
        let pipe = connection.pipe(end);
        if !pipe.closed && (!pipe.arrived.is_empty() || pipe.ended || pipe.error.is_some()) {
            state.tell(socket, end, Ready { readable: true, writable: false });
        }
    }

    /// Closes an end. Bytes already sent still arrive, unless unread bytes remain: then the other end gets a
    /// reset.
    pub fn close(&self, socket: SocketId, end: End) {
        let mut state = self.state();
        let Some(connection) = state.connections.get_mut(&socket) else { return };
        let pipe = connection.pipe(end);
        let (was_closed, has_unread, is_broken) =
            (pipe.closed, !pipe.arrived.is_empty(), pipe.error.is_some());
        pipe.closed = true;
        pipe.arrived.clear();
        if was_closed {
            return;
        }
        state.note(2, socket.number, || format!("{socket} is closed by the {end:?}"));
        if !is_broken {
            let at = state.arrival_in_order(socket, end.other());
            let to = end.other();
            let event = if has_unread { Event::Break { socket, to } } else { Event::Fin { socket, to } };
            state.schedule(at, event);
        }
        state.forget_if_over(socket);
    }

    /// Returns the number of sockets that clients have open, datagram sockets included.
    pub fn open_clients(&self) -> usize {
        let state = self.state();
        let streams = state.connections.values().filter(|connection| !connection.to_client.closed).count();
        streams + state.datagrams.len()
    }
}

impl State {
    /// Sends bytes in pieces.
    fn launch(&mut self, socket: SocketId, to: End, bytes: &[u8]) {
        let (conditions, mut rest) = (self.conditions, bytes);
        let mut broken = false;
        let crumbles = self.rng.chance(conditions.crumbs);
        while !rest.is_empty() && !broken {
            let longest = if crumbles && rest.len() < 4096 { 7 } else { conditions.segment_max };
            let len = self.rng.up_to(longest).max(rest.len().min(longest) / 2).min(rest.len());
            let (mut piece, left) = rest.split_at(len);
            rest = left;
            broken = self.rng.chance(conditions.resets);
            let Some(connection) = self.connections.get_mut(&socket) else { return };
            let pipe = connection.pipe(to);
            if let Some(cut) = &mut pipe.cut_after {
                broken |= *cut <= piece.len();
                piece = &piece[..piece.len().min(*cut)];
                *cut -= piece.len();
            }
            pipe.under_way += piece.len();
            let at = self.arrival_in_order(socket, to);
            self.schedule(at, Event::Arrive { socket, to, bytes: piece.to_vec() });
        }
        // Bytes behind the break were accepted but never arrive.
        if broken {
            self.break_off(socket, to);
        }
    }

    /// Cuts the connection; each end is notified after a delay of its own.
    fn break_off(&mut self, socket: SocketId, last_piece_to: End) {
        self.note(3, socket.number, || format!("{socket} breaks"));
        let at = self.arrival_in_order(socket, last_piece_to);
        self.schedule(at, Event::Break { socket, to: last_piece_to });
        let at = self.arrival();
        self.schedule(at, Event::Break { socket, to: last_piece_to.other() });
    }

    /// Samples the arrival time of a piece sent now to that end; not before earlier pieces.
    fn arrival_in_order(&mut self, socket: SocketId, to: End) -> Duration {
        let at = self.arrival();
        let Some(connection) = self.connections.get_mut(&socket) else { return at };
        let pipe = connection.pipe(to);
        pipe.last_due = pipe.last_due.max(at);
        pipe.last_due
    }

    pub(super) fn syn(&mut self, socket: SocketId) -> Happening {
        let Some(connection) = self.connections.get(&socket) else { return Happening::Nothing };
        if connection.to_client.closed {
            return Happening::Nothing;
        }
        if self.is_host_down() || self.now < self.partition_until {
            // Retransmitted until it is received.
            let again = self.arrival().max(self.host_down_until + Duration::from_millis(1));
            self.schedule(again, Event::Syn(socket));
            return Happening::Nothing;
        }
        let stands = self.listening && self.now >= self.refuse_until;
        let at = self.arrival_in_order(socket, End::Client);
        self.schedule(at, Event::Opened(socket, stands));
        if stands { Happening::Accepted(socket) } else { Happening::Nothing }
    }

    pub(super) fn opened(&mut self, socket: SocketId, stands: bool) -> Happening {
        self.note(4, socket.number, || format!("{socket} {}", if stands { "stands" } else { "is refused" }));
        let Some(connection) = self.connections.get_mut(&socket) else { return Happening::Nothing };
        if connection.silent {
            return Happening::Nothing;
        }
        connection.stands = stands;
        if !stands {
            connection.to_client.error = Some(Errno::CONNREFUSED);
            connection.to_server.closed = true;
        }
        connection.to_server.sender_waits = false;
        self.tell(socket, End::Client, Ready { readable: !stands, writable: true });
        Happening::Nothing
    }

    pub(super) fn arrive(&mut self, socket: SocketId, to: End, bytes: Vec<u8>) -> Happening {
        let Some(connection) = self.connections.get_mut(&socket) else { return Happening::Nothing };
        let pipe = connection.pipe(to);
        let (closed, broken) = (pipe.closed, pipe.error.is_some());
        if connection.silent || broken {
            return Happening::Nothing;
        }
        if closed {
            return self.reject(socket, to, bytes);
        }
        let pipe = connection.pipe(to);
        pipe.under_way -= bytes.len();
        pipe.arrived.extend(&bytes);
        let len = bytes.len() as u64;
        self.note(5, socket.number ^ len << 32, || format!("{socket}: {len} bytes to the {to:?}"));
        self.tell(socket, to, Ready { readable: true, writable: false });
        Happening::Nothing
    }

    /// Answers bytes for a closed end with a reset; redelivers them later while the server's machine is down.
    fn reject(&mut self, socket: SocketId, to: End, bytes: Vec<u8>) -> Happening {
        if to == End::Server && self.is_host_down() {
            let again = self.host_down_until + Duration::from_millis(200);
            self.schedule(again, Event::Arrive { socket, to, bytes });
        } else {
            let at = self.arrival();
            self.schedule(at, Event::Break { socket, to: to.other() });
        }
        Happening::Nothing
    }

    pub(super) fn fin(&mut self, socket: SocketId, to: End) -> Happening {
        let Some(connection) = self.connections.get_mut(&socket) else { return Happening::Nothing };
        if !connection.silent && !connection.pipe(to).closed {
            connection.pipe(to).ended = true;
            self.tell(socket, to, Ready { readable: true, writable: false });
        }
        Happening::Nothing
    }

    pub(super) fn broken(&mut self, socket: SocketId, to: End) -> Happening {
        let purges = self.rng.chance(300);
        let Some(connection) = self.connections.get_mut(&socket) else { return Happening::Nothing };
        let silent = connection.silent;
        let pipe = connection.pipe(to);
        if silent || pipe.closed || pipe.error.is_some() {
            return Happening::Nothing;
        }
        pipe.error = Some(Errno::CONNRESET);
        if purges {
            pipe.arrived.clear();
        }
        self.note(6, socket.number, || format!("{socket}: the {to:?} is told of a reset"));
        self.tell(socket, to, Ready { readable: true, writable: true });
        Happening::Nothing
    }

    pub(super) fn room(&mut self, socket: SocketId, to: End) -> Happening {
        self.tell(socket, to, Ready { readable: false, writable: true });
        Happening::Nothing
    }

    /// Notifies an end after its wake-up latency.
    fn tell(&mut self, socket: SocketId, to: End, ready: Ready) {
        let conditions = self.conditions;
        let at = self.now + self.rng.between(conditions.wake_up);
        let Some(connection) = self.connections.get_mut(&socket) else { return };
        let pipe = connection.pipe(to);
        if pipe.closed {
            return;
        }
        match &mut pipe.notified {
            Some(notified) => notified.add(ready),
            none => {
                *none = Some(ready);
                self.schedule(at, Event::Notify { socket, to });
            }
        }
    }

    pub(super) fn notify(&mut self, socket: SocketId, to: End) -> Happening {
        if self.datagrams.contains_key(&socket) {
            return self.notify_datagrams(socket);
        }
        let Some(connection) = self.connections.get_mut(&socket) else { return Happening::Nothing };
        let pipe = connection.pipe(to);
        match (pipe.notified.take(), pipe.closed, to) {
            (None, ..) | (_, true, _) => Happening::Nothing,
            (Some(ready), _, End::Client) => Happening::Client(socket, ready),
            (Some(ready), _, End::Server) => Happening::Server(socket, ready),
        }
    }

    pub(super) fn is_host_down(&self) -> bool {
        self.now < self.host_down_until
    }

    fn forget_if_over(&mut self, socket: SocketId) {
        if self.connections.get(&socket).is_some_and(Connection::is_over) {
            self.connections.remove(&socket);
        }
    }
}

/// Operations on all streams.
impl Network {
    /// Applies the network's part of a fault; [`ServerSide`](super::ServerSide) applies the server's.
    pub fn strike(&self, fault: Fault) {
        self.note(1, || format!("fault: {fault:?}"));
        match fault {
            Fault::Reset => self.each_stream(|state, socket| state.break_off(socket, End::Client)),
            Fault::Cut { to_server, after_bytes } => {
                let to = if to_server { End::Server } else { End::Client };
                self.each_connection(|connection| connection.pipe(to).cut_after = Some(after_bytes));
            }
            Fault::Close => self.each_stream(|state, socket| {
                let at = state.arrival_in_order(socket, End::Client);
                state.schedule(at, Event::Fin { socket, to: End::Client });
            }),
            Fault::HalfOpen => self.each_connection(|connection| connection.silent = true),
            Fault::Partition(time) => {
                let mut state = self.state();
                state.partition_until = state.now + time;
            }
            Fault::Refuse(time) => {
                let mut state = self.state();
                state.refuse_until = state.now + time;
            }
            Fault::Freeze(_) | Fault::Restart { .. } => {}
        }
    }

    fn each_connection(&self, change: impl FnMut(&mut Connection)) {
        self.state().connections.values_mut().for_each(change);
    }

    /// Forgets the server's ends, as after a power failure. Clients find out when they send.
    pub fn forget_server_ends(&self) {
        self.each_stream(|state, socket| {
            if let Some(connection) = state.connections.get_mut(&socket) {
                connection.to_server.closed = true;
                connection.to_server.arrived.clear();
            }
            state.forget_if_over(socket);
        });
    }

    fn each_stream(&self, mut change: impl FnMut(&mut State, SocketId)) {
        let mut state = self.state();
        let sockets: Vec<_> = state.connections.keys().copied().collect();
        for socket in sockets {
            change(&mut state, socket);
        }
    }
}

/// Returns pseudo-random bytes.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    std::iter::repeat_with(|| rng.next_u64().to_le_bytes()).flatten().take(len).collect()
}
