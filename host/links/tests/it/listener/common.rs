//! An echo server, and its clients.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_host_links::client::Line;
use tombolo_host_links::connect::{ConnectError, ConnectOptions, connect};
use tombolo_host_links::control_socket::{ControlSocket, Watcher};
use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::server::{Peer, Refusal, Request, Responder, Server, Service, Session};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::Incarnation;

/// Far more than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A service that opens any export except "/none", and returns requests unchanged. Kind 9 makes it violate
/// the protocol.
pub struct Echo {
    pub opened: Sender<Peer>,
    /// Receives the label of a dropped session.
    pub closed: Sender<Arc<str>>,
}

struct EchoSession {
    label: Arc<str>,
    closed: Sender<Arc<str>>,
}

impl Service for Echo {
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        if peer.export == "/none" {
            return Err(Refusal::NoSuchExport);
        }
        let _ = self.opened.send(peer.clone());
        Ok(Arc::new(EchoSession { label: peer.label.clone(), closed: self.closed.clone() }))
    }
}

impl Session for EchoSession {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        match request.kind {
            9 => responder.cut(tombolo_host_links::ProtocolError::Malformed("kind 9".into())),
            kind => responder.send(kind, request.body, request.frame),
        }
    }
}

impl Drop for EchoSession {
    fn drop(&mut self) {
        let _ = self.closed.send(self.label.clone());
    }
}

/// A server with its socket.
pub struct TestHost {
    pub listener: LinkListener,
    pub opened: Mutex<Receiver<Peer>>,
    pub closed: Mutex<Receiver<Arc<str>>>,
    pub watcher: Watcher,
    pub path: PathBuf,
    _dir: TempDir,
}

impl TestHost {
    pub fn new(options: ListenOptions) -> TestHost {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("links");
        let (opened, opened_receiver) = mpsc::channel();
        let (closed, closed_receiver) = mpsc::channel();
        let server = Arc::new(Server::new(Arc::new(Echo { opened, closed })));
        let listener = LinkListener::start(&path, server, options).expect("a listener");
        TestHost {
            listener,
            opened: Mutex::new(opened_receiver),
            closed: Mutex::new(closed_receiver),
            watcher: Watcher::start().expect("a watcher"),
            path,
            _dir: dir,
        }
    }

    pub fn options(export: &str) -> ConnectOptions {
        ConnectOptions::new(export, "test", Incarnation([7; 16])).expect("options")
    }

    pub fn try_link(&self, export: &str) -> Result<(Line, ControlSocket), ConnectError> {
        let connection = connect(&self.path, &TestHost::options(export))?;
        Ok(connection.start(&self.watcher, "link", Mode::Event).expect("a line"))
    }

    pub fn link(&self) -> (Line, ControlSocket) {
        self.try_link("/src").expect("a link")
    }

    pub fn wait_closed(&self) -> Arc<str> {
        self.closed.lock().expect("unpoisoned").recv_timeout(PATIENCE).expect("a session that is closed")
    }
}

/// Returns `true` if the link carries requests and answers.
pub fn works(line: &Line) -> bool {
    let outcome = line.call(3, [5; 48], |frame| frame.put(b"some arguments")).wait();
    outcome
        .is_ok_and(|reply| reply.kind == 3 && reply.body == [5; 48] && reply.frame[..] == *b"some arguments")
}

/// Waits until a condition holds; fails the test after a time-out.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}
