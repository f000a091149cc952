//! Volatile files, by name pattern.

use std::path::Path;

use tempfile::TempDir;
use tombolo_back_local_dir::Options;
use tombolo_core::fs::{Cookie, NodeId, Notice, OpenFlags, RenameFlags};
use tombolo_sys::pattern::{Pattern, PatternError};
use tombolo_test_support::budget;

use crate::common::{World, serve};

fn world(dir: &Path, patterns: &[&str]) -> World {
    let ask = patterns.iter().map(|text| text.parse::<Pattern>().expect("a pattern")).collect();
    serve(dir, Options { ask, watch_host: true, ..Options::default() })
}

/// Creates a tree two directories deep with these files.
fn tree(files: &[&str]) -> TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    std::fs::create_dir_all(dir.path().join("vm/deep")).expect("made");
    files.iter().for_each(|file| std::fs::write(dir.path().join(file), "before").expect("written"));
    dir
}

impl World {
    fn is_volatile(&self, node: NodeId) -> bool {
        let asked = self.attr(node).volatile;
        let opened = self.fs.open(&self.cx, node, OpenFlags::READ).wait().expect("opened");
        assert_eq!(opened.attr.is_some_and(|attr| attr.volatile), asked, "an opening says the same");
        let version = self.fs.versions().expect("versions").look(&self.cx, node).wait().expect("there").1;
        assert_eq!(version.is_none(), asked, "and so does a version");
        asked
    }
}

#[test]
fn names_and_paths_say_which_files_are_volatile() {
    let dir = tree(&["a.db", "a.db-wal", "top", "vm/deep/top", "vm/deep/disk"]);
    let patterns = ["*.db", "/top", "vm/*/d*"];
    let expected = [("a.db", true), ("a.db-wal", false), ("top", true), ("vm/deep/top", false)];
    let expected = [&expected[..], &[("vm/deep/disk", true)]].concat();
    let world = world(dir.path(), &patterns);
    for (path, volatile) in &expected {
        let entry = world.lookup(path).expect(path);
        assert_eq!((entry.attr.volatile, world.is_volatile(entry.node)), (*volatile, *volatile), "{path}");
    }
    assert!(!world.lookup("vm").expect("a directory").attr.volatile);
    for (file, volatile) in [("new.db", true), ("new", false)] {
        let created = world.created(file).expect("created").entry;
        assert_eq!((created.attr.volatile, world.is_volatile(created.node)), (volatile, volatile), "{file}");
    }
    // A session that knows them from a listing only.
    let other = world.another();
    let listing = other.open_dir("").expect("opened");
    let page = other.readdir(listing, Cookie::START, budget(4096, true)).expect("listed");
    let entries = page.iter().filter_map(|line| Some((line.name.to_vec(), line.entry?.attr.volatile)));
    let mut volatile: Vec<_> = entries.filter_map(|(name, volatile)| volatile.then_some(name)).collect();
    volatile.sort();
    assert_eq!(volatile, [&b"a.db"[..], b"new.db", b"top"]);
}

#[test]
fn file_once_volatile_by_name_stays_volatile() {
    let dir = tree(&["moved", "linked"]);
    let world = world(dir.path(), &["*.db"]);
    let (moved, linked) =
        (world.lookup("moved").expect("there").node, world.lookup("linked").expect("there").node);
    assert!(!world.is_volatile(moved) && !world.is_volatile(linked));
    let changes = world.fs.changes().expect("word of changes");
    let since = changes.next(&world.cx, 0, 4096).wait().expect("everything").last;
    world.rename("moved", "moved.db", RenameFlags::empty()).expect("renamed");
    assert!(world.is_volatile(moved));
    // Earlier results are invalidated, although the session itself has renamed the file.
    let told = changes.next(&world.cx, since, 4096).wait().expect("a notice").list;
    assert!(told.contains(&Notice::Data { node: moved, start: 0, last: u64::MAX }), "{told:?}");
    world.rename("moved.db", "moved", RenameFlags::empty()).expect("renamed");
    assert!(world.is_volatile(moved) && world.lookup("moved").expect("there").attr.volatile);
    let versions = world.fs.versions().expect("versions");
    let before = versions.look(&world.cx, linked).wait().expect("there").1.expect("a version");
    // By this process, whose own changes are not watched.
    std::fs::hard_link(dir.path().join("linked"), dir.path().join("linked.db")).expect("linked");
    assert!(!world.is_volatile(linked) && versions.hold(&[before]), "it was not met under that name");
    assert_eq!(world.lookup("linked.db").expect("there").node, linked);
    assert!(world.is_volatile(linked) && !versions.hold(&[before]));
}

#[test]
fn file_found_by_handle_is_volatile_until_named() {
    let dir = tree(&["plain"]);
    let world = world(dir.path(), &["*.db"]);
    let Some(handles) = world.fs.persistent_handles() else { return };
    let node = world.lookup("plain").expect("there").node;
    let handle = handles.handle_of(&world.cx, node).wait().expect("a handle");
    let other = world.another();
    let found = other.handles().resolve(&other.cx, &handle).wait();
    let found = found.expect("found");
    assert!(found.attr.volatile && other.is_volatile(found.node));
    assert!(!other.lookup("plain").expect("there").attr.volatile && !other.is_volatile(found.node));
}

#[test]
fn a_pattern_names_something() {
    for text in ["", "/"] {
        assert_eq!(text.parse::<Pattern>(), Err(PatternError::Empty), "{text:?}");
    }
    assert!(matches!("a\0".parse::<Pattern>(), Err(PatternError::Nul(_))));
}
