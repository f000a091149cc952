//! Server of a vhost-user socket: accepts front ends, and serves each with a device of its own.

use tombolo_host_runtime::lock;

use super::backend::Connection;
use super::config_change::ConfigChange;
use super::device::Device;
use super::fd_store::FdStore;
use super::turns::{Turn, Turns};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tombolo_host_runtime::descriptors::DescriptorBudget;
use vhost::vhost_user::{BackendReqHandler, Error};

/// Server settings.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Maximum polling time of an urgent queue's thread before it sleeps, used only while requests keep
    /// arriving. Zero disables polling.
    pub spin_max: Duration,
    /// Maximum number of connected guests; others wait until one leaves.
    pub guests_max: usize,
    /// `true` to run the queues of one guest at a time. Queues of other guests wait until that guest has
    /// disconnected, or stops to migrate.
    pub one_at_a_time: bool,
    /// Maximum memory of a guest in bytes.
    pub memory_bytes_max: u64,
    /// `true` if the connecting side is a keeper that stores descriptors for the next server.
    pub has_fd_store: bool,
    /// Maximum time to wait for requests under way when a front end stops a queue.
    pub drain_timeout: Duration,
}

/// Defaults: 50 µs of polling (measured: `docs/decisions/runtime-polling.md`), 64 guests with up to 1 TiB
/// each, 10 s for requests under way; guests run concurrently, and there is no descriptor store.
impl Default for Settings {
    fn default() -> Settings {
        Settings {
            spin_max: Duration::from_micros(50),
            guests_max: 64,
            one_at_a_time: false,
            memory_bytes_max: 1 << 40,
            has_fd_store: false,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Number of a guest's connection, unique in its server; for the log and for naming sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GuestId(pub u64);

impl fmt::Display for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Factory of a device for each connecting guest. An error refuses the guest and is logged.
pub type MakeDevice =
    dyn Fn(GuestId) -> Result<Arc<dyn Device>, Box<dyn std::error::Error + Send + Sync>> + Send + Sync;

/// Server of a socket, with a thread that accepts guests, one per guest for its messages, and one for each
/// running queue. Dropping the server stops it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<ServerShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ServerShared {
    stop: AtomicBool,
    /// Wakes the accepting thread when a guest has left or the server stops.
    wake: OwnedFd,
    guests: Mutex<HashMap<GuestId, Guest>>,
}

#[derive(Debug)]
struct Guest {
    /// Duplicate of the connection, for disconnecting it.
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
    has_left: bool,
}

impl Server {
    /// Starts to serve. The caller removes the listener's socket file.
    pub fn start(listener: UnixListener, settings: Settings, make: Box<MakeDevice>) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(ServerShared { stop: AtomicBool::new(false), wake, guests: Mutex::default() });
        let turns = settings.one_at_a_time.then(Arc::default);
        let acceptor =
            Acceptor { listener, settings, make: make.into(), shared: shared.clone(), turns, next: 0 };
        let thread = thread::Builder::new().name("vhost-accept".into()).spawn(move || acceptor.run())?;
        Ok(Server { shared, thread: Some(thread) })
    }

    /// Returns the number of connected guests.
    pub fn guest_count(&self) -> usize {
        lock(&self.shared.guests).values().filter(|guest| !guest.has_left).count()
    }

    /// Stops accepting, disconnects every guest, and waits for the threads; each queue's thread completes its
    /// current request first.
    pub fn stop(mut self) {
        self.shared.stop();
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop();
        self.join();
    }
}

impl ServerShared {
    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // A failed write means that the counter is full, and so signalled already; no other error is possible
        // on our own eventfd.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

struct Acceptor {
    listener: UnixListener,
    settings: Settings,
    make: Arc<MakeDevice>,
    shared: Arc<ServerShared>,
    turns: Option<Arc<Turns>>,
    next: u64,
}

impl Acceptor {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let has_space = self.reap() < self.settings.guests_max;
            self.wait(has_space);
            if has_space && !self.shared.stop.load(Ordering::Acquire) {
                self.accept();
            }
        }
        self.disconnect_all();
    }

