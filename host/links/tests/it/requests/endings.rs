//! Ends of links: waiting calls fail, sessions are dropped, memory is freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_host_links::EndReason;
use tombolo_host_links::client::LineError;
use tombolo_host_links::server::{Request, Responder, Session};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Ends, Role};

use crate::requests::test_host::{ECHO, HOLD, TestHost, body, eventually, layout, peer, shaky_ends};

fn lost(why: EndReason) -> Option<LineError> {
    Some(LineError::Lost { label: Arc::from("test"), why })
}

#[test]
fn a_lost_link_wakes_all_waiting_calls() {
    for mode in [Mode::Poll, Mode::Event, Mode::Adaptive] {
        let host = TestHost::new(8, mode, Mode::Event);
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiting = 40;
        for number in 0..waiting {
            // 8 of them are sent, 32 wait for an id.
            let (call, sender) = (host.line.call(HOLD, body(number), |_| {}), sender.clone());
            std::thread::spawn(move || {
                let outcome = if number % 2 == 0 { call.wait() } else { tombolo_core::block_on(call) };
                sender.send(outcome.err()).expect("a receiver");
            });
        }
        eventually("the server has what can be sent", || host.session.held.lock().unwrap().len() == 8);
        host.line.cut(EndReason::Died);
        for _ in 0..waiting {
            assert_eq!(receiver.recv().expect("an outcome"), lost(EndReason::Died), "{mode}");
        }
        host.line.cut(EndReason::Left);
        assert_eq!(host.line.end(), Some(EndReason::Died), "the first reason counts");
        assert_eq!(host.line.call(ECHO, body(0), |_| {}).wait().err(), lost(EndReason::Died));
    }
}

#[test]
fn replies_received_before_the_end_are_still_returned() {
    let host = TestHost::new(8, Mode::Adaptive, Mode::Event);
    let first = host.line.call(ECHO, body(1), |_| {});
    host.line.call(ECHO, body(2), |_| {}).wait().expect("an answer");
    host.line.cut(EndReason::Left);
    assert_eq!(first.wait().expect("it was there").body, body(1));
}

#[test]
fn the_last_clone_of_a_line_ends_it() {
    let host = TestHost::new(8, Mode::Adaptive, Mode::Event);
    let call = host.line.call(HOLD, body(1), |_| {});
    let line = host.line.clone();
    drop(host.line);
    assert_eq!(line.call(ECHO, body(2), |_| {}).wait().expect("an answer").body, body(2));
    drop(line);
    assert_eq!(call.wait().err(), lost(EndReason::Stopped));
}

/// A flag set when this is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A session that retains responders.
struct Holding {
    held: Arc<std::sync::Mutex<Vec<Responder>>>,
    _on_drop: OnDrop,
}

impl Session for Holding {
    fn serve(&self, _request: Request<'_>, responder: Responder) {
        self.held.lock().unwrap().push(responder);
    }
}

#[test]
fn last_responder_drops_session() {
    let host = TestHost::new(8, Mode::Event, Mode::Event);
    let (client, ends) = Ends::in_memory(layout(8));
    let (gone, held) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let session = Arc::new(Holding { held: Arc::clone(&held), _on_drop: OnDrop(gone.clone()) });
    let handle = host.server.serve(&ends, &peer("other"), session, Mode::Event).expect("a link");
    let line = tombolo_host_links::client::Line::start(&client, "other", Mode::Event).expect("a line");
    let calls: Vec<_> = (0..3).map(|number| line.call(ECHO, body(number), |_| {})).collect();
    eventually("all are there", || held.lock().unwrap().len() == 3);
    assert_eq!(host.server.counts().in_flight, 3);
    // Returns although requests are in progress.
    handle.stop();
    assert!(!gone.load(Ordering::SeqCst));
    let mut held: Vec<Responder> = std::mem::take(&mut *held.lock().unwrap());
    let last = held.pop().expect("three");
    assert!(last.is_cut());
    held.into_iter().for_each(|responder| responder.send(ECHO, body(0), &[]));
    assert!(!gone.load(Ordering::SeqCst));
    last.send(ECHO, body(0), &[]);
    assert!(gone.load(Ordering::SeqCst), "with its memory");
    assert_eq!((host.server.counts().links, host.server.counts().in_flight), (1, 0));
    drop(calls);
}

#[test]
fn many_links_come_and_go() {
    let host = TestHost::new(8, Mode::Adaptive, Mode::Adaptive);
    for round in 0..30 {
        let (client, ends) = Ends::in_memory(layout(8));
        let handle =
            host.server.serve(&ends, &peer("other"), host.session.clone(), Mode::Adaptive).expect("a link");
        let line = tombolo_host_links::client::Line::start(&client, "other", Mode::Adaptive).expect("a line");
        for number in 0..round {
            line.call(ECHO, body(number), |_| {}).wait().expect("an answer");
        }
        if round % 2 == 0 {
            handle.cut(EndReason::Died);
            assert_eq!(handle.end(), Some(EndReason::Died));
        }
    }
    let counts = host.server.counts();
    assert_eq!((counts.links, counts.links_total, counts.cut), (1, 31, 0));
    assert_eq!(counts.requests, (0..30).sum::<u64>());
}

/// Data written there are lost, and the peer reads something else.
#[test]
fn lost_local_memory_stops_sending() {
    for whose in [Role::Client, Role::Server] {
        let layout = layout(8);
        let (client, server, file) = shaky_ends(whose, layout);
        let host = TestHost::over((client, server), Mode::Event, Mode::Event);
        assert!(host.line.call(ECHO, body(1), |_| ()).wait().is_ok());
        // The rings stay, so that the peer could notice.
        file.set_len(layout.buffer_offset(0).expect("there is one")).expect("truncated");
        let call = host.line.call(ECHO, body(2), |frame| frame.put(&[1; 100]));
        let end = || match whose {
            Role::Client => host.line.end(),
            Role::Server => host._handle.end(),
        };
        eventually("its own side ends the link", || end().is_some());
        // The peer learns it from the link's watcher.
        host.line.cut(EndReason::Died);
        assert!(call.wait().is_err(), "{whose:?}: an answer from memory that is gone");
        assert!(matches!(end(), Some(EndReason::Failed(_))), "{whose:?}: {:?}", end());
    }
}
