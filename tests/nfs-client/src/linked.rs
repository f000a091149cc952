//! An NFS server over in-memory links, and the route to it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_back_nfs_client::{NfsExport, Options};
use tombolo_front_nfs_server::NfsService;
use tombolo_host_links::EndReason;
use tombolo_host_links::client::Line;
use tombolo_host_links::server::{LinkHandle, Peer, Server, Service, VerifiedPeer};
use tombolo_host_rpc::link::{Dial, DialError, Dialed, Route, RpcLinks};
use tombolo_host_runtime::buffer_pool::BufferLimits;
use tombolo_nfs_tests::test_server::{PATH, Plan};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Ends, Incarnation, Layout, Protocol};

/// Configuration of the links.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// Maximum number of concurrent requests.
    pub slots: u32,
    /// Bulk memory of either side, in bytes.
    pub bulk_bytes: u64,
    /// Doorbell mode of both sides.
    pub mode: Mode,
    /// The clients' credentials, as from the server's kernel.
    pub credentials: Option<VerifiedPeer>,
    /// Name of the requested export.
    pub export: String,
}

impl Default for LinkPlan {
    fn default() -> Self {
        let export = PATH.into();
        Self { slots: 64, bulk_bytes: 8 << 20, mode: Mode::Adaptive, credentials: None, export }
    }
}

/// A server and all links to it.
pub struct LinkServer {
    server: Mutex<Server>,
    plan: LinkPlan,
    links: Mutex<Vec<Option<LinkHandle>>>,
    lines: Mutex<Vec<Line>>,
    /// `true` while no new links are accepted.
    pub away: AtomicBool,
    dialed: AtomicUsize,
}

impl LinkServer {
    /// Creates a server of the plan's exports, without links.
    pub fn new(mut plan: Plan, links: LinkPlan) -> Arc<Self> {
        let names = plan.exports.iter().map(|(name, ..)| name.clone()).collect();
        let service = plan.service().expect("the service");
        Self::of(rpc(service, names), links)
    }

    /// Creates a server of any service.
    pub fn of(service: Arc<dyn Service>, plan: LinkPlan) -> Arc<Self> {
        Arc::new(Self {
            server: Mutex::new(server(service)),
            plan,
            links: Mutex::default(),
            lines: Mutex::default(),
            away: AtomicBool::new(false),
            dialed: AtomicUsize::new(0),
        })
    }

    /// Returns a route to the server.
    pub fn route(self: &Arc<Self>) -> Arc<Route> {
        Route::start(Dialing(self.clone()), "server").expect("a link")
    }

    /// Mounts the server's first export.
    pub fn mounted(self: &Arc<Self>, options: Options) -> Arc<NfsExport> {
        Arc::new(NfsExport::mount_over(&self.route(), PATH, options).expect("the server can be mounted"))
    }

    /// Switches new links to another server.
    pub fn replace(&self, service: Arc<dyn Service>) {
        *self.server.lock().expect("no test panics here") = server(service);
    }

    /// Cuts all links, as at the end of the server's process. Both sides are notified, as by a socket.
    pub fn cut(&self) {
        let links = std::mem::take(&mut *self.links.lock().expect("no test panics here"));
        links.iter().flatten().for_each(|link| link.cut(EndReason::Died));
        let lines = std::mem::take(&mut *self.lines.lock().expect("no test panics here"));
        lines.iter().for_each(|line| line.cut(EndReason::Died));
        // Joins their threads: afterwards no request of theirs is executed except pending ones.
        links.into_iter().flatten().for_each(LinkHandle::stop);
    }

    /// Returns why the newest link has ended, or `None` while it is up.
    pub fn end(&self) -> Option<EndReason> {
        self.links.lock().expect("no test panics here").last().and_then(|link| link.as_ref()?.end())
    }

    /// Returns why the newest link has ended according to its client, or `None` while it is up.
    pub fn client_end(&self) -> Option<EndReason> {
        self.lines.lock().expect("no test panics here").last().and_then(Line::end)
    }

    /// Returns the number of links dialed.
    pub fn dialed(&self) -> usize {
        self.dialed.load(Ordering::SeqCst)
    }

    /// Establishes a link and returns the client's ends.
    pub fn ends(&self) -> Result<Ends, DialError> {
        if self.away.load(Ordering::SeqCst) {
            return Err("the server is down".into());
        }
        let layout = Layout::with_bulk(self.plan.slots, 8, self.plan.bulk_bytes)?;
        let (client, theirs) = Ends::in_memory(layout);
        self.dialed.fetch_add(1, Ordering::SeqCst);
        let peer = Peer {
            export: self.plan.export.clone(),
            credentials: self.plan.credentials.clone(),
            client: Incarnation([7; 16]),
            // The same for all links, as for links over memory in a file.
            label: "client".into(),
        };
        let server = self.server.lock().expect("no test panics here");
        let session = server.open_for(Protocol::OncRpc, &peer)?;
        let handle = server.serve(&theirs, &peer, session, self.plan.mode)?;
        self.links.lock().expect("no test panics here").push(Some(handle));
        Ok(client)
    }
}

/// Returns the service that carries RPC calls of links to an NFS server with these exports.
pub fn rpc(service: Arc<NfsService>, exports: Vec<String>) -> Arc<dyn Service> {
    Arc::new(RpcLinks::new(service, exports, BufferLimits::default()))
}

fn server(service: Arc<dyn Service>) -> Server {
    // The tests send no vrpc requests.
    Server::new(service.clone()).speaking(Protocol::OncRpc, service)
}

struct Dialing(Arc<LinkServer>);

impl Dial for Dialing {
    fn dial(&self) -> Result<Dialed, DialError> {
        let ends = self.0.ends()?;
        let line = Line::start(&ends, "server", self.0.plan.mode)?;
        self.0.lines.lock().expect("no test panics here").push(line.clone());
        Ok(Dialed { line, keep: Box::new(()) })
    }
}
