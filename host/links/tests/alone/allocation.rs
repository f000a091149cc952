//! Requests allocate nothing, however they are awaited; and an idle link uses no processor time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::process_time;
use tombolo_allocations::of_all_threads;
use tombolo_host_links::client::{Line, Spans};
use tombolo_host_links::server::{LinkHandle, Peer, Refusal, Request, Responder, Server, Service, Session};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Ends, Incarnation, Layout as LinkLayout};

/// Number of attempts to complete without allocations.
const TRIES: usize = 10;

/// A session that returns requests unchanged.
struct Echo;

impl Service for Echo {
    fn open(&self, _peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(Echo))
    }
}

impl Session for Echo {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        responder.send(request.kind, request.body, request.frame);
    }
}

fn link(server: &Server, mode: Mode) -> (Line, LinkHandle) {
    let (client, ends) = Ends::in_memory(LinkLayout::with_bulk(16, 8, 1 << 20).expect("a layout"));
    let peer = Peer {
        export: String::new(),
        credentials: None,
        client: Incarnation([0; 16]),
        label: Arc::from("counted"),
    };
    let session = server.open(&peer).expect("a session");
    let handle = server.serve(&ends, &peer, session, mode).expect("a link");
    (Line::start(&client, "counted", mode).expect("a line"), handle)
}

/// Makes several concurrent calls, with frames, bulk memory and a dropped call.
fn round(line: &Line) {
    let frame = [7; 3000];
    let span = line.in_area().take(4096).expect("room");
    let first = line.call_with(1, [1; 48], Spans::from(span), |writer| writer.put(&frame));
    let second = line.call(1, [2; 48], |writer| writer.put(&frame[..10]));
    drop(line.call(1, [3; 48], |_| {}));
    assert_eq!(second.wait().expect("an answer").frame.len(), 10);
    assert_eq!(first.wait().expect("an answer").frame.len(), 3000);
}

#[test]
fn calls_allocate_nothing_and_idle_links_do_nothing() {
    let _alone = crate::alone();
    let server = Server::new(Arc::new(Echo));
    for mode in [Mode::Poll, Mode::Event, Mode::Adaptive] {
        let (line, _handle) = link(&server, mode);
        // With two threads one has to register while the other is the leader. One-time allocations of a
        // thread may occur late, such as at its first sleep: one of several attempts must do without.
        let barrier = Barrier::new(3);
        let over = AtomicBool::new(false);
        let mut allocations = Vec::new();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        barrier.wait();
                        if over.load(Relaxed) {
                            break;
                        }
                        (0..500).for_each(|_| round(&line));
                        barrier.wait();
                    }
                });
            }
            while allocations.len() < TRIES && !allocations.contains(&0) {
                let before = of_all_threads();
                barrier.wait();
                barrier.wait();
                allocations.push(of_all_threads() - before);
            }
            over.store(true, Relaxed);
            barrier.wait();
        });
        assert!(allocations.contains(&0), "{mode}: {allocations:?}");
    }
    for mode in [Mode::Event, Mode::Adaptive] {
        let (line, _handle) = link(&server, mode);
        round(&line);
        let before = process_time();
        std::thread::sleep(Duration::from_secs(1));
        let used = process_time() - before;
        assert!(used < Duration::from_millis(20), "{mode}: {used:?} of a second");
    }
}
