//! A server with a test session, and a line to it.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use tombolo_host_links::client::Line;
use tombolo_host_links::server::{LinkHandle, Peer, Refusal, Request, Responder, Server, Service, Session};
use tombolo_mem::Region;
use tombolo_shm::doorbell::{Bell, BellStream, Mode};
use tombolo_shm::link::{DoorbellKind, Ends, Extent, Incarnation, Layout, Role};
use tombolo_shm::region::sealed::{Sealed, map_peer};

pub use crate::wait::{found, until as eventually};

/// Answered at once.
pub const ECHO: u32 = 1;
/// Answered by another thread, in another order.
pub const LATER: u32 = 2;
/// Not answered until the test does so.
pub const HOLD: u32 = 3;
/// Makes the session panic.
pub const PANIC: u32 = 4;
/// Makes the session drop the responder.
pub const FORGET: u32 = 5;

/// Answered at once, without a ring.
pub const QUIET: u32 = 6;

/// A service that opens the same test session for all links.
pub struct TestService(pub Arc<TestSession>);

impl Service for TestService {
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        if peer.export == "none" { Err(Refusal::NoSuchExport) } else { Ok(self.0.clone()) }
    }
}

/// A session that returns requests unchanged.
#[derive(Default)]
pub struct TestSession {
    pub later: Arc<Later>,
    pub held: Mutex<Vec<Answering>>,
}

/// A request not answered yet.
pub struct Answering {
    pub body: [u8; 48],
    pub frame: Vec<u8>,
    pub responder: Responder,
}

impl Answering {
    pub fn send(self) {
        self.responder.send(ECHO, self.body, &self.frame);
    }
}

impl Session for TestSession {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        let Request { kind, body, frame } = request;
        let answering = |responder| Answering { body, frame: frame.to_vec(), responder };
        match kind {
            LATER => self.later.push(answering(responder)),
            HOLD => self.held.lock().unwrap().push(answering(responder)),
            PANIC => panic!("planned"),
            FORGET => drop(responder),
            QUIET => responder.quietly().send(kind, body, frame),
            _ => responder.send(kind, body, frame),
        }
    }
}

/// Threads that answer, the newest request first.
#[derive(Default)]
pub struct Later {
    queue: Mutex<(VecDeque<Answering>, bool)>,
    changed: Condvar,
}

impl Later {
    fn push(&self, answering: Answering) {
        self.queue.lock().unwrap().0.push_back(answering);
        self.changed.notify_one();
    }

    /// Starts the threads.
    pub fn start(self: &Arc<Self>, threads: usize) -> Answerers {
        let run = |later: Arc<Self>| {
            move || {
                let mut queue = later.queue.lock().unwrap();
                loop {
                    match queue.0.pop_back() {
                        Some(answering) => {
                            drop(queue);
                            answering.send();
                            queue = later.queue.lock().unwrap();
                        }
                        None if queue.1 => return,
                        None => queue = later.changed.wait(queue).unwrap(),
                    }
                }
            }
        };
        let threads = (0..threads).map(|_| std::thread::spawn(run(self.clone()))).collect();
        Answerers { later: self.clone(), threads }
    }
}

/// The threads of a [`Later`], which are stopped when this is dropped.
pub struct Answerers {
    later: Arc<Later>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Answerers {
    fn drop(&mut self) {
        self.later.queue.lock().unwrap().1 = true;
        self.later.changed.notify_all();
        self.threads.drain(..).for_each(|thread| thread.join().expect("no panic"));
    }
}

pub fn layout(slots: u32) -> Layout {
    Layout::with_bulk(slots, 8, 1 << 20).expect("a layout")
}

pub fn peer(label: &str) -> Peer {
    Peer { export: "test".into(), credentials: None, client: Incarnation([7; 16]), label: label.into() }
}

/// Returns ends over real memory: each side maps the other's read-only.
pub fn sealed_ends(layout: Layout) -> (Ends, Ends) {
    let (mut client, mut server) = Ends::in_memory(layout);
    let (ours, theirs) = (sealed("client", layout), sealed("server", layout));
    let map = |memory: &Sealed| Extent::whole(map_peer(memory, layout.bytes()).expect("mapped"));
    (client.peer, server.peer) = (map(&theirs), map(&ours));
    client.own = Extent::whole(ours.region().clone());
    server.own = Extent::whole(theirs.region().clone());
    (client, server)
}

fn sealed(name: &str, layout: Layout) -> Sealed {
    Sealed::create(name, layout.bytes()).expect("memory")
}

/// Returns ends of which one side's memory can be truncated, as happens when the system runs out of it.
pub fn shaky_ends(whose: Role, layout: Layout) -> (Ends, Ends, std::fs::File) {
    let (mut client, mut server) = Ends::in_memory(layout);
    let file = tempfile::tempfile().expect("a file");
    file.set_len(layout.bytes()).expect("its size");
    let len = usize::try_from(layout.bytes()).expect("small");
    let own = Extent::whole(Region::map(&file, 0, len).expect("mapped"));
    let seen = Extent::whole(Region::map_read_only(&file, 0, len).expect("mapped"));
    match whose {
        Role::Client => (client.own, server.peer) = (own, seen),
        Role::Server => (server.own, client.peer) = (own, seen),
    }
    (client, server, file)
}

/// Returns ends without a doorbell, as between a guest and its host.
pub fn silent_ends(layout: Layout) -> (Ends, Ends) {
    let (mut client, mut server) = Ends::in_memory(layout);
    (client.doorbell, server.doorbell) = (DoorbellKind::Silent, DoorbellKind::Silent);
    (client, server)
}

/// Returns ends with a bell, as between a guest and its host.
pub fn belled_ends(layout: Layout) -> (Ends, Ends) {
    let (client, server) = sealed_ends(layout);
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let with_bell = |ends, stream: UnixStream| {
        stream.set_nonblocking(true).expect("nonblocking");
        let output = stream.try_clone().expect("a descriptor");
        let bell = Bell::new(Arc::new(BellStream::new(stream.into(), output.into()))).expect("a bell");
        Ends { doorbell: DoorbellKind::Bell, bell: Some(Arc::new(bell)), ..ends }
    };
    (with_bell(client, ours), with_bell(server, theirs))
}

/// A server with one line to it.
pub struct TestHost {
    pub session: Arc<TestSession>,
    pub server: Server,
    pub _handle: LinkHandle,
    pub line: Line,
}

impl TestHost {
    pub fn new(slots: u32, client: Mode, server_mode: Mode) -> TestHost {
        TestHost::over(Ends::in_memory(layout(slots)), client, server_mode)
    }

    pub fn over((client, ends): (Ends, Ends), mode: Mode, server_mode: Mode) -> TestHost {
        let session = Arc::new(TestSession::default());
        let server = Server::new(Arc::new(TestService(session.clone())));
        let peer = peer("test");
        let opened = server.open(&peer).expect("a session");
        let _handle = server.serve(&ends, &peer, opened, server_mode).expect("a link");
        let line = Line::start(&client, "test", mode).expect("a line");
        TestHost { session, server, _handle, line }
    }
}

/// Returns a body that contains a number.
pub fn body(number: u64) -> [u8; 48] {
    let mut body = [0; 48];
    body[..8].copy_from_slice(&number.to_le_bytes());
    body[40..].copy_from_slice(&(!number).to_le_bytes());
    body
}

/// Returns a frame that distinguishes numbers.
pub fn frame(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (number.wrapping_mul(31) ^ at.wrapping_mul(7)) as u8).collect()
}
