//! Renaming.

use tombolo_core::Error;
use tombolo_core::fs::{NodeId, RenameFlags};

use super::cases;
use crate::refused;
use crate::waist::world::{attempted, supported};
use crate::waist::{Verdict, World};

cases! { "rename":
    a_file_replaces_a_file,
    a_directory_replaces_an_empty_one,
    unlike_things_do_not_replace_each_other,
    a_directory_does_not_move_into_itself,
    a_directory_does_not_replace_its_ancestor,
    two_names_of_one_file_stay,
    a_name_renamed_to_itself_stays,
    no_replace_refuses_what_exists,
    exchange_swaps_both_ways,
    exchange_swaps_a_file_and_a_directory,
    exchange_needs_both,
    flags_that_contradict_are_refused,
    a_moved_directory_knows_its_new_parent,
    a_missing_name_is_not_renamed,
}

const PLAIN: RenameFlags = RenameFlags::empty();

fn a_file_replaces_a_file(w: &World) {
    let new = w.file_with("new", b"new");
    let old = w.file_with("old", b"old");
    let kept = w.link(old, "kept").expect("link").entry.node;
    w.rename("new", "old", PLAIN).expect("rename");
    assert_eq!(w.names(w.dir), ["kept", "old"]);
    assert_eq!(w.lookup("old").expect("lookup").node, new);
    assert_eq!((w.attr(kept).nlink, w.contents(kept)), (1, b"old".to_vec()));
}

fn a_directory_replaces_an_empty_one(w: &World) {
    let from = w.dir("from");
    w.mkdir((from, "inner")).expect("mkdir");
    w.dir("to");
    w.rename("from", "to", PLAIN).expect("rename");
    assert_eq!(w.names(w.dir), ["to"]);
    assert_eq!(w.names(from), ["inner"]);
    w.dir("full");
    refused!(w.rename("full", "to", PLAIN), Error::NotEmpty | Error::Exists);
}

fn unlike_things_do_not_replace_each_other(w: &World) {
    w.file_with("file", b"");
    w.dir("dir");
    refused!(w.rename("file", "dir", PLAIN), Error::IsDirectory);
    refused!(w.rename("dir", "file", PLAIN), Error::NotDirectory);
    w.symlink("link", b"dir").expect("symlink");
    w.rename("file", "link", PLAIN).expect("a link is a name like any other");
    assert_eq!(w.names(w.dir), ["dir", "link"]);
}

fn a_directory_does_not_move_into_itself(w: &World) {
    let outer = w.dir("outer");
    let inner = w.mkdir((outer, "inner")).expect("mkdir").entry.node;
    refused!(w.rename("outer", (outer, "x"), PLAIN), Error::InvalidArgument);
    refused!(w.rename("outer", (inner, "x"), PLAIN), Error::InvalidArgument);
    assert_eq!((w.names(w.dir), w.names(outer)), (vec!["outer".to_owned()], vec!["inner".to_owned()]));
}

fn a_directory_does_not_replace_its_ancestor(w: &World) {
    let outer = w.dir("outer");
    let inner = w.mkdir((outer, "inner")).expect("mkdir").entry.node;
    w.mkdir((inner, "deep")).expect("mkdir");
    refused!(w.rename((inner, "deep"), "outer", PLAIN), Error::NotEmpty | Error::InvalidArgument);
}

fn two_names_of_one_file_stay(w: &World) {
    let node = w.file_with("one", b"");
    w.link(node, "two").expect("link");
    w.rename("one", "two", PLAIN).expect("rename does nothing");
    let sub = w.dir("sub");
    w.link(node, (sub, "three")).expect("link");
    w.rename("two", (sub, "three"), PLAIN).expect("rename does nothing");
    for (dir, text) in [(w.dir, "one"), (w.dir, "two"), (sub, "three")] {
        assert_eq!(w.lookup((dir, text)).expect("it stays").node, node, "{text}");
    }
    assert_eq!(w.names(w.dir), ["one", "sub", "two"]);
    assert_eq!(w.attr(node).nlink, 3);
}

