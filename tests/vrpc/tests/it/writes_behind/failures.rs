//! Failures of writes whose callers have continued: each is reported once.

use tombolo_core::Error;
use tombolo_core::fs::{File, FileSystem, Notice, SyncScope};
use tombolo_test_support::until;
use tombolo_vrpc_tests::site::root;

use super::doubles::{World, Writes};
use super::flush;

/// Returns a world, and a file of it whose last write fails after its caller has continued.
fn failing(writes: Writes) -> (World, File) {
    let (world, file) = World::with_file(writes);
    assert!(world.writes_at_once(file, b"lost data"));
    until("the write has begun", || world.valve.begun() == 1);
    world.valve.set(Writes::Performed);
    (world, file)
}

#[test]
fn a_close_reports_the_failure_once() {
    for writes in [Writes::Refused, Writes::Short] {
        let (world, file) = failing(writes);
        let closed = flush(&world, file);
        assert!(matches!(closed, Err(Error::NoSpace)), "{writes:?}: {closed:?}");
        flush(&world, file).expect("it is reported");
        world.fs.fsync(&root(), file, SyncScope::All).wait().expect("to one only");
    }
}

#[test]
fn a_close_reports_a_failure_that_it_waits_for() {
    let (world, file) = World::with_file(Writes::Lost);
    assert!(world.writes_at_once(file, b"lost data"));
    let closing = world.fs.flush(&root(), file, super::OWNER);
    assert!(!closing.is_done());
    until("the write has begun", || world.valve.begun() == 1);
    world.valve.set(Writes::Performed);
    assert!(matches!(closing.wait(), Err(Error::Io { .. })));
    flush(&world, file).expect("it is reported");
}

#[test]
fn an_fsync_reports_the_failure_once() {
    let (world, file) = failing(Writes::Refused);
    let synced = world.fs.fsync(&root(), file, SyncScope::All).wait();
    assert!(matches!(synced, Err(Error::NoSpace)), "{synced:?}");
    world.fs.fsync(&root(), file, SyncScope::All).wait().expect("it is reported");
    flush(&world, file).expect("to one only");
}

#[test]
fn the_next_write_reports_the_failure_once() {
    let (world, file) = failing(Writes::Refused);
    world.settle();
    let written = world.session.write(file, 0, b"more");
    assert!(matches!(written, Err(Error::NoSpace)), "{written:?}");
    assert_eq!(world.session.write(file, 0, b"more").expect("it is reported"), 4);
    flush(&world, file).expect("to one only");
    assert_eq!(world.read(file), b"more");
}

#[test]
fn other_openings_report_nothing() {
    let (world, file) = failing(Writes::Refused);
    let other = world.create("file");
    flush(&world, other).expect("no failure of its own");
    assert!(matches!(flush(&world, file), Err(Error::NoSpace)));
}

#[test]
fn caches_drop_the_data_of_a_failed_write() {
    let (world, file) = World::with_file(Writes::Performed);
    let changes = world.fs.changes().expect("notices");
    let mut last = changes.next(&root(), 0, 4096).wait().expect("the first notices").last;
    world.valve.set(Writes::Refused);
    assert!(world.writes_at_once(file, b"lost data"));
    assert!(matches!(flush(&world, file), Err(Error::NoSpace)));
    let is_told =
        |notice: &Notice| matches!(notice, Notice::Data { node, start: 0, .. } if *node == file.node);
    until("the change is told", || {
        let notices = changes.next(&root(), last, 4096).wait().expect("notices");
        last = notices.last;
        notices.list.iter().any(is_told)
    });
}
