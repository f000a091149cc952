//! Links that are lost while a write is unanswered.

use tombolo_back_vrpc_client::LinkLossPolicy;
use tombolo_core::Error;
use tombolo_core::fs::{File, FileSystem, SyncScope};
use tombolo_test_support::until;
use tombolo_vrpc_tests::site::root;

use super::doubles::{Nature, World, Writes};
use super::{OWNER, flush, size};

/// Writes data that the server does not perform before its link is cut; `then` is done with it.
fn lose(world: &World, file: File, bytes: &[u8], then: Writes) {
    world.settle();
    let begun = world.valve.begun();
    world.valve.set(Writes::Lost);
    assert!(world.writes_at_once(file, bytes));
    until("the write has begun", || world.valve.begun() > begun);
    world.site.cut();
    world.valve.set(then);
}

#[test]
fn the_next_link_has_the_unanswered_write() {
    for len in [5, 600, 5000, 64 << 10] {
        let world = World::new(Nature::default());
        let file = world.create("file");
        lose(&world, file, &vec![9; len], Writes::Performed);
        assert_eq!(size(&world, file), len as u64);
        assert_eq!(world.read(file), vec![9; len]);
        flush(&world, file).expect("closed");
        assert_eq!(world.fs.link_number(), 2);
    }
}

#[test]
fn repeated_write_does_not_overtake_a_later_one() {
    let world = World::new(Nature::default());
    let file = world.create("file");
    lose(&world, file, b"first", Writes::Performed);
    for file in [file, world.session.writer(file.node)] {
        assert_eq!(world.session.write(file, 0, b"other").expect("written"), 5);
        flush(&world, file).expect("closed");
    }
    assert_eq!(world.read(file), b"other");
}

#[test]
fn pending_requests_of_the_lost_link_see_the_write() {
    let (world, file) = World::with_file(Writes::Lost);
    assert!(world.writes_at_once(file, b"data"));
    let closing = world.fs.flush(&root(), file, OWNER);
    let looking = world.fs.getattr(&root(), file.node, Some(file));
    assert!(!closing.is_done() && !looking.is_done());
    until("the write has begun", || world.valve.begun() == 1);
    world.site.cut();
    world.valve.set(Writes::Performed);
    closing.wait().expect("closed");
    assert_eq!(looking.wait().expect("attributes").size, 4);
    assert_eq!(world.read(file), b"data");
}

#[test]
fn an_answered_write_is_not_repeated() {
    let world = World::new(Nature::default());
    let (file, other) = (world.create("file"), world.another());
    world.settle();
    let answers = world.site.answers();
    assert!(world.writes_at_once(file, b"first"));
    until("the write is answered", || world.site.answers() > answers);
    // Its reply is in the ring, and no thread has taken it out.
    let there = other.writer("file");
    other.write(there, 0, b"other").expect("written");
    other.fs.flush(&root(), there, OWNER).wait().expect("closed");
    world.site.cut();
    assert_eq!(world.read(file), b"other");
    assert_eq!(world.valve.begun(), 2);
}

#[test]
fn a_repeated_write_may_fail() {
    let world = World::new(Nature::default());
    let file = world.create("file");
    lose(&world, file, b"data", Writes::Refused);
    let synced = world.fs.fsync(&root(), file, SyncScope::All).wait();
    assert!(matches!(synced, Err(Error::NoSpace)), "{synced:?}");
    flush(&world, file).expect("it is reported");
}

#[test]
fn without_another_link_the_close_fails() {
    let world = World::new(Nature { link_loss_policy: LinkLossPolicy::None, ..Nature::default() });
    let file = world.create("file");
    lose(&world, file, b"data", Writes::Performed);
    let closed = flush(&world, file);
    assert!(matches!(closed, Err(Error::Disconnected)), "{closed:?}");
}
