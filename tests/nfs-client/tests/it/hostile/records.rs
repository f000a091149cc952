//! Records and headers of replies that are wrong before any procedure's results.

use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_core::fs::OpenFlags;
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_nfs_tests::client::fragment;
use tombolo_wire_nfs3::Procedure;

use crate::hostile::stage::{Stage, assert_names, in_time};

/// Lies to the first GETATTR, and then no more. By another connection or another try the answer is the true one; or it is an error that names
/// host and operation. Afterwards all is well in any case.
#[track_caller]
fn survives_one(reply: impl Fn(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static) {
    in_time(move || {
        let stage = Stage::hard();
        let world = &stage.world;
        let truth = world.attr(world.dir);
        stage.server.now(move |asked: &ReceivedCall<'_>| {
            match asked.is(Procedure::Getattr) && asked.nth == 1 {
                true => reply(asked),
                false => ScriptedReply::Forward,
            }
        });
        match world.fs.getattr(&world.cx, world.dir, None).wait() {
            Ok(attr) => assert_eq!(attr, truth),
            Err(error) => assert_names(Err(error), "getattr"),
        }
        assert_eq!(world.attr(world.dir), truth);
    });
}

fn reply(asked: &ReceivedCall<'_>) -> Vec<u8> {
    asked.reply(&[0; 88])
}

#[test]
fn a_reply_with_an_unknown_xid_is_dropped() {
    in_time(|| {
        let stage = Stage::hard();
        let truth = stage.world.attr(stage.world.dir);
        stage.server.now(|asked: &ReceivedCall<'_>| {
            let mut wrong = asked.reply(&[0xff; 88]);
            wrong[..4].copy_from_slice(&(asked.xid.0 ^ 1).to_be_bytes());
            ScriptedReply::All(vec![ScriptedReply::Record(wrong), ScriptedReply::Forward])
        });
        for _ in 0..10 {
            assert_eq!(stage.world.attr(stage.world.dir), truth);
        }
    });
}

#[test]
fn only_wrong_xids_are_a_time_out_for_a_soft_mount() {
    in_time(|| {
        let stage = Stage::soft();
        stage.server.now(|asked: &ReceivedCall<'_>| {
            let mut wrong = reply(asked);
            wrong[..4].copy_from_slice(&(asked.xid.0.wrapping_add(7)).to_be_bytes());
            ScriptedReply::Record(wrong)
        });
        let begun = Instant::now();
        stage.world.fs.getattr(&stage.world.cx, stage.world.dir, None).wait().expect_err("no answer");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
}

#[test]
fn an_answer_that_comes_twice_is_taken_once() {
    in_time(|| {
        let stage = Stage::hard();
        stage.server.now(|_: &ReceivedCall<'_>| {
            ScriptedReply::All(vec![ScriptedReply::Forward, ScriptedReply::Forward])
        });
        let world = &stage.world;
        let node = world.file_with("file", b"what is in it");
        assert_eq!(world.contents(node), b"what is in it");
        let truth = world.attr(node);
        assert_eq!(world.attr(node), truth);
    });
}

#[test]
fn a_record_that_is_too_short_for_a_header_ends_the_connection_or_nothing() {
    for len in [0, 1, 3, 4, 7, 8, 11, 12, 20] {
        survives_one(move |asked| {
            ScriptedReply::All(vec![
                ScriptedReply::Bytes(fragment(&reply(asked)[..len], true)),
                ScriptedReply::Close,
            ])
        });
    }
}

#[test]
fn a_call_is_sent_again_after_a_truncated_record() {
    survives_one(|asked| {
        let whole = fragment(&reply(asked), true);
        ScriptedReply::All(vec![
            ScriptedReply::Bytes(whole[..whole.len() - 5].to_vec()),
            ScriptedReply::Reset,
        ])
    });
}

#[test]
fn a_record_longer_than_any_reply_ends_the_connection() {
    for mark in [0xffff_ffff_u32, 0x7fff_ffff, 0x9000_0000, 0x8400_0000] {
        survives_one(move |asked| {
            let bytes = [&mark.to_be_bytes(), reply(asked).as_slice(), &[0; 4096]].concat();
            ScriptedReply::Bytes(bytes)
        });
    }
}

