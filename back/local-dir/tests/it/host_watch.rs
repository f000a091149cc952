//! Changes by other processes, in file systems that are found before the watch starts or not by a look-up.

use std::fs;
use std::path::Path;
use std::process::Command;

use tombolo_back_local_dir::Options;
use tombolo_test_support::until;

use crate::common::{Mounted, ROOT, World, run, serve};

/// Serves `path` with a watch, which starts with the first request for a version.
fn watched(path: &Path) -> World {
    serve(path, Options { watch_host: true, ..Options::default() })
}

#[test]
fn mount_found_by_handle_is_watched() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir(dir.path().join("inner")).unwrap();
    let inner = Mounted::new(&["-t", "tmpfs", "inner-fs"], &dir.path().join("inner"));
    let path = dir.path().join("inner/file");
    fs::write(&path, b"text").unwrap();
    let before = serve(dir.path(), Options::default());
    let node = before.lookup("inner/file").unwrap().node;
    let handle = before.handles().handle_of(&before.cx, node).wait().unwrap();

    let world = watched(dir.path());
    let versions = world.fs.versions().unwrap();
    let version_of = |node| versions.look(&world.cx, node).wait().unwrap().1.expect("a version");
    version_of(ROOT);
    let node = world.handles().resolve(&world.cx, &handle).wait().unwrap().node;
    let version = version_of(node);
    run(Command::new("chmod").arg("600").arg(&path));
    until("the change is observed", || !versions.hold(&[version]));
    drop((before, world, inner));
}

/// Without a subscriber changes are not counted, so versions from before must not hold later.
#[test]
fn versions_end_with_last_subscriber() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let unsubscribed = watched(dir.path());
    let version_of = |world: &World| {
        world.fs.versions().unwrap().look(&world.cx, ROOT).wait().unwrap().1.expect("a version")
    };
    let holds = |version| unsubscribed.fs.versions().unwrap().hold(&[version]);
    let [first, second] = [(); 2].map(|()| unsubscribed.another());
    let version = version_of(&first);
    assert_eq!(version_of(&second), version);
    drop(second);
    assert!(holds(version), "one subscriber remains");
    drop(first);
    assert!(!holds(version));
}

#[test]
fn subvolume_entered_before_watch_makes_it_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let script = "truncate -s 200M image && mkfs.btrfs -q image && mkdir on && mount -o loop image on";
    let made = Command::new("sh").args(["-c", script]).current_dir(dir.path()).status();
    if !made.is_ok_and(|made| made.success()) {
        tombolo_skip::skip!("no mkfs.btrfs, or the kernel has no btrfs");
    }
    let at = dir.path().join("on");
    let mounted = Mounted::of(&at);
    run(Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(at.join("sub")));
    fs::create_dir(at.join("plain")).unwrap();
    for (path, is_complete) in [("plain", true), ("sub", false)] {
        let world = watched(&at);
        world.lookup(path).unwrap();
        let changes = world.fs.changes().unwrap();
        changes.next(&world.cx, 0, 4096).wait().unwrap();
        assert_eq!(changes.is_complete(), is_complete, "{path}");
    }
    drop(mounted);
}
