//! Lifetime of nodes, openings and sessions.

use tombolo_core::Error;
use tombolo_core::fs::{File, NodeId, OpenFlags, OpenId, RenameFlags};
use tombolo_test_support::plain;

use super::cases;
use crate::refused;
use crate::waist::{Verdict, World};

cases! { "life":
    forget_takes_back_exactly_as_many needs FORGETS,
    forget_of_the_unknown_is_ignored,
    the_root_is_never_forgotten,
    an_open_file_survives_its_name needs OPENINGS,
    an_open_file_survives_being_replaced needs OPENINGS,
    an_open_file_survives_being_forgotten,
    an_ended_opening_is_refused,
    an_opening_belongs_to_its_node,
    a_node_survives_its_own_renaming,
    a_node_survives_its_parents_renaming,
    a_name_made_again_is_another_node needs OPENINGS,
    a_number_used_again_is_another_node,
    sessions_see_one_tree,
    sessions_see_writes_at_once needs AT_ONCE,
    a_session_that_ends_leaves_others_alone needs OPENINGS,
}

fn forget_takes_back_exactly_as_many(w: &World) {
    let node = w.file_with("file", b"known");
    for _ in 0..3 {
        assert_eq!(w.lookup("file").expect("lookup").node, node, "one node, one reference");
    }
    // Four look-ups: one from the create, three more.
    w.forget(node);
    assert_eq!(w.attr(node).size, 5, "three look-ups are left");
    w.fs.forget(&w.cx, &[(node, 2)]);
    assert_eq!(w.attr(node).size, 5, "one look-up is left");
    w.forget(node);
    refused!(w.fs.getattr(&w.cx, node, None).wait(), Error::Stale);
    assert_eq!(w.contents(w.lookup("file").expect("lookup").node), b"known");
}

fn forget_of_the_unknown_is_ignored(w: &World) {
    let node = w.file_with("file", b"");
    let other = w.file_with("other", b"other");
    w.fs.forget(&w.cx, &[(NodeId(u64::MAX), 1), (NodeId(0), u64::MAX), (node, u64::MAX)]);
    assert_eq!(w.contents(other), b"other");
    assert!(w.exists("file"));
    refused!(w.fs.getattr(&w.cx, NodeId(u64::MAX), None).wait(), Error::Stale);
    refused!(w.open(NodeId(0), OpenFlags::READ), Error::Stale);
}

fn the_root_is_never_forgotten(w: &World) {
    w.fs.forget(&w.cx, &[(NodeId::ROOT, u64::MAX)]);
    assert_eq!(w.attr(NodeId::ROOT).file_type, tombolo_core::fs::FileType::Directory);
}

fn an_open_file_survives_its_name(w: &World) -> Verdict {
    let file = w.file("file");
    w.write_all(file, 0, b"before");
    w.unlink("file").expect("unlink");
    assert!(!w.exists("file"));
    assert_eq!(w.open_attr(file).nlink, 0);
    assert_eq!(w.read_all(file, 0, 100), b"before");
    w.write_all(file, 6, b" and after");
    assert_eq!(w.read_all(file, 0, 100), b"before and after");
    assert_eq!(w.open_attr(file).size, 16);
    w.release(file);
    Ok(())
}

fn an_open_file_survives_being_replaced(w: &World) {
    let old = w.file("file");
    w.write_all(old, 0, b"old");
    w.file_with("new", b"new");
    w.rename("new", "file", RenameFlags::empty()).expect("rename");
    assert_eq!(w.read_all(old, 0, 10), b"old");
    assert_eq!(w.contents(w.lookup("file").expect("lookup").node), b"new");
    w.release(old);
}

fn an_open_file_survives_being_forgotten(w: &World) {
    let file = w.file("file");
    w.fs.forget(&w.cx, &[(file.node, u64::MAX)]);
    w.write_all(file, 0, b"still open");
    assert_eq!(w.read_all(file, 0, 20), b"still open");
    w.release(file);
}

fn an_ended_opening_is_refused(w: &World) {
    let file = w.file("file");
    w.release(file);
    refused!(w.read_eof(file, 0, 1), Error::BadOpen);
    refused!(w.write_as(file, &Default::default(), b"x"), Error::BadOpen);
    refused!(w.fs.fsync(&w.cx, file, tombolo_core::fs::SyncScope::All).wait(), Error::BadOpen);
    w.release(file);
    refused!(w.read_eof(File { open: OpenId(u64::MAX), ..file }, 0, 1), Error::BadOpen);
    assert_eq!(w.contents(file.node), b"");
}

fn an_opening_belongs_to_its_node(w: &World) {
    let file = w.file("file");
    let other = w.file("other");
    let mixed = File { node: other.node, open: file.open };
    refused!(w.read_eof(mixed, 0, 1), Error::BadOpen);
    refused!(w.write_as(mixed, &Default::default(), b"x"), Error::BadOpen);
    refused!(w.fs.getattr(&w.cx, other.node, Some(mixed)).wait(), Error::BadOpen);
    w.release(file);
    w.release(other);
}

