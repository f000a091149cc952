//! Links over memory that both sides can write, where there is no socket: one client at a time, told dead by
//! its heartbeat.
//!
//! A process that can write the memory can have the link, and read and spoil what goes over it; there are no
//! credentials for a policy to check. Clients are kept apart by giving each its own memory.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{
    Agreement, BEAT, Cause, ClientHandshake, ClientStep, Doorbells, Ends, Features, Goodbye, Hello,
    Incarnation, Limits, PageEnd, PageError, RefusalCode, Refused, ServerHandshake, ServerStep, WelcomeError,
};
use tombolo_sys::random;

use super::changes::Changes;
use super::client::{Line, StartError};
use super::connect::{self, ConnectOptions};
use super::control_socket;
use super::end::{End, ProtocolError};
use super::listen::Guest;
use super::server::{LinkHandle, Peer, Server, Session};
use super::shared_memory::SharedMemory;
use super::welcome::{epoch, failed, goodbye, refused};
use tombolo_host_runtime::lock;

/// How often a page is looked at while something may happen there.
const LOOK: Duration = Duration::from_millis(10);

/// A server at memory that both sides can write. Dropping it says goodbye and gives the memory up.
#[derive(Debug)]
pub struct MemoryListener {
    _thread: StoppedOnDrop,
    current: Arc<CurrentClient>,
}

/// The client that has the link.
#[derive(Debug, Default)]
struct CurrentClient {
    guest: Mutex<Option<Guest>>,
    changes: Changes,
}

/// Why the memory cannot be served.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The memory cannot carry a link.
    #[error("memory that cannot be shared: {0}")]
    Page(#[from] PageError),
    /// The system refused a thread, or randomness.
    #[error("no link over this memory: {0}")]
    Io(#[from] io::Error),
}

impl MemoryListener {
    /// Serves clients there on behalf of `server`, one after the other, with a thread of its own. `label` is
    /// what clients are called in the log, as they have no name.
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
        let bytes = limits.bytes.min(handshake.half_bytes());
        let features = limits.features.without(Features::AT_SOCKETS);
        let limits = Limits { features, doorbells: Doorbells::SILENT, bytes, ..limits };
        let current = Arc::<CurrentClient>::default();
        let mut page_server = PageServer {
            handshake,
            server,
            limits,
            mode,
            label: label.into(),
            incarnation,
            stage: Stage::Free,
            current: Arc::clone(&current),
        };
        // A client may come as soon as this returns, and must find the page made.
        page_server.step(Instant::now())?;
        let run = move |stopped: Receiver<()>| {
            let mut wait = LOOK;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                if let Err(error) = page_server.step(Instant::now()) {
                    tracing::error!(%error, link = &*page_server.label, "memory that was shared cannot be used any more");
                    page_server.stage = Stage::Free;
                    page_server.clear_current();
                    return;
                }
                wait = if matches!(page_server.stage, Stage::Running { .. }) { BEAT } else { LOOK };
            }
            page_server.leave();
            drop(memory);
        };
        Ok(MemoryListener { _thread: StoppedOnDrop::spawn("link-memory", run)?, current })
    }

    /// The client that has the link, as of the last look, about ten times a second.
    pub fn guests(&self) -> Vec<Guest> {
        lock(&self.current.guest).iter().cloned().collect()
    }

    /// Calls `hook` whenever a client has come or gone, on the thread that looks after the memory: it must
    /// not block. The first hook stays.
    pub fn on_change(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.current.changes.call(Box::new(hook));
    }
}

/// A thread that is told to stop, and waited for, when this is dropped.
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
        // Its own thread may be the one that drops it: see the watcher.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// The server's side, on its thread.
struct PageServer {
    handshake: ServerHandshake,
    server: Arc<Server>,
    limits: Limits,
    mode: Mode,
    label: Arc<str>,
    incarnation: Incarnation,
    stage: Stage,
    current: Arc<CurrentClient>,
}

