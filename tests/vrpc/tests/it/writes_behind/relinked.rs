//! Links that are lost while a write is unanswered.

use tombolo_back_vrpc_client::LinkLossPolicy;
use tombolo_core::Error;
use tombolo_core::fs::{File, FileSystem, OpenFlags, SyncScope, Write};
use tombolo_mem::Source;
use tombolo_test_support::until;
use tombolo_vrpc_tests::site::root;

use super::doubles::{Nature, World, Writes};
use super::{OWNER, flush, size};

/// Writes data that the server does not perform before its link is cut.
fn lose(world: &World, file: File, bytes: &[u8]) {
    world.settle();
    let begun = world.valve.begun();
    world.valve.set(Writes::Lost);
    assert!(world.writes_at_once(file, bytes));
    until("the write has begun", || world.valve.begun() > begun);
    world.site.cut();
    world.valve.set(Writes::Performed);
}

#[test]
fn the_next_link_has_the_unanswered_write() {
    for len in [5, 600, 5000, 64 << 10] {
        let world = World::new(Nature::default());
        let file = world.create("file");
        lose(&world, file, &vec![9; len]);
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
    lose(&world, file, b"first");
    let other = File {
        open: world.fs.open(&root(), file.node, OpenFlags::WRITE).wait().expect("opened").open,
        ..file
    };
    for file in [file, other] {
        let answer = world.fs.write(&root(), file, &Write::default(), Source::from(b"other".to_vec()));
        assert_eq!(answer.wait().expect("written").count, 5);
        flush(&world, file).expect("closed");
    }
    assert_eq!(world.read(file), b"other");
}

#[test]
fn pending_requests_of_the_lost_link_see_the_write() {
    let world = World::new(Nature::default());
    let file = world.create("file");
    world.settle();
    world.valve.set(Writes::Lost);
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
    let name = super::name("file");
    let node = other.lookup(&root(), tombolo_core::fs::NodeId::ROOT, name).wait().expect("an entry").node;
    let open = other.open(&root(), node, OpenFlags::WRITE).wait().expect("opened").open;
    let there = File { node, open };
    other.write(&root(), there, &Write::default(), Source::from(b"other".to_vec())).wait().expect("written");
    other.flush(&root(), there, OWNER).wait().expect("closed");
    world.site.cut();
    assert_eq!(world.read(file), b"other");
    assert_eq!(world.valve.begun(), 2);
}

#[test]
fn a_repeated_write_may_fail() {
    let world = World::new(Nature::default());
    let file = world.create("file");
    world.settle();
    world.valve.set(Writes::Lost);
    assert!(world.writes_at_once(file, b"data"));
    until("the write has begun", || world.valve.begun() == 1);
    world.site.cut();
    world.valve.set(Writes::Refused);
    let synced = world.fs.fsync(&root(), file, SyncScope::All).wait();
    assert!(matches!(synced, Err(Error::NoSpace)), "{synced:?}");
    flush(&world, file).expect("it is reported");
}

#[test]
fn without_another_link_the_close_fails() {
    let world = World::new(Nature { link_loss_policy: LinkLossPolicy::None, ..Nature::default() });
    let file = world.create("file");
    world.settle();
    world.valve.set(Writes::Lost);
    assert!(world.writes_at_once(file, b"data"));
    until("the write has begun", || world.valve.begun() == 1);
    world.site.cut();
    world.valve.set(Writes::Performed);
    let closed = flush(&world, file);
    assert!(matches!(closed, Err(Error::Disconnected)), "{closed:?}");
}
