//! Links over memory that both sides can write, without a socket: [`MemoryListener`] is the server, and
//! serves one client at a time; [`join`] is the client. Only a missing heartbeat shows that the peer has
//! died.
//!
//! Any process that can write the memory can use the link, and read and corrupt its contents; there are no
//! credentials for a policy to check. Clients are separated by giving each its own memory.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;
use tombolo_core::fs::WindowMirror;
use tombolo_core::lock;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{
    Agreement, BEAT, Cause, ClientHandshake, ClientStep, DoorbellKind, Ends, Features, Goodbye, Hello,
    Incarnation, Limits, LinkEnd, PageError, RefusalCode, Refused, ServerHandshake, ServerStep, WelcomeError,
};
use tombolo_shm::window::{WINDOW_BYTES, WindowReader};
use tombolo_sys::random;

use super::bell::BellSource;
use super::client::{Line, StartError};
use super::client_hook::ClientHook;
use super::connect::{self, ConnectOptions};
use super::control_socket;
use super::end::{EndReason, ProtocolError};
use super::listen::Guest;
use super::server::{LinkHandle, Peer, ServeError, Server, Session};
use super::shared_memory::SharedMemory;
use super::welcome::{epoch, failed, goodbye, refused};

/// Polling interval of the rendezvous page, except for running links.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Polling interval of a running link with a bell. A goodbye rings no bell, so it is read up to this late.
const POLL_INTERVAL_WITH_BELL: Duration = Duration::from_millis(250);

/// Returns the polling interval of a running link.
fn poll_interval(ends: &Ends) -> Duration {
    if ends.doorbell == DoorbellKind::Bell { POLL_INTERVAL_WITH_BELL } else { BEAT }
}

/// A server over memory that both sides can write. Dropping it ends the link in order and releases the
/// memory.
pub struct MemoryListener {
    _thread: StoppedOnDrop,
    current: Arc<CurrentClient>,
}

/// The client that has the link, if there is one, and the hook to call when the client changes.
#[derive(Default)]
struct CurrentClient {
    guest: Mutex<Option<Guest>>,
    client_hook: ClientHook,
}

/// Reason why the memory cannot be served.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The memory cannot carry a link.
    #[error("unusable shared memory: {0}")]
    Page(#[from] PageError),
    /// A thread or random numbers are not available.
    #[error("no link over this memory: {0}")]
    Io(#[from] io::Error),
}

impl MemoryListener {
    /// Serves clients over the memory on behalf of `server`, one after the other, on a thread of its own.
    /// `label` names the clients in the log; the names in their hellos are ignored.
    pub fn start(
        memory: SharedMemory,
        server: Arc<Server>,
        limits: Limits,
        mode: Mode,
        label: &str,
    ) -> Result<MemoryListener, HandshakeError> {
        let incarnation = Incarnation(random_bytes()?);
        let alone = memory.lock.is_some();
        let token = u32::from_le_bytes(random_bytes()?);
        let handshake =
            ServerHandshake::new(memory.region.clone(), incarnation, token, alone, Instant::now())?;
        let bytes = limits.bytes.min(handshake.own_end().len());
        let features = limits.features.difference(Features::AT_SOCKETS);
        let limits = Limits { features, doorbells: memory.doorbells(), bytes, ..limits };
        let current = Arc::<CurrentClient>::default();
        let mut page_server = PageServer {
            handshake,
            server,
            limits,
            mode,
            label: label.into(),
            incarnation,
            bell: memory.bell.clone(),
            stage: LinkStage::Free,
            current: Arc::clone(&current),
        };
        // A client may connect as soon as this returns, and must find the page initialized.
        page_server.step(Instant::now())?;
        let run = move |stopped: Receiver<()>| {
            let mut wait = POLL_INTERVAL;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                if let Err(error) = page_server.step(Instant::now()) {
                    tracing::error!(%error, link = &*page_server.label, "shared memory is no longer usable");
                    page_server.stage = LinkStage::Free;
                    page_server.clear_current();
                    return;
                }
                wait = match &page_server.stage {
                    LinkStage::Running { poll_interval, .. } => *poll_interval,
                    _ => POLL_INTERVAL,
                };
            }
            page_server.leave();
            drop(memory);
        };
        Ok(MemoryListener { _thread: StoppedOnDrop::spawn("link-memory", run)?, current })
    }

    /// Returns the client that has the link, as of the last poll: ten times a second, with a bell four times.
    pub fn guests(&self) -> Vec<Guest> {
        lock(&self.current.guest).iter().cloned().collect()
    }

    /// Calls `hook` whenever a client connects or disconnects, on the thread that polls the memory: it must
    /// not block. Only the first hook is used.
    pub fn on_change(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.current.client_hook.set(Box::new(hook));
    }
}

