//! A server of NFS over links in memory, and the way to it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_back_nfs_client::{NfsExport, Options};
use tombolo_front_nfs_server::NfsService;
use tombolo_host_links::End;
use tombolo_host_links::client::Line;
use tombolo_host_links::server::{LinkHandle, Peer, Server, Service, VerifiedPeer};
use tombolo_host_rpc::link::{Dial, DialError, Dialed, Route, RpcLinks};
use tombolo_host_runtime::buffer_pool::BufferLimits;
use tombolo_nfs_tests::test_server::{PATH, Plan};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Ends, Incarnation, Layout, Protocol};

/// What the links are like.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// Requests under way at a time.
    pub slots: u32,
    /// Bulk memory of either side, in bytes.
    pub bulk_bytes: u64,
    /// How both sides wait.
    pub mode: Mode,
    /// The clients' credentials, as from the server's kernel.
    pub credentials: Option<VerifiedPeer>,
    /// Which export they ask for.
    pub export: String,
}

impl Default for LinkPlan {
    fn default() -> Self {
        let export = PATH.into();
        Self { slots: 64, bulk_bytes: 8 << 20, mode: Mode::Adaptive, credentials: None, export }
    }
}

/// A server, and all the links to it.
pub struct LinkServer {
    server: Mutex<Server>,
    plan: LinkPlan,
    links: Mutex<Vec<Option<LinkHandle>>>,
    lines: Mutex<Vec<Line>>,
    /// No new links are accepted.
    pub away: AtomicBool,
    dialed: AtomicUsize,
}

impl LinkServer {
    /// A server of what the plan says, without links.
    pub fn new(mut plan: Plan, links: LinkPlan) -> Arc<Self> {
        let names = plan.exports.iter().map(|(name, ..)| name.clone()).collect();
        let service = plan.service().expect("the service");
        Self::of(rpc(service, names), links)
    }

    /// A server of anything.
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

    /// The way to it.
    pub fn route(self: &Arc<Self>) -> Arc<Route> {
        Route::start(Dialing(self.clone()), "server").expect("a link")
    }

    /// Its export, mounted.
    pub fn mounted(self: &Arc<Self>, options: Options) -> Arc<NfsExport> {
        Arc::new(NfsExport::mount_over(&self.route(), PATH, options).expect("the server can be mounted"))
    }

    /// From now on links lead to another server.
    pub fn replace(&self, service: Arc<dyn Service>) {
        *self.server.lock().expect("no test panics here") = server(service);
    }

    /// Cuts all links there are, as when the server's process has ended. Both sides are told, as by a socket.
    pub fn cut(&self) {
        let links = std::mem::take(&mut *self.links.lock().expect("no test panics here"));
        links.iter().flatten().for_each(|link| link.cut(End::Died));
        let lines = std::mem::take(&mut *self.lines.lock().expect("no test panics here"));
        lines.iter().for_each(|line| line.cut(End::Died));
        // Waits for their threads: nothing is performed any more that came over them, but for what pends.
        links.into_iter().flatten().for_each(LinkHandle::stop);
    }

    /// Why the newest link has ended; none while it goes on.
    pub fn end(&self) -> Option<End> {
        self.links.lock().expect("no test panics here").last().and_then(|link| link.as_ref()?.end())
    }

    /// Why the newest link has ended, as its client sees it; none while it goes on.
    pub fn client_end(&self) -> Option<End> {
        self.lines.lock().expect("no test panics here").last().and_then(Line::end)
    }

    /// How many links there have been.
    pub fn dialed(&self) -> usize {
        self.dialed.load(Ordering::SeqCst)
    }

    /// A link: the client's ends of it.
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
            // The same on all links, as that of memory in a file.
            label: "client".into(),
        };
        let server = self.server.lock().expect("no test panics here");
        let session = server.open_for(Protocol::OncRpc, &peer)?;
        let handle = server.serve(&theirs, &peer, session, self.plan.mode)?;
        self.links.lock().expect("no test panics here").push(Some(handle));
        Ok(client)
    }
}

/// What brings calls of links to an NFS server with these exports.
pub fn rpc(service: Arc<NfsService>, exports: Vec<String>) -> Arc<dyn Service> {
    Arc::new(RpcLinks::new(service, exports, BufferLimits::default()))
}

fn server(service: Arc<dyn Service>) -> Server {
    // Of vrpc nothing is asked here.
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
