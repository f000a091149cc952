//! The export, and how sessions of it get their links.

use std::any::Any;
use std::sync::Arc;

use thiserror::Error;
use tombolo_core::fs::{Client, Error, Export, FileSystem, Result};
use tombolo_host::links::client::Line;

use crate::link::Link;
use crate::session::VrpcFileSystem;

/// Makes links to one export of one server.
pub trait Connect: Send + Sync {
    /// A link of its own for this session. It may block for a moment.
    fn connect(&self, client: &Client) -> std::result::Result<Connected, ConnectError>;
}

/// Why there is no link.
pub type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// A link, over which nothing was sent yet.
pub struct Connected {
    /// The link.
    pub line: Line,
    /// What must live as long as the session: the socket whose end is the end of the link, say.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Why no session begins.
#[derive(Debug, Error)]
enum AttachError {
    #[error("there is no link to the server")]
    Connect(#[source] ConnectError),
}

/// An export of another domain. Each session has a link of its own.
pub struct VrpcExport {
    connect: Box<dyn Connect>,
}

impl VrpcExport {
    /// The export that the links lead to. Nothing is connected yet.
    pub fn new(connect: impl Connect + 'static) -> Self {
        Self { connect: Box::new(connect) }
    }

    /// Begins a session; as [`Export::attach`], for those who also want what the waist has no word for.
    pub fn attach_session(&self, client: &Client) -> Result<Arc<VrpcFileSystem>> {
        let connected =
            self.connect.connect(client).map_err(|source| Error::io(AttachError::Connect(source)))?;
        Ok(Arc::new(VrpcFileSystem::new(Link::begin(connected)?)))
    }
}

impl Export for VrpcExport {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let file_system = self.attach_session(client)?;
        Ok(file_system)
    }
}
