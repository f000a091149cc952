//! Tests of the node table, its names, and evictions.

use std::time::Duration;

use tombolo_core::Limits;
use tombolo_core::fs::Name;
use tombolo_wire_nfs3::{FileHandle, FileType3, NfsTime3, SpecData3, WccAttr, WccData};

use super::*;
use crate::nodes::node::DEPTH_MAX;

fn handle(number: u8) -> FileHandleBuf {
    FileHandle::new(&[number; 8]).expect("short").to_owned()
}

pub(in crate::nodes) fn fattr(fileid: u64, file_type: FileType3, seconds: u32) -> Fattr3 {
    let time = NfsTime3 { seconds, nseconds: 0 };
    Fattr3 {
        file_type,
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 0,
        used: 0,
        rdev: SpecData3 { major: 0, minor: 0 },
        fsid: 1,
        fileid,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

fn nodes(nodes_max: u64) -> Nodes {
    let root = fattr(1, FileType3::Directory, 1);
    let counts = Budget::new(Limits { nodes: nodes_max, ..Limits::default() });
    Nodes::new(handle(1), &root, Instant::now(), AttributeTimes::default(), counts)
}

fn name(text: &str) -> NameBuf {
    Name::new(text.as_bytes()).expect("a name").to_owned()
}

fn enter(nodes: &Nodes, number: u8, fileid: u64) -> Arc<Node> {
    entered(nodes, handle(number), &fattr(fileid, FileType3::Regular, 1), [Instant::now(); 2])
}

fn entered(nodes: &Nodes, handle: FileHandleBuf, fattr: &Fattr3, [asked, came]: [Instant; 2]) -> Arc<Node> {
    nodes.enter(FoundBy::LookUp(None), handle, fattr, asked, came).expect("within the budget")
}

#[test]
fn a_handle_that_names_another_file_gets_another_number() {
    let nodes = nodes(100);
    let first = enter(&nodes, 2, 10);
    assert_eq!(enter(&nodes, 2, 10).id, first.id);
    let other = enter(&nodes, 2, 11);
    assert_ne!(other.id, first.id);
    assert_eq!(nodes.node(first.id).expect("still known").fileid, 10);
    assert_eq!(enter(&nodes, 2, 11).id, other.id);
}

#[test]
fn an_open_node_is_retained_until_close() {
    let nodes = nodes(100);
    let node = enter(&nodes, 2, 10);
    node.opened();
    nodes.forget(&[(node.id, 1)]);
    assert!(Arc::ptr_eq(&enter(&nodes, 2, 10), &node));
    nodes.forget(&[(node.id, 1)]);
    node.closed();
    nodes.let_go(&node);
    assert!(nodes.node(node.id).is_err());
}

#[test]
fn node_without_lookups_is_dropped_except_the_root() {
    let nodes = nodes(2);
    let node = enter(&nodes, 2, 10);
    enter(&nodes, 2, 10);
    let (file, now) = (fattr(11, FileType3::Regular, 1), Instant::now());
    let refused = nodes.enter(FoundBy::LookUp(None), handle(3), &file, now, now);
    assert!(matches!(refused, Err(Error::NoMemory)));
    nodes.forget(&[(node.id, 1), (NodeId::ROOT, 100)]);
    assert!(nodes.node(node.id).is_ok());
    nodes.forget(&[(node.id, 7)]);
    assert!(matches!(nodes.node(node.id), Err(Error::Stale)));
    assert!(nodes.node(NodeId::ROOT).is_ok());
    enter(&nodes, 3, 11);
}

#[test]
fn name_is_cached_until_others_change_its_directory() {
    let nodes = nodes(100);
    let (root, node) = (nodes.root().clone(), enter(&nodes, 2, 10));
    nodes.record(&node, &root, &name("a"), root.epoch());
    nodes.record_absent(&root, &name("b"), root.epoch());
    assert!(matches!(nodes.cached(&root, &name("a")), Some(CachedName::Node(found)) if found.id == node.id));
    assert!(matches!(nodes.cached(&root, &name("b")), Some(CachedName::Nothing)));
    // Own change, with no concurrent one.
    let before = fattr(1, FileType3::Directory, 1);
    let own = WccData {
        before: Some(WccAttr { size: before.size, mtime: before.mtime, ctime: before.ctime }),
        after: Some(fattr(1, FileType3::Directory, 2)),
    };
    root.learn_change(&own, Instant::now(), Instant::now());
    assert!(nodes.cached(&root, &name("a")).is_some());
    // The same reply again: its `before` is not the last known state.
    let foreign = WccData { after: Some(fattr(1, FileType3::Directory, 3)), ..own };
    root.learn_change(&foreign, Instant::now(), Instant::now());
    assert!(nodes.cached(&root, &name("a")).is_none() && nodes.cached(&root, &name("b")).is_none());
    assert!(nodes.at(root.id, &name("a")).is_some(), "where it was last seen is known still");
}

#[test]
fn evicted_node_ignores_replies_older_than_its_change() {
    let (nodes, start) = (nodes(100), Instant::now());
    let at = |millis| start + Duration::from_millis(millis);
    let file = fattr(10, FileType3::Regular, 1);
    let enter = |asked, came| entered(&nodes, handle(2), &file, [at(asked), at(came)]);
    let node = enter(0, 1);
    let longer = WccData { before: None, after: Some(Fattr3 { size: 7, ..file }) };
    // WRITE concurrent with a listing that was requested before and answered after it.
    node.changing();
    node.learn_change(&longer, at(3), at(4));
    nodes.forget(&[(node.id, 1)]);
    let node = enter(2, 5);
    assert!(node.is_expired(), "of 0 bytes");
    nodes.forget(&[(node.id, 1)]);
    assert!(!enter(6, 7).is_expired(), "asked for after all that is known");
}

#[test]
fn nlink_zero_needs_the_last_name_removed_here() {
    let (nodes, start) = (nodes(100), Instant::now());
    let at = |millis| start + Duration::from_millis(millis);
    let file = Fattr3 { nlink: 3, ..fattr(10, FileType3::Regular, 1) };
    let node = entered(&nodes, handle(2), &file, [at(0), at(1)]);
    assert!(node.attr_after_own_removal().is_none(), "removed by others");
    // Cached under the name, and found by a look-up.
    nodes.lost_a_name([&node, &node], at(2));
    assert!(node.attr_after_own_removal().is_none(), "others may have replaced the other names");
    assert!(node.learn(&Fattr3 { nlink: 2, ..file }, at(3), at(4)));
    nodes.lost_a_name([&node], at(5));
    assert!(node.attr_after_own_removal().is_none(), "one is left");
    nodes.lost_a_name([&node], at(6));
    assert_eq!(node.attr_after_own_removal().map(|attr| attr.nlink), Some(0));
    assert!(node.learn(&Fattr3 { nlink: 1, ..file }, at(7), at(8)));
    assert!(node.attr_after_own_removal().is_none(), "another client gave it a name");
    let dir = Fattr3 { nlink: 5, ..fattr(11, FileType3::Directory, 1) };
    let dir = entered(&nodes, handle(3), &dir, [at(0), at(1)]);
    dir.lost_a_name(at(2));
    assert_eq!(dir.attr_after_own_removal().map(|attr| attr.nlink), Some(0));
}

#[test]
fn listings_add_nodes_up_to_a_bound() {
    let nodes = nodes(3 * LISTED_ONE_IN);
    let (root, now) = (nodes.root().clone(), Instant::now());
    let listed = |number: u8| {
        let file = fattr(number.into(), FileType3::Regular, 1);
        let node = nodes.enter(FoundBy::Listing, handle(number), &file, now, now).expect("within the budget");
        nodes.record(&node, &root, &name(&number.to_string()), root.epoch());
        node
    };
    (50..90).for_each(|number| drop(enter(&nodes, number, number.into())));
    assert!(nodes.takes_listed(), "what was looked up does not count");
    let first = listed(2);
    (3..5).for_each(|number| drop(listed(number)));
    listed(50);
    assert!(!nodes.takes_listed());
    assert!(nodes.cached(&root, &name("3")).is_some());
    assert!(nodes.takes_listed(), "one was looked up");
    listed(6);
    assert!(!nodes.takes_listed());
    nodes.forget(&[(first.id, 1)]);
    assert!(nodes.takes_listed(), "one is forgotten");
    (90..96).for_each(|number| drop(enter(&nodes, number, number.into())));
    assert!(!nodes.takes_listed(), "half of all");
}

#[test]
fn cyclic_directories_are_freed() {
    let nodes = nodes(100);
    let dir = |number| {
        let fattr = fattr(number, FileType3::Directory, 1);
        entered(&nodes, handle(number as u8), &fattr, [Instant::now(); 2])
    };
    let dirs = [dir(2), dir(3), dir(4)];
    for (inner, outer) in [(1, 0), (2, 1), (0, 2), (1, 1), (2, 0), (0, 1)] {
        nodes.record(&dirs[inner], &dirs[outer], &name("again"), dirs[outer].epoch());
    }
    let seen: Vec<_> = dirs.iter().map(Arc::downgrade).collect();
    dirs.iter().for_each(|dir| nodes.forget(&[(dir.id, 1)]));
    drop(dirs);
    assert!(seen.iter().all(|dir| dir.strong_count() == 0), "they keep each other");
    assert!(lock(&nodes.table).by_name.is_empty());
}

#[test]
fn an_endless_tree_retains_one_path() {
    let nodes = nodes(100);
    let (mut seen, mut above) = (Vec::new(), nodes.root().clone());
    for number in 0..2 * DEPTH_MAX as u64 + 100 {
        let fattr = fattr(number + 2, FileType3::Directory, 1);
        let handle = FileHandle::new(&(number + 2).to_be_bytes()).expect("short").to_owned();
        let below = entered(&nodes, handle, &fattr, [Instant::now(); 2]);
        nodes.record(&below, &above, &name("deeper"), above.epoch());
        nodes.forget(&[(above.id, 1)]);
        seen.push(Arc::downgrade(&below));
        above = below;
    }
    let kept = seen.iter().filter(|node| node.strong_count() > 0).count();
    assert!(kept <= DEPTH_MAX, "{kept} directories for one");
}

#[test]
fn moved_node_loses_its_old_name() {
    let nodes = nodes(100);
    let (root, node) = (nodes.root().clone(), enter(&nodes, 2, 10));
    nodes.record(&node, &root, &name("a"), root.epoch());
    nodes.record(&node, &root, &name("b"), root.epoch());
    assert!(nodes.at(root.id, &name("a")).is_none());
    assert_eq!(nodes.removed(root.id, &name("b")).map(|node| node.id), Some(node.id));
    assert!(node.location().is_none() && nodes.at(root.id, &name("b")).is_none());
}
