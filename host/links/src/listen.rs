//! Accepting links at a Unix socket, under a policy: a [`LinkListener`] makes them for a [`Server`].
//!
//! One thread accepts and waits for hellos; each hello is answered (`welcome`) on a short-lived thread of its
//! own, since opening an export may block. A peer without permission, or without a well-formed hello in time,
//! is refused with a reason and a log message.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;
use tombolo_core::lock;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Features, Incarnation, Limits, MESSAGE_BYTES_MAX, Message, RefusalCode, Refused};
use tombolo_sys::epoll::{Epoll, EventFd, Interest};
use tombolo_sys::packet::Packet;
use tombolo_sys::{Errno, packet, random, socket};

use super::control_socket::Watcher;
use super::policy::Policy;
use super::server::{Credentials, Server};
use super::welcome::{self, Links};

pub use super::welcome::Guest;
use tombolo_host_runtime::listener::{ListenError, Listener};

/// Options of a listener.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// Limits on the parameters of a link.
    pub limits: Limits,
    /// Rules by which processes may have links, and to which exports.
    pub policy: Policy,
    /// Waiting strategy of the links' threads.
    pub mode: Mode,
    /// Permission bits of the socket file. The policy applies in any case.
    pub socket_mode: u32,
    /// Time-out for a peer's hello.
    pub hello_timeout: Duration,
    /// Maximum number of connected peers without a link; a quarter of them for one user.
    pub pending_max: usize,
    /// Maximum number of links; a quarter of them for one user.
    pub links_max: usize,
}

impl Default for ListenOptions {
    /// Returns options for the server's own user and root: two seconds for a hello, 64 pending peers, 256
    /// links.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            policy: Policy::own_user(),
            mode: Mode::Adaptive,
            socket_mode: 0o600,
            hello_timeout: Duration::from_secs(2),
            pending_max: 64,
            links_max: 256,
        }
    }
}

/// Reason why a listener did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The socket could not be created.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A thread or descriptor is not available.
    #[error("cannot serve links: {0}")]
    Io(#[from] io::Error),
}

/// A socket that accepts links. Dropping it ends all links in order, and waits twice: for hellos being
/// answered, and for the links' threads, each of which finishes its current request. Requests answered later
/// are not awaited. Each wait is given up, with a log message, after ten seconds. Unless one is given up, the
/// service is not called afterwards.
pub struct LinkListener {
    path: PathBuf,
    shared: Arc<ListenerState>,
    thread: Option<JoinHandle<()>>,
}

struct ListenerState {
    options: ListenOptions,
    listener: Listener,
    epoll: Epoll,
    wakeup: EventFd,
    stopping: AtomicBool,
    links: Arc<Links>,
    /// Users of the peers whose hello is being answered, one entry for each hello.
    answering: Mutex<Vec<u32>>,
    /// Condition variable that is notified when a hello was answered.
    answered: Condvar,
}

impl LinkListener {
    /// Listens at `path` on behalf of `server`.
    pub fn start(path: &Path, server: Arc<Server>, mut options: ListenOptions) -> Result<Self, StartError> {
        options.limits.features = options.limits.features.difference(Features::IN_FILES);
        let mut incarnation = [0; 16];
        random::fill(&mut incarnation).map_err(io::Error::from)?;
        let watcher = Watcher::start()?;
        let links = Arc::new(Links::new(server, watcher, Incarnation(incarnation)));
        let shared = Arc::new(ListenerState {
            listener: Listener::bind_packets(path, options.socket_mode)?,
            epoll: Epoll::new().map_err(io::Error::from)?,
            wakeup: EventFd::new().map_err(io::Error::from)?,
            stopping: AtomicBool::new(false),
            links,
            answering: Mutex::default(),
            answered: Condvar::new(),
            options,
        });
        shared.epoll.add(&shared.wakeup, WAKEUP, Interest::Readable).map_err(io::Error::from)?;
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            pending: HashMap::new(),
            last_token: LISTENER,
            reopen: None,
        };
        acceptor.open().map_err(io::Error::from)?;
        let thread = thread::Builder::new().name("link-listener".into()).spawn(move || acceptor.run())?;
        Ok(Self { path: path.to_owned(), shared, thread: Some(thread) })
    }

    /// Returns the socket path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the incarnation of the server, as announced to clients.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.links.incarnation()
    }

    /// Returns the clients that have links.
    pub fn guests(&self) -> Vec<Guest> {
        self.shared.links.guests()
    }

    /// Calls `hook` whenever a client connects or disconnects, on a thread that links need: it must not
    /// block. Only the first hook is used.
    pub fn on_change(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.shared.links.client_hook.set(Box::new(hook));
    }
}

