//! Link control socket, open for the life of a link. A side that ends the link in order sends a goodbye
//! before it closes the socket; if the socket is closed without one, the peer has died.
//!
//! The thread of a [`Watcher`] reads the sockets of many links and calls a [`Handler`] for each; a
//! [`ControlSocket`] is this side's handle of one. `connect` and `welcome` implement the handlers.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tombolo_core::lock;
use tombolo_shm::link::{Cause, Goodbye, MESSAGE_BYTES_MAX, Message, SLOW_BEAT};
use tombolo_sys::epoll::{Epoll, Event, EventFd, Interest};
use tombolo_sys::packet::Packet;
use tombolo_sys::{Errno, packet, socket};

use super::end::{EndReason, ProtocolError};

/// Handler of the events of one link's socket, called on the watcher's thread; no method may block. The
/// watcher is locked during [`tick`](Self::tick) and [`received`](Self::received), which must neither end a
/// link nor drop an object whose destructor may. The handler itself is dropped without that lock.
pub trait Handler: Send {
    /// Runs every [`TICK`], and on [request](Watcher::tick_fn). If it returns a goodbye, the link ends and
    /// the goodbye is sent to the peer; [`ended`](Self::ended) is not called then.
    fn tick(&mut self, now: Instant) -> Option<Goodbye>;

    /// Handles a message other than a goodbye, with its descriptors. Returns the answer to send.
    fn received(
        &mut self,
        _message: &Message,
        _descriptors: Descriptors,
    ) -> Result<Option<Message>, ProtocolError> {
        Err(ProtocolError::Malformed("unexpected message on the link control socket".into()))
    }

    /// Handles the end of the link because the peer has left, failed, died or violated the protocol.
    fn ended(self: Box<Self>, end: EndReason);
}

/// Descriptors attached to a message.
pub type Descriptors = smallvec::SmallVec<[OwnedFd; 1]>;

/// Interval of ticks, at which both processes wake even while a link is idle: long, because urgent events are
/// reported by the socket or through [`Watcher::tick_fn`].
pub const TICK: Duration = SLOW_BEAT;

/// A thread that watches the sockets of any number of links. Dropping it sends a goodbye on all of them.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<WatcherState>,
    thread: Option<JoinHandle<()>>,
}

/// Local end of a link control socket. Dropping it says goodbye.
#[derive(Debug)]
pub struct ControlSocket {
    watched: Arc<Watched>,
    shared: Arc<WatcherState>,
    token: u64,
}

/// A sender of messages on a link's socket, except goodbyes. It does not keep the socket open.
#[derive(Debug, Clone)]
pub(super) struct ControlSender(Weak<Watched>);

#[derive(Debug)]
struct WatcherState {
    epoll: Epoll,
    wakeup: EventFd,
    stopping: AtomicBool,
    links: Mutex<WatchedLinks>,
}

#[derive(Default)]
struct WatchedLinks {
    last_token: u64,
    by_token: HashMap<u64, WatchedLink>,
}

struct WatchedLink {
    watched: Arc<Watched>,
    handler: Box<dyn Handler>,
}

#[derive(Debug)]
struct Watched {
    socket: OwnedFd,
    /// `true` once either side has ended the link.
    over: AtomicBool,
}

/// Token of the wake-up event; links count from 1.
const WAKEUP: u64 = 0;

impl Watcher {
    /// Starts the watcher's thread.
    pub fn start() -> io::Result<Watcher> {
        let shared = Arc::new(WatcherState {
            epoll: Epoll::new()?,
            wakeup: EventFd::new()?,
            stopping: AtomicBool::new(false),
            links: Mutex::default(),
        });
        shared.epoll.add(&shared.wakeup, WAKEUP, Interest::Readable)?;
        let running = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("link-ends".into()).spawn(move || watch(&running))?;
        Ok(Watcher { shared, thread: Some(thread) })
    }