#[test]
fn a_record_longer_than_any_reply_each_time_fails_the_call_and_not_the_mount() {
    in_time(|| {
        let stage = Stage::hard();
        let world = &stage.world;
        let truth = world.attr(world.dir);
        for mark in [0xffff_ffff_u32, 0x7fff_ffff] {
            stage.server.now(move |asked: &ReceivedCall<'_>| match asked.is(Procedure::Getattr) {
                true => {
                    ScriptedReply::Bytes([&mark.to_be_bytes(), reply(asked).as_slice(), &[0; 4096]].concat())
                }
                false => ScriptedReply::Forward,
            });
            let violation_of = world.fs.getattr(&world.cx, world.dir, None).wait();
            assert_names(violation_of.map(|_| ()), "getattr");
        }
        stage.server.now(|_: &ReceivedCall<'_>| ScriptedReply::Forward);
        assert_eq!(world.attr(world.dir), truth);
    });
}

#[test]
fn fragments_without_an_end_end_the_connection() {
    survives_one(|asked| {
        let piece = fragment(&[0x55; 60_000], false);
        let mut pieces = vec![ScriptedReply::Bytes(fragment(&reply(asked)[..4], false))];
        pieces.extend((0..400).map(|_| ScriptedReply::Bytes(piece.clone())));
        ScriptedReply::All(pieces)
    });
    survives_one(|_| {
        ScriptedReply::All(vec![
            ScriptedReply::Bytes(fragment(&[], false).repeat(10_000)),
            ScriptedReply::Close,
        ])
    });
}

#[test]
fn an_answer_in_fragments_of_one_byte_is_an_answer() {
    in_time(|| {
        let stage = Stage::hard();
        let node = stage.world.file_with("file", b"what is in it");
        stage.server.now(|_: &ReceivedCall<'_>| ScriptedReply::InFragments(1));
        assert_eq!(stage.world.contents(node), b"what is in it");
    });
}

#[test]
fn arbitrary_bytes_instead_of_replies_are_survived() {
    // A call, of all things; an unknown kind of reply; a verifier longer than its record.
    for words in [vec![0, 2, 100_003], vec![1, 7, 0], vec![1, 0, 0, 0xffff_ffff], vec![1, 0, 0, 0, 99]] {
        survives_one(move |asked| {
            let mut message = asked.xid.0.to_be_bytes().to_vec();
            words.iter().for_each(|word: &u32| message.extend(word.to_be_bytes()));
            ScriptedReply::All(vec![ScriptedReply::Record(message), ScriptedReply::Close])
        });
    }
}

#[test]
fn a_connection_that_is_reset_at_any_byte_of_an_answer_costs_no_data() {
    const CONTENTS: &[u8] = b"each byte of these has to come as it was written";
    in_time(|| {
        std::thread::scope(|scope| {
            for first in 0..8 {
                scope.spawn(move || {
                    let stage = Stage::hard();
                    let world = &stage.world;
                    let node = world.file_with("file", CONTENTS);
                    let file = world.open(node, OpenFlags::READ).expect("open");
                    for at in (first..240).step_by(8) {
                        stage.server.now(move |asked: &ReceivedCall<'_>| {
                            match asked.is(Procedure::Read) && asked.nth == 1 {
                                true => ScriptedReply::CutAt(at),
                                false => ScriptedReply::Forward,
                            }
                        });
                        assert_eq!(world.get(file, 0, 100), CONTENTS, "reset after {at} bytes");
                    }
                });
            }
        });
    });
}

/// Done, and the answer lost: a server that keeps its answers knows a call by its xid.
#[test]
fn a_call_that_is_sent_again_has_the_name_that_it_had() {
    in_time(|| {
        let stage = Stage::hard();
        let world = &stage.world;
        stage.server.now(|asked: &ReceivedCall<'_>| match asked.is(Procedure::Mkdir) && asked.nth < 3 {
            true => ScriptedReply::All(vec![ScriptedReply::Dropped, ScriptedReply::Reset]),
            false => ScriptedReply::Forward,
        });
        // No reply cache here: it exists by then.
        let made = world.mkdir(world.dir, "dir");
        assert!(matches!(made, Ok(_) | Err(Error::Exists)), "{made:?}");
        // The first is the one of the world's own directory.
        let seen = stage.server.seen_of(Procedure::Mkdir).split_off(1);
        let [first, second, third] = seen[..] else { panic!("{seen:?}") };
        assert!(first.xid == second.xid && second.xid == third.xid, "{seen:?}");
        assert!(first.connection < second.connection && second.connection < third.connection, "{seen:?}");
    });
}
