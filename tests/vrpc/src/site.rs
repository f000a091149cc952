//! Consecutive servers of one export, and links that are cut.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tombolo_back_vrpc_client::{Connect, ConnectError, Connected, VrpcExport};
use tombolo_core::fs::{Client, Export, PermissionCheck};
use tombolo_core::{Ctx, SessionId};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::EndReason;
use tombolo_host_links::client::Line;
use tombolo_host_links::server::{
    LinkCutter, LinkHandle, Peer, Request, Responder, Server, Service, Session,
};
use tombolo_host_runtime::signing_keys::Keys;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Ends, Features, Incarnation, Layout, RefusalCode, Refused};
use tombolo_shm::window::WindowReader;

/// The name of the export.
const EXPORT: &str = "export";

/// Configuration of a site and its links.
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
    /// Number of the request at which each link is cut; 0 for never. Alternately before and after the request
    /// is served.
    pub cut_every: u64,
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
            cut_every: 0,
        }
    }
}

/// A place where a server may be.
pub struct Site {
    keys: Arc<Keys>,
    life: Mutex<Option<Life>>,
    plan: Mutex<Plan>,
    session_ids: Arc<AtomicU64>,
    refuses: AtomicBool,
    /// Number of links requested.
    asked: AtomicU32,
    cuts: Arc<AtomicU64>,
}

/// One life of the server.
struct Life {
    server: Arc<Server>,
    links: Vec<Arc<Mutex<Option<LinkHandle>>>>,
}

impl Life {
    fn end(self) {
        for handle in self.links.iter().filter_map(|link| lock(link).take()) {
            handle.cut(EndReason::Died);
            handle.stop();
        }
    }
}

impl Site {
    /// Creates a site without a server.
    #[must_use]
    pub fn new(plan: Plan) -> Arc<Self> {
        Arc::new(Self {
            keys: Arc::new(Keys::random().expect("randomness")),
            life: Mutex::default(),
            plan: Mutex::new(plan),
            session_ids: Arc::new(AtomicU64::new(1)),
            refuses: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            cuts: Arc::default(),
        })
    }

    /// Creates a site with a server of `export`.
    #[must_use]
    pub fn serving(export: Arc<dyn Export>, plan: Plan) -> Arc<Self> {
        let site = Self::new(plan);
        site.start(export);
        site
    }

    /// Starts a server of `export` in place of the current one.
    pub fn start(&self, export: Arc<dyn Export>) {
        let plan = *lock(&self.plan);
        let service = VrpcServer::new()
            .with_keys(self.keys.clone())
            .with_session_ids(self.session_ids.clone())
            .with_export(EXPORT, export, plan.options);
        self.start_any(Arc::new(service));
    }

    /// Starts a server of any service in place of the current one.
    pub fn start_any(&self, service: Arc<dyn Service>) {
        let life = Life { server: Arc::new(Server::new(service)), links: Vec::new() };
        // Replaces the server before its links are cut: a notified client reconnects at once and must find
        // the new one.
        let former = lock(&self.life).replace(life);
        if let Some(former) = former {
            former.end();
        }
    }

    /// Ends the server, as when its process is killed.
    pub fn kill(&self) {
        let life = lock(&self.life).take();
        if let Some(life) = life {
            life.end();
        }
    }

    /// Cuts all links; the server stays.
    pub fn cut(&self) {
        if let Some(life) = &*lock(&self.life) {
            for link in &life.links {
                if let Some(handle) = &*lock(link) {
                    handle.cut(EndReason::Died);
                }
            }
        }
    }

    /// Replaces the configuration of future links and servers.
    pub fn plan(&self, plan: Plan) {
        *lock(&self.plan) = plan;
    }

