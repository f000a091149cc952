//! Names created, removed and moved by other clients.

use std::time::{Duration, Instant};

use tombolo_conformance::waist::World;
use tombolo_core::fs::{Name, NodeId, RenameFlags};
use tombolo_core::{Ctx, Error, Result};

use crate::clients::pair::{Pair, close};

const TIME: Duration = Duration::from_millis(500);

/// Asserts that the condition soon holds: the attributes expire meanwhile, even on a busy machine.
#[track_caller]
fn holds_in_time(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < TIME * 20, "not seen in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn foreign_name_appears_after_attribute_timeout() {
    let pair = Pair::believing(TIME);
    assert!(!pair.one.exists("new"));
    pair.two.file_with("new", b"");
    holds_in_time(|| pair.one.exists("new"));
    holds_in_time(|| pair.one.names(pair.one.dir) == ["new"]);
}

#[test]
fn foreign_removal_shows_after_attribute_timeout() {
    let pair = Pair::believing(TIME);
    pair.one.file_with("old", b"");
    assert!(pair.two.exists("old"));
    pair.one.unlink("old").expect("unlink");
    holds_in_time(|| !pair.two.exists("old"));
    assert!(pair.two.names(pair.two.dir).is_empty());
}

#[test]
fn foreign_rename_shows_after_attribute_timeout() {
    let pair = Pair::believing(TIME);
    pair.one.file_with("name", b"the first");
    pair.one.file_with("other", b"the second");
    assert!(pair.two.exists("name"));
    pair.one.rename("other", "name", RenameFlags::empty()).expect("rename");
    let moved = || pair.two.get(pair.two.node("name").expect("a file is always there"));
    // The first file is removed on the server. Upon ESTALE a kernel repeats the look-up and opens the second.
    let seen = match moved() {
        Err(Error::Stale) => moved(),
        seen => seen,
    };
    assert_eq!(seen.expect("a file is always there"), b"the second");
    holds_in_time(|| !pair.two.exists("other"));
}

#[test]
fn hard_links_are_one_node() {
    let pair = Pair::believing(TIME);
    let node = pair.one.file_with("first", b"contents");
    let made = pair.one.link(node, "second").expect("link");
    assert_eq!((made.entry.node, made.entry.attr.nlink), (node, 2));
    assert_eq!(pair.one.lookup("second").expect("lookup").node, node);
    let theirs = ["first", "second"].map(|text| pair.two.lookup(text).expect("lookup"));
    assert_eq!(theirs[0].node, theirs[1].node);
    assert_eq!((theirs[0].attr.nlink, theirs[0].attr.fileid), (2, made.entry.attr.fileid));
    pair.one.unlink("first").expect("unlink");
    assert_eq!(pair.one.contents(node), b"contents");
    assert_eq!(pair.one.attr(node).nlink, 1);
}

/// Each look-up is counted once, so the node is gone after as many are forgotten.
#[test]
fn fetched_lookup_is_counted_once() {
    let pair = Pair::new();
    let world = &pair.one;
    let node = world.file_with("file", b"contents");
    world.fs.forget(&world.cx, &[(node, u64::MAX)]);
    let known = world.lookup("file").expect("lookup").node;
    let fetching = Ctx { fetched_since: Some(Instant::now()), ..world.cx.clone() };
    let name = Name::new(b"file").expect("a name");
    let fetched = world.fs.lookup(&fetching, world.dir, name).wait().expect("lookup");
    assert_eq!(fetched.node, known);
    world.fs.forget(&world.cx, &[(known, 2)]);
    let gone = world.fs.getattr(&world.cx, known, None).wait();
    assert!(matches!(gone, Err(Error::Stale)), "{gone:?}");
}

/// Nested directories, with a file in each.
const LEVELS: [&str; 3] = ["a", "b", "c"];

fn make(world: &World, text: &str) {
    let mut dir = world.dir;
    for level in LEVELS {
        dir = world.dir((dir, level));
        let file = world.file((dir, "file"));
        world.write_all(file, 0, text.as_bytes());
        close(world, file).expect("written");
    }
}

fn remove(world: &World) {
    let dirs = walk(world).expect("there");
    for (level, dir) in LEVELS.into_iter().zip(dirs.windows(2)).rev() {
        world.unlink((dir[1], "file")).expect("unlink");
        world.rmdir((dir[0], level)).expect("rmdir");
    }
}

/// Looks up each directory of the path from the top.
fn walk(world: &World) -> Result<Vec<NodeId>> {
    let mut dirs = vec![world.dir];
    for level in LEVELS {
        dirs.push(world.lookup((*dirs.last().expect("one"), level))?.node);
    }
    Ok(dirs)
}

fn read(world: &World, dir: NodeId) -> Result<Vec<u8>> {
    world.get((dir, "file"))
}

fn is_new(read: Result<Vec<u8>>) -> Result<()> {
    read.map(|text| assert_eq!(text, b"new"))
}

type Use = fn(&World, &[NodeId]) -> Result<()>;

/// Repeats a look-up name by name, as kernels do upon ESTALE; every component must then be current.
#[test]
fn path_recreated_by_another_client_resolves_again() {
    let uses: [(&str, Use); 7] = [
        ("read a/file", |world, dirs| is_new(read(world, dirs[1]))),
        ("read a/b/file", |world, dirs| is_new(read(world, dirs[2]))),
        ("read a/b/c/file", |world, dirs| is_new(read(world, dirs[3]))),
        ("mkdir a/b/new", |world, dirs| world.mkdir((dirs[2], "new")).map(drop)),
        ("unlink a/b/file", |world, dirs| world.unlink((dirs[2], "file")).map(drop)),
        ("rename a/b/file", |world, dirs| {
            world.rename((dirs[2], "file"), (dirs[3], "moved"), RenameFlags::empty()).map(drop)
        }),
        ("chmod a/b/file", |world, dirs| world.chmod((dirs[2], "file"), 0o600).map(drop)),
    ];
    for (text, used) in uses {
        let pair = Pair::believing(Duration::from_secs(3600));
        make(&pair.one, "old");
        let know = || {
            let known = walk(&pair.two).expect("there");
            known[1..].iter().for_each(|dir| assert_eq!(read(&pair.two, *dir).expect("there"), b"old"));
            known
        };
        // The first walk caches nothing, since the directories have just changed.
        know();
        let known = know();
        remove(&pair.one);
        make(&pair.one, "new");
        match used(&pair.two, &known) {
            Err(Error::Stale) => {}
            other => panic!("{text}: {other:?} in directories that are gone"),
        }
        let again = walk(&pair.two).and_then(|dirs| used(&pair.two, &dirs));
        assert!(again.is_ok(), "{text}: {again:?}");
    }
}
