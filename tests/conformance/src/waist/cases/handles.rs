//! Persistent handles.

use tombolo_core::Error;
use tombolo_core::fs::{NodeId, PersistentHandle, RenameFlags};

use super::cases;
use crate::refused;
use crate::waist::World;

cases! { "handles":
    a_handle_finds_its_node needs HANDLES,
    a_handle_is_good_in_another_session needs HANDLES,
    a_handle_follows_a_rename needs HANDLES,
    a_removed_node_is_stale needs HANDLES,
    a_handle_that_never_was_is_stale needs HANDLES,
    a_directory_knows_the_one_that_it_lies_in needs HANDLES,
    a_number_leads_again_to_its_node_or_nowhere needs HANDLES,
}

fn a_handle_finds_its_node(w: &World) {
    let (file, dir) = (w.file_with("file", b"found"), w.dir("dir"));
    for node in [file, dir, w.dir] {
        let (handle, fileid) = (w.handle_of(node).expect("a handle"), w.attr(node).fileid);
        assert!(!handle.bytes.is_empty() && handle.bytes.len() <= 128);
        let found = w.resolve(&handle).expect("resolve");
        assert_eq!((found.attr.fileid, found.node), (fileid, node));
    }
    let kept = w.handle_of(file).expect("a handle");
    w.fs.forget(&w.cx, &[(file, u64::MAX)]);
    let found = w.resolve(&kept).expect("resolve");
    assert_eq!(w.contents(found.node), b"found");
}

fn a_handle_is_good_in_another_session(w: &World) {
    let handle = w.handle_of(w.file_with("file", b"shared")).expect("a handle");
    let other = w.other_session();
    let found = other.resolve(&handle).expect("resolve");
    assert_eq!(other.contents(found.node), b"shared");
    assert_eq!(other.handles().volume(), w.handles().volume());
}

fn a_handle_follows_a_rename(w: &World) {
    let node = w.file_with("file", b"moved");
    let before = w.handle_of(node).expect("a handle");
    let dir = w.dir("dir");
    w.rename("file", (dir, "else"), RenameFlags::empty()).expect("rename");
    let found = w.resolve(&before).expect("resolve");
    assert_eq!(w.contents(found.node), b"moved");
}

fn a_removed_node_is_stale(w: &World) {
    let node = w.file_with("file", b"");
    let handle = w.handle_of(node).expect("a handle");
    w.unlink("file").expect("unlink");
    w.fs.forget(&w.cx, &[(node, u64::MAX)]);
    refused!(w.resolve(&handle), Error::Stale);
    w.file_with("file", b"another");
    refused!(w.resolve(&handle), Error::Stale);
}

fn a_number_leads_again_to_its_node_or_nowhere(w: &World) {
    let again = |node| w.handles().node_by_number(&w.cx, node).wait();
    let (kept, gone) = (w.file_with("kept", b"kept"), w.file_with("gone", b"gone"));
    let fileid = w.attr(kept).fileid;
    for _ in 0..2 {
        w.fs.forget(&w.cx, &[(kept, u64::MAX)]);
        match again(kept) {
            Ok(found) => {
                assert_eq!((found.node, found.attr.fileid), (kept, fileid));
                assert_eq!(w.contents(kept), b"kept");
            }
            refused => refused!(refused, Error::Stale),
        }
    }
    w.fs.forget(&w.cx, &[(gone, u64::MAX)]);
    w.unlink("gone").expect("unlink");
    w.file_with("gone", b"another");
    refused!(again(gone), Error::Stale);
    refused!(again(NodeId(0x7654_3210)), Error::Stale);
}

fn a_handle_that_never_was_is_stale(w: &World) {
    let good = w.handle_of(w.file_with("file", b"")).expect("a handle");
    let mut flipped = good.clone();
    flipped.bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
    let empty = PersistentHandle { bytes: Default::default(), ..good.clone() };
    let short = PersistentHandle { bytes: good.bytes[..1].into(), ..good.clone() };
    let foreign = PersistentHandle { kind: 0x7fff_ffff, ..good };
    for bad in [flipped, empty, short, foreign] {
        refused!(w.resolve(&bad), Error::Stale | Error::InvalidArgument);
    }
}

fn a_directory_knows_the_one_that_it_lies_in(w: &World) {
    let (outer, other) = (w.dir("outer"), w.dir("other"));
    let inner = w.mkdir((outer, "inner")).expect("mkdir").entry.node;
    let parent = |node| w.handles().parent(&w.cx, node).wait();
    let above = parent(inner).expect("a parent");
    assert_eq!((above.node, above.attr.fileid), (outer, w.attr(outer).fileid));
    w.rename((outer, "inner"), (other, "inner"), RenameFlags::empty()).expect("rename");
    assert_eq!(parent(inner).expect("a parent").node, other);
    assert_eq!(parent(NodeId::ROOT).expect("the root").node, NodeId::ROOT);
    // A file's parent may be known, too.
    match parent(w.file_with("file", b"")) {
        Ok(above) => assert_eq!(above.node, w.dir),
        refused => refused!(refused, Error::NotDirectory),
    }
}
