//! Cost of an idle link without a doorbell.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use super::process_time;
use tombolo_host_links::client::Line;
use tombolo_host_links::server::{Peer, Refusal, Request, Responder, Server, Service, Session};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{DoorbellKind, Ends, Incarnation, Layout};

/// Kind of requests answered later.
const HOLD: u32 = 3;
const AT_ONCE: u32 = 4;

/// A session that passes held requests to the test.
struct Holder(Mutex<Sender<Responder>>);

struct Same(Arc<Holder>);

impl Service for Same {
    fn open(&self, _peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(self.0.clone())
    }
}

impl Session for Holder {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        match request.kind {
            HOLD => self.0.lock().expect("unpoisoned").send(responder).expect("a test that goes on"),
            kind => responder.send(kind, request.body, request.frame),
        }
    }
}

#[test]
fn slow_call_without_doorbell_uses_little_processor_time() {
    let _alone = crate::alone();
    let (mut client, mut ends) = Ends::in_memory(Layout::with_bulk(8, 8, 1 << 20).expect("a layout"));
    (client.doorbell, ends.doorbell) = (DoorbellKind::Silent, DoorbellKind::Silent);
    let (sender, held) = mpsc::channel();
    let server = Server::new(Arc::new(Same(Arc::new(Holder(Mutex::new(sender))))));
    let peer =
        Peer { export: "test".into(), credentials: None, client: Incarnation([7; 16]), label: "test".into() };
    let session = server.open(&peer).expect("a session");
    let _handle = server.serve(&ends, &peer, session, Mode::Event).expect("a link");
    let line = Line::start(&client, "test", Mode::Event).expect("a line");

    let mut call = pin!(line.call(HOLD, [5; 48], |_| {}));
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    let responder = held.recv().expect("the request");
    let (before, span) = (process_time(), Duration::from_millis(500));
    thread::sleep(span);
    let took = process_time() - before;
    assert!(took < span * 3 / 10, "{took:?} of {span:?}");
    // Answers still arrive.
    for _ in 0..20 {
        line.call(AT_ONCE, [6; 48], |_| {}).wait().expect("an answer");
    }
    responder.send(HOLD, [7; 48], &[]);
    loop {
        match call.as_mut().poll(&mut context) {
            Poll::Ready(reply) => break assert_eq!(reply.expect("an answer").body, [7; 48]),
            Poll::Pending => thread::yield_now(),
        }
    }
}
