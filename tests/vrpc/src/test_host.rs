//! A server and a client of it in one process, over links in memory.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_back_vrpc_client::{Connect, ConnectError, Connected, VrpcExport};
use tombolo_core::fs::{Client, Export, PermissionCheck};
use tombolo_core::{Ctx, SessionId};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::EndReason;
use tombolo_host_links::client::Line;
use tombolo_host_links::server::{Counts, LinkHandle, Peer, Server};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Ends, Features, Incarnation, Layout};
use tombolo_shm::window::WindowReader;

/// Configuration of the links.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Requests under way at a time.
    pub slots: u32,
    /// Bulk memory of either side, in bytes.
    pub bulk_bytes: u64,
    /// Doorbell mode of both sides.
    pub mode: Mode,
    /// Session options.
    pub options: Options,
    /// `true` if both peers know quiet requests.
    pub quiet: bool,
    /// `true` if clients continue before small writes are answered.
    pub writes_behind: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            slots: 64,
            bulk_bytes: 8 << 20,
            mode: Mode::Adaptive,
            options: Options::default(),
            quiet: true,
            writes_behind: false,
        }
    }
}

/// A server with one export, and links to it.
pub struct TestHost {
    /// The server.
    pub server: Server,
    plan: Plan,
    links: Mutex<Vec<Option<LinkHandle>>>,
    count: AtomicU32,
}

/// The name of the export.
pub const EXPORT: &str = "export";

impl TestHost {
    /// Creates a server of `export`, without links.
    pub fn new(export: Arc<dyn Export>, plan: Plan) -> Arc<Self> {
        let service = VrpcServer::new().with_export(EXPORT, export, plan.options);
        let (links, count) = (Mutex::default(), AtomicU32::new(0));
        Arc::new(Self { server: Server::new(Arc::new(service)), plan, links, count })
    }

    /// Returns the export as its clients see it.
    pub fn export(self: &Arc<Self>) -> VrpcExport {
        VrpcExport::new(Dial(self.clone())).with_writes_behind(self.plan.writes_behind)
    }

    /// Establishes a served link and returns the client's ends.
    pub fn ends(&self) -> Result<Ends, ConnectError> {
        self.dial().map(|dialled| dialled.ends)
    }

    fn dial(&self) -> Result<Dialled, ConnectError> {
        let layout = Layout::with_bulk(self.plan.slots, 8, self.plan.bulk_bytes)?;
        let (mut client, mut server) = Ends::in_memory(layout);
        if !self.plan.quiet {
            (client.features, server.features) = (Features::NONE, Features::NONE);
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let peer = Peer {
            export: EXPORT.into(),
            credentials: None,
            client: Incarnation([7; 16]),
            label: format!("client-{number}").into(),
        };
        let session = self.server.open(&peer)?;
        let window = session.window().map(|memory| memory.try_clone()).transpose()?;
        let window = window.map(WindowReader::map).transpose()?;
        let handle = self.server.serve(&server, &peer, session, self.plan.mode)?;
        let mut links = self.links.lock().expect("no test panics here");
        links.push(Some(handle));
        Ok(Dialled { ends: client, window, index: links.len() - 1 })
    }

    /// Ends all links, as a stopping server does.
    pub fn stop(&self) {
        let links = std::mem::take(&mut *self.links.lock().expect("no test panics here"));
        links.into_iter().flatten().for_each(LinkHandle::stop);
    }

    /// Cuts the newest link, as when the peer's process has ended. Does not wait for anything.
    pub fn cut_newest(&self) {
        if let Some(link) = self.links.lock().expect("no test panics here").last().and_then(Option::as_ref) {
            link.cut(EndReason::Died);
        }
    }

    /// Returns the server's counters of each link that is up.
    pub fn counts(&self) -> Vec<Counts> {
        let links = self.links.lock().expect("no test panics here");
        links.iter().flatten().filter_map(LinkHandle::counts).collect()
    }

    /// Returns why the newest link has ended, or `None` while it is up.
    pub fn end(&self) -> Option<EndReason> {
        self.links.lock().expect("no test panics here").last().and_then(|link| link.as_ref()?.end())
    }
}

/// The client's side of a new link.
struct Dialled {
    ends: Ends,
    window: Option<WindowReader>,
    /// Which of the server's links it is.
    index: usize,
}

/// Dialer of in-memory links. Without a socket, the server's side is ended when the client's is dropped.
struct Dial(Arc<TestHost>);

/// Ends the server's side when the client's is dropped.
struct HangUp {
    host: Arc<TestHost>,
    index: usize,
}

impl Connect for Dial {
    fn connect(&self, client: &Client, _instance: Incarnation) -> Result<Connected, ConnectError> {
        let Dialled { ends, window, index } = self.0.dial()?;
        let line = Line::start(&ends, client.label.as_str(), self.0.plan.mode)?;
        window.into_iter().for_each(|window| line.set_window(window));
        Ok(Connected { line, keep: Box::new(HangUp { host: self.0.clone(), index }) })
    }
}

impl Drop for HangUp {
    fn drop(&mut self) {
        let link =
            self.host.links.lock().expect("no test panics here").get_mut(self.index).and_then(Option::take);
        if let Some(link) = link {
            link.cut(EndReason::Left);
            // Waits for the thread: the session is over when this is.
            link.stop();
        }
    }
}

/// Returns a client whose permissions the back end checks.
pub fn client() -> Client {
    Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::BackEnd }
}

/// Returns the superuser's context.
pub fn root() -> Ctx {
    Ctx::root(SessionId(1))
}
