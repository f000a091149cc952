//! The trait by which an export obtains links to its server, and its implementation over a Unix socket.

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::fs::Client;
use tombolo_host_links::bell::BellSource;
use tombolo_host_links::client::Line;
use tombolo_host_links::connect::{self, ConnectOptions};
use tombolo_host_links::control_socket::Watcher;
use tombolo_host_links::rendezvous;
use tombolo_host_links::shared_memory::{MemoryLocation, SharedMemory};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::Incarnation;

/// Factory of links to one export of one server.
pub trait Connect: Send + Sync {
    /// Establishes a link for a session, identified to the server by `incarnation`, which is the same for all
    /// links of the session and unique to it. May block briefly. If the server refused, a
    /// [`Refused`](tombolo_shm::link::Refused) with its reason is among the error's sources.
    fn connect(
        &self,
        client: &Client,
        incarnation: Incarnation,
    ) -> std::result::Result<Connected, ConnectError>;
}

/// Error of a failed connection attempt.
pub type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// A new link, over which nothing has been sent.
pub struct Connected {
    /// The client's end of the link.
    pub line: Line,
    /// Resources that must live as long as the link, such as the control socket.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Behaviour of a session that has lost its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLossPolicy {
    /// Wait for another link; requests wait too.
    #[default]
    Hard,
    /// Wait as with `Hard`, but requests fail with [`TimedOut`](tombolo_core::Error::TimedOut) once there was
    /// no link for this time, and a server's permanent refusal ends the session. If the link was lost because
    /// the server was silent, this time counts as elapsed.
    Soft(Duration),
    /// End the session: all requests fail with [`Disconnected`](tombolo_core::Error::Disconnected).
    None,
}

/// Factory of links set up over a Unix socket, all watched by one thread. A link is lost as soon as the
/// server's process exits or announces its exit.
pub struct Socket {
    path: PathBuf,
    options: ConnectOptions,
    mode: Mode,
    watcher: Arc<Watcher>,
}

impl Socket {
    /// Prepares links to the server listening at `path`, without connecting; `mode` selects how callers wait.
    pub fn new(path: &Path, options: ConnectOptions, mode: Mode) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), options, mode, watcher: Arc::new(Watcher::start()?) })
    }
}

/// Factory of links over memory that both sides can write, to a server with another kernel: one link at a
/// time. The death of a server is noticed within five seconds, with a bell within six.
pub struct Memory {
    location: MemoryLocation,
    bell: Option<Arc<BellSource>>,
    options: ConnectOptions,
    mode: Mode,
}

impl Memory {
    /// Prepares links over the memory, without connecting; `mode` selects how callers wait.
    pub fn new(
        location: MemoryLocation,
        bell: Option<Arc<BellSource>>,
        options: ConnectOptions,
        mode: Mode,
    ) -> Self {
        Self { location, bell, options, mode }
    }
}

impl Connect for Memory {
    fn connect(&self, client: &Client, incarnation: Incarnation) -> Result<Connected, ConnectError> {
        let options = ConnectOptions { client: incarnation, ..self.options.clone() };
        let memory = SharedMemory::to_use(&self.location)?.with_bell(self.bell.clone());
        let (line, watcher) = rendezvous::join(memory, &options, client.label.as_str(), self.mode)?;
        Ok(Connected { line, keep: Box::new(watcher) })
    }
}

impl Connect for Socket {
    fn connect(&self, client: &Client, incarnation: Incarnation) -> Result<Connected, ConnectError> {
        let options = ConnectOptions { client: incarnation, ..self.options.clone() };
        let connection = connect::connect(&self.path, &options)?;
        let (line, control_socket) = connection.start(&self.watcher, client.label.as_str(), self.mode)?;
        Ok(Connected { line, keep: Box::new((control_socket, self.watcher.clone())) })
    }
}
