//! The export, and how sessions of it get their links.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;
use tombolo_core::fs::{Client, Export, FileSystem};
use tombolo_core::{Error, Result};
use tombolo_shm::link::Incarnation;
use tombolo_sys::random;

use crate::connect::{Connect, ConnectError, Connected, Patience};
use crate::link::{Link, Things};
use crate::links::Links;
use crate::session::VrpcFileSystem;
use crate::supervisor::{Supervisor, answer_until};

/// Why no session begins.
#[derive(Debug, Error)]
enum AttachError {
    #[error("there is no link to the server")]
    Connect(#[source] ConnectError),
    #[error("no thread to look after the link")]
    Thread(#[source] std::io::Error),
    #[error("the system gives no random numbers")]
    Random(#[source] tombolo_sys::Errno),
}

/// An export of another domain. Each session has a link of its own, and another when that is lost.
pub struct VrpcExport {
    connect: Arc<dyn Connect>,
    patience: Patience,
    /// A link that was made for the first session.
    first: Mutex<Option<(Incarnation, Connected)>>,
}

/// How long a server has to say what the session is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

impl VrpcExport {
    /// The export that the links lead to. Nothing is connected yet.
    pub fn new(connect: impl Connect + 'static) -> Self {
        Self { connect: Arc::new(connect), patience: Patience::default(), first: Mutex::default() }
    }

    /// What sessions do whose link is lost. [`Patience::Hard`] if nothing is said.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// The link of the first session, which is there already, and the incarnation that it was made with.
    #[must_use]
    pub fn with_first(self, incarnation: Incarnation, connected: Connected) -> Self {
        Self { first: Mutex::new(Some((incarnation, connected))), ..self }
    }

    /// Begins a session; as [`Export::attach`], for callers that also want what the waist has no word for.
    pub fn attach_session(&self, client: &Client) -> Result<Arc<VrpcFileSystem>> {
        let failed = |error: AttachError| Error::io(error);
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (incarnation, connected) = match first {
            Some(first) => first,
            None => {
                let mut incarnation = [0; 16];
                random::fill(&mut incarnation).map_err(|errno| failed(AttachError::Random(errno)))?;
                let connected = self.connect.connect(client, Incarnation(incarnation));
                (Incarnation(incarnation), connected.map_err(|source| failed(AttachError::Connect(source)))?)
            }
        };
        let things = Arc::<Things>::default();
        let until = Instant::now() + ANSWER_TIMEOUT;
        let link = Link::begin(connected, 1, things, |call| answer_until(call, until))?;
        link.things.nodes.begin(1);
        // One wish to look is as good as many.
        let (poke, pokes) = mpsc::sync_channel(1);
        let links = Arc::new(Links::new(link, self.patience, poke));
        let (connect, client, patience) = (self.connect.clone(), client.clone(), self.patience);
        let supervisor = Supervisor { connect, client, incarnation, patience };
        let kept = Arc::downgrade(&links);
        thread::Builder::new()
            .name("link-supervisor".into())
            .spawn(move || supervisor.run(&kept, &pokes))
            .map_err(|source| failed(AttachError::Thread(source)))?;
        Ok(Arc::new(VrpcFileSystem::new(links)))
    }
}

impl Export for VrpcExport {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let file_system = self.attach_session(client)?;
        Ok(file_system)
    }
}
