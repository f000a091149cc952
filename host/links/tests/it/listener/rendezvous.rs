//! Links over a file that both sides can write.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo_core::fs::WindowMirror;
use tombolo_core::lock;
use tombolo_host_links::EndReason;
use tombolo_host_links::bell::BellSource;
use tombolo_host_links::client::Line;
use tombolo_host_links::connect::ConnectOptions;
use tombolo_host_links::rendezvous::{JoinError, MemoryListener, MemoryWatcher, join};
use tombolo_host_links::server::{Peer, Refusal, Request, Responder, Server, Service, Session};
use tombolo_host_links::shared_memory::{MemoryError, MemoryLocation, SharedMemory};
use tombolo_mem::Region;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Features, Limits, PageError, RefusalCode};
use tombolo_shm::region::RegionError;
use tombolo_shm::window::Window;

use crate::listener::common::{Echo, PATIENCE, TestHost, found, until, works};

const BYTES: u64 = 1 << 20;

pub fn listen_with(path: &Path, bell: Option<Arc<BellSource>>, mode: Mode) -> (MemoryListener, Arc<Server>) {
    let memory = SharedMemory::to_serve(&MemoryLocation::File(path.into()), Some(BYTES)).expect("memory");
    let server = Arc::new(Server::new(Arc::new(Echo::default())));
    let memory = memory.with_bell(bell);
    let listener = MemoryListener::start(memory, server.clone(), Limits::default(), mode, "guest");
    (listener.expect("a listener"), server)
}

fn listen(path: &Path) -> MemoryListener {
    listen_with(path, None, Mode::Adaptive).0
}

fn try_join(path: &Path, export: &str, timeout: Duration) -> Result<(Line, MemoryWatcher), JoinError> {
    let memory = SharedMemory::to_use(&MemoryLocation::File(path.into())).expect("memory");
    join(memory, &ConnectOptions { timeout, ..TestHost::options(export) }, "link", Mode::Adaptive)
}

pub fn joined_with(path: &Path, bell: Option<Arc<BellSource>>, mode: Mode) -> (Line, MemoryWatcher) {
    let page = MemoryLocation::File(path.into());
    // The server's thread writes the page.
    let memory = found("a page", || SharedMemory::to_use(&page).ok()).with_bell(bell);
    let options = ConnectOptions { timeout: PATIENCE, ..TestHost::options("/src") };
    join(memory, &options, "link", mode).expect("a link")
}

fn joined(path: &Path) -> (Line, MemoryWatcher) {
    joined_with(path, None, Mode::Adaptive)
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("memory");
    (dir, path)
}

#[test]
fn clients_come_one_after_the_other() {
    let (_dir, path) = place();
    let _listener = listen(&path);
    for _ in 0..3 {
        let (line, control_socket) = joined(&path);
        assert!((0..100).all(|_| works(&line)));
        assert_eq!(line.features(), Features::QUIET);
        let second = try_join(&path, "/src", Duration::ZERO).map(drop);
        assert!(matches!(second, Err(JoinError::Busy)), "{second:?}");
        drop(control_socket);
        assert!(line.is_lost());
    }
}

#[test]
fn rendezvous_server_restart_is_detected() {
    let (_dir, path) = place();
    let listener = listen(&path);
    let (line, _control_socket) = joined(&path);
    drop(listener);
    until("the line is lost", || line.is_lost());
    assert_eq!(line.end(), Some(EndReason::Left));
    let _listener = listen(&path);
    assert!(works(&joined(&path).0));
}

#[test]
fn a_refusal_is_read_and_the_next_is_heard() {
    let (_dir, path) = place();
    let _listener = listen(&path);
    drop(joined(&path));
    let none = try_join(&path, "/none", PATIENCE).map(drop);
    assert!(
        matches!(&none, Err(JoinError::Refused(refused)) if refused.code == RefusalCode::NoExport),
        "{none:?}"
    );
    assert!(works(&joined(&path).0));
}

