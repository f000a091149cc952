//! Handles from a table across restarts, and after changes by others.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::Error;
use tombolo_core::fs::{Cookie, NodeId, PermissionCheck, PersistentHandle, RenameFlags};
use tombolo_layer_handle_table as handle_table;
use tombolo_test_support::{Session, budget};

const ROOT: NodeId = NodeId::ROOT;

/// Starts a server, and a session of it.
fn served(dir: &Path) -> Session {
    let export = LocalDir::open(&dir.join("tree"), Options::default()).expect("the export");
    let export = handle_table::over(Arc::new(export), &dir.join("table")).expect("the table");
    Session::checked(&export, PermissionCheck::Caller)
}

fn handle(world: &Session, path: &str) -> PersistentHandle {
    world.handle_of(path).expect("a handle")
}

/// Creates a tree with `a/b/file`, `a/other` and `plain`.
fn scratch() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(dir.path().join("tree/a/b")).expect("mkdir");
    for file in ["a/b/file", "a/other", "plain"] {
        fs::write(dir.path().join("tree").join(file), file).expect("write");
    }
    dir
}

#[test]
fn handles_are_good_after_a_restart() {
    let dir = scratch();
    let paths = ["a/b/file", "a", "plain"];
    let world = served(dir.path());
    let handles = paths.map(|path| handle(&world, path));
    let root = world.handle_of(ROOT).expect("the root's");
    let volume = world.handles().volume();
    drop(world);
    let world = served(dir.path());
    assert_eq!(world.handles().volume(), volume);
    for (path, handle) in paths.iter().zip(&handles) {
        let found = world.resolve(handle).expect("resolve");
        assert_eq!(found.attr.fileid, world.lookup(path).expect("lookup").attr.fileid, "{path}");
        assert_eq!(world.handle_of(found.node).expect("a handle"), *handle);
    }
    assert_eq!(world.resolve(&root).expect("resolve").node, ROOT);
    let up = |handle: &PersistentHandle| {
        let node = world.resolve(handle).expect("resolve").node;
        world.handles().parent(&world.cx, node).wait().expect("the way up")
    };
    assert_eq!(up(&handle(&world, "a/b")).node, world.lookup("a").expect("lookup").node);
    assert_eq!((up(&handles[1]).node, up(&root).node), (ROOT, ROOT));
    let never = PersistentHandle { kind: handles[0].kind, bytes: [9; 8].as_slice().into() };
    assert!(matches!(world.resolve(&never), Err(Error::Stale)));
    let short = PersistentHandle { bytes: [0; 3].as_slice().into(), ..never };
    assert!(matches!(world.resolve(&short), Err(Error::Stale)));
}

#[test]
fn own_renames_are_tracked_across_restart() {
    let dir = scratch();
    let world = served(dir.path());
    let (file, plain, other) =
        (handle(&world, "a/b/file"), handle(&world, "plain"), handle(&world, "a/other"));
    let a = world.lookup("a").expect("a").node;
    let rename = |from, from_name, to, to_name, flags| {
        world.rename((from, from_name), (to, to_name), flags).expect("rename");
    };
    rename(ROOT, "a", ROOT, "z", RenameFlags::empty());
    rename(a, "other", ROOT, "plain", RenameFlags::EXCHANGE);
    for world in [&world, &served(&dir.path().join("."))] {
        assert!(world.resolve(&file).is_ok(), "under a directory that moved");
        let fileid = |handle| world.resolve(handle).expect("resolve").attr.fileid;
        assert_eq!(fileid(&plain), world.lookup("z/other").expect("lookup").attr.fileid);
        assert_eq!(fileid(&other), world.lookup("plain").expect("lookup").attr.fileid);
    }
    world.unlink("plain").expect("unlink");
    fs::write(dir.path().join("tree/plain"), "a successor").expect("write");
    assert!(matches!(world.resolve(&other), Err(Error::Stale)));
    assert_ne!(handle(&world, "plain"), other);
}

#[test]
fn files_moved_by_others_are_stale_until_met_again() {
    let dir = scratch();
    let world = served(dir.path());
    let (file, plain) = (handle(&world, "a/b/file"), handle(&world, "plain"));
    let tree = dir.path().join("tree");
    fs::rename(tree.join("a"), tree.join("moved")).expect("rename");
    fs::rename(tree.join("plain"), dir.path().join("outside")).expect("rename");
    fs::write(tree.join("plain"), "another").expect("write");
    for handle in [&file, &plain] {
        assert!(matches!(world.resolve(handle), Err(Error::Stale)));
    }
    assert_eq!(handle(&world, "moved/b/file"), file);
    assert!(world.resolve(&file).is_ok());
    assert_ne!(handle(&world, "plain"), plain);
}

#[test]
fn listed_files_get_handles_until_removed() {
    let dir = scratch();
    let world = served(dir.path());
    let file = world.open_dir("").expect("open");
    let page = world.readdir(file, Cookie::START, budget(4096, true)).expect("list");
    let met: Vec<(Vec<u8>, NodeId)> =
        page.iter().filter_map(|line| Some((line.name.to_vec(), line.entry?.node))).collect();
    assert_eq!(met.len(), 2);
    for (name, node) in &met {
        let path = str::from_utf8(name).expect("a name");
        assert_eq!(world.handle_of(*node).expect("a handle"), handle(&world, path));
        world.fs.forget(&world.cx, &[(*node, 2)]);
        assert!(world.handle_of(*node).is_err());
    }
}
