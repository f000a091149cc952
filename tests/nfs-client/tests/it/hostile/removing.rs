//! Removals whose first reply is lost, or that are interrupted.

use tombolo_conformance::waist::World;
use tombolo_core::Error;
use tombolo_core::fs::{File, RenameFlags, Write};
use tombolo_mem::Buffer;
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_test_support::until;
use tombolo_wire_nfs3::results::RemoveReply;
use tombolo_wire_nfs3::{Procedure, Reply, Status, WccData};

use crate::hostile::stage::{Stage, in_time, on_hard};

/// Writes more than one transfer, so that none is stable when answered. The memory is returned once
/// unreferenced.
fn lend(world: &World, file: File) -> Buffer {
    let lent = Buffer::new(3 << 20);
    let how = Write { retainable: true, ..Write::default() };
    let written = world.fs.write(&world.cx, file, &how, lent.source(0..lent.len())).wait();
    assert_eq!(written.expect("written").count, lent.len());
    lent
}

/// Replies as a server that executes the first call, loses the reply and has no reply cache.
fn done_and_forgotten(asked: &ReceivedCall<'_>) -> ScriptedReply {
    let reply: RemoveReply = Reply::Failed(Status::NoEnt, WccData::NONE);
    ScriptedReply::All(vec![ScriptedReply::Dropped, asked.results(&reply)])
}

#[test]
fn data_of_removed_file_are_dropped_despite_noent() {
    on_hard(|stage, world| {
        let file = world.file("file");
        stage.server.on(Procedure::Remove, done_and_forgotten);
        let mut lent = lend(world, file);
        world.unlink("file").expect("unlink");
        world.release(file);
        until("the written memory is returned", || lent.as_mut_slice().is_some());
        assert_eq!(stage.server.count_of(Procedure::Remove), 1);
        assert!(world.names(world.dir).is_empty());
    });
}

#[test]
fn a_completed_removal_is_not_reported_as_interrupted() {
    on_hard(|stage, _| {
        let (world, interrupt) = stage.world.interruptible();
        let file = world.file("file");
        stage.server.on(Procedure::Commit, |_| ScriptedReply::Silence);
        let mut lent = lend(&world, file);
        // Only the removal is waited for, not the COMMIT that follows.
        world.release(file);
        until("a COMMIT", || stage.server.count_of(Procedure::Commit) > 0);
        let removes = std::thread::spawn({
            let world = world.clone();
            move || world.unlink("file")
        });
        until("a REMOVE", || stage.server.count_of(Procedure::Remove) > 0);
        interrupt.raise();
        removes.join().expect("no panic").expect("the file is removed");
        stage.server.be_honest();
        stage.server.reset_all();
        until("the written memory is returned", || lent.as_mut_slice().is_some());
    });
}

/// Interrupts an operation whose `nth` RENAME and all later calls get no reply; then the server is back.
/// Returns the contents of both files.
fn interrupted_at(nth: usize, act: fn(&World) -> Result<(), Error>) -> [Vec<u8>; 2] {
    let stage = Stage::hard();
    let (world, interrupt) = stage.world.interruptible();
    world.file_with("new", b"new");
    world.file_with("file", b"as it was");
    let file = world.reader("file");
    let mut renames = 0;
    stage.server.now(move |asked: &ReceivedCall<'_>| {
        renames += usize::from(asked.is(Procedure::Rename));
        match (renames >= nth, asked.is(Procedure::Rename)) {
            // The first is executed, and its reply lost.
            (true, true) if nth == 1 && asked.nth == 1 => ScriptedReply::Dropped,
            (true, _) => ScriptedReply::Silence,
            (false, _) => ScriptedReply::Forward,
        }
    });
    let acts = std::thread::spawn({
        let world = world.clone();
        move || act(&world)
    });
    until("a RENAME", || stage.server.count_of(Procedure::Rename) >= nth);
    interrupt.raise();
    let outcome = acts.join().expect("no panic");
    assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
    stage.server.be_honest();
    stage.server.reset_all();
    let other = stage.world.other_session();
    until("the file gets its name back", || other.names(other.dir) == ["file", "new"]);
    world.release(file);
    ["file", "new"].map(|name| other.contents(name))
}

#[test]
fn an_interrupted_rename_leaves_both_names_as_they_were() {
    in_time(|| {
        for nth in [1, 2] {
            let left =
                interrupted_at(nth, |world| world.rename("new", "file", RenameFlags::empty()).map(drop));
            assert_eq!(left, [&b"as it was"[..], b"new"], "at RENAME {nth}");
        }
    });
}

#[test]
fn interrupted_removal_of_open_file_keeps_its_name() {
    in_time(|| {
        let left = interrupted_at(1, |world| world.unlink("file").map(drop));
        assert_eq!(left[0], b"as it was");
    });
}
