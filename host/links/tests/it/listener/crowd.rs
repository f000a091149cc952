//! Concurrent hellos and slow sessions: none delays another, and none exceeds its limit.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tombolo_host_links::connect::{ConnectError, connect};
use tombolo_host_links::control_socket::Watcher;
use tombolo_host_links::listen::ListenOptions;
use tombolo_host_links::server::{Peer, Refusal, Request, Responder, Service, Session};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::RefusalCode;

use crate::listener::common::{PATIENCE, TestHost, until, works};

/// A barrier that stays open once opened.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    /// Number of threads that have reached it.
    came: AtomicUsize,
}

impl Gate {
    fn pass(&self) {
        self.came.fetch_add(1, Ordering::SeqCst);
        let is_open = self.is_open.lock().expect("unpoisoned");
        let waited = self.opened.wait_timeout_while(is_open, PATIENCE, |is_open| !*is_open);
        drop(waited.expect("unpoisoned"));
    }

    fn open(&self) {
        *self.is_open.lock().expect("unpoisoned") = true;
        self.opened.notify_all();
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }
}

/// A service with slow exports: "/opens" is slow to open, "/answers" to answer, "/ends" to handle the end of
/// its link, "/drops" to be dropped.
#[derive(Default)]
struct Slow {
    gate: Arc<Gate>,
    opened: AtomicUsize,
}

impl Service for Slow {
    fn open(&self, peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        if peer.export == "/opens" {
            self.gate.pass();
        }
        self.opened.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(SlowSession { export: peer.export.clone(), gate: Arc::clone(&self.gate) }))
    }
}

struct SlowSession {
    export: String,
    gate: Arc<Gate>,
}

impl Session for SlowSession {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        let Request { kind, body, .. } = request;
        if self.export != "/answers" {
            return responder.send(kind, body, request.frame);
        }
        let gate = Arc::clone(&self.gate);
        thread::spawn(move || {
            gate.pass();
            responder.send(kind, body, &[]);
        });
    }

    fn ended(&self) {
        if self.export == "/ends" {
            self.gate.pass();
        }
    }
}

impl Drop for SlowSession {
    fn drop(&mut self) {
        if self.export == "/drops" {
            self.gate.pass();
        }
    }
}

fn slow_host(options: ListenOptions) -> TestHost<Slow> {
    TestHost::of(Slow::default(), options)
}

fn is_refused_for_their_number<T>(outcome: &Result<T, ConnectError>) -> bool {
    matches!(outcome, Err(ConnectError::Refused { refused, .. }) if refused.code == RefusalCode::TooMany)
}

#[test]
fn a_slow_end_of_a_link_delays_no_other() {
    for export in ["/ends", "/drops"] {
        let host = slow_host(ListenOptions::default());
        let (other, other_control_socket) = host.try_link("/quick").expect("a link");
        drop(host.try_link(export).expect("a link"));
        until("its session notices the end", || host.service.gate.came() == 1);
        // On a thread of its own, so that the test fails instead of blocking.
        let (done, answer) = mpsc::channel();
        let host = Arc::new(host);
        let asked = Arc::clone(&host);
        thread::spawn(move || {
            let guests = asked.listener.guests().len();
            let new = asked.try_link("/quick").expect("a link");
            drop(other_control_socket);
            until("the other death is noticed", || asked.listener.guests().len() == 1);
            let _ = done.send((guests, works(&new.0)));
        });
        let outcome = answer.recv_timeout(PATIENCE / 3);
        host.service.gate.open();
        assert_eq!(outcome, Ok((1, true)), "{export} holds up the others");
        assert!(other.is_lost());
    }
}

