//! The client's side: an engine's sockets in the simulated network.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tombolo_host_rpc::client::{Event, Socket, SocketToken, Target, Transport, Wire};
use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result};

use super::network::{Network, Ready, SocketId};
use super::rng::Rng;
use super::stream::End;

/// Maximum number of bytes per receive.
const RECEIVE_BYTES: usize = 1 << 20;

/// A client's access to the network.
pub struct ClientWire {
    network: Network,
    client: u16,
    rng: Mutex<Rng>,
    tokens: Arc<Tokens>,
}

/// An engine's tokens of its sockets.
type Tokens = Mutex<BTreeMap<SocketId, SocketToken>>;

impl ClientWire {
    /// Creates a client's access to the network. Each client has an address of its own.
    pub fn new(network: &Network, client: u16, rng: Rng) -> Arc<Self> {
        Arc::new(Self { network: network.clone(), client, rng: Mutex::new(rng), tokens: Arc::default() })
    }

    /// Returns the event by which an engine learns that this socket is ready; `None` if the socket is not, or
    /// no longer, this client's.
    pub fn event(&self, socket: SocketId, ready: Ready) -> Option<(SocketToken, Event)> {
        let token = *lock(&self.tokens).get(&socket)?;
        Some((token, Event { readable: ready.readable, writable: ready.writable }))
    }
}

impl Wire for ClientWire {
    fn connect(&self, target: &Target, token: SocketToken, _: Option<bool>) -> Result<Box<dyn Socket>> {
        let transport = target.transport;
        let id = match transport {
            Transport::Tcp => self.network.connect(self.client),
            Transport::Udp => self.network.open_datagrams(self.client),
        };
        lock(&self.tokens).insert(id, token);
        let (network, tokens) = (self.network.clone(), self.tokens.clone());
        Ok(Box::new(ClientSocket { network, id, tokens, transport }))
    }

    fn now(&self) -> Instant {
        self.network.instant()
    }

    fn random(&self) -> u64 {
        lock(&self.rng).next_u64()
    }
}

struct ClientSocket {
    network: Network,
    id: SocketId,
    tokens: Arc<Tokens>,
    transport: Transport,
}

impl Socket for ClientSocket {
    fn finish_connecting(&self) -> Result<()> {
        match self.transport == Transport::Udp || self.network.is_connected(self.id)? {
            true => Ok(()),
            false => Err(Errno::AGAIN),
        }
    }

    fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        let bytes = gather.to_vec(usize::MAX);
        match self.transport {
            Transport::Tcp => self.network.send(self.id, End::Client, &bytes),
            Transport::Udp => self.network.send_datagram(self.id, End::Client, &bytes).map(|()| bytes.len()),
        }
    }

    fn receive(&self, into: &[&Sink]) -> Result<usize> {
        let room = into.iter().map(|sink| sink.len()).sum::<usize>().min(RECEIVE_BYTES);
        let bytes = match self.transport {
            Transport::Tcp => self.network.receive(self.id, End::Client, room)?,
            Transport::Udp => self.network.receive_datagram(self.id)?,
        };
        Ok(scatter(&bytes, into))
    }

    fn shut_down(&self) {
        match self.transport {
            Transport::Tcp => self.network.close(self.id, End::Client),
            Transport::Udp => self.network.close_datagrams(self.id),
        }
        lock(&self.tokens).remove(&self.id);
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Fills the sinks in order; returns the number of bytes stored.
fn scatter(bytes: &[u8], into: &[&Sink]) -> usize {
    let mut rest = bytes;
    for sink in into {
        let written = sink.write_at(0, rest);
        rest = &rest[written..];
    }
    bytes.len() - rest.len()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
