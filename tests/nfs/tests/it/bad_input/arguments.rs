//! Arguments that are not the procedure's.

use tombolo_nfs_tests::client::{Answer, DATA, Datagrams, Message, Verdict, calls_on, closes, fresh_xid};
use tombolo_nfs_tests::fixture::{Fixture, on_each};
use tombolo_wire_nfs3::mount;
use tombolo_wire_rpc::Accepted;

use crate::bad_input::{assert_garbage, assert_well};

/// Returns a valid call of each procedure of both programs that takes arguments.
fn messages(fixture: &Fixture) -> Vec<Message> {
    let calls = calls_on(fixture.root.as_handle(), b"name");
    let mut messages: Vec<_> = calls.iter().map(|call| fixture.nfs.message(call, DATA)).collect();
    let path = mount::DirPath::new(b"/export").expect("a path");
    for call in [mount::Call::Mnt(path), mount::Call::Umnt(path)] {
        messages.push(Message::mount(fresh_xid(), fixture.nfs.caller(), &call));
    }
    messages
}

on_each!(arguments_truncated_at_any_byte_are_garbage, |fixture| {
    let mut stream = fixture.server.stream();
    for message in messages(fixture) {
        for len in 0..message.arguments.len() {
            let cut = Message { xid: fresh_xid(), ..message.clone() };
            let cut = cut.with_arguments(&message.arguments[..len]);
            stream.send(&cut.to_bytes()).expect("sent");
            let answer = stream.answer();
            assert_eq!(answer.xid, cut.xid);
            assert_garbage(&answer);
        }
    }
    assert_eq!(fixture.names(), Vec::<String>::new());
});

on_each!(arguments_that_are_cut_off_are_garbage_in_datagrams, |fixture| {
    let datagrams = Datagrams::connect(fixture.server.address()).expect("a socket");
    for message in messages(fixture) {
        let cut = message.clone().with_arguments(&message.arguments[..message.arguments.len() - 1]);
        datagrams.send(&cut.to_bytes()).expect("sent");
        assert_garbage(&Answer::new(datagrams.receive().expect("a reply")));
    }
});

// Replaces each word of each procedure's arguments by numbers beyond most of their valid ranges.
on_each!(corrupt_argument_words_do_no_harm, |fixture| {
    let mut stream = fixture.server.stream();
    for message in messages(fixture) {
        for at in (0..message.arguments.len() / 4 * 4).step_by(4) {
            for word in [0xffff_ffff_u32, 0x7fff_ffff, 0x8000_0000, 0x0000_0100, 2, 0] {
                let mut changed = Message { xid: fresh_xid(), ..message.clone() };
                changed.arguments[at..at + 4].copy_from_slice(&word.to_be_bytes());
                stream.send(&changed.to_bytes()).expect("sent");
                let answer = stream.answer();
                assert_eq!(answer.xid, changed.xid);
                let expected = [Accepted::Success, Accepted::GarbageArgs].map(Verdict::Accepted);
                assert!(expected.contains(&answer.verdict), "{changed:?}: {:?}", answer.verdict);
            }
        }
    }
    assert_well(fixture);
});

on_each!(bytes_behind_the_arguments_are_ignored, |fixture| {
    for message in messages(fixture) {
        let longer = [message.arguments.as_slice(), &[0x55; 16]].concat();
        let answer = fixture.nfs.send(&message.with_arguments(&longer));
        assert_eq!(answer.verdict, Verdict::Accepted(Accepted::Success));
    }
});

on_each!(noise_does_no_harm, |fixture| {
    // A fixed seed: the same noise every time.
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        let len = random.usize(..600);
        let noise: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        let mut stream = fixture.server.stream();
        // With a valid record mark, or without one.
        let sent = if len.is_multiple_of(2) { stream.send(&noise) } else { stream.send_bytes(&noise) };
        // Answered or cut off: the connection does not stay.
        match sent.and_then(|()| stream.finish()).and_then(|()| stream.receive()) {
            Ok(_) => {}
            Err(error) => assert!(closes(error.kind()), "{error}: {noise:02x?}"),
        }
    }
    assert_well(fixture);
});
