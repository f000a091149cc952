//! Writes whose callers continue before the reply: what they save, what others see, and how they fail.

mod doubles;
mod failures;
mod model;
mod relinked;

use std::thread;
use std::time::Duration;

use tombolo_core::fs::{
    Attr, File, FileSystem, Lock, LockFamily, LockKind, LockOwner, LockRange, NodeId, OpenFlags, SyncScope,
    Write,
};
use tombolo_core::{Answer, Error, Stability};
use tombolo_mem::Source;
use tombolo_test_support::{name, until};
use tombolo_vrpc_tests::site::{Plan, root};
use tombolo_wire_vrpc::Kind;

use doubles::{Nature, World, Writes, create, read};

const OWNER: LockOwner = LockOwner(7);

fn flush(world: &World, file: File) -> Result<(), Error> {
    world.fs.flush(&root(), file, OWNER).wait()
}

fn size(world: &World, file: File) -> u64 {
    let Attr { size, .. } = world.fs.getattr(&root(), file.node, None).wait().expect("attributes");
    size
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
    let world = World::new(Nature::default());
    let file = world.create("file");
    world.settle();
    world.valve.set(Writes::Held);
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
        |world, _| {
            let entry = world.fs.lookup(&root(), NodeId::ROOT, name("file")).wait().expect("an entry");
            assert_eq!(entry.attr.size, 600);
        },
        |world, file| {
            let open = world.fs.open(&root(), file.node, OpenFlags::READ).wait().expect("opened").open;
            assert_eq!(world.read(File { open, ..file }), [3; 600]);
        },
    ];
    for look in looks {
        let world = World::new(Nature::default());
        let file = world.create("file");
        world.valve.set(Writes::Held);
        assert!(world.writes_at_once(file, &[3; 600]));
        let performing = later(&world, Writes::Performed);
        look(&world, file);
        performing.join().expect("no panic");
    }
}

#[test]
fn an_opening_has_one_unanswered_write() {
    let world = World::new(Nature::default());
    let file = world.create("file");
    world.settle();
    world.valve.set(Writes::Held);
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
    let plain = world.create("plain");
    let sync = create(&world.fs, "sync", OpenFlags::WRITE | OpenFlags::SYNC);
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
    assert!(is_awaited(plain, Write { stability: Stability::DataSync, ..whole }, 10));
    assert!(is_awaited(plain, Write { in_place: true, ..whole }, 10));
    assert!(is_awaited(plain, whole, (64 << 10) + 1));
    assert!(!is_awaited(plain, whole, 64 << 10));
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
    world.fs.write(&root(), file, &Write::default(), Source::from(vec![1; 600])).wait().expect("written");
    flush(&world, file).expect("closed");
    world.fs.release(&root(), file);
    world.fs.null(&root()).wait().expect("null");
    assert!(world.requests().iter().all(|(_, quiet)| !quiet));
}

fn lock() -> Lock {
    Lock {
        family: LockFamily::Posix,
        kind: LockKind::Write,
        range: LockRange { start: 0, last: u64::MAX },
        owner: OWNER,
        pid: 1,
    }
}

#[test]
fn a_close_releases_record_locks() {
    let world = World::new(Nature::default());
    let file = world.create("file");
    let other = world.another();
    let node = other.lookup(&root(), NodeId::ROOT, name("file")).wait().expect("an entry").node;
    let open = other.open(&root(), node, OpenFlags::READ | OpenFlags::WRITE).wait().expect("opened").open;
    let locks = |fs: &tombolo_back_vrpc_client::VrpcFileSystem, file, owner| {
        fs.locks().expect("locks").lock(&root(), file, &Lock { owner, ..lock() }, false).wait()
    };
    locks(&world.fs, file, OWNER).expect("locked");
    assert!(world.writes_at_once(file, b"data"));
    world.settle();
    let conflict = locks(&other, File { node, open }, LockOwner(8));
    assert!(matches!(conflict, Err(Error::WouldBlock)), "{conflict:?}");
    flush(&world, file).expect("closed");
    assert_eq!(world.requests().last(), Some(&(Kind::Flush, false)));
    locks(&other, File { node, open }, LockOwner(8)).expect("released by the close");
}

#[test]
fn data_are_taken_before_the_call_returns() {
    let world = World::new(Nature::default());
    let file = world.create("file");
    world.valve.set(Writes::Held);
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
    let world = World::new(Nature::default());
    let (file, other) = (world.create("file"), world.another());
    world.settle();
    world.valve.set(Writes::Held);
    assert!(world.writes_at_once(file, b"data"));
    let performing = later(&world, Writes::Performed);
    drop(world.fs);
    let node = other.lookup(&root(), NodeId::ROOT, name("file")).wait().expect("an entry").node;
    let open = other.open(&root(), node, OpenFlags::READ).wait().expect("opened").open;
    assert_eq!(read(&other, File { node, open }), b"data");
    performing.join().expect("no panic");
}

#[test]
fn an_opening_outlives_its_unanswered_write() {
    let world = World::new(Nature::default());
    let file = world.create("file");
    world.settle();
    world.valve.set(Writes::Held);
    assert!(world.writes_at_once(file, b"data"));
    world.fs.release(&root(), file);
    world.valve.set(Writes::Performed);
    until("the opening is released", || {
        world.fs.null(&root()).wait().expect("null");
        world.record.lock().expect("no panic").iter().any(|(kind, _)| *kind == Kind::Release)
    });
    let again = world.fs.open(&root(), file.node, OpenFlags::READ).wait().expect("opened").open;
    assert_eq!(world.read(File { open: again, ..file }), b"data");
    assert!(matches!(world.fs.fsync(&root(), file, SyncScope::All).wait(), Err(Error::BadOpen)));
}