impl Drop for LinkListener {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.wakeup.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.links.close();
        let answering = lock(&self.shared.answering);
        let waited =
            self.shared.answered.wait_timeout_while(answering, ANSWER_TIMEOUT, |all| !all.is_empty());
        let (answering, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !answering.is_empty() {
            tracing::warn!(count = answering.len(), "listener closed, exports still opening");
        }
        drop(answering);
        let ending = self.shared.links.wait_for_ends(ANSWER_TIMEOUT);
        if ending > 0 {
            tracing::warn!(count = ending, "links still ending: their sessions hold requests");
        }
    }
}

const WAKEUP: u64 = 0;
const LISTENER: u64 = 1;
/// Pause after a failed accept, for instance for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of connections accepted before hellos are read.
const ACCEPT_BATCH: usize = 32;
/// Maximum time of each of the two waits of a dropped listener: a back end may never answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// State of the accepting thread.
struct Acceptor {
    shared: Arc<ListenerState>,
    /// Connected peers that have not sent a hello, by their epoll token.
    pending: HashMap<u64, Pending>,
    last_token: u64,
    /// Time at which to accept again after a failure; until then the socket is not watched.
    reopen: Option<Instant>,
}

struct Pending {
    socket: OwnedFd,
    credentials: Credentials,
    until: Instant,
}

impl Acceptor {
    fn open(&self) -> Result<(), Errno> {
        self.shared.epoll.add(self.shared.listener.socket(), LISTENER, Interest::Readable)
    }

    fn run(mut self) {
        let mut events = Vec::new();
        while !self.shared.stopping.load(Ordering::SeqCst) {
            let wakes = self.pending.values().map(|pending| pending.until).chain(self.reopen);
            let timeout = wakes.min().map(|wake| wake.saturating_duration_since(Instant::now()));
            if let Err(error) = self.shared.epoll.wait(&mut events, timeout) {
                tracing::error!(%error, "listener stopped");
                return;
            }
            for event in &events {
                match event.token {
                    WAKEUP => self.shared.wakeup.clear(),
                    LISTENER => self.accept(),
                    token => self.read_hello(token),
                }
            }
            self.expire(Instant::now());
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            match packet::accept(self.shared.listener.socket()) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections for links");
                    let _ = self.shared.epoll.remove(self.shared.listener.socket());
                    self.reopen = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let Ok(peer) = socket::peer(socket.as_fd()) else { return };
        let credentials = Credentials { pid: peer.pid.unsigned_abs(), uid: peer.uid, gid: peer.gid };
        let options = &self.shared.options;
        if !options.policy.admits(credentials) {
            return refuse(
                &socket,
                credentials,
                &Refused::new(RefusalCode::NotAllowed, "no rule allows this user"),
            );
        }
        let waiting = self.pending.values().map(|pending| pending.credentials.uid);
        let answering = lock(&self.shared.answering).clone();
        if is_full(waiting.chain(answering), credentials.uid, options.pending_max) {
            return refuse(
                &socket,
                credentials,
                &Refused::new(RefusalCode::TooMany, "too many pending connections"),
            );
        }
        self.last_token += 1;
        if let Err(error) = self.shared.epoll.add(&socket, self.last_token, Interest::Readable) {
            return refuse(&socket, credentials, &Refused::new(RefusalCode::Failed, error));
        }
        let until = Instant::now() + options.hello_timeout;
        self.pending.insert(self.last_token, Pending { socket, credentials, until });
    }

    /// Reads a peer's hello, and either passes it to [`answer`](Self::answer) or refuses the peer.
    fn read_hello(&mut self, token: u64) {
        let Some(pending) = self.pending.get(&token) else { return };
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let packet = match packet::receive(&pending.socket, &mut buffer) {
            Err(Errno::AGAIN) => return,
            outcome => outcome,
        };
        let Some(Pending { socket, credentials, .. }) = self.pending.remove(&token) else { return };
        let _ = self.shared.epoll.remove(&socket);
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) => return refuse(&socket, credentials, &Refused::new(RefusalCode::Malformed, error)),
        };
        if packet.len == 0 {
            tracing::warn!(pid = credentials.pid, uid = credentials.uid, "peer disconnected without a hello");
            return;
        }
        match hello(&buffer, packet) {
            Ok((hello, memory)) => self.answer(socket, credentials, hello, memory),
            Err(refused) => refuse(&socket, credentials, &refused),
        }
    }

    /// Answers a hello on its own thread.
    fn answer(
        &self,
        socket: OwnedFd,
        credentials: Credentials,
        hello: tombolo_shm::link::Hello,
        memory: OwnedFd,
    ) {
        let answering = Answering::new(&self.shared, credentials.uid);
        let answer = move || {
            let ListenerState { links, options, .. } = &*answering.shared;
            if let Err(refused) = welcome::welcome(links, options, &socket, credentials, &hello, &memory) {
                refuse(&socket, credentials, &refused);
            }
            drop(answering);
        };
        if let Err(error) = thread::Builder::new().name("link-hello".into()).spawn(answer) {
            // The closure's socket is dropped, which informs the peer.
            tracing::warn!(%error, pid = credentials.pid, uid = credentials.uid, "no thread to answer a hello");
        }
    }

    fn expire(&mut self, now: Instant) {
        let expired: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.until <= now)
            .map(|(token, _)| *token)
            .collect();
        for pending in expired.iter().filter_map(|token| self.pending.remove(token)) {
            let _ = self.shared.epoll.remove(&pending.socket);
            refuse(
                &pending.socket,
                pending.credentials,
                &Refused::new(RefusalCode::Malformed, "no hello received in time"),
            );
        }
        if self.reopen.is_some_and(|reopen| reopen <= now) {
            self.reopen = match self.open() {
                Ok(()) => None,
                Err(_) => Some(now + ACCEPT_PAUSE),
            };
        }
    }
}

