//! Names that others make, remove and move.

use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_core::fs::RenameFlags;

use crate::clients::pair::{Pair, contents};

const TIME: Duration = Duration::from_millis(500);

/// Fails unless it holds within the attribute time, and some.
#[track_caller]
fn holds_in_time(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < TIME * 3, "not seen in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_name_made_by_another_client_appears_after_the_attribute_timeout() {
    let pair = Pair::believing(TIME);
    assert!(!pair.one.exists("new"));
    pair.two.file_with("new", b"");
    holds_in_time(|| pair.one.exists("new"));
    holds_in_time(|| pair.one.names(pair.one.dir) == ["new"]);
}

#[test]
fn a_name_removed_by_another_client_goes_after_the_attribute_timeout() {
    let pair = Pair::believing(TIME);
    pair.one.file_with("old", b"");
    assert!(pair.two.exists("old"));
    pair.one.unlink("old").expect("unlink");
    holds_in_time(|| !pair.two.exists("old"));
    assert!(pair.two.names(pair.two.dir).is_empty());
}

#[test]
fn a_name_moved_by_another_client_changes_after_the_attribute_timeout() {
    let pair = Pair::believing(TIME);
    pair.one.file_with("name", b"the first");
    pair.one.file_with("other", b"the second");
    assert!(pair.two.exists("name"));
    pair.one.rename("other", "name", RenameFlags::empty()).expect("rename");
    let moved = || {
        let node = pair.two.lookup(pair.two.dir, "name").expect("a file is always there").node;
        contents(&pair.two, node)
    };
    // The first is gone at the server. An open that finds this out looks the name up again, as kernels do, and gets the second.
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
    let made = pair.one.link(node, pair.one.dir, "second").expect("link");
    assert_eq!((made.entry.node, made.entry.attr.nlink), (node, 2));
    assert_eq!(pair.one.lookup(pair.one.dir, "second").expect("lookup").node, node);
    let theirs = ["first", "second"].map(|text| pair.two.lookup(pair.two.dir, text).expect("lookup"));
    assert_eq!(theirs[0].node, theirs[1].node);
    assert_eq!((theirs[0].attr.nlink, theirs[0].attr.fileid), (2, made.entry.attr.fileid));
    pair.one.unlink("first").expect("unlink");
    assert_eq!(pair.one.contents(node), b"contents");
    assert_eq!(pair.one.attr(node).nlink, 1);
}
