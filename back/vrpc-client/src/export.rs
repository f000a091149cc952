//! The export, and the links of its sessions.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;
use tombolo_core::fs::{Client, Export, FileSystem};
use tombolo_core::{Error, Result, lock};
use tombolo_shm::link::Incarnation;
use tombolo_sys::random;

use crate::behind::WritesBehind;
use crate::connect::{Connect, ConnectError, Connected, LinkLossPolicy};
use crate::link::{Link, SessionObjects};
use crate::links::Links;
use crate::session::VrpcFileSystem;
use crate::supervisor::{Supervisor, answer_until};

/// Reasons why a session could not begin.
#[derive(Debug, Error)]
enum AttachError {
    #[error("cannot connect to the server")]
    Connect(#[source] ConnectError),
    #[error("cannot start the supervisor thread")]
    Thread(#[source] std::io::Error),
    #[error("no random numbers from the system")]
    Random(#[source] tombolo_sys::Errno),
}

/// An export of another domain. Each session has its own link, which is replaced when lost, except with
/// [`LinkLossPolicy::None`].
pub struct VrpcExport {
    connect: Arc<dyn Connect>,
    link_loss_policy: LinkLossPolicy,
    writes_behind: bool,
    /// A link established in advance for the first session.
    first: Mutex<Option<(Incarnation, Connected)>>,
}

/// Time limit for the server's description of the session.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

impl VrpcExport {
    /// Creates the export that the links lead to, without connecting.
    pub fn new(connect: impl Connect + 'static) -> Self {
        Self {
            connect: Arc::new(connect),
            link_loss_policy: LinkLossPolicy::default(),
            writes_behind: false,
            first: Mutex::default(),
        }
    }

    /// Sets the behaviour of sessions that lose their link. Default: [`LinkLossPolicy::Hard`].
    #[must_use]
    pub fn with_link_loss_policy(self, link_loss_policy: LinkLossPolicy) -> Self {
        Self { link_loss_policy, ..self }
    }

    /// Lets callers of small writes continue before the reply, where the server permits it: a failure is then
    /// reported by the next write, flush or fsync through the same opening. Default: `false`.
    #[must_use]
    pub fn with_writes_behind(self, writes_behind: bool) -> Self {
        Self { writes_behind, ..self }
    }

    /// Supplies the first session's link, already established, and its incarnation.
    #[must_use]
    pub fn with_first(self, incarnation: Incarnation, connected: Connected) -> Self {
        Self { first: Mutex::new(Some((incarnation, connected))), ..self }
    }

    /// Begins a session as [`Export::attach`] does, for callers that need more than the waist offers.
    pub fn attach_session(&self, client: &Client) -> Result<Arc<VrpcFileSystem>> {
        let failed = |error: AttachError| Error::io(error);
        let first = lock(&self.first).take();
        let (incarnation, connected) = match first {
            Some(first) => first,
            None => {
                let mut incarnation = [0; 16];
                random::fill(&mut incarnation).map_err(|errno| failed(AttachError::Random(errno)))?;
                let connected = self.connect.connect(client, Incarnation(incarnation));
                (Incarnation(incarnation), connected.map_err(|source| failed(AttachError::Connect(source)))?)
            }
        };
        let objects = Arc::<SessionObjects>::default();
        let until = Instant::now() + ANSWER_TIMEOUT;
        let link = Link::begin(connected, 1, objects, |call| answer_until(call, until))?;
        link.objects.nodes.begin(1);
        // A capacity of one coalesces the requests to check the link.
        let (poke, pokes) = mpsc::sync_channel(1);
        let behind = self.writes_behind.then(WritesBehind::default);
        let links = Arc::new(Links::new(link, behind, self.link_loss_policy, poke));
        let (connect, client, link_loss_policy) =
            (self.connect.clone(), client.clone(), self.link_loss_policy);
        let supervisor = Supervisor { connect, client, incarnation, link_loss_policy };
        let weak_links = Arc::downgrade(&links);
        thread::Builder::new()
            .name("link-supervisor".into())
            .spawn(move || supervisor.run(&weak_links, &pokes))
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