    /// Watches a link control socket. The handler is notified when the peer ends the link, unless this side
    /// did before.
    pub fn watch(&self, socket: OwnedFd, handler: Box<dyn Handler>) -> io::Result<ControlSocket> {
        let watched = Arc::new(Watched { socket, over: AtomicBool::new(false) });
        let token = {
            let mut links = lock(&self.shared.links);
            links.last_token += 1;
            let token = links.last_token;
            if links.by_token.is_empty() {
                // The thread may be waiting without a time-out.
                self.shared.wakeup.notify();
            }
            links.by_token.insert(token, WatchedLink { watched: Arc::clone(&watched), handler });
            token
        };
        if let Err(error) = self.shared.epoll.add(&watched.socket, token, Interest::Readable) {
            let link = lock(&self.shared.links).by_token.remove(&token);
            // The link is dropped without the lock, because its handler ends it.
            drop(link);
            return Err(error.into());
        }
        Ok(ControlSocket { watched, shared: Arc::clone(&self.shared), token })
    }

    /// Returns a function, callable from any thread, that makes the watcher tick soon, so that a handler
    /// notices that its link has ended by other means than the socket. It does nothing once the watcher is
    /// dropped.
    pub(super) fn tick_fn(&self) -> impl FnOnce() + Send + 'static {
        let shared = Arc::downgrade(&self.shared);
        move || {
            if let Some(shared) = shared.upgrade() {
                shared.wakeup.notify();
            }
        }
    }

    /// Returns the number of watched links.
    pub fn count(&self) -> usize {
        lock(&self.shared.links).by_token.len()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.wakeup.notify();
        // The watcher may be dropped on its own thread: the end of a link wakes waiting tasks, one of which
        // may own the watcher.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
        let links = std::mem::take(&mut lock(&self.shared.links).by_token);
        for link in links.into_values() {
            link.watched.end(&Goodbye::new(Cause::Leaving, "the process ends"));
        }
    }
}

impl ControlSocket {
    /// Ends the link in order: the peer gets a goodbye.
    pub fn leave(&self) {
        self.end(&Goodbye::new(Cause::Leaving, ""));
    }

    /// Ends the link and sends the reason to the peer. Does not block.
    pub fn end(&self, goodbye: &Goodbye) {
        self.watched.end(goodbye);
        let link = lock(&self.shared.links).by_token.remove(&self.token);
        if link.is_some() {
            let _ = self.shared.epoll.remove(&self.watched.socket);
        }
    }

    /// Returns a sender of messages for this socket.
    pub(super) fn sender(&self) -> ControlSender {
        ControlSender(Arc::downgrade(&self.watched))
    }

    /// Returns `true` if either side has ended the link.
    pub fn is_over(&self) -> bool {
        self.watched.over.load(Ordering::Acquire)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.leave();
    }
}

impl ControlSender {
    /// Sends a message without blocking. Returns EAGAIN if the peer does not read, EPIPE if the link is over.
    pub(super) fn send(&self, message: &Message, memory: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let watched = self.0.upgrade().filter(|watched| !watched.over.load(Ordering::Acquire));
        let watched = watched.ok_or(Errno::PIPE)?;
        packet::send(&watched.socket, &message.encode(), memory.as_slice())
    }
}

/// Result of reading a socket.
enum Incoming {
    Nothing,
    /// The peer has ended the link, died, or violated the protocol.
    EndReason(EndReason),
    Message(Message, Descriptors),
}

impl Watched {
    fn end(&self, goodbye: &Goodbye) {
        if self.over.swap(true, Ordering::AcqRel) {
            return;
        }
        // A peer that does not receive this message is informed by the end of the socket.
        let _ = packet::send(&self.socket, &Message::Goodbye(goodbye.clone()).encode(), &[]);
        let _ = socket::shut_down(&self.socket);
    }

