//! Links over a file with a bell.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tombolo_host_links::bell::{BellLocation, BellSource};
use tombolo_host_links::client::Line;
use tombolo_host_links::rendezvous::{MemoryListener, MemoryWatcher};
use tombolo_host_links::server::Server;
use tombolo_shm::doorbell::Mode;
use tombolo_sys::stream;

use crate::listener::common::{until, works};
use crate::listener::rendezvous;

/// Returns the bell of the server, and that of the client, which has the same FIFOs crossed.
fn bells(dir: &Path) -> (Arc<BellSource>, Arc<BellSource>) {
    let [ours, theirs] = ["server", "client"].map(|name| BellLocation::Fifos(dir.join(name)));
    let server = BellSource::new(ours.clone());
    server.open().expect("a bell");
    for (file, other) in ours.files().iter().zip(theirs.files().iter().rev()) {
        fs::hard_link(file, other).expect("a link");
    }
    (server, BellSource::new(theirs))
}

fn listen(dir: &Path, bell: Option<Arc<BellSource>>) -> (MemoryListener, Arc<Server>) {
    rendezvous::listen_with(&dir.join("memory"), bell, Mode::Event)
}

fn joined(dir: &Path, bell: Option<Arc<BellSource>>) -> (Line, MemoryWatcher) {
    rendezvous::joined_with(&dir.join("memory"), bell, Mode::Event)
}

/// Makes calls of which each finds the server asleep.
fn calls_after_rests(line: &Line, count: usize) {
    for _ in 0..count {
        thread::sleep(Duration::from_millis(10));
        assert!(works(line));
    }
}

#[test]
fn both_sides_ring_sleepers() {
    let dir = tempfile::tempdir().expect("a directory");
    let (of_server, of_client) = bells(dir.path());
    let (_listener, server) = listen(dir.path(), Some(of_server));
    let (line, _watcher) = joined(dir.path(), Some(of_client));
    // On a busy machine a call may find its server awake.
    until("either side has rung many times", || {
        calls_after_rests(&line, 1);
        line.counts().rings >= 20 && server.counts().rings > 0
    });
}

#[test]
fn bell_requires_one_at_each_side() {
    for has_client in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let (of_server, of_client) = bells(dir.path());
        let (_listener, server) = listen(dir.path(), (!has_client).then_some(of_server));
        let (line, _watcher) = joined(dir.path(), has_client.then_some(of_client));
        calls_after_rests(&line, 3);
        assert_eq!((line.counts().rings, server.counts().rings), (0, 0));
    }
}

#[test]
fn unusable_bell_leaves_link_without_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = BellSource::new(BellLocation::Device("/dev/no-such-device".into()));
    let (_listener, server) = listen(dir.path(), Some(missing));
    let (_, of_client) = bells(dir.path());
    let (line, _watcher) = joined(dir.path(), Some(of_client));
    calls_after_rests(&line, 3);
    assert_eq!(server.counts().rings, 0);
}

#[test]
fn either_side_may_leave_and_return() {
    let dir = tempfile::tempdir().expect("a directory");
    let (of_server, of_client) = bells(dir.path());
    let (listener, _) = listen(dir.path(), Some(of_server.clone()));
    for _ in 0..2 {
        let (line, _watcher) = joined(dir.path(), Some(of_client.clone()));
        calls_after_rests(&line, 3);
    }
    let (line, _watcher) = joined(dir.path(), Some(of_client.clone()));
    drop(listener);
    until("the line is lost", || line.is_lost());
    let (_listener, server) = listen(dir.path(), Some(of_server));
    let (line, _watcher) = joined(dir.path(), Some(of_client));
    until("the next server has rung", || {
        calls_after_rests(&line, 1);
        server.counts().rings > 0
    });
}

/// Rings of a stranger, and rings that a stranger takes away, cost time at most.
#[test]
fn calls_survive_stolen_and_endless_rings() {
    let dir = tempfile::tempdir().expect("a directory");
    let (of_server, of_client) = bells(dir.path());
    let fifos = of_server.location().files();
    let (_listener, _) = listen(dir.path(), Some(of_server));
    let (line, _watcher) = joined(dir.path(), Some(of_client));
    let stopped = AtomicBool::new(false);
    let strange: Vec<_> = fifos.iter().map(|fifo| stream::open(fifo).expect("a FIFO")).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0u32.. {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                for fifo in &strange {
                    // A full FIFO cannot be rung.
                    let _ = if turn % 3 == 0 { stream::ring(fifo) } else { Ok(()) };
                    stream::drain(fifo.as_fd());
                }
            }
        });
        calls_after_rests(&line, 30);
        stopped.store(true, Ordering::Release);
    });
    calls_after_rests(&line, 3);
}
