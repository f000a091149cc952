//! Exclusive creates whose first reply is lost, and servers without them.

use std::time::{SystemTime, UNIX_EPOCH};

use tombolo_conformance::waist::World;
use tombolo_core::fs::{Create, Exclusive};
use tombolo_core::{Error, Result};
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_test_support::{mode, plain};
use tombolo_wire_nfs3::args::CreateHow;
use tombolo_wire_nfs3::{Call, Procedure, Reply, Status, WccData};

use crate::hostile::stage::on_hard;

fn failed(asked: &ReceivedCall<'_>, status: Status) -> ScriptedReply {
    asked.results(&Reply::<(), WccData>::Failed(status, WccData::NONE))
}

/// Creates a file exclusively and verifies its attributes.
fn create(world: &World, name: &str) -> Result<()> {
    let created = world.create(name, &Create { mode: mode(0o4751), exclusive: Exclusive::Yes, ..plain() })?;
    let attr = world.attr(created.entry.node);
    assert_eq!((attr.mode.bits(), attr.size), (0o4751, 0));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    for time in [attr.atime, attr.mtime] {
        assert!(now.abs_diff(time.secs.unsigned_abs()) < 3600, "{time:?} is no time of now");
    }
    Ok(())
}

#[test]
fn create_with_lost_reply_does_not_fail_with_exist() {
    on_hard(|stage, world| {
        stage.server.now(|asked: &ReceivedCall<'_>| match asked.is(Procedure::Create) && asked.nth == 1 {
            // A repeated call finds no record of the first.
            true => ScriptedReply::All(vec![ScriptedReply::Dropped, failed(asked, Status::Jukebox)]),
            false => ScriptedReply::Forward,
        });
        create(world, "file").expect("it is new");
        assert!(stage.server.count_of(Procedure::Create) >= 2);
        assert!(matches!(create(world, "file"), Err(Error::Exists)));
        assert!(matches!(create(&world.other_session(), "file"), Err(Error::Exists)));
    });
}

#[test]
fn create_falls_back_to_guarded_mode() {
    on_hard(|stage, world| {
        stage.server.now(|asked: &ReceivedCall<'_>| match asked.call() {
            Some(Call::Create(args)) if matches!(args.how, CreateHow::Exclusive(_)) => {
                failed(asked, Status::NotSupp)
            }
            _ => ScriptedReply::Forward,
        });
        create(world, "one").expect("created");
        assert!(matches!(create(world, "one"), Err(Error::Exists)));
        create(world, "two").expect("created");
        assert_eq!(stage.server.count_of(Procedure::Create), 4, "it has said so once");
    });
}