#[test]
fn rendezvous_requires_exactly_one_server() {
    let (_dir, path) = place();
    let place = MemoryLocation::File(path.clone());
    let first = SharedMemory::to_serve(&place, Some(BYTES)).expect("memory");
    let second = SharedMemory::to_serve(&place, None);
    assert!(matches!(second, Err(MemoryError::Region(RegionError::Busy { .. }))), "{second:?}");
    let early = SharedMemory::to_use(&place);
    assert!(matches!(early, Err(MemoryError::Page { source: PageError::Blank, .. })), "{early:?}");
    drop(first);
    assert!(SharedMemory::to_serve(&place, None).is_ok());
    let device = MemoryLocation::Mmapper(path);
    assert!(matches!(SharedMemory::to_serve(&device, None), Err(MemoryError::Length { .. })));
}

/// Stands for a UML guest's device, which does not know its length.
#[test]
fn device_length_is_read_from_page() {
    let (_dir, path) = place();
    let _listener = listen(&path);
    drop(joined(&path));
    let memory = SharedMemory::to_use(&MemoryLocation::Mmapper(path)).expect("memory");
    let options = ConnectOptions { timeout: PATIENCE, ..TestHost::options("/src") };
    let (line, _control_socket) = join(memory, &options, "link", Mode::Adaptive).expect("a link");
    assert!(works(&line));
}

#[test]
fn violating_rendezvous_client_is_replaced() {
    let (_dir, path) = place();
    let _listener = listen(&path);
    let (line, _control_socket) = joined(&path);
    assert!(line.call(9, [0; 48], |_| ()).wait().is_err());
    let why = line.end().expect("lost").to_string();
    assert!(why.contains("kind 9"), "{why}");
    assert!(works(&joined(&path).0));
}

/// A server whose sessions have a window; records what becomes of their mirrors.
#[derive(Clone)]
struct Windowed {
    window: Arc<Window>,
    events: Arc<Mutex<Vec<&'static str>>>,
}

struct WindowedSession(Arc<dyn Session>, Windowed);

struct Recorded(Box<dyn WindowMirror>, Windowed);

impl Service for Windowed {
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(WindowedSession(Echo::default().open(peer)?, self.clone())))
    }
}

impl Session for WindowedSession {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        self.0.serve(request, responder);
    }

    fn mirror_window(&self, memory: &Region, offset: usize) -> Option<Box<dyn WindowMirror>> {
        let mirror = self.1.window.mirror(memory, offset).expect("inside");
        Some(Box::new(Recorded(Box::new(mirror), self.1.clone())))
    }
}

impl WindowMirror for Recorded {
    fn invalidate(&self) {
        lock(&self.1.events).push("invalidated");
        self.0.invalidate();
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        lock(&self.1.events).push("dropped");
    }
}

/// Serves a window over a file, has a client join, and returns the events after `end`.
fn events_after(end: fn(&Path, MemoryWatcher)) -> Vec<&'static str> {
    let (_dir, path) = place();
    let windowed = Windowed { window: Arc::new(Window::create().expect("memory")), events: Arc::default() };
    let memory = SharedMemory::to_serve(&MemoryLocation::File(path.clone()), Some(16 << 20));
    let server = Arc::new(Server::new(Arc::new(windowed.clone())));
    let limits = Limits::default();
    let listener = MemoryListener::start(memory.expect("memory"), server, limits, Mode::Adaptive, "guest")
        .expect("served");
    let (line, watcher) = joined(&path);
    assert!(works(&line));
    let version = windowed.window.readable().version(7).expect("nothing in progress");
    assert!(line.window().is_some_and(|window| window.counts().holds(&version)));
    windowed.window.count(|counts| counts.changed(7));
    assert!(line.window().is_some_and(|window| !window.counts().holds(&version)));
    end(&path, watcher);
    until("the mirror is dropped", || lock(&windowed.events).contains(&"dropped"));
    drop(listener);
    lock(&windowed.events).clone()
}

#[test]
fn mirror_of_ended_link_is_invalidated() {
    assert_eq!(events_after(|_, watcher| drop(watcher)), ["invalidated", "dropped"]);
}

/// Overwrites the owner's number, as another server does that takes the file.
#[test]
fn mirror_in_memory_of_another_server_is_left_alone() {
    let take = |path: &Path, _watcher: MemoryWatcher| {
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("the file");
        file.write_all_at(&7_u32.to_ne_bytes(), 128).expect("written");
    };
    assert_eq!(events_after(take), ["dropped"]);
}
