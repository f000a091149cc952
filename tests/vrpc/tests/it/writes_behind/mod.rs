//! Writes whose callers continue before the reply: what they save, what others see, and how they fail.

mod doubles;
mod failures;
mod model;
mod relinked;

use std::thread;
use std::time::Duration;

use tombolo_core::fs::{
    Create, File, FileSystem, Lock, LockFamily, LockKind, LockOwner, LockRange, OpenFlags, SyncScope, Write,
};
use tombolo_core::{Answer, Error, Stability};
use tombolo_mem::Source;
use tombolo_test_support::{Session, plain, until};
use tombolo_vrpc_tests::site::{Plan, root};
use tombolo_wire_vrpc::Kind;

use doubles::{Nature, World, Writes};

const OWNER: LockOwner = LockOwner(7);

fn flush(world: &World, file: File) -> Result<(), Error> {
    world.fs.flush(&root(), file, OWNER).wait()
}

fn size(world: &World, file: File) -> u64 {
    world.session.attr(file.node).size
}

/// Releases a held write from another thread, after a while.
fn later(world: &World, writes: Writes) -> thread::JoinHandle<()> {
    let valve = world.valve.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        valve.set(writes);
    })
}

#[test]
fn create_write_close_awaits_the_create_only() {
    let world = World::new(Nature::default());
    world.settle();
    let file = world.create("file");
    assert!(world.writes_at_once(file, &[7; 4096]));
    // The reply to the write is in the ring before that to any later request.
    world.fs.null(&root()).wait().expect("null");
    flush(&world, file).expect("closed");
    world.fs.release(&root(), file);
    world.fs.null(&root()).wait().expect("null");
    let requests = [
        (Kind::Create, false),
        (Kind::Write, true),
        (Kind::Null, false),
        (Kind::Release, true),
        (Kind::Null, false),
    ];
    assert_eq!(world.requests(), requests);
    assert_eq!(world.read(world.create("file")), [7; 4096]);
}

#[test]
fn close_of_an_unanswered_write_is_one_request() {
    let (world, file) = World::with_file(Writes::Held);
    assert!(world.writes_at_once(file, &[7; 4096]));
    let flushing = world.fs.flush(&root(), file, OWNER);
    assert!(!flushing.is_done(), "the outcome of the write is not known");
    world.valve.set(Writes::Performed);
    flushing.wait().expect("closed");
    assert_eq!(world.requests(), [(Kind::Write, true), (Kind::Flush, false)]);
}

#[test]
fn later_requests_see_an_unanswered_write() {
    let looks: [fn(&World, File); 4] = [
        |world, file| assert_eq!(world.read(file), [3; 600]),
        |world, file| assert_eq!(size(world, file), 600),
        |world, _| assert_eq!(world.session.attr("file").size, 600),
        |world, file| assert_eq!(world.read(world.session.reader(file.node)), [3; 600]),
    ];
    for look in looks {
        let (world, file) = World::with_file(Writes::Held);
        assert!(world.writes_at_once(file, &[3; 600]));
        let performing = later(&world, Writes::Performed);
        look(&world, file);
        performing.join().expect("no panic");
    }
}

#[test]
fn an_opening_has_one_unanswered_write() {
    let (world, file) = World::with_file(Writes::Held);
    assert!(world.writes_at_once(file, b"first"));
    assert!(!world.writes_at_once(file, b"other"));
    world.valve.set(Writes::Performed);
    assert_eq!(world.read(file), b"other");
}

#[test]
fn few_writes_are_unanswered_at_a_time() {
    let world = World::new(Nature::default());
    let files: Vec<File> = (0..10).map(|number| world.create(&format!("file{number}"))).collect();
    world.settle();
    world.valve.set(Writes::Held);
    let at_once: Vec<bool> = files.iter().map(|file| world.writes_at_once(*file, b"data")).collect();
    assert_eq!(at_once, [true, true, true, true, true, true, true, true, false, false]);
    until("the first is being performed", || world.valve.begun() == 1);
    world.valve.set(Writes::Performed);
    files.iter().for_each(|file| flush(&world, *file).expect("closed"));
    files.iter().for_each(|file| assert_eq!(world.read(*file), b"data"));
}

