//! A server that breaks the rules loses the link; calls fail and say why.

use std::sync::Arc;

use tombolo_host_links::client::{Line, LineError};
use tombolo_host_links::{End, Lie};
use tombolo_mem::Region;
use tombolo_shm::doorbell::{Mode, Ringer};
use tombolo_shm::link::{Ends, Extent};
use tombolo_shm::ring::{Consumer, Message, Producer};

use crate::requests::bed::{Bed, ECHO, body, eventually, layout};

const SLOTS: u32 = 8;

/// A server that answers whatever it likes.
struct Liar {
    ends: Ends,
    requests: Consumer,
    producer: Producer,
    ringer: Ringer,
    line: Line,
}

impl Liar {
    fn new(mode: Mode) -> Liar {
        Liar::over(Ends::in_memory(layout(SLOTS)), mode)
    }

    fn over((client, ends): (Ends, Ends), mode: Mode) -> Liar {
        let at = ends.layout.ring_offset();
        let requests = Consumer::at(&ends.peer, at, SLOTS, ends.epoch).expect("a ring");
        let producer = Producer::at(&ends.own, at, SLOTS, ends.epoch).expect("a ring");
        let ringer = Ringer::of(&ends).expect("a doorbell");
        let line = Line::start(&client, "liar", mode).expect("a line");
        Liar { ends, requests, producer, ringer, line }
    }

    fn next(&mut self) -> Message {
        let mut request = None;
        eventually("a request", || {
            request = self.requests.pop();
            request.is_some()
        });
        request.expect("a request")
    }

    fn answer(&mut self, id: u32, frame_len: u32) {
        self.producer.push(&Message { id, frame_len, kind: ECHO, body: body(id.into()) });
        self.ringer.ring();
    }
}

/// Calls that wait in each way fail for that reason, once the server has done that; and another link goes on.
fn fails(lie: &str, act: impl Fn(&mut Liar, u32) -> Lie) {
    for mode in [Mode::Poll, Mode::Event, Mode::Adaptive] {
        let bed = Bed::new(8, mode, Mode::Event);
        let mut liar = Liar::new(mode);
        let line = liar.line.clone();
        let blocked = std::thread::spawn(move || line.call(ECHO, body(1), |_| {}).wait());
        let id = liar.next().id;
        let future = liar.line.call(ECHO, body(2), |_| {});
        let awaited = std::thread::spawn(move || tombolo_core::block_on(future));
        liar.next();
        let never_polled = liar.line.call(ECHO, body(3), |_| {});
        let expected = LineError::Lost { label: Arc::from("liar"), why: End::Lie(act(&mut liar, id)) };
        if !blocked.is_finished() {
            // In case that the lie was told as the answer to the call that is blocked.
            eventually(lie, || liar.line.is_lost());
        }
        let blocked = blocked.join().expect("no panic");
        assert!(blocked.is_ok() || blocked.err() == Some(expected.clone()), "{lie}, {mode}");
        assert_eq!(awaited.join().expect("no panic").err(), Some(expected.clone()), "{lie}, {mode}");
        assert_eq!(never_polled.wait().err(), Some(expected.clone()), "{lie}, {mode}");
        assert_eq!(liar.line.call(ECHO, body(4), |_| {}).wait().err(), Some(expected), "{lie}, {mode}");
        assert_eq!(bed.line.call(ECHO, body(5), |_| {}).wait().expect("an answer").body, body(5));
    }
}

#[test]
fn an_answer_to_what_was_never_asked() {
    fails("an id of another generation", |liar, id| {
        liar.answer(id + SLOTS, 0);
        Lie::NeverIssued { id: id + SLOTS }
    });
    fails("an id of a buffer that is not in use", |liar, id| {
        let id = id ^ 4;
        liar.answer(id, 0);
        Lie::NeverIssued { id }
    });
    fails("an id of all ones", |liar, _| {
        liar.answer(u32::MAX, 0);
        Lie::NeverIssued { id: u32::MAX }
    });
}

#[test]
fn an_answer_twice() {
    fails("twice", |liar, id| {
        liar.answer(id, 0);
        liar.answer(id, 0);
        Lie::AnsweredTwice { id }
    });
}

#[test]
fn an_answer_of_a_length_of_all_ones() {
    for len_bytes in [4097, 1 << 31, u32::MAX] {
        fails("too long", |liar, id| {
            liar.answer(id, len_bytes);
            Lie::FrameTooLong { id, len_bytes }
        });
    }
}

#[test]
fn a_slot_that_is_a_lap_ahead() {
    let liar = Liar::new(Mode::Event);
    let line = liar.line.clone();
    let ahead = liar.ends.epoch.number() << 16 | 5;
    liar.ends.own.write_at(liar.ends.layout.ring_offset(), &ahead.to_le_bytes()).expect("inside");
    let outcome = line.call(ECHO, body(1), |_| {}).wait();
    assert!(
        matches!(&outcome, Err(LineError::Lost { why: End::Lie(Lie::Slot(fault)), .. }) if fault.found == ahead),
        "{outcome:?}"
    );
}

#[test]
fn a_server_that_never_takes_requests_holds_nobody_up_for_ever() {
    let bed = Bed::new(8, Mode::Adaptive, Mode::Event);
    let liar = Liar::new(Mode::Adaptive);
    let calls: Vec<_> = (0..100).map(|number| liar.line.call(ECHO, body(number), |_| {})).collect();
    assert_eq!(bed.line.call(ECHO, body(5), |_| {}).wait().expect("an answer").body, body(5));
    liar.line.cut(End::Died);
    for call in calls {
        let lost = LineError::Lost { label: Arc::from("liar"), why: End::Died };
        assert_eq!(call.wait().err(), Some(lost));
    }
}

#[test]
fn a_region_that_is_truncated() {
    let file = tempfile::tempfile().expect("a file");
    let layout = layout(SLOTS);
    file.set_len(layout.bytes()).expect("room");
    let map = || {
        Extent::whole(Region::map(&file, 0, usize::try_from(layout.bytes()).expect("small")).expect("mapped"))
    };
    let (mut client, mut server) = Ends::in_memory(layout);
    (server.own, client.peer) = (map(), map());
    let mut liar = Liar::over((client, server), Mode::Event);
    let line = liar.line.clone();
    let blocked = std::thread::spawn(move || line.call(ECHO, body(1), |_| {}).wait());
    liar.next();
    file.set_len(0).expect("truncated");
    let lost = LineError::Lost { label: Arc::from("liar"), why: End::Lie(Lie::MemoryGone) };
    assert_eq!(blocked.join().expect("no panic").err(), Some(lost));
}
