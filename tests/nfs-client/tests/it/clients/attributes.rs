//! Lifetime of cached attributes.

use std::time::{Duration, Instant};

use tombolo_core::fs::RenameFlags;
use tombolo_wire_nfs3::Procedure;

use crate::clients::pair::Pair;

#[test]
fn attributes_are_cached_until_their_timeout() {
    const TIME: Duration = Duration::from_millis(1500);
    let pair = Pair::believing(TIME);
    let node = pair.one.file_with("file", b"contents");
    let theirs = pair.two.node("file").expect("the file");
    pair.one.attr(node);
    let asked = pair.server.count_of(Procedure::Getattr);
    let begun = Instant::now();
    for _ in 0..100 {
        pair.one.attr(node);
    }
    if begun.elapsed() < TIME / 2 {
        assert!(pair.server.count_of(Procedure::Getattr) <= asked + 1, "they are asked for again and again");
    }
    pair.two.chmod(theirs, 0o600).expect("chmod");
    let changed = Instant::now();
    while pair.one.attr(node).mode.bits() != 0o600 {
        assert!(changed.elapsed() < TIME * 10, "believed for too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn without_attribute_times_a_change_is_seen_at_once() {
    let pair = Pair::noac();
    let node = pair.one.file_with("file", b"contents");
    let theirs = pair.two.lookup("file").expect("the file").node;
    for round in 0..50 {
        let mode = 0o600 | round;
        pair.two.chmod(theirs, mode).expect("chmod");
        assert_eq!(pair.one.attr(node).mode.bits(), mode);
    }
}

#[test]
fn a_client_sees_its_own_changes_at_once() {
    let pair = Pair::new();
    let world = &pair.one;
    let node = world.file_with("file", b"contents");
    for round in 0..20_u32 {
        world.chmod(node, 0o600 | round).expect("chmod");
        assert_eq!(world.attr(node).mode.bits(), 0o600 | round);
        world.truncate(node, u64::from(round)).expect("truncate");
        assert_eq!(world.attr(node).size, u64::from(round));
        let links = world.attr(node).nlink;
        world.link(node, &format!("link-{round}")).expect("link");
        assert_eq!(world.attr(node).nlink, links + 1);
        let before = world.attr(world.dir);
        world.dir(&format!("dir-{round}"));
        assert_eq!(world.attr(world.dir).nlink, before.nlink + 1);
    }
}

/// Tests also a file that was last looked up under another name than the removed one.
#[test]
fn own_unlink_updates_link_count_at_once() {
    let pair = Pair::new();
    let world = &pair.one;
    let node = world.file_with("file", b"contents");
    let other = world.file_with("other", b"");
    for name in ["a", "b", "c", "d", "e"] {
        world.link(node, name).expect("link");
    }
    assert_eq!((world.attr(node).nlink, world.attr(other).nlink), (6, 1));
    let mut links = 6;
    for name in ["file", "b", "e", "a"] {
        world.unlink(name).expect("unlink");
        links -= 1;
        assert_eq!(world.attr(node).nlink, links, "without {name}");
    }
    world.rename("other", "c", RenameFlags::empty()).expect("rename");
    assert_eq!(world.attr(node).nlink, 1);
}