#[test]
fn other_writes_are_awaited() {
    let world = World::new(Nature::default());
    let unsynced = world.create("plain");
    let how = Create { flags: OpenFlags::WRITE | OpenFlags::SYNC, ..plain() };
    let sync = world.session.file_as("sync", &how).expect("created");
    world.settle();
    world.valve.set(Writes::Held);
    let is_awaited = |file, how: Write, len| {
        let answer = world.fs.write(&root(), file, &how, Source::from(vec![1; len]));
        let is_awaited = !answer.is_done();
        world.valve.set(Writes::Performed);
        answer.wait().expect("written");
        world.settle();
        world.valve.set(Writes::Held);
        is_awaited
    };
    let whole = Write::default();
    assert!(is_awaited(sync, whole, 10));
    assert!(is_awaited(unsynced, Write { stability: Stability::DataSync, ..whole }, 10));
    assert!(is_awaited(unsynced, Write { in_place: true, ..whole }, 10));
    assert!(is_awaited(unsynced, whole, (64 << 10) + 1));
    assert!(!is_awaited(unsynced, whole, 64 << 10));
}

#[test]
fn sessions_without_all_conditions_await_every_write() {
    let old_peer = Plan { quiet: false, ..Plan::default() };
    let few_slots = Plan { slots: 16, ..Plan::default() };
    let natures = [
        Nature { writes_behind: false, ..Nature::default() },
        Nature { is_prompt: false, ..Nature::default() },
        Nature { plan: old_peer, ..Nature::default() },
        Nature { plan: few_slots, ..Nature::default() },
    ];
    for (number, nature) in natures.into_iter().enumerate() {
        let world = World::new(nature);
        let file = world.create("file");
        world.settle();
        world.valve.set(Writes::Held);
        let writing = world.fs.write(&root(), file, &Write::default(), Source::from(vec![1; 600]));
        assert!(!writing.is_done(), "{number}");
        world.valve.set(Writes::Performed);
        writing.wait().expect("written");
        flush(&world, file).expect("closed");
        let last = world.requests().pop();
        let may_save_flush = number == 3;
        assert!(may_save_flush || last == Some((Kind::Flush, false)), "{number}: {last:?}");
    }
}

#[test]
fn a_link_between_old_peers_has_no_quiet_request() {
    let world = World::new(Nature { plan: Plan { quiet: false, ..Plan::default() }, ..Nature::default() });
    let file = world.create("file");
    world.session.write(file, 0, &[1; 600]).expect("written");
    flush(&world, file).expect("closed");
    world.fs.release(&root(), file);
    world.fs.null(&root()).wait().expect("null");
    assert!(world.requests().iter().all(|(_, quiet)| !quiet));
}

#[test]
fn a_close_releases_record_locks() {
    let world = World::new(Nature::default());
    let file = world.create("file");
    let other = world.another();
    let theirs = other.writer("file");
    let locks = |session: &Session, file, owner| {
        let (family, kind, range) = (LockFamily::Posix, LockKind::Write, LockRange::ALL);
        session.locks().lock(&root(), file, &Lock { family, kind, range, owner, pid: 1 }, false).wait()
    };
    locks(&world.session, file, OWNER).expect("locked");
    assert!(world.writes_at_once(file, b"data"));
    world.settle();
    let conflict = locks(&other, theirs, LockOwner(8));
    assert!(matches!(conflict, Err(Error::WouldBlock)), "{conflict:?}");
    flush(&world, file).expect("closed");
    assert_eq!(world.requests().last(), Some(&(Kind::Flush, false)));
    locks(&other, theirs, LockOwner(8)).expect("released by the close");
}

#[test]
fn data_are_taken_before_the_call_returns() {
    let (world, file) = World::with_file(Writes::Held);
    let buffer = tombolo_mem::Buffer::new(30_000);
    buffer.sink(0..30_000).write_at(0, &[5; 30_000]);
    let how = Write { retainable: true, ..Write::default() };
    let answer = world.fs.write(&root(), file, &how, buffer.source(0..30_000));
    assert!(matches!(answer, Answer::Done(Ok(_))));
    buffer.sink(0..30_000).write_at(0, &[6; 30_000]);
    world.valve.set(Writes::Performed);
    assert_eq!(world.read(file), [5; 30_000]);
}

#[test]
fn a_session_ends_after_its_writes() {
    let (world, file) = World::with_file(Writes::Held);
    let other = world.another();
    assert!(world.writes_at_once(file, b"data"));
    let performing = later(&world, Writes::Performed);
    drop((world.fs, world.session));
    assert_eq!(other.contents("file"), b"data");
    performing.join().expect("no panic");
}

#[test]
fn an_opening_outlives_its_unanswered_write() {
    let (world, file) = World::with_file(Writes::Held);
    assert!(world.writes_at_once(file, b"data"));
    world.fs.release(&root(), file);
    world.valve.set(Writes::Performed);
    until("the opening is released", || {
        world.fs.null(&root()).wait().expect("null");
        world.record.lock().expect("no panic").iter().any(|(kind, _)| *kind == Kind::Release)
    });
    assert_eq!(world.read(world.session.reader(file.node)), b"data");
    assert!(matches!(world.fs.fsync(&root(), file, SyncScope::All).wait(), Err(Error::BadOpen)));
}