#[test]
fn link_limit_holds_for_concurrent_hellos() {
    let links_max = 8;
    let host = Arc::new(slow_host(ListenOptions { links_max, ..ListenOptions::default() }));
    let (sender, outcomes): (Sender<_>, Receiver<_>) = mpsc::channel();
    for _ in 0..6 {
        let (host, sender) = (Arc::clone(&host), sender.clone());
        thread::spawn(move || {
            let _ = sender.send(host.try_link("/opens"));
        });
    }
    // One user may have a quarter of all; further ones are refused while the first are still being opened.
    let refused: Vec<_> = (0..4).map(|_| outcomes.recv_timeout(PATIENCE / 3)).collect();
    let opening = host.service.gate.came();
    host.service.gate.open();
    assert!(
        refused.iter().all(|outcome| outcome.as_ref().is_ok_and(is_refused_for_their_number)),
        "{refused:?}"
    );
    assert_eq!(opening, 2);
    let made: Vec<_> = (0..2).map(|_| outcomes.recv_timeout(PATIENCE).expect("an answer")).collect();
    assert!(made.iter().all(Result::is_ok));
    until("both are listed", || host.listener.guests().len() == 2);
    drop(made);
    until("a permit is free again", || host.try_link("/quick").is_ok());
}

/// A link's resources are freed with its session, not when the peer disconnects: a client that reconnects all
/// the time gets no more of them.
#[test]
fn a_link_that_is_ending_keeps_its_permit() {
    let host = slow_host(ListenOptions { links_max: 4, ..ListenOptions::default() });
    drop(host.try_link("/drops").expect("a link"));
    until("its session is being dropped", || host.service.gate.came() == 1);
    let early = host.try_link("/quick").map(drop);
    host.service.gate.open();
    assert!(is_refused_for_their_number(&early), "{early:?}");
    until("a permit is free again", || host.try_link("/quick").is_ok());
}

/// Requests in progress retain the memory of their link, which both sides still have.
#[test]
fn a_link_with_requests_under_way_keeps_its_permit() {
    let host = slow_host(ListenOptions { links_max: 4, ..ListenOptions::default() });
    let (line, control_socket) = host.try_link("/answers").expect("a link");
    let call = line.call(3, [5; 48], |_| {});
    until("it is asked", || host.service.gate.came() == 1);
    drop((call, line, control_socket));
    until("its client is gone", || host.listener.guests().is_empty());
    // Often enough for an early return of the permit to show.
    for _ in 0..20 {
        let early = host.try_link("/quick").map(drop);
        assert!(is_refused_for_their_number(&early), "{early:?}");
        thread::sleep(Duration::from_millis(10));
    }
    host.service.gate.open();
    until("a permit is free again", || host.try_link("/quick").is_ok());
}

#[test]
fn dropped_listener_waits_for_ending_links() {
    for export in ["/ends", "/drops"] {
        let TestHost { service: slow, listener, watcher, path, dir: _dir } =
            slow_host(ListenOptions::default());
        let connection = connect(&path, &TestHost::options(export)).expect("a link");
        let (_line, _control_socket) = connection.start(&watcher, "link", Mode::Event).expect("a line");
        let (done, ended) = mpsc::channel();
        thread::spawn(move || {
            drop(listener);
            let _ = done.send(());
        });
        until("the link ends", || slow.gate.came() == 1);
        // Long enough for a missing wait to show.
        let early = ended.recv_timeout(Duration::from_millis(200));
        slow.gate.open();
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "{export}: it does not wait");
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(()));
    }
}

#[test]
fn dropped_listener_waits_for_opening_links() {
    let TestHost { service: slow, listener, path, dir: _dir, .. } = slow_host(ListenOptions::default());
    let asking = thread::spawn({
        let path = path.clone();
        move || is_linked(&path)
    });
    until("an export is being opened", || slow.gate.came() == 1);
    let (done, ended) = mpsc::channel();
    thread::spawn({
        let slow = slow.clone();
        move || {
            drop(listener);
            let _ = done.send(slow.opened.load(Ordering::SeqCst));
        }
    });
    // Long enough for a missing wait to show.
    let early = ended.recv_timeout(Duration::from_millis(200));
    slow.gate.open();
    assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "it does not wait");
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(1));
    assert!(!asking.join().expect("no panic"), "a link from a server that had ended");
}

fn is_linked(path: &Path) -> bool {
    let watcher = Watcher::start().expect("a watcher");
    let Ok(connection) = connect(path, &TestHost::options("/opens")) else { return false };
    let (line, _control_socket) = connection.start(&watcher, "link", Mode::Event).expect("a line");
    works(&line)
}