fn a_node_survives_its_own_renaming(w: &World) {
    let node = w.file_with("file", b"moved");
    w.rename("file", "renamed", RenameFlags::empty()).expect("rename");
    assert_eq!(
        (w.names(w.dir), w.lookup("renamed").expect("lookup").node),
        (vec!["renamed".to_owned()], node)
    );
    let dir = w.dir("dir");
    w.rename("renamed", (dir, "else"), RenameFlags::empty()).expect("rename");
    assert_eq!((w.names(w.dir), w.names(dir)), (vec!["dir".to_owned()], vec!["else".to_owned()]));
    assert_eq!(w.contents(node), b"moved");
    assert_eq!(w.lookup((dir, "else")).expect("lookup").node, node);
}

fn a_node_survives_its_parents_renaming(w: &World) {
    let outer = w.dir("outer");
    let inner = w.mkdir((outer, "inner")).expect("mkdir").entry.node;
    let file = w.file((inner, "file"));
    w.write_all(file, 0, b"deep");
    w.release(file);
    w.rename("outer", "renamed", RenameFlags::empty()).expect("rename");
    assert_eq!(w.contents(file.node), b"deep");
    assert_eq!(w.lookup((inner, "file")).expect("lookup").node, file.node);
    w.release(w.file((inner, "more")));
    assert_eq!(w.names(inner), ["file", "more"]);
}

fn a_name_made_again_is_another_node(w: &World) {
    let old = w.file("file");
    w.write_all(old, 0, b"old");
    w.unlink("file").expect("unlink");
    let new = w.file("file");
    w.write_all(new, 0, b"new");
    assert_ne!(old.node, new.node);
    assert_eq!(w.read_all(old, 0, 10), b"old");
    assert_eq!(w.read_all(new, 0, 10), b"new");
    w.release(old);
    w.release(new);
}

/// Tests reused inode numbers: disks give a removed file's number to the next one, perhaps within the same
/// tick of their clock. A client that has not yet forgotten the old node must not get it for the new file.
fn a_number_used_again_is_another_node(w: &World) {
    for round in 0..50 {
        let text = format!("round {round}");
        let old = w.file_with("file", b"old");
        w.unlink("file").expect("unlink");
        let new = w.file_with("file", text.as_bytes());
        assert_ne!(old, new);
        assert_eq!(w.contents(new), text.as_bytes());
        let found = w.lookup("file").expect("lookup");
        assert_eq!((found.node, found.attr.nlink), (new, 1));
        // An unnamed file has no name by which it could be cached.
        if let Ok(created) = w.fs.create_unnamed(&w.cx, w.dir, &plain()).wait() {
            w.release(File { node: created.entry.node, open: created.open });
            let next = w.file_with("next", text.as_bytes());
            assert_ne!(created.entry.node, next);
            assert_eq!(w.contents(next), text.as_bytes());
            w.unlink("next").expect("unlink");
        }
        w.unlink("file").expect("unlink");
    }
}

fn sessions_see_one_tree(w: &World) {
    let other = w.other_session();
    w.file_with("from-one", b"1");
    let found = other.lookup("from-one").expect("lookup");
    assert_eq!(other.contents(found.node), b"1");
    other.unlink("from-one").expect("unlink");
    assert!(!w.exists("from-one"));
    other.dir("dir");
    w.rmdir("dir").expect("rmdir");
    assert!(!other.exists("dir"));
}

fn sessions_see_writes_at_once(w: &World) {
    let other = w.other_session();
    let ours = w.file("file");
    let theirs_node = other.lookup("file").expect("lookup").node;
    let theirs = other.open(theirs_node, OpenFlags::READ | OpenFlags::WRITE).expect("open");
    for round in 0..50_u64 {
        let text = format!("round {round}");
        w.write_all(ours, round * 3, text.as_bytes());
        assert_eq!(other.read_all(theirs, round * 3, text.len()), text.as_bytes());
        assert_eq!(other.attr(theirs_node).size, round * 3 + text.len() as u64);
        other.write_all(theirs, 0, b"*");
        assert_eq!(w.read_all(ours, 0, 1), b"*");
    }
    w.release(ours);
    other.release(theirs);
}

fn a_session_that_ends_leaves_others_alone(w: &World) {
    let file = w.file("file");
    w.write_all(file, 0, b"mine");
    for _ in 0..3 {
        let other = w.other_session();
        let node = other.lookup("file").expect("lookup").node;
        other.open(node, OpenFlags::READ).expect("open, and never released");
        drop(other);
    }
    assert_eq!(w.read_all(file, 0, 10), b"mine");
    w.unlink("file").expect("unlink");
    assert_eq!(w.read_all(file, 0, 10), b"mine");
    w.release(file);
}
