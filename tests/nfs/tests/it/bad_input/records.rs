//! Records in pieces, without end, and of absurd sizes.

use std::time::Duration;

use tombolo_nfs_tests::client::{Answer, Expect, Message, Stream, fragment, mode};
use tombolo_nfs_tests::fixture::{Fixture, on_each};
use tombolo_wire_nfs3::Call;
use tombolo_wire_nfs3::args::{StableHow, WriteArgs};

use crate::bad_input::assert_well;

fn good(fixture: &Fixture) -> Message {
    fixture.nfs.message(&Call::Getattr(fixture.root.as_handle()), b"")
}

#[track_caller]
fn receive(stream: &mut Stream) -> Answer {
    Answer::new(stream.receive().expect("a reply").expect("an open connection"))
}

#[track_caller]
fn assert_answers(stream: &mut Stream, message: &Message) {
    let answer = receive(stream);
    assert_eq!((answer.xid, answer.status()), (message.xid, Ok(())));
}

#[track_caller]
fn assert_closed(mut stream: Stream) {
    assert_eq!(stream.receive().expect("the end"), None);
}

#[test]
fn fragments_of_any_size_make_a_call() {
    on_each(|fixture| {
        let mut stream = fixture.server.stream();
        for size in [1, 2, 3, 4, 5, 7, 40, 1000] {
            let message = good(fixture);
            stream.send_in_fragments(&message.to_bytes(), size).expect("sent");
            assert_answers(&mut stream, &message);
        }
    });
}

#[test]
fn a_big_write_in_fragments_of_one_byte_is_written() {
    on_each(|fixture| {
        let file = fixture.file("file", b"");
        let data: Vec<u8> = (0..20_000_u32).map(|index| (index % 251) as u8).collect();
        let args = WriteArgs {
            file: file.as_handle(),
            offset: 0,
            count: data.len() as u32,
            stable: StableHow::FileSync,
            data: tombolo_wire_nfs3::Data::to_send(data.len() as u32),
        };
        let message = fixture.nfs.message(&Call::Write(args), &data);
        let mut stream = fixture.server.stream();
        stream.send_in_fragments(&message.to_bytes(), 1).expect("sent");
        assert_answers(&mut stream, &message);
        assert!(fixture.contents(&file) == data);
    });
}

#[test]
fn bytes_may_come_one_at_a_time() {
    on_each(|fixture| {
        let message = good(fixture);
        let mut stream = fixture.server.stream();
        for byte in fragment(&message.to_bytes(), true) {
            stream.send_bytes(&[byte]).expect("sent");
        }
        assert_answers(&mut stream, &message);
    });
}

#[test]
fn empty_fragments_add_nothing() {
    on_each(|fixture| {
        let message = good(fixture);
        let mut stream = fixture.server.stream();
        let record = message.to_bytes();
        let (front, back) = record.split_at(30);
        let nothing = fragment(b"", false).repeat(1000);
        let pieces =
            [&nothing, &fragment(front, false), &nothing, &fragment(back, false), &fragment(b"", true)];
        for piece in pieces {
            stream.send_bytes(piece).expect("sent");
        }
        assert_answers(&mut stream, &message);
    });
}

#[test]
fn an_empty_record_is_no_call() {
    on_each(|fixture| {
        let mut stream = fixture.server.stream();
        stream.send(b"").expect("sent");
        stream.finish().expect("nothing follows");
        assert_closed(stream);
        assert_well(fixture);
    });
}

#[test]
fn a_header_that_announces_2_gib_closes_the_connection() {
    on_each(|fixture| {
        for mark in [0xffff_ffff_u32, 0x7fff_ffff, 0xc000_0000, 0x8010_0000 + (1 << 16)] {
            let mut stream = fixture.server.stream();
            stream.send_bytes(&mark.to_be_bytes()).expect("sent");
            assert_closed(stream);
        }
        assert!(fixture.server.counts().lent_bytes < 8 << 20, "{:?}", fixture.server.counts());
        assert_well(fixture);
    });
}

#[test]
fn fragments_that_together_are_too_long_close_the_connection() {
    on_each(|fixture| {
        let mut stream = fixture.server.stream();
        let piece = fragment(&[0; 65_536], false);
        // More than any call may be; the end of the connection may show while it is being sent.
        let sent = (0..64).try_for_each(|_| stream.send_bytes(&piece));
        if sent.is_ok() {
            assert_closed(stream);
        }
        assert_well(fixture);
    });
}

#[test]
fn calls_that_arrive_together_are_all_answered() {
    on_each(|fixture| {
        let messages: Vec<_> = (0..100).map(|_| good(fixture)).collect();
        let bytes: Vec<u8> =
            messages.iter().flat_map(|message| fragment(&message.to_bytes(), true)).collect();
        let mut stream = fixture.server.stream();
        stream.send_bytes(&bytes).expect("sent");
        let mut answered: Vec<_> = messages.iter().map(|_| receive(&mut stream).xid).collect();
        answered.sort_unstable();
        let mut asked: Vec<_> = messages.iter().map(|message| message.xid).collect();
        asked.sort_unstable();
        assert_eq!(answered, asked);
    });
}

#[test]
fn an_endless_call_does_not_delay_other_clients() {
    on_each(|fixture| {
        let bytes = fragment(&good(fixture).to_bytes(), true);
        let mut stuck: Vec<_> = (0..20).map(|_| fixture.server.stream()).collect();
        for (index, stream) in stuck.iter_mut().enumerate() {
            stream.send_bytes(&bytes[..index * 3]).expect("sent");
        }
        fixture.nfs.mkdir(&fixture.root, b"dir", mode(0o755)).done();
        assert!(stuck[3].is_quiet_for(Duration::from_millis(20)), "it may still go on");
        stuck[3].send_bytes(&bytes[9..]).expect("sent");
        assert_eq!(receive(&mut stuck[3]).status(), Ok(()));
    });
}

/// The last bytes and the end may arrive as one event.
#[test]
fn half_closed_streams_end() {
    let fixture = Fixture::in_memory();
    for round in 0..300 {
        let mut stream = fixture.server.stream();
        if round % 2 == 0 {
            let message = good(&fixture);
            stream.send(&message.to_bytes()).expect("sent");
            stream.finish().expect("nothing follows");
            assert_answers(&mut stream, &message);
        } else {
            stream.send_bytes(&[0x80, 0, 0]).expect("sent");
            stream.finish().expect("nothing follows");
        }
        assert_closed(stream);
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_call_is_forgotten() {
    on_each(|fixture| {
        for len in [0, 3, 4, 20] {
            let mut stream = fixture.server.stream();
            stream.send_bytes(&fragment(&good(fixture).to_bytes(), true)[..len]).expect("sent");
        }
        // Replies that the client does not receive.
        for _ in 0..20 {
            let mut stream = fixture.server.stream();
            stream.send(&good(fixture).to_bytes()).expect("sent");
        }
        assert_well(fixture);
    });
}
