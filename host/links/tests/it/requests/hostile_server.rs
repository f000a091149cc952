//! A violating server loses the link; calls fail with the reason.

use std::sync::Arc;

use tombolo_host_links::client::{Line, LineError};
use tombolo_host_links::{EndReason, ProtocolError};
use tombolo_shm::doorbell::{Mode, Ringer};
use tombolo_shm::link::{Ends, Role};
use tombolo_shm::ring::{Consumer, Message, Producer};

use crate::requests::test_host::{ECHO, TestHost, body, eventually, found, layout, shaky_ends};

const SLOTS: u32 = 8;

/// A server that sends arbitrary answers.
struct HostileServer {
    ends: Ends,
    requests: Consumer,
    producer: Producer,
    ringer: Ringer,
    line: Line,
}

impl HostileServer {
    fn new(mode: Mode) -> HostileServer {
        HostileServer::over(Ends::in_memory(layout(SLOTS)), mode)
    }

    fn over((client, ends): (Ends, Ends), mode: Mode) -> HostileServer {
        let at = ends.layout.ring_offset();
        let requests = Consumer::at(&ends.peer, at, SLOTS, ends.epoch).expect("a ring");
        let producer = Producer::at(&ends.own, at, SLOTS, ends.epoch).expect("a ring");
        let ringer = Ringer::of(&ends).expect("a doorbell");
        let line = Line::start(&client, "server", mode).expect("a line");
        HostileServer { ends, requests, producer, ringer, line }
    }

    fn next(&mut self) -> Message {
        found("a request", || self.requests.pop())
    }

    fn answer(&mut self, id: u32, frame_len: u32) {
        self.producer.push(&Message { id, frame_len, kind: ECHO, body: body(id.into()) });
        self.ringer.ring();
    }
}

/// Checks that calls awaited in each way fail with the violation's error, and that another link is not
/// affected.
fn fails(error: &str, act: impl Fn(&mut HostileServer, u32) -> ProtocolError) {
    for mode in [Mode::Poll, Mode::Event, Mode::Adaptive] {
        let host = TestHost::new(8, mode, Mode::Event);
        let mut server = HostileServer::new(mode);
        let line = server.line.clone();
        let blocked = std::thread::spawn(move || line.call(ECHO, body(1), |_| {}).wait());
        let id = server.next().id;
        let future = server.line.call(ECHO, body(2), |_| {});
        let awaited = std::thread::spawn(move || tombolo_core::block_on(future));
        server.next();
        let never_polled = server.line.call(ECHO, body(3), |_| {});
        let expected = LineError::Lost {
            label: Arc::from("server"),
            why: EndReason::ProtocolError(act(&mut server, id)),
        };
        if !blocked.is_finished() {
            // The violation may have been received as the answer to the blocked call.
            eventually(error, || server.line.is_lost());
        }
        let blocked = blocked.join().expect("no panic");
        assert!(blocked.is_ok() || blocked.err() == Some(expected.clone()), "{error}, {mode}");
        assert_eq!(awaited.join().expect("no panic").err(), Some(expected.clone()), "{error}, {mode}");
        assert_eq!(never_polled.wait().err(), Some(expected.clone()), "{error}, {mode}");
        assert_eq!(server.line.call(ECHO, body(4), |_| {}).wait().err(), Some(expected), "{error}, {mode}");
        assert_eq!(host.line.call(ECHO, body(5), |_| {}).wait().expect("an answer").body, body(5));
    }
}

#[test]
fn an_answer_to_what_was_never_asked() {
    fails("an id of another generation", |server, id| {
        server.answer(id + SLOTS, 0);
        ProtocolError::NeverIssued { id: id + SLOTS }
    });
    fails("an id of a buffer that is not in use", |server, id| {
        let id = id ^ 4;
        server.answer(id, 0);
        ProtocolError::NeverIssued { id }
    });
    fails("an id of all ones", |server, _| {
        server.answer(u32::MAX, 0);
        ProtocolError::NeverIssued { id: u32::MAX }
    });
}

#[test]
fn an_answer_twice() {
    fails("twice", |server, id| {
        server.answer(id, 0);
        server.answer(id, 0);
        ProtocolError::AnsweredTwice { id }
    });
}

#[test]
fn an_answer_of_a_length_of_all_ones() {
    for len_bytes in [4097, 1 << 31, u32::MAX] {
        fails("too long", |server, id| {
            server.answer(id, len_bytes);
            ProtocolError::FrameTooLong { id, len_bytes }
        });
    }
}

#[test]
fn a_slot_that_is_a_lap_ahead() {
    let server = HostileServer::new(Mode::Event);
    let line = server.line.clone();
    let ahead = server.ends.epoch.number() << 16 | 5;
    server.ends.own.write_at(server.ends.layout.ring_offset(), &ahead.to_le_bytes()).expect("inside");
    let outcome = line.call(ECHO, body(1), |_| {}).wait();
    assert!(
        matches!(&outcome, Err(LineError::Lost { why: EndReason::ProtocolError(ProtocolError::Slot(fault)), .. }) if fault.found == ahead),
        "{outcome:?}"
    );
}

#[test]
fn stuck_server_blocks_no_caller_forever() {
    let host = TestHost::new(8, Mode::Adaptive, Mode::Event);
    let server = HostileServer::new(Mode::Adaptive);
    let calls: Vec<_> = (0..100).map(|number| server.line.call(ECHO, body(number), |_| {})).collect();
    assert_eq!(host.line.call(ECHO, body(5), |_| {}).wait().expect("an answer").body, body(5));
    server.line.cut(EndReason::Died);
    for call in calls {
        let lost = LineError::Lost { label: Arc::from("server"), why: EndReason::Died };
        assert_eq!(call.wait().err(), Some(lost));
    }
}

#[test]
fn a_region_that_is_truncated() {
    let (client, server, file) = shaky_ends(Role::Server, layout(SLOTS));
    let mut server = HostileServer::over((client, server), Mode::Event);
    let line = server.line.clone();
    let blocked = std::thread::spawn(move || line.call(ECHO, body(1), |_| {}).wait());
    server.next();
    file.set_len(0).expect("truncated");
    let lost = LineError::Lost {
        label: Arc::from("server"),
        why: EndReason::ProtocolError(ProtocolError::MemoryGone),
    };
    assert_eq!(blocked.join().expect("no panic").err(), Some(lost));
}