    /// Refuses further links with "no such export".
    pub fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Returns the number of links requested.
    #[must_use]
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Returns the number of links cut by `cut_every`.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }

    /// Returns the number of requests that the present server has answered.
    #[must_use]
    pub fn answers(&self) -> u64 {
        lock(&self.life).as_ref().map_or(0, |life| life.server.counts().answers)
    }

    /// Returns the export as its clients see it, who wait for another link if they lose theirs.
    pub fn export(self: &Arc<Self>) -> VrpcExport {
        VrpcExport::new(Dial(self.clone())).with_writes_behind(lock(&self.plan).writes_behind)
    }

    /// Establishes a served link, and returns the client's ends.
    pub fn ends(&self) -> Result<Ends, ConnectError> {
        self.dial(Incarnation([7; 16])).map(|dialled| dialled.ends)
    }

    /// Cuts the newest link, as when the peer's process has ended. Does not wait for anything.
    pub fn cut_newest(&self) {
        self.newest(|link| link.cut(EndReason::Died));
    }

    /// Returns why the newest link has ended, or `None` while it is up.
    pub fn end(&self) -> Option<EndReason> {
        self.newest(LinkHandle::end).flatten()
    }

    fn newest<T>(&self, ask: impl FnOnce(&LinkHandle) -> T) -> Option<T> {
        let life = lock(&self.life);
        lock(life.as_ref()?.links.last()?).as_ref().map(ask)
    }

    fn dial(&self, incarnation: Incarnation) -> Result<Dialled, ConnectError> {
        let plan = *lock(&self.plan);
        let server = lock(&self.life).as_ref().ok_or("no server is there")?.server.clone();
        let (mut ours, mut theirs) = Ends::in_memory(Layout::with_bulk(plan.slots, 8, plan.bulk_bytes)?);
        if !plan.quiet {
            (ours.features, theirs.features) = (Features::empty(), Features::empty());
        }
        let label = "client".into();
        let peer = Peer { export: EXPORT.into(), credentials: None, client: incarnation, label };
        // It may take a moment, and no other client is to wait for it.
        let inner = server.open(&peer)?;
        let window = inner.window().map(|memory| memory.try_clone()).transpose()?;
        let mut life = lock(&self.life);
        let still_there = life.as_mut().filter(|life| Arc::ptr_eq(&life.server, &server));
        let life = still_there.ok_or("no server is there any more")?;
        let link = Arc::<Mutex<Option<LinkHandle>>>::default();
        let watched = Arc::new(Watched {
            inner,
            line: OnceLock::new(),
            link: link.clone(),
            every: plan.cut_every,
            cuts: self.cuts.clone(),
            served: AtomicU64::new(0),
        });
        *lock(&link) = Some(server.serve(&theirs, &peer, watched.clone(), plan.mode)?);
        life.links.push(link.clone());
        Ok(Dialled { ends: ours, mode: plan.mode, window, watched, link })
    }
}

/// A new link.
struct Dialled {
    /// The client's ends.
    ends: Ends,
    mode: Mode,
    window: Option<OwnedFd>,
    watched: Arc<Watched>,
    link: Arc<Mutex<Option<LinkHandle>>>,
}

/// Dialer of a site's links.
struct Dial(Arc<Site>);

/// Ends the server's side when the client's is dropped.
struct HangUp(Arc<Mutex<Option<LinkHandle>>>);

impl Connect for Dial {
    fn connect(&self, client: &Client, incarnation: Incarnation) -> Result<Connected, ConnectError> {
        let site = &self.0;
        site.asked.fetch_add(1, Ordering::SeqCst);
        if site.refuses.load(Ordering::SeqCst) {
            return Err(Box::new(Refused::new(RefusalCode::NoExport, "no such export")));
        }
        let Dialled { ends, mode, window, watched, link } = site.dial(incarnation)?;
        let line = Line::start(&ends, client.label.as_str(), mode)?;
        if let Some(window) = window {
            line.set_window(WindowReader::map(window)?);
        }
        // Without a socket, the server's end of the link must be reported by the session.
        watched.line.get_or_init(|| line.clone());
        Ok(Connected { line, keep: Box::new(HangUp(link)) })
    }
}

impl Drop for HangUp {
    fn drop(&mut self) {
        if let Some(handle) = lock(&self.0).take() {
            handle.cut(EndReason::Left);
            // Waits for the thread: the session is over when this is.
            handle.stop();
        }
    }
}

/// A session that cuts its link by `cut_every` and notifies the client's side of the end.
struct Watched {
    inner: Arc<dyn Session>,
    line: OnceLock<Line>,
    link: Arc<Mutex<Option<LinkHandle>>>,
    every: u64,
    cuts: Arc<AtomicU64>,
    served: AtomicU64,
}

impl Session for Watched {
    fn begun(&self, cutter: LinkCutter) {
        self.inner.begun(cutter);
    }

    fn serve(&self, request: Request<'_>, responder: Responder) {
        let served = self.served.fetch_add(1, Ordering::SeqCst) + 1;
        if self.every == 0 || served < self.every {
            return self.inner.serve(request, responder);
        }
        if served == self.every {
            if let Some(link) = &*lock(&self.link) {
                link.cut(EndReason::Died);
            }
            if self.cuts.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                // It is performed, and not answered.
                self.inner.serve(request, responder);
            }
        }
    }

    fn ended(&self) {
        self.inner.ended();
        if let Some(line) = self.line.get() {
            line.cut(EndReason::Died);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