    fn read(&self) -> Incoming {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        // If the peer closed the socket with unread messages, Linux reports ECONNRESET before the peer's own
        // messages, which a second receive returns.
        let packet = match packet::receive(self.socket.as_fd(), &mut buffer) {
            Err(Errno::CONNRESET) => packet::receive(self.socket.as_fd(), &mut buffer),
            outcome => outcome,
        };
        let Packet { len, descriptors, truncated } = match packet {
            Err(Errno::AGAIN) => return Incoming::Nothing,
            Err(_) => return Incoming::EndReason(EndReason::Died),
            Ok(packet) => packet,
        };
        let bytes = buffer.get(..len).unwrap_or_default();
        match Message::decode(bytes) {
            _ if bytes.is_empty() => Incoming::EndReason(EndReason::Died),
            Ok(Message::Goodbye(goodbye)) => Incoming::EndReason(end_of(&goodbye)),
            Ok(_) if truncated => violation("truncated control message"),
            Ok(message) => Incoming::Message(message, descriptors),
            Err(error) => violation(error),
        }
    }
}

fn violation(what: impl std::fmt::Display) -> Incoming {
    Incoming::EndReason(EndReason::ProtocolError(ProtocolError::Malformed(what.to_string().into())))
}

pub(super) fn end_of(goodbye: &Goodbye) -> EndReason {
    match goodbye.cause {
        Cause::Leaving => EndReason::Left,
        Cause::Cut => EndReason::Failed(format!("the peer cut the link: {}", goodbye.reason).into()),
        Cause::Failed => EndReason::Failed(format!("the peer failed: {}", goodbye.reason).into()),
    }
}

/// Reads sockets and calls handlers until the watcher is dropped. With no link it waits without a time-out.
fn watch(shared: &WatcherState) {
    let mut events = Vec::new();
    let mut next_tick = Instant::now();
    while !shared.stopping.load(Ordering::SeqCst) {
        let idle = lock(&shared.links).by_token.is_empty();
        let timeout = (!idle).then(|| next_tick.saturating_duration_since(Instant::now()));
        if let Err(error) = shared.epoll.wait(&mut events, timeout) {
            tracing::error!(%error, "watcher of link control sockets stopped");
            return;
        }
        for event in &events {
            match event.token {
                WAKEUP => {
                    shared.wakeup.clear();
                    next_tick = Instant::now();
                }
                _ => handle(shared, event),
            }
        }
        let now = Instant::now();
        if now >= next_tick {
            tick(shared, now);
            next_tick = now + TICK;
        }
    }
}

fn tick(shared: &WatcherState, now: Instant) {
    let mut ended = Vec::new();
    {
        let mut links = lock(&shared.links);
        for (token, link) in &mut links.by_token {
            if let Some(goodbye) = link.handler.tick(now) {
                ended.push((*token, goodbye));
            }
        }
    }
    for (token, goodbye) in ended {
        let link = lock(&shared.links).by_token.remove(&token);
        if let Some(link) = link {
            let _ = shared.epoll.remove(&link.watched.socket);
            link.watched.end(&goodbye);
        }
    }
}

/// Handles one message or the end of the socket that `event` belongs to.
fn handle(shared: &WatcherState, event: &Event) {
    let watched = lock(&shared.links).by_token.get(&event.token).map(|link| Arc::clone(&link.watched));
    let Some(watched) = watched else { return };
    let end = match watched.read() {
        Incoming::Nothing => return,
        Incoming::EndReason(end) => end,
        Incoming::Message(message, descriptors) => {
            match received(shared, event.token, &watched, &message, descriptors) {
                Ok(()) => return,
                Err(error) => EndReason::ProtocolError(error),
            }
        }
    };
    let Some(link) = lock(&shared.links).by_token.remove(&event.token) else { return };
    let _ = shared.epoll.remove(&watched.socket);
    if watched.over.swap(true, Ordering::AcqRel) {
        return;
    }
    // A peer that violated the protocol gets a goodbye: without one it would assume that this process died.
    if let EndReason::ProtocolError(error) = &end {
        let goodbye = Message::Goodbye(Goodbye::new(Cause::Cut, error));
        let _ = packet::send(&watched.socket, &goodbye.encode(), &[]);
    }
    let _ = socket::shut_down(&watched.socket);
    link.handler.ended(end);
}

