//! Datagrams: delivered once, twice, out of order, or lost.

use std::collections::VecDeque;

use tombolo_sys::Errno;

use super::network::{Event, Happening, Network, Ready, SocketId, State};
use super::stream::End;

/// Maximum number of datagrams that a socket buffers.
const WAITING_MAX: usize = 256;

const READABLE: Ready = Ready { readable: true, writable: false };

/// A client's socket.
#[derive(Debug, Default)]
pub(super) struct DatagramSocket {
    arrived: VecDeque<Vec<u8>>,
    error: Option<Errno>,
    notified: Option<Ready>,
}

impl Network {
    /// Opens a client's socket to the server and notifies the client that it is writable.
    pub fn open_datagrams(&self, client: u16) -> SocketId {
        let mut state = self.state();
        let socket = SocketId { client, number: state.number() };
        state.datagrams.insert(socket, DatagramSocket::default());
        state.tell_datagrams(socket, Ready { readable: false, writable: true });
        socket
    }

    /// Sends a datagram. ECONNREFUSED when an earlier one found no socket.
    pub fn send_datagram(&self, socket: SocketId, from: End, bytes: &[u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let conditions = state.conditions;
        let own = state.datagrams.get_mut(&socket).ok_or(Errno::BADF)?;
        if from == End::Client
            && let Some(error) = own.error.take()
        {
            return Err(error);
        }
        let is_lost = state.rng.chance(conditions.loss) || state.now < state.partition_until;
        let copies = if is_lost { 0 } else { 1 + usize::from(state.rng.chance(conditions.duplicates)) };
        let len = bytes.len() as u64;
        let words = || format!("{socket}: a datagram of {len} bytes from the {from:?}, {copies} times");
        state.note(7, socket.number ^ len << 32 ^ (copies as u64) << 60, words);
        for _ in 0..copies {
            let at = state.arrival();
            state.schedule(at, Event::Datagram { socket, to: from.other(), bytes: bytes.to_vec() });
        }
        Ok(())
    }

    /// Receives a client's next datagram. EAGAIN if none has arrived.
    pub fn receive_datagram(&self, socket: SocketId) -> Result<Vec<u8>, Errno> {
        let mut state = self.state();
        let own = state.datagrams.get_mut(&socket).ok_or(Errno::BADF)?;
        match own.error.take() {
            Some(error) => Err(error),
            None => own.arrived.pop_front().ok_or(Errno::AGAIN),
        }
    }

    /// Closes a client's socket.
    pub fn close_datagrams(&self, socket: SocketId) {
        self.state().datagrams.remove(&socket);
    }
}

impl State {
    pub(super) fn datagram(&mut self, socket: SocketId, to: End, bytes: Vec<u8>) -> Happening {
        if to == End::Client {
            if let Some(own) = self.datagrams.get_mut(&socket).filter(|own| own.arrived.len() < WAITING_MAX) {
                own.arrived.push_back(bytes);
                self.tell_datagrams(socket, READABLE);
            }
            return Happening::Nothing;
        }
        if self.is_host_down() {
            return Happening::Nothing;
        }
        if !self.listening || self.now < self.refuse_until {
            let at = self.arrival();
            self.schedule(at, Event::Unreachable(socket));
            return Happening::Nothing;
        }
        Happening::Datagram(socket, bytes)
    }

    pub(super) fn unreachable(&mut self, socket: SocketId) -> Happening {
        if let Some(own) = self.datagrams.get_mut(&socket) {
            own.error = Some(Errno::CONNREFUSED);
            self.tell_datagrams(socket, READABLE);
        }
        Happening::Nothing
    }

    fn tell_datagrams(&mut self, socket: SocketId, ready: Ready) {
        let conditions = self.conditions;
        let at = self.now + self.rng.between(conditions.wake_up);
        let Some(own) = self.datagrams.get_mut(&socket) else { return };
        match &mut own.notified {
            Some(notified) => notified.add(ready),
            none => {
                *none = Some(ready);
                self.schedule(at, Event::Notify { socket, to: End::Client });
            }
        }
    }

    /// Delivers the pending readiness of the client's socket.
    pub(super) fn notify_datagrams(&mut self, socket: SocketId) -> Happening {
        match self.datagrams.get_mut(&socket).and_then(|own| own.notified.take()) {
            Some(ready) => Happening::Client(socket, ready),
            None => Happening::Nothing,
        }
    }
}
