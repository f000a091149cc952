//! Endpoints of links.

use std::any::Any;
use std::path::PathBuf;
use std::result::Result;

use tombolo_back_vrpc_client::{Connect, ConnectError, Connected};
use tombolo_core::fs::Client;
use tombolo_host_links::client::Line;
use tombolo_host_links::connect::{ConnectOptions, connect};
use tombolo_host_links::control_socket::Watcher;
use tombolo_host_links::rendezvous;
use tombolo_host_links::shared_memory::{MemoryLocation, SharedMemory};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::Incarnation;

use super::EXPORT;

#[derive(Clone)]
pub struct Endpoint {
    pub at: At,
    pub mode: Mode,
}

#[derive(Clone)]
pub enum At {
    /// A socket: each side has its own memory and a doorbell.
    Socket(PathBuf),
    /// Memory that both sides can write, without a doorbell.
    Memory(MemoryLocation),
}

impl Endpoint {
    /// Creates a link, which lasts as long as the second value.
    pub fn link(&self) -> Result<(Line, Box<dyn Any + Send + Sync>), ConnectError> {
        self.link_as(Incarnation([1; 16]))
    }

    fn link_as(&self, incarnation: Incarnation) -> Result<(Line, Box<dyn Any + Send + Sync>), ConnectError> {
        let options = ConnectOptions::new(EXPORT, "bench", incarnation)?;
        match &self.at {
            At::Socket(socket) => {
                let watcher = Watcher::start()?;
                let (line, control_socket) =
                    connect(socket, &options)?.start(&watcher, "bench", self.mode)?;
                Ok((line, Box::new((control_socket, watcher))))
            }
            At::Memory(place) => {
                let memory = SharedMemory::to_use(place)?;
                let (line, watcher) = rendezvous::join(memory, &options, "bench", self.mode)?;
                Ok((line, Box::new(watcher)))
            }
        }
    }
}

impl Connect for Endpoint {
    fn connect(&self, _client: &Client, incarnation: Incarnation) -> Result<Connected, ConnectError> {
        let (line, keep) = self.link_as(incarnation)?;
        Ok(Connected { line, keep })
    }
}