/// A hello being answered, counted for as long as this exists.
struct Answering {
    shared: Arc<ListenerState>,
    uid: u32,
}

impl Answering {
    fn new(shared: &Arc<ListenerState>, uid: u32) -> Answering {
        lock(&shared.answering).push(uid);
        Answering { shared: Arc::clone(shared), uid }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut answering = lock(&self.shared.answering);
        if let Some(at) = answering.iter().position(|uid| *uid == self.uid) {
            answering.swap_remove(at);
        }
        self.shared.answered.notify_all();
    }
}

/// Returns `true` if the limit is reached in total, or a quarter of the limit by this user.
pub(super) fn is_full(users: impl Iterator<Item = u32>, user: u32, max: usize) -> bool {
    let (all, own) = users.fold((0, 0), |(all, own), uid| (all + 1, own + usize::from(uid == user)));
    all >= max || own >= max.div_ceil(4)
}

fn hello(buffer: &[u8], packet: Packet) -> Result<(tombolo_shm::link::Hello, OwnedFd), Refused> {
    let malformed = |why: &dyn std::fmt::Display| Refused::new(RefusalCode::Malformed, why);
    if packet.truncated {
        return Err(malformed(&"message too long"));
    }
    let count = packet.descriptors.len();
    let bytes = buffer.get(..packet.len).unwrap_or_default();
    let message = Message::decode(bytes).map_err(|error| malformed(&error))?;
    let Message::Hello(hello) = message else {
        return Err(malformed(&"message other than a hello"));
    };
    let mut descriptors = packet.descriptors.into_iter();
    match (descriptors.next(), descriptors.next()) {
        (Some(memory), None) => Ok((hello, memory)),
        _ => Err(malformed(&format_args!("hello with {count} descriptors instead of one"))),
    }
}

fn refuse(socket: &OwnedFd, credentials: Credentials, refused: &Refused) {
    // A client that has a path but no export's name tries candidates, so an unknown export causes no warning.
    match refused.code {
        RefusalCode::NoExport => {
            tracing::info!(pid = credentials.pid, uid = credentials.uid, why = %refused, "link refused")
        }
        _ => tracing::warn!(pid = credentials.pid, uid = credentials.uid, why = %refused, "link refused"),
    }
    // If the message cannot be sent, the end of the socket informs the peer.
    let _ = packet::send(socket, &Message::Refused(refused.clone()).encode(), &[]);
}
