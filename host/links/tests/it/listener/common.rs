//! An echo server, and its clients.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tombolo_host_links::client::Line;
use tombolo_host_links::connect::{ConnectError, ConnectOptions, connect};
use tombolo_host_links::control_socket::{ControlSocket, Watcher};
use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::server::{Peer, Refusal, Request, Responder, Server, Service, Session};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::Incarnation;

pub use crate::wait::{PATIENCE, found, until};

/// A service that opens any export except "/none", and returns requests unchanged. Kind 9 makes it violate
/// the protocol.
#[derive(Default)]
pub struct Echo {
    pub opened: Mutex<VecDeque<Peer>>,
    /// Labels of dropped sessions.
    pub closed: Arc<Mutex<VecDeque<Arc<str>>>>,
}

struct EchoSession {
    label: Arc<str>,
    closed: Arc<Mutex<VecDeque<Arc<str>>>>,
}

impl Service for Echo {
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        if peer.export == "/none" {
            return Err(Refusal::NoSuchExport);
        }
        self.opened.lock().unwrap().push_back(peer.clone());
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
        self.closed.lock().unwrap().push_back(self.label.clone());
    }
}

/// A server with its socket.
pub struct TestHost<S = Echo> {
    pub service: Arc<S>,
    pub listener: LinkListener,
    pub watcher: Watcher,
    pub path: PathBuf,
    pub dir: TempDir,
}

impl TestHost {
    pub fn new(options: ListenOptions) -> TestHost {
        TestHost::of(Echo::default(), options)
    }

    pub fn options(export: &str) -> ConnectOptions {
        ConnectOptions::new(export, "test", Incarnation([7; 16])).expect("options")
    }

    pub fn wait_closed(&self) -> Arc<str> {
        found("a session that is closed", || self.service.closed.lock().unwrap().pop_front())
    }
}

impl<S: Service + 'static> TestHost<S> {
    pub fn of(service: S, options: ListenOptions) -> TestHost<S> {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, service) = (dir.path().join("links"), Arc::new(service));
        let server = Arc::new(Server::new(service.clone()));
        let listener = LinkListener::start(&path, server, options).expect("a listener");
        TestHost { service, listener, watcher: Watcher::start().expect("a watcher"), path, dir }
    }

    pub fn try_link(&self, export: &str) -> Result<(Line, ControlSocket), ConnectError> {
        let connection = connect(&self.path, &TestHost::options(export))?;
        Ok(connection.start(&self.watcher, "link", Mode::Event).expect("a line"))
    }

    pub fn link(&self) -> (Line, ControlSocket) {
        self.try_link("/src").expect("a link")
    }
}

/// Returns `true` if the link carries requests and answers.
pub fn works(line: &Line) -> bool {
    let outcome = line.call(3, [5; 48], |frame| frame.put(b"some arguments")).wait();
    outcome
        .is_ok_and(|reply| reply.kind == 3 && reply.body == [5; 48] && reply.frame[..] == *b"some arguments")
}
