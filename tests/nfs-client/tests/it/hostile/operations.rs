//! A waist operation for each procedure that a mounted client calls.

use std::sync::mpsc;
use std::time::Instant;

use tombolo_conformance::waist::World;
use tombolo_core::Result;
use tombolo_core::fs::{AccessMask, Cookie, FileType, OpenFlags, RenameFlags, SyncScope, Write};
use tombolo_test_support::{budget, mode, name, plain};
use tombolo_wire_nfs3::Procedure;

use crate::hostile::stage::PATIENCE;

/// An operation of the waist that calls a procedure.
pub struct Operation {
    /// The procedure.
    pub procedure: Procedure,
    /// Prepares with the correct server, arms the script, and runs the operation. The name does not exist
    /// yet.
    pub run: Run,
}

type Run = fn(&World, &str, &dyn Fn()) -> Result<()>;

const fn op(procedure: Procedure, run: Run) -> Operation {
    Operation { procedure, run }
}

/// Reads one page of the world's directory.
pub fn page(world: &World, plus: bool) -> Result<()> {
    let file = world.open_dir(world.dir)?;
    let page = world.readdir(file, Cookie::START, budget(4096, plus));
    world.release(file);
    page.map(drop)
}

/// Writes a few bytes and syncs.
pub fn write_and_sync(world: &World, text: &str, arm: &dyn Fn()) -> Result<()> {
    let file = world.file(text);
    arm();
    let written = world.write_as(file, &Write::default(), b"twelve bytes");
    let synced = world.fs.fsync(&world.cx, file, SyncScope::All).wait();
    world.release(file);
    written.and(synced)
}

/// Runs a test for each operation concurrently; fails if any of them fails or hangs.
#[track_caller]
pub fn for_each(test: impl Fn(&Operation) + Copy + Send + 'static) {
    let (done, wait) = mpsc::channel();
    for operation in OPERATIONS {
        let done = done.clone();
        std::thread::spawn(move || {
            test(operation);
            let _ = done.send(operation.procedure);
        });
    }
    drop(done);
    let mut left: Vec<_> = OPERATIONS.iter().map(|operation| operation.procedure).collect();
    let until = Instant::now() + PATIENCE;
    while !left.is_empty() {
        match wait.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(procedure) => left.retain(|other| *other != procedure),
            Err(why) => panic!("{left:?}: {why}"),
        }
    }
}

/// All operations.
const OPERATIONS: &[Operation] = &[
    op(Procedure::Getattr, |world, _, arm| {
        arm();
        world.fs.getattr(&world.cx, world.dir, None).wait().map(drop)
    }),
    op(Procedure::Setattr, |world, text, arm| {
        let node = world.file_with(text, b"");
        arm();
        world.chmod(node, 0o600).map(drop)
    }),
    op(Procedure::Lookup, |world, text, arm| {
        // Created by another session, so that ours must send a request.
        world.other_session().file_with(text, b"");
        arm();
        world.lookup(text).map(drop)
    }),
    op(Procedure::Access, |world, text, arm| {
        let node = world.file_with(text, b"");
        arm();
        world.access(node, AccessMask::WRITE)
    }),
    op(Procedure::Readlink, |world, text, arm| {
        let made = world.symlink(text, b"somewhere")?;
        arm();
        world.fs.readlink(&world.cx, made.entry.node).wait().map(drop)
    }),
    op(Procedure::Read, |world, text, arm| {
        world.other_session().file_with(text, b"twelve bytes");
        let file = world.open(text, OpenFlags::READ)?;
        arm();
        let read = world.read_eof(file, 0, 12);
        world.release(file);
        read.map(|(bytes, _)| assert_eq!(bytes, b"twelve bytes"))
    }),
    op(Procedure::Write, write_and_sync),
    op(Procedure::Commit, write_and_sync),
    op(Procedure::Create, |world, text, arm| {
        arm();
        world.create(text, &plain()).map(drop)
    }),
    op(Procedure::Mkdir, |world, text, arm| {
        arm();
        world.mkdir(text).map(drop)
    }),
    op(Procedure::Symlink, |world, text, arm| {
        arm();
        world.symlink(text, b"somewhere").map(drop)
    }),
    op(Procedure::Mknod, |world, text, arm| {
        arm();
        let rdev = Default::default();
        world.fs.mknod(&world.cx, world.dir, name(text), FileType::Fifo, mode(0o644), rdev).wait().map(drop)
    }),
    op(Procedure::Remove, |world, text, arm| {
        world.file_with(text, b"");
        arm();
        world.unlink(text).map(drop)
    }),
    op(Procedure::Rmdir, |world, text, arm| {
        world.dir(text);
        arm();
        world.rmdir(text).map(drop)
    }),
    op(Procedure::Rename, |world, text, arm| {
        world.file_with(text, b"");
        arm();
        world.rename(text, "another", RenameFlags::empty()).map(drop)
    }),
    op(Procedure::Link, |world, text, arm| {
        let node = world.file_with(text, b"");
        arm();
        world.link(node, &format!("{text}-too")).map(drop)
    }),
    op(Procedure::Readdir, |world, _, arm| {
        arm();
        page(world, false)
    }),
    op(Procedure::Readdirplus, |world, _, arm| {
        arm();
        page(world, true)
    }),
    op(Procedure::Fsstat, |world, _, arm| {
        arm();
        world.fs.statfs(&world.cx, world.dir).wait().map(drop)
    }),
];
