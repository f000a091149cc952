//! Links from a server at a unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tombolo_core::fs::Client;
use tombolo_host_links::connect::{self, ConnectOptions};
use tombolo_host_links::control_socket::Watcher;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::Incarnation;

use crate::export::{Connect, ConnectError, Connected};

/// Makes links at a unix socket: one for each session, all watched by one thread. When the server's process ends, or says that
/// it leaves, the links are lost at once.
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