fn a_name_renamed_to_itself_stays(w: &World) {
    let file = w.file_with("file", b"kept");
    w.dir("dir");
    w.rename("file", "file", PLAIN).expect("rename");
    w.rename("dir", "dir", PLAIN).expect("rename");
    assert_eq!(w.names(w.dir), ["dir", "file"]);
    assert_eq!(w.contents(file), b"kept");
}

fn no_replace_refuses_what_exists(w: &World) -> Verdict {
    w.file_with("old", b"old");
    let other = w.file_with("other", b"other");
    refused!(attempted(w.rename("old", "other", RenameFlags::NO_REPLACE))?, Error::Exists);
    assert_eq!(w.contents(other), b"other");
    w.rename("old", "new", RenameFlags::NO_REPLACE).expect("nothing is in the way");
    assert_eq!(w.names(w.dir), ["new", "other"]);
    Ok(())
}

fn exchange_swaps_both_ways(w: &World) -> Verdict {
    let (a, b) = (w.file_with("a", b"was a"), w.file_with("b", b"was b"));
    supported(w.rename("a", "b", RenameFlags::EXCHANGE))?;
    assert_eq!(w.names(w.dir), ["a", "b"]);
    assert_eq!(w.lookup("a").expect("lookup").node, b);
    assert_eq!(w.lookup("b").expect("lookup").node, a);
    assert_eq!((w.contents(a), w.contents(b)), (b"was a".to_vec(), b"was b".to_vec()));
    assert_eq!((w.attr(a).nlink, w.attr(b).nlink), (1, 1));
    Ok(())
}

fn exchange_swaps_a_file_and_a_directory(w: &World) -> Verdict {
    let (there, file, dir) = (w.dir("there"), w.file_with("file", b""), w.dir("dir"));
    let inside = w.mkdir((dir, "inside")).expect("mkdir").entry.node;
    w.rename("dir", (there, "dir"), PLAIN).expect("rename");
    supported(w.rename("file", (there, "dir"), RenameFlags::EXCHANGE))?;
    assert_eq!(w.lookup("file").expect("lookup").node, dir);
    assert_eq!(w.lookup((there, "dir")).expect("lookup").node, file);
    assert_eq!(w.lookup((dir, "inside")).expect("lookup").node, inside);
    assert_eq!(parent_of(w, dir), w.attr(w.dir).fileid);
    Ok(())
}

fn exchange_needs_both(w: &World) -> Verdict {
    w.file_with("a", b"");
    refused!(attempted(w.rename("a", "missing", RenameFlags::EXCHANGE))?, Error::NotFound);
    assert_eq!(w.names(w.dir), ["a"]);
    let outer = w.dir("outer");
    w.mkdir((outer, "inner")).expect("mkdir");
    refused!(
        w.rename((outer, "inner"), "outer", RenameFlags::EXCHANGE),
        Error::InvalidArgument | Error::NotEmpty
    );
    Ok(())
}

fn flags_that_contradict_are_refused(w: &World) {
    w.file_with("a", b"");
    w.file_with("b", b"");
    refused!(
        w.rename("a", "b", RenameFlags::EXCHANGE | RenameFlags::NO_REPLACE),
        Error::InvalidArgument | Error::NotSupported
    );
}

fn parent_of(w: &World, dir: NodeId) -> u64 {
    w.list(dir, 4096).iter().find(|listed| listed.name == "..").expect("`..` is listed").fileid
}

fn a_moved_directory_knows_its_new_parent(w: &World) {
    let (from, to) = (w.dir("from"), w.dir("to"));
    let dir = w.mkdir((from, "dir")).expect("mkdir").entry.node;
    assert_eq!(parent_of(w, dir), w.attr(from).fileid);
    let counts = w.attr(from).nlink == 3;
    w.rename((from, "dir"), (to, "dir"), PLAIN).expect("rename");
    assert_eq!(parent_of(w, dir), w.attr(to).fileid);
    if counts {
        assert_eq!((w.attr(from).nlink, w.attr(to).nlink), (2, 3));
    }
}

fn a_missing_name_is_not_renamed(w: &World) {
    refused!(w.rename("missing", "new", PLAIN), Error::NotFound);
    let file = w.file_with("file", b"");
    refused!(w.rename("file", (file, "new"), PLAIN), Error::NotDirectory);
    refused!(w.rename((file, "x"), "new", PLAIN), Error::NotDirectory);
}