enum Stage {
    Free,
    /// Opened, and not in use before the client is ready.
    Welcomed {
        peer: Peer,
        session: Arc<dyn Session>,
    },
    Running {
        handle: LinkHandle,
    },
    /// Over, and a late answer may still be written.
    Ending {
        handle: LinkHandle,
    },
}

impl PageServer {
    fn step(&mut self, now: Instant) -> Result<(), PageError> {
        match self.handshake.step(now)? {
            ServerStep::Nothing | ServerStep::Busy => {}
            ServerStep::Asked(hello) => self.asked(&hello, now)?,
            ServerStep::Ready(ends) => self.begin(&ends, now)?,
            ServerStep::Over(end) => self.end(end.into()),
        }
        match std::mem::replace(&mut self.stage, Stage::Free) {
            Stage::Running { handle } => match handle.end() {
                Some(end) => {
                    self.handshake.goodbye(&goodbye(&end))?;
                    self.stage = Stage::Ending { handle };
                }
                None => {
                    self.observe(&handle);
                    self.stage = Stage::Running { handle };
                }
            },
            // The next client gets the same memory: no answer may still be written there.
            Stage::Ending { handle } if handle.counts().is_some() => self.stage = Stage::Ending { handle },
            Stage::Ending { .. } => self.handshake.reopen(now)?,
            stage => self.stage = stage,
        }
        self.clear_current();
        Ok(())
    }

    fn asked(&mut self, hello: &Hello, now: Instant) -> Result<(), PageError> {
        // The client that was welcomed before has not come: perhaps it asks again, and its former session is
        // to be gone by then.
        self.stage = Stage::Free;
        match self.open(hello) {
            Ok((agreement, peer, session)) => {
                self.handshake.welcome(&agreement, now)?;
                self.stage = Stage::Welcomed { peer, session };
            }
            Err(refused) => {
                match refused.code {
                    RefusalCode::NoExport => {
                        tracing::info!(link = &*self.label, why = %refused, "no link");
                    }
                    _ => tracing::warn!(link = &*self.label, why = %refused, "no link"),
                }
                self.handshake.refuse(&refused, now)?;
            }
        }
        Ok(())
    }

    /// Notes the client's heartbeat and counts.
    fn observe(&self, handle: &LinkHandle) {
        if let Some(guest) = lock(&self.current.guest).as_mut() {
            let watch = self.handshake.watch();
            guest.health = watch.health();
            guest.silence = watch.silence();
            guest.counts = handle.counts();
        }
    }

