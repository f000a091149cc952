//! Invalid records and reply headers.

use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_wire_nfs3::Procedure;

use crate::hostile::stage::{assert_names, on_hard, on_soft};

fn reply(asked: &ReceivedCall<'_>) -> Vec<u8> {
    asked.reply(&[0; 88])
}

#[test]
fn only_wrong_xids_time_out_a_soft_mount() {
    on_soft(|stage, world| {
        stage.server.now(|asked: &ReceivedCall<'_>| {
            let mut wrong = reply(asked);
            wrong[..4].copy_from_slice(&(asked.xid.0.wrapping_add(7)).to_be_bytes());
            ScriptedReply::Record(wrong)
        });
        let begun = Instant::now();
        world.fs.getattr(&world.cx, world.dir, None).wait().expect_err("no answer");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
}

#[test]
fn overlong_records_fail_the_call_not_the_mount() {
    on_hard(|stage, world| {
        let truth = world.attr(world.dir);
        for mark in [0xffff_ffff_u32, 0x7fff_ffff] {
            stage.server.on(Procedure::Getattr, move |asked| {
                ScriptedReply::Bytes([&mark.to_be_bytes(), reply(asked).as_slice(), &[0; 4096]].concat())
            });
            let violation_of = world.fs.getattr(&world.cx, world.dir, None).wait();
            assert_names(violation_of.map(|_| ()), "getattr");
        }
        stage.server.now(|_: &ReceivedCall<'_>| ScriptedReply::Forward);
        assert_eq!(world.attr(world.dir), truth);
    });
}

/// Drops the reply of an executed call: a server's reply cache recognises calls by their xid.
#[test]
fn retransmitted_call_keeps_its_xid() {
    on_hard(|stage, world| {
        stage.server.on(Procedure::Mkdir, |asked| match asked.nth < 3 {
            true => ScriptedReply::All(vec![ScriptedReply::Dropped, ScriptedReply::Reset]),
            false => ScriptedReply::Forward,
        });
        // The server has no reply cache: the directory exists at the second try.
        let made = world.mkdir("dir");
        assert!(matches!(made, Ok(_) | Err(Error::Exists)), "{made:?}");
        // The first is the one of the world's own directory.
        let seen = stage.server.seen_of(Procedure::Mkdir).split_off(1);
        let [first, second, third] = seen[..] else { panic!("{seen:?}") };
        assert!(first.xid == second.xid && second.xid == third.xid, "{seen:?}");
        assert!(first.connection < second.connection && second.connection < third.connection, "{seen:?}");
    });
}
