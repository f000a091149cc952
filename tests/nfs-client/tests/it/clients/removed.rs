//! Open files whose last name is removed (silly rename).

use tombolo_core::Error;
use tombolo_core::fs::{OpenFlags, RenameFlags, SyncScope};
use tombolo_nfs_client_tests::server::ScriptedReply;
use tombolo_test_support::until;
use tombolo_wire_nfs3::results::RemoveReply;
use tombolo_wire_nfs3::{Procedure, Status, WccData};

use crate::clients::pair::{Pair, close};

fn silly(names: &[String]) -> Vec<&String> {
    names.iter().filter(|name| name.starts_with(".nfs")).collect()
}

#[test]
fn removed_open_file_works_until_last_close() {
    let pair = Pair::noac();
    let world = &pair.one;
    let file = world.file("file");
    world.write_all(file, 0, b"before");
    let second = world.open(file.node, OpenFlags::READ).expect("open");
    world.unlink("file").expect("unlink");

    assert!(!world.exists("file"));
    assert!(!pair.two.exists("file"), "to others it is gone as well");
    assert_eq!(silly(&pair.two.names(pair.two.dir)).len(), 1, "but for what its data live under");
    assert_eq!(world.read_all(file, 0, 100), b"before");
    world.write_all(file, 6, b" and after");
    world.fs.fsync(&world.cx, file, SyncScope::All).wait().expect("synced");
    assert_eq!(world.read_all(second, 0, 100), b"before and after");
    assert_eq!(world.open_attr(file).size, 16);

    close(world, file).expect("closed");
    assert_eq!(world.read_all(second, 0, 100), b"before and after", "it is open still");
    close(world, second).expect("closed");
    gone(&pair);
}

/// Requests attributes without an open file, as a holder of an `O_PATH` descriptor.
#[test]
fn attributes_of_a_removed_file_reach_its_openers() {
    let pair = Pair::noac();
    let world = &pair.one;
    let node = world.file_with("file", b"contents");
    let before = world.attr(node);
    world.unlink("file").expect("unlink");
    let after = world.attr(node);
    assert_eq!((after.nlink, after.size, after.mode), (0, 8, before.mode));
    let dir = world.dir("dir");
    world.rmdir("dir").expect("rmdir");
    assert_eq!(world.attr(dir).nlink, 0);

    // Another client's removal leaves no attributes to return.
    let theirs = world.file_with("theirs", b"contents");
    pair.two.lookup("theirs").expect("the file");
    pair.two.unlink("theirs").expect("unlink");
    let gone = world.fs.getattr(&world.cx, theirs, None).wait();
    assert!(matches!(gone, Err(Error::Stale)), "{gone:?}");
}

/// Waits until the silly name is gone: the last close removes it in the background.
#[track_caller]
fn gone(pair: &Pair) {
    until("the silly name is gone", || silly(&pair.two.names(pair.two.dir)).is_empty());
}

#[test]
fn replaced_open_file_remains_readable() {
    let pair = Pair::noac();
    let world = &pair.one;
    let old = world.file("file");
    world.write_all(old, 0, b"old");
    world.file_with("new", b"new");
    world.rename("new", "file", RenameFlags::empty()).expect("rename");
    assert_eq!(world.read_all(old, 0, 10), b"old");
    assert_eq!(world.contents("file"), b"new");
    close(world, old).expect("closed");
    gone(&pair);
    assert_eq!(pair.two.names(pair.two.dir), ["file"]);
}

#[test]
fn closed_file_is_removed_at_once() {
    let pair = Pair::noac();
    let world = &pair.one;
    world.file_with("file", b"contents");
    world.unlink("file").expect("unlink");
    assert!(pair.two.names(pair.two.dir).is_empty());
}

#[test]
fn removing_one_of_two_links_is_immediate() {
    let pair = Pair::noac();
    let world = &pair.one;
    let file = world.file("file");
    world.write_all(file, 0, b"contents");
    world.link(file.node, "link").expect("link");
    world.unlink("file").expect("unlink");
    assert_eq!(world.read_all(file, 0, 100), b"contents");
    close(world, file).expect("closed");
    gone(&pair);
    assert_eq!(pair.two.contents("link"), b"contents");
}

#[test]
fn last_name_is_recognized_after_foreign_removals() {
    let pair = Pair::new();
    let world = &pair.one;
    let file = world.file("file");
    world.write_all(file, 0, b"contents");
    world.fs.fsync(&world.cx, file, SyncScope::All).wait().expect("synced");
    world.link(file.node, "link").expect("link");
    assert_eq!(world.open_attr(file).nlink, 2);
    pair.two.unlink("link").expect("unlink");
    world.unlink("file").expect("unlink");
    assert_eq!(world.read_all(file, 0, 100), b"contents");
    assert_eq!(pair.two.names(pair.two.dir).len(), 1, "what its data live under");
    close(world, file).expect("closed");
    gone(&pair);
}

#[test]
fn rmdir_succeeds_after_close_of_removed_file() {
    let pair = Pair::noac();
    let world = &pair.one;
    let dir = world.dir("dir");
    let file = world.file((dir, "file"));
    world.unlink((dir, "file")).expect("unlink");
    // The removal of the silly name is slow: the server answers JUKEBOX first.
    pair.server.on(Procedure::Remove, |asked| match asked.nth {
        1 => asked.results(&RemoveReply::Failed(Status::Jukebox, WccData::NONE)),
        _ => ScriptedReply::Forward,
    });
    close(world, file).expect("closed");
    world.rmdir("dir").expect("it is empty");
    assert_eq!(pair.server.count_of(Procedure::Rmdir), 1);
}