/// Passes a message to the handler, and sends its answer.
fn received(
    shared: &WatcherState,
    token: u64,
    watched: &Watched,
    message: &Message,
    descriptors: Descriptors,
) -> Result<(), ProtocolError> {
    let answer = {
        let mut links = lock(&shared.links);
        let Some(link) = links.by_token.get_mut(&token) else { return Ok(()) };
        link.handler.received(message, descriptors)?
    };
    match answer.map(|answer| packet::send(&watched.socket, &answer.encode(), &[])) {
        Some(Err(Errno::AGAIN)) => Err(ProtocolError::Malformed("the peer does not read the answers".into())),
        // If the peer has disconnected, the next event reports it.
        _ => Ok(()),
    }
}

impl std::fmt::Debug for WatchedLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedLinks").field("count", &self.by_token.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Far longer than an end takes to be reported.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Reports the end of its link to a test, and ends it on request.
    struct TestHandler {
        ended: mpsc::Sender<EndReason>,
        leaves: Arc<AtomicBool>,
    }

    impl Handler for TestHandler {
        fn tick(&mut self, _: Instant) -> Option<Goodbye> {
            self.leaves.load(Ordering::SeqCst).then(|| Goodbye::new(Cause::Cut, "too many requests"))
        }

        fn ended(self: Box<Self>, end: EndReason) {
            let _ = self.ended.send(end);
        }
    }

    fn keep(
        watcher: &Watcher,
        socket: OwnedFd,
    ) -> (ControlSocket, mpsc::Receiver<EndReason>, Arc<AtomicBool>) {
        let (sender, ended) = mpsc::channel();
        let leaves = Arc::new(AtomicBool::new(false));
        let handler = Box::new(TestHandler { ended: sender, leaves: Arc::clone(&leaves) });
        (watcher.watch(socket, handler).expect("watched"), ended, leaves)
    }

    fn watched(watcher: &Watcher) -> (ControlSocket, OwnedFd, mpsc::Receiver<EndReason>) {
        let (ours, theirs) = packet::pair().expect("a pair");
        let (control_socket, ended, _) = keep(watcher, ours);
        (control_socket, theirs, ended)
    }

    #[test]
    fn nonsense_is_a_protocol_error() {
        let watcher = Watcher::start().expect("a watcher");
        let (_control, theirs, ended) = watched(&watcher);
        packet::send(&theirs, b"nonsense", &[]).expect("send");
        assert!(matches!(ended.recv_timeout(PATIENCE), Ok(EndReason::ProtocolError(_))));
        assert_eq!(watcher.count(), 0);
    }

    #[test]
    fn goodbye_is_reported_to_peer_only() {
        for by_tick in [false, true] {
            let (one, other) = (Watcher::start().expect("a watcher"), Watcher::start().expect("a second"));
            let (ours, theirs) = packet::pair().expect("a pair");
            let (control_socket, ended, leaves) = keep(&one, ours);
            let (_peer, heard, _) = keep(&other, theirs);
            match by_tick {
                true => leaves.store(true, Ordering::SeqCst),
                false => control_socket.end(&Goodbye::new(Cause::Cut, "too many requests")),
            }
            let why = heard.recv_timeout(PATIENCE).expect("an end");
            assert_eq!(why, EndReason::Failed("the peer cut the link: too many requests".into()));
            // The handler is dropped without being called.
            assert_eq!(ended.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
            assert!(control_socket.is_over());
        }
    }

    #[test]
    fn a_watcher_that_goes_says_goodbye() {
        let watcher = Watcher::start().expect("a watcher");
        let (control_socket, theirs, ended) = watched(&watcher);
        drop(watcher);
        assert!(control_socket.is_over());
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let packet = packet::receive(&theirs, &mut buffer).expect("a goodbye");
        assert!(matches!(
            Message::decode(&buffer[..packet.len]),
            Ok(Message::Goodbye(Goodbye { cause: Cause::Leaving, .. }))
        ));
        assert_eq!(ended.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