    /// Sleeps until a guest connects (if there is space for it), a guest leaves, or the server stops.
    fn wait(&self, has_space: bool) {
        let mut fds = [
            PollFd::new(&self.shared.wake, PollFlags::IN),
            PollFd::new(&self.listener, if has_space { PollFlags::IN } else { PollFlags::empty() }),
        ];
        if poll(&mut fds, None).is_err() {
            thread::sleep(Duration::from_millis(10));
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
    }

    fn accept(&mut self) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                // The usual cause is a lack of descriptors: other guests continue, and the end of one frees
                // some.
                tracing::warn!(%error, "cannot accept a guest");
                thread::sleep(Duration::from_millis(100));
                return;
            }
        };
        let id = GuestId(self.next);
        self.next += 1;
        if let Err(error) = self.admit(id, stream) {
            tracing::warn!(guest = %id, %error, "guest refused");
        }
    }

    fn admit(&self, id: GuestId, stream: UnixStream) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        stream.set_nonblocking(false)?;
        let device = (self.make)(id)?;
        let descriptors = descriptors_of(device.queue_count());
        let descriptors = DescriptorBudget::of_process().share(descriptors).ok_or(NO_DESCRIPTORS)?;
        let second = stream.try_clone()?;
        let turn = Turn::new(self.turns.clone(), id)?;
        let (shared, settings) = (self.shared.clone(), self.settings);
        // The guest is registered before its thread runs, so that the thread can mark it as disconnected.
        let mut guests = lock(&self.shared.guests);
        guests.insert(id, Guest { stream: second, thread: None, has_left: false });
        let thread = thread::Builder::new().name(format!("guest-{id}")).spawn(move || {
            serve(id, stream, device, settings, &turn);
            drop(descriptors);
            if let Some(guest) = lock(&shared.guests).get_mut(&id) {
                guest.has_left = true;
            }
            shared.wake();
        });
        match thread {
            Ok(thread) => {
                if let Some(guest) = guests.get_mut(&id) {
                    guest.thread = Some(thread);
                }
                Ok(())
            }
            Err(error) => {
                guests.remove(&id);
                Err(error.into())
            }
        }
    }

    /// Removes the guests that have left; returns the number of the others.
    fn reap(&self) -> usize {
        let mut guests = lock(&self.shared.guests);
        guests.retain(|_, guest| !guest.has_left);
        guests.len()
    }

    fn disconnect_all(&self) {
        let guests: Vec<Guest> = lock(&self.shared.guests).drain().map(|(_, guest)| guest).collect();
        for guest in &guests {
            // The shutdown fails if the guest has already disconnected.
            let _ = guest.stream.shutdown(Shutdown::Both);
        }
        for thread in guests.into_iter().filter_map(|guest| guest.thread) {
            let _ = thread.join();
        }
    }
}

const NO_DESCRIPTORS: &str = "no descriptors left for one more guest; raise RLIMIT_NOFILE";

/// Returns the number of descriptors of a guest: its connection three times, the request channel twice, its
/// turn, and ten for messages in transit; for each queue the kick descriptor twice, those of calls and
/// errors, an epoll and its waker.
fn descriptors_of(queues: u16) -> usize {
    16 + 6 * usize::from(queues)
}

fn serve(id: GuestId, stream: UnixStream, device: Arc<dyn Device>, settings: Settings, turn: &Turn) {
    let name = device.name().to_owned();
    tracing::info!(device = name, guest = %id, "guest connected");
    // 0 is no process: the peer is in another pid namespace, or a keeper, which checks its front end's memory
    // itself.
    let pid = tombolo_sys::socket::peer(stream.as_fd()).map_or(0, |peer| peer.pid.unsigned_abs());
    let pid = if pid == std::os::unix::process::parent_id() { 0 } else { pid };
    let second = match stream.try_clone() {
        Ok(second) => second,
        Err(error) => return tracing::warn!(device = name, guest = %id, %error, "guest cut off"),
    };
    let store = match settings.has_fd_store.then(|| FdStore::begin(&stream)).transpose() {
        Ok(store) => store,
        Err(error) => return tracing::warn!(device = name, guest = %id, %error, "guest cut off: no keeper"),
    };
    let change = ConfigChange::default();
    device.set_config_change(change.clone());
    let connection = Arc::new(Mutex::new(Connection::new(id, pid, device, settings, turn.clone(), store)));
    let mut messages = BackendReqHandler::from_stream(stream, connection.clone());
    let error = loop {
        if turn.wait_for_turn_or_message(&second) {
            let taken = lock(&connection).take_turn();
            match taken {
                Ok(()) => continue,
                Err(error) => break error,
            }
        }
        // An error recurs in the code below, which reports it.
        let _ = change.inspect_next(&second);
        match messages.handle_request() {
            Ok(()) | Err(Error::SocketRetry(_)) => {}
            Err(error) => break error,
        }
    };
    match error {
        Error::Disconnected => tracing::info!(device = name, guest = %id, "guest left"),
        error => tracing::warn!(device = name, guest = %id, %error, "guest cut off"),
    }
}
