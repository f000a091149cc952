//! How an export gets its links, and links from a server at a unix socket.

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::fs::Client;
use tombolo_host_links::client::Line;
use tombolo_host_links::connect::{self, ConnectOptions};
use tombolo_host_links::control_socket::Watcher;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::Incarnation;

/// Makes links to one export of one server.
pub trait Connect: Send + Sync {
    /// A link of its own for this session, which is `incarnation` to the server: the same for all links of
    /// the session, and no other's. It may block for a moment. A [`Refused`](tombolo_shm::link::Refused)
    /// among the sources of an error tells what the server said.
    fn connect(
        &self,
        client: &Client,
        incarnation: Incarnation,
    ) -> std::result::Result<Connected, ConnectError>;
}

/// Why there is no link.
pub type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// A link, over which nothing was sent yet.
pub struct Connected {
    /// The link.
    pub line: Line,
    /// What must live as long as the link: the socket whose end is the end of the link, say.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// What a session does when its link is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// It waits until there is another; so do all requests.
    #[default]
    Hard,
    /// The same, but a request that has waited so long fails with
    /// [`TimedOut`](tombolo_core::Error::TimedOut), and a server that refuses for good ends the session. A
    /// link that ends as its server is silent has waited for that long already.
    Soft(Duration),
    /// It ends: from then on there is nothing but [`Disconnected`](tombolo_core::Error::Disconnected).
    None,
}

/// Makes links at a unix socket: one for each session, all watched by one thread. When the server's process
/// ends, or says that it leaves, the links are lost at once.
pub struct Socket {
    path: PathBuf,
    options: ConnectOptions,
    mode: Mode,
    watcher: Arc<Watcher>,
}

impl Socket {
    /// Links from the server that listens at `path`; `mode` says how callers wait. Nothing is connected yet.
    pub fn new(path: &Path, options: ConnectOptions, mode: Mode) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), options, mode, watcher: Arc::new(Watcher::start()?) })
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