    /// Forgets the client, if the link is over.
    fn clear_current(&self) {
        if !matches!(self.stage, Stage::Running { .. }) && lock(&self.current.guest).take().is_some() {
            self.current.changes.tell();
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

    fn begin(&mut self, ends: &Ends, now: Instant) -> Result<(), PageError> {
        let Stage::Welcomed { peer, session } = std::mem::replace(&mut self.stage, Stage::Free) else {
            return Ok(());
        };
        match self.server.serve(ends, &peer, session, self.mode) {
            Ok(handle) => {
                tracing::info!(
                    link = &*peer.label,
                    export = peer.export,
                    slots = ends.layout.slots(),
                    "link made"
                );
                self.stage = Stage::Running { handle };
                *lock(&self.current.guest) = Some(Guest::new(peer));
                self.current.changes.tell();
            }
            Err(error) => {
                tracing::warn!(link = &*peer.label, why = %error, "no link");
                self.handshake.goodbye(&Goodbye::new(Cause::Failed, failed(error)))?;
                self.handshake.reopen(now)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, end: End) {
        if let Stage::Running { handle } = std::mem::replace(&mut self.stage, Stage::Free) {
            tracing::info!(link = &*self.label, why = %end, "link ended");
            handle.cut(end);
            self.stage = Stage::Ending { handle };
        }
    }

    fn leave(mut self) {
        if let Stage::Welcomed { .. } | Stage::Running { .. } = self.stage
            && let Err(error) = self.handshake.goodbye(&Goodbye::new(Cause::Leaving, ""))
        {
            tracing::warn!(%error, "no goodbye");
        }
        self.stage = Stage::Free;
        self.clear_current();
        self.handshake.leave();
    }
}

/// Why there is no link over memory.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The memory cannot carry a link.
    #[error("memory that cannot be shared: {0}")]
    Page(#[from] PageError),
    /// There is no server, or it has another client.
    #[error("no server is there, or it has another client")]
    Busy,
    /// The server refused.
    #[error("{0}")]
    Refused(#[source] Refused),
    /// The server did not answer in time.
    #[error("the server does not answer")]
    Silent,
    /// The server sent an invalid reply.
    #[error("invalid server reply")]
    Welcome(#[source] WelcomeError),
    /// The server went away meanwhile.
    #[error("the server went away: {0}")]
    Ended(End),
    /// The line could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The system refused.
    #[error("no link over this memory: {0}")]
    Io(#[from] io::Error),
}

/// The client's watch over a link that has no socket. Dropping it ends the link in order.
#[derive(Debug)]
pub struct MemoryWatcher {
    _thread: StoppedOnDrop,
}

/// Asks the server at that memory for a link, and takes it into use. Waits for the answer, and for another
/// client to leave, until the options' time is up.
pub fn join(
    memory: SharedMemory,
    options: &ConnectOptions,
    label: impl Into<Arc<str>>,
    mode: Mode,
) -> Result<(Line, MemoryWatcher), JoinError> {
    let hello = connect::hello(options);
    let offered = hello.offered.without(Features::AT_SOCKETS);
    let hello = Hello { doorbells: Doorbells::SILENT, offered, ..hello };
    let token = u32::from_le_bytes(random_bytes()?);
    let mut handshake =
        ClientHandshake::new(memory.region.clone(), memory.total, hello, token, Instant::now())?;
    let ends = wait(&mut handshake, options.timeout)?;
    let line = Line::start(&ends, label, mode)?;
    let watched = line.clone();
    let run = move |stopped: Receiver<()>| {
        let end = loop {
            match handshake.step(Instant::now()) {
                Ok(ClientStep::Over(end)) => break end.into(),
                Ok(_) => {}
                Err(error) => break End::Failed(error.to_string().into()),
            }
            let stop = stopped.recv_timeout(BEAT) != Err(RecvTimeoutError::Timeout);
            if let Some(end) = watched.end().or(stop.then_some(End::Stopped)) {
                if let Err(error) = handshake.goodbye(&goodbye(&end)) {
                    tracing::warn!(%error, "no goodbye");
                }
                break end;
            }
        };
        watched.cut(end);
        drop(memory);
    };
    Ok((line, MemoryWatcher { _thread: StoppedOnDrop::spawn("link-heart", run)? }))
}

fn wait(handshake: &mut ClientHandshake, timeout: Duration) -> Result<Ends, JoinError> {
    let until = Instant::now() + timeout;
    let mut asked = false;
    loop {
        let now = Instant::now();
        match handshake.step(now)? {
            ClientStep::Made(made) => return Ok(made.1),
            ClientStep::Nothing => asked = true,
            ClientStep::Busy => {}
            ClientStep::Refused(refused) => return Err(JoinError::Refused(refused)),
            ClientStep::Unbelievable(error) => return Err(JoinError::Welcome(error)),
            ClientStep::Over(end) => return Err(JoinError::Ended(end.into())),
        }
        if now >= until {
            return Err(if asked { JoinError::Silent } else { JoinError::Busy });
        }
        // The server cannot wake us: there is no common kernel.
        thread::sleep(LOOK);
    }
}

impl From<PageEnd> for End {
    fn from(end: PageEnd) -> End {
        match end {
            PageEnd::Said(goodbye) => control_socket::end_of(&goodbye),
            PageEnd::Died => End::Died,
            PageEnd::Malformed => {
                End::ProtocolError(ProtocolError::Malformed("what it left in the page makes no sense".into()))
            }
        }
    }
}

fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    random::fill(&mut bytes)?;
    Ok(bytes)
}