/// A thread that is stopped and joined when this is dropped.
#[derive(Debug)]
struct StoppedOnDrop {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StoppedOnDrop {
    fn spawn(name: &str, run: impl FnOnce(Receiver<()>) + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name(name.into()).spawn(move || run(stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for StoppedOnDrop {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A thread cannot join itself: it ends a link, which runs tasks, and a task may own and drop this.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// Server side of the rendezvous page and its link. The listener's thread calls `step` at each poll.
struct PageServer {
    handshake: ServerHandshake,
    server: Arc<Server>,
    limits: Limits,
    mode: Mode,
    label: Arc<str>,
    incarnation: Incarnation,
    bell: Option<Arc<BellSource>>,
    stage: LinkStage,
    current: Arc<CurrentClient>,
}

/// The mirror of a session's window in the memory.
struct Mirror(Box<dyn WindowMirror>);

impl Mirror {
    /// Invalidates all versions, when the link ends and changes may not be counted any more.
    fn invalidate(&self) {
        self.0.invalidate();
    }
}

enum LinkStage {
    /// No client, or one whose hello was refused.
    Free,
    /// Session opened; the client is not ready yet.
    Welcomed {
        peer: Peer,
        session: Arc<dyn Session>,
        mirror: Option<Mirror>,
    },
    Running {
        handle: LinkHandle,
        poll_interval: Duration,
        mirror: Option<Mirror>,
    },
    /// Ended, but requests are still in progress, whose answers may be written to the memory.
    Ending {
        handle: LinkHandle,
    },
}

impl PageServer {
    /// Advances the handshake, and ends the link if either side has ended it. Fails if the memory was lost.
    fn step(&mut self, now: Instant) -> Result<(), PageError> {
        match self.handshake.step(now)? {
            ServerStep::Nothing => {}
            // Another server has taken the memory, in which nothing may be written any more.
            ServerStep::Busy => self.end(EndReason::Died, |_| ()),
            ServerStep::Asked(hello) => self.handle_hello(&hello, now)?,
            ServerStep::Ready(ends) => self.begin(*ends, now)?,
            ServerStep::Over(end) => self.end(end.into(), Mirror::invalidate),
        }
        match std::mem::replace(&mut self.stage, LinkStage::Free) {
            LinkStage::Running { handle, poll_interval, mirror } => match handle.end() {
                Some(end) => {
                    mirror.iter().for_each(Mirror::invalidate);
                    self.handshake.goodbye(&goodbye(&end))?;
                    self.stage = LinkStage::Ending { handle };
                }
                None => {
                    self.observe(&handle);
                    self.stage = LinkStage::Running { handle, poll_interval, mirror };
                }
            },
            // The next client gets the same memory, so it must wait until no late answer can be written: the
            // link has counters until its thread and all requests have ended.
            LinkStage::Ending { handle } if handle.counts().is_some() => {
                self.stage = LinkStage::Ending { handle }
            }
            LinkStage::Ending { .. } => self.handshake.reopen(now)?,
            stage => self.stage = stage,
        }
        self.clear_current();
        Ok(())
    }

    fn handle_hello(&mut self, hello: &Hello, now: Instant) -> Result<(), PageError> {
        // A welcomed client that did not complete the handshake may be trying again; the session opened for
        // it is dropped before the next one is opened.
        self.stage = LinkStage::Free;
        match self.open(hello) {
            Ok((agreement, peer, session)) => {
                let mirror = self.mirror(&agreement, &*session);
                let features = match mirror {
                    Some(_) => agreement.features,
                    None => agreement.features.difference(Features::WINDOW_MIRROR),
                };
                self.handshake.welcome(&Agreement { features, ..agreement }, now)?;
                self.stage = LinkStage::Welcomed { peer, session, mirror };
            }
            Err(refused) => {
                match refused.code {
                    RefusalCode::NoExport => {
                        tracing::info!(link = &*self.label, why = %refused, "link refused");
                    }
                    _ => tracing::warn!(link = &*self.label, why = %refused, "link refused"),
                }
                self.handshake.refuse(&refused, now)?;
            }
        }
        Ok(())
    }

    /// Records the client's heartbeat and counters, for [`MemoryListener::guests`].
    fn observe(&self, handle: &LinkHandle) {
        if let Some(guest) = lock(&self.current.guest).as_mut() {
            let watch = self.handshake.watch();
            guest.health = watch.health();
            guest.silence = watch.silence();
            guest.counts = handle.counts();
        }
    }

    /// Removes the client from [`MemoryListener::guests`], if the link is over.
    fn clear_current(&self) {
        if !matches!(self.stage, LinkStage::Running { .. }) && lock(&self.current.guest).take().is_some() {
            self.current.client_hook.notify();
        }
    }

    fn open(&self, hello: &Hello) -> Result<(Agreement, Peer, Arc<dyn Session>), Refused> {
        let agreement = self.limits.agree(hello, epoch()?, self.incarnation)?;
        let peer = Peer {
            export: hello.export.clone(),
            credentials: None,
            client: hello.client,
            label: self.label.clone(),
        };
        let session = self.server.open_for(agreement.protocol, &peer).map_err(|refusal| refused(&refusal))?;
        Ok((agreement, peer, session))
    }

    /// Returns a mirror of the session's window behind the layout of the server's end; `None` if the client
    /// supports none, there is no window, or no space.
    fn mirror(&self, agreement: &Agreement, session: &dyn Session) -> Option<Mirror> {
        let is_offered = agreement.features.contains(Features::WINDOW_MIRROR);
        let own = self.handshake.own_end();
        let offset = is_offered.then(|| own.tail(WINDOW_BYTES, &agreement.layout)).flatten()?;
        session.mirror_window(own.region(), offset).map(Mirror)
    }

    fn begin(&mut self, ends: Ends, now: Instant) -> Result<(), PageError> {
        let LinkStage::Welcomed { peer, session, mirror } =
            std::mem::replace(&mut self.stage, LinkStage::Free)
        else {
            return Ok(());
        };
        let (poll_interval, slots, bell) =
            (poll_interval(&ends), ends.layout.slots(), ends.doorbell == DoorbellKind::Bell);
        let served = BellSource::attached(self.bell.as_ref(), ends)
            .map_err(ServeError::Thread)
            .and_then(|ends| self.server.serve(&ends, &peer, session, self.mode));
        match served {
            Ok(handle) => {
                tracing::info!(link = &*peer.label, export = peer.export, slots, bell, "link made");
                self.stage = LinkStage::Running { handle, poll_interval, mirror };
                *lock(&self.current.guest) = Some(Guest::new(peer));
                self.current.client_hook.notify();
            }
            Err(error) => {
                tracing::warn!(link = &*peer.label, why = %error, "link refused");
                self.handshake.goodbye(&Goodbye::new(Cause::Failed, failed(error)))?;
                self.handshake.reopen(now)?;
            }
        }
        Ok(())
    }

    /// Ends the link, if there is one, after `end_mirror`.
    fn end(&mut self, end: EndReason, end_mirror: fn(&Mirror)) {
        match std::mem::replace(&mut self.stage, LinkStage::Free) {
            LinkStage::Running { handle, mirror, .. } => {
                tracing::info!(link = &*self.label, why = %end, "link ended");
                mirror.iter().for_each(end_mirror);
                drop(mirror);
                handle.cut(end);
                self.stage = LinkStage::Ending { handle };
            }
            stage @ LinkStage::Ending { .. } => self.stage = stage,
            LinkStage::Free | LinkStage::Welcomed { .. } => {}
        }
    }

    fn leave(mut self) {
        if let LinkStage::Welcomed { .. } | LinkStage::Running { .. } = self.stage
            && let Err(error) = self.handshake.goodbye(&Goodbye::new(Cause::Leaving, ""))
        {
            tracing::warn!(%error, "cannot send goodbye");
        }
        if let LinkStage::Running { mirror, .. } = &self.stage {
            mirror.iter().for_each(Mirror::invalidate);
        }
        self.stage = LinkStage::Free;
        self.clear_current();
        self.handshake.leave();
    }
}

/// Reason why a link over memory could not be made.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The memory cannot carry a link.
    #[error("unusable shared memory: {0}")]
    Page(#[from] PageError),
    /// The memory has no server, or its server has another client.
    #[error("no server, or it is serving another client")]
    Busy,
    /// The server refused the link.
    #[error("{0}")]
    Refused(#[source] Refused),
    /// The server did not answer in time.
    #[error("the server does not answer")]
    Silent,
    /// The server sent an invalid reply.
    #[error("invalid server reply")]
    Welcome(#[source] WelcomeError),
    /// The server granted a mirror of its window, but has written none.
    #[error("the server's change counters are invalid")]
    Window,
    /// The server disconnected meanwhile.
    #[error("the server disconnected: {0}")]
    Ended(EndReason),
    /// The line could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A thread, a descriptor or random numbers are not available.
    #[error("no link over this memory: {0}")]
    Io(#[from] io::Error),
}

/// The client's watcher of a link without a socket. Dropping it ends the link in order.
#[derive(Debug)]
pub struct MemoryWatcher {
    _thread: StoppedOnDrop,
}

/// Requests a link from the server of `memory`, and starts to use it. Blocks until the server answers, up to
/// the options' time-out. If the server has another client, it answers only after that one has left.
pub fn join(
    memory: SharedMemory,
    options: &ConnectOptions,
    label: impl Into<Arc<str>>,
    mode: Mode,
) -> Result<(Line, MemoryWatcher), JoinError> {
    let hello = connect::hello(options, Features::AT_SOCKETS);
    let hello = Hello { doorbells: memory.doorbells(), ..hello };
    let token = u32::from_le_bytes(random_bytes()?);
    let mut handshake =
        ClientHandshake::new(memory.region.clone(), memory.total, hello, token, Instant::now())?;
    let ends = wait(&mut handshake, options.timeout)?;
    let poll_interval = poll_interval(&ends);
    let start = |ends: Ends| {
        let line = Line::start(&ends, label, mode)?;
        if let Some(window) = mirrored_window(&ends)? {
            line.set_window(window);
        }
        Ok(line)
    };
    let started = BellSource::attached(memory.bell.as_ref(), ends).map_err(JoinError::from).and_then(start);
    let line = started.inspect_err(|error| {
        // Without a goodbye the server would hold the link until the heartbeat is missed.
        let end = EndReason::Failed(error.to_string().into());
        if let Err(error) = handshake.goodbye(&goodbye(&end)) {
            tracing::warn!(%error, "cannot send goodbye");
        }
    })?;
    let watched = line.clone();
    let run = move |stopped: Receiver<()>| {
        let end = loop {
            match handshake.step(Instant::now()) {
                Ok(ClientStep::Over(end)) => break end.into(),
                Ok(_) => {}
                Err(error) => break EndReason::Failed(error.to_string().into()),
            }
            let stop = stopped.recv_timeout(poll_interval) != Err(RecvTimeoutError::Timeout);
            if let Some(end) = watched.end().or(stop.then_some(EndReason::Stopped)) {
                if let Err(error) = handshake.goodbye(&goodbye(&end)) {
                    tracing::warn!(%error, "cannot send goodbye");
                }
                break end;
            }
        };
        watched.cut(end);
        drop(memory);
    };
    Ok((line, MemoryWatcher { _thread: StoppedOnDrop::spawn("link-heart", run)? }))
}

/// Returns the server's window, if its end has a mirror of it.
fn mirrored_window(ends: &Ends) -> Result<Option<WindowReader>, JoinError> {
    if !ends.features.contains(Features::WINDOW_MIRROR) {
        return Ok(None);
    }
    let offset = ends.peer.tail(WINDOW_BYTES, &ends.layout).ok_or(JoinError::Window)?;
    WindowReader::at(ends.peer.region(), offset).map(Some).map_err(|_| JoinError::Window)
}

fn wait(handshake: &mut ClientHandshake, timeout: Duration) -> Result<Ends, JoinError> {
    let until = Instant::now() + timeout;
    let mut is_requested = false;
    loop {
        let now = Instant::now();
        match handshake.step(now)? {
            ClientStep::Made(made) => return Ok(made.1),
            ClientStep::Nothing => is_requested = true,
            ClientStep::Busy => {}
            ClientStep::Refused(refused) => return Err(JoinError::Refused(refused)),
            ClientStep::InvalidWelcome(error) => return Err(JoinError::Welcome(error)),
            ClientStep::Over(end) => return Err(JoinError::Ended(end.into())),
        }
        if now >= until {
            return Err(if is_requested { JoinError::Silent } else { JoinError::Busy });
        }
        // The server cannot wake this process, as there may be no common kernel.
        thread::sleep(POLL_INTERVAL);
    }
}

impl From<LinkEnd> for EndReason {
    fn from(end: LinkEnd) -> EndReason {
        match end {
            LinkEnd::Said(goodbye) => control_socket::end_of(&goodbye),
            LinkEnd::Died => EndReason::Died,
            LinkEnd::Malformed => {
                EndReason::ProtocolError(ProtocolError::Malformed("malformed rendezvous page".into()))
            }
        }
    }
}

fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    random::fill(&mut bytes)?;
    Ok(bytes)
}
