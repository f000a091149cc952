//! Endpoints of links.

use std::any::Any;
use std::path::PathBuf;
use std::result::Result;
use std::sync::Arc;

use tombolo_back_vrpc_client::{Connect, ConnectError, Connected};
use tombolo_core::fs::Client;
use tombolo_host_links::bell::BellSource;
use tombolo_host_links::client::Line;
use tombolo_host_links::connect::{ConnectOptions, connect};
use tombolo_host_links::control_socket::Watcher;
use tombolo_host_links::rendezvous;
use tombolo_host_links::shared_memory::{MemoryLocation, SharedMemory};
use tombolo_host_rpc::link::{Dial, DialError, Dialed};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Incarnation, Protocol};

use crate::peer::Shm;

/// Endpoint of a server, and the way to wait for it.
#[derive(Clone)]
pub struct Endpoint {
    pub at: At,
    pub mode: Mode,
    /// Bell beside memory.
    pub bell: Option<Arc<BellSource>>,
}

#[derive(Clone)]
pub enum At {
    /// A socket: each side has its own memory and a doorbell.
    Socket(PathBuf),
    /// Memory that both sides can write, without a doorbell.
    Memory(MemoryLocation),
}

impl Endpoint {
    /// Returns the endpoint of a server at a socket.
    pub fn of(server: &Shm, mode: Mode) -> Self {
        Self { at: At::Socket(server.place().to_owned()), mode, bell: None }
    }

    /// Creates a link, which lasts as long as the second value.
    pub fn link(&self) -> Result<(Line, Box<dyn Any + Send + Sync>), ConnectError> {
        self.link_as(Incarnation([1; 16]), Protocol::Vrpc)
    }

    fn link_as(
        &self,
        incarnation: Incarnation,
        protocol: Protocol,
    ) -> Result<(Line, Box<dyn Any + Send + Sync>), ConnectError> {
        let options = ConnectOptions { protocol, ..ConnectOptions::new("", "bench", incarnation)? };
        match &self.at {
            At::Socket(socket) => {
                let watcher = Watcher::start()?;
                let (line, control_socket) =
                    connect(socket, &options)?.start(&watcher, "bench", self.mode)?;
                Ok((line, Box::new((control_socket, watcher))))
            }
            At::Memory(place) => {
                let memory = SharedMemory::to_use(place)?.with_bell(self.bell.clone());
                let (line, watcher) = rendezvous::join(memory, &options, "bench", self.mode)?;
                Ok((line, Box::new(watcher)))
            }
        }
    }
}

impl Connect for Endpoint {
    fn connect(&self, _client: &Client, incarnation: Incarnation) -> Result<Connected, ConnectError> {
        let (line, keep) = self.link_as(incarnation, Protocol::Vrpc)?;
        Ok(Connected { line, keep })
    }
}

impl Dial for Endpoint {
    fn dial(&self) -> Result<Dialed, DialError> {
        let (line, keep) = self.link_as(Incarnation([2; 16]), Protocol::OncRpc)?;
        Ok(Dialed { line, keep })
    }
}
