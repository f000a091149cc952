//! Confinement to the export despite concurrent changes by the host, and stability of nodes.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{Mounted, ROOT, again_as_nobody, serve, served};
use tombolo_back_local_dir::{Options, Submounts};
use tombolo_core::fs::{NodeId, OpenFlags, PermissionCheck, PersistentHandle, RenameFlags};
use tombolo_core::{Error, Want};

#[test]
fn links_that_point_outside_are_links_and_nothing_more() {
    let (dir, world) = served();
    symlink("/etc", dir.path().join("out")).unwrap();
    symlink("../../../../etc/passwd", dir.path().join("up")).unwrap();
    for text in ["out", "up"] {
        let node = world.lookup(text).unwrap().node;
        assert!(matches!(world.lookup((node, "passwd")), Err(Error::NotDirectory)), "{text}");
        assert!(matches!(world.open(node, OpenFlags::READ), Err(Error::SymlinkLoop)), "{text}");
        assert!(matches!(world.list(node, false), Err(Error::NotDirectory)), "{text}");
    }
    let target = world.fs.readlink(&world.cx, world.lookup("out").unwrap().node).wait().unwrap();
    assert_eq!(target, b"/etc");
}

/// Races with a thread of the host that keeps swapping a directory and a symbolic link to the outside.
#[test]
fn directory_symlink_race_never_leaves_the_export() {
    let ((dir, world), outside) = (served(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("file"), b"secret").unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    fs::write(dir.path().join("real/file"), b"public").unwrap();
    symlink(outside.path(), dir.path().join("trap")).unwrap();
    fs::rename(dir.path().join("real"), dir.path().join("swap")).unwrap();
    let (mut found, mut refused) = (0, 0);
    let mut walk = || {
        let opened = world.lookup("swap/file").and_then(|entry| {
            let file = world.open(entry.node, OpenFlags::READ)?;
            let text = world.read(file, 0, 16)?;
            world.release(file);
            world.forget(entry.node);
            Ok(text)
        });
        match opened {
            Ok(text) => {
                assert_eq!(text, b"public");
                found += 1;
            }
            Err(Error::NotFound | Error::NotDirectory | Error::Stale) => refused += 1,
            Err(error) => panic!("{error:?}"),
        }
    };
    std::thread::scope(|scope| {
        let walker = scope.spawn(|| (0..20_000).for_each(|_| walk()));
        let path = |text: &str| dir.path().join(text);
        while !walker.is_finished() {
            fs::rename(path("swap"), path("real")).unwrap();
            fs::rename(path("trap"), path("swap")).unwrap();
            fs::rename(path("swap"), path("trap")).unwrap();
            fs::rename(path("real"), path("swap")).unwrap();
        }
    });
    assert!(found > 0 && refused > 0, "the race was no race: {found} found, {refused} refused");
}

#[test]
fn nodes_survive_renames_and_other_names_under_their_feet() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::write(dir.path().join("a/b/file"), b"text").unwrap();
    // With so few descriptors, every node must be found again each time.
    let world = serve(dir.path(), Options { descriptors: 1, ..Options::default() });
    let (b, file) = (world.lookup("a/b").unwrap(), world.lookup("a/b/file").unwrap());
    for n in 0..100 {
        fs::write(dir.path().join(format!("other-{n}")), b"").unwrap();
        world.lookup(&format!("other-{n}")).unwrap();
    }
    fs::rename(dir.path().join("a"), dir.path().join("z")).unwrap();
    fs::hard_link(dir.path().join("z/b/file"), dir.path().join("second")).unwrap();
    fs::remove_file(dir.path().join("z/b/file")).unwrap();
    assert_eq!(world.lookup("second").unwrap().node, file.node, "one file, one node");
    let open = world.reader(file.node);
    assert_eq!(world.read(open, 0, 10).unwrap(), b"text");
    world.created((b.node, "new")).unwrap();
    assert!(dir.path().join("z/b/new").exists());
}

/// Checks that a directory moved out of the export stays usable for sessions with a node of it, like an open
/// directory of a process, and cannot be found by others.
#[test]
fn directory_moved_out_stays_with_its_holders() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("export/sub/deep")).unwrap();
    let world = serve(&dir.path().join("export"), Options::default());
    let sub = world.lookup("sub").unwrap().node;
    fs::write(dir.path().join("beside"), b"secret").unwrap();
    fs::rename(dir.path().join("export/sub"), dir.path().join("sub")).unwrap();
    world.lookup((sub, "deep")).unwrap();
    assert!(matches!(world.lookup((sub, "beside")), Err(Error::NotFound)), "no way up");
    assert!(matches!(world.lookup("sub"), Err(Error::NotFound)));
    assert!(
        matches!(world.another().lookup((sub, "deep")), Err(Error::Stale)),
        "another session's reference"
    );
}

#[test]
fn file_with_reused_inode_number_is_another_node() {
    let dir = tempfile::tempdir().unwrap();
    let world = serve(dir.path(), Options { descriptors: 1, ..Options::default() });
    let mut reused = 0;
    for n in 0..200 {
        let path = dir.path().join("file");
        fs::write(&path, b"old").unwrap();
        let old = world.lookup("file").unwrap();
        for other in 0..40 {
            fs::write(dir.path().join(format!("x{other}")), b"").unwrap();
            world.lookup(&format!("x{other}")).unwrap();
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"new").unwrap();
        let new = world.lookup("file").unwrap();
        assert_ne!(old.node, new.node, "round {n}");
        if old.attr.fileid == new.attr.fileid {
            reused += 1;
            assert!(matches!(world.lookup(old.node), Err(Error::Stale)));
        }
    }
    assert!(reused > 0, "this file system reuses no numbers: the test shows nothing");
}

#[test]
fn submount_is_shown_or_hidden_as_configured() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("inner")).unwrap();
    fs::create_dir(dir.path().join("bound")).unwrap();
    let inner = Mounted::new(&["-t", "tmpfs", "inner-fs"], &dir.path().join("inner"));
    let bound = Mounted::new(&["--bind", "/etc"], &dir.path().join("bound"));
    fs::write(dir.path().join("inner/file"), b"text").unwrap();

    let world = serve(dir.path(), Options::default());
    let root = world.attr(ROOT);
    let (mount, file) = (world.lookup("inner").unwrap(), world.lookup("inner/file").unwrap());
    assert_ne!(mount.attr.fsid, root.fsid);
    assert_eq!(mount.attr.fsid, file.attr.fsid);
    let open = world.reader(file.node);
    assert_eq!(world.read(open, 0, 10).unwrap(), b"text");
    let moved = world.rename((mount.node, "file"), "file", RenameFlags::empty());
    assert!(matches!(moved, Err(Error::CrossDevice)));

    let world = serve(dir.path(), Options { submounts: Submounts::Hide, ..Options::default() });
    for text in ["inner", "bound"] {
        assert!(matches!(world.lookup(text), Err(Error::NotFound)), "{text}");
    }
    for plus in [false, true] {
        assert_eq!(world.list(ROOT, plus).unwrap(), [".", ".."], "plus: {plus}");
    }
    drop((world, inner, bound));
}

/// Checks handles of files that have left the export.
#[test]
fn handle_survives_restart_unless_file_left_export() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("export");
    fs::create_dir_all(root.join("sub")).unwrap();
    for text in ["kept", "moved", "removed"] {
        fs::write(root.join("sub").join(text), text).unwrap();
    }
    let world = serve(&root, Options::default());
    let handle = |path: &str| {
        let node = world.lookup(path).unwrap().node;
        world.handles().handle_of(&world.cx, node).wait().unwrap()
    };
    let (sub, kept, moved, removed) =
        (handle("sub"), handle("sub/kept"), handle("sub/moved"), handle("sub/removed"));
    let again = serve(&root, Options::default());
    let resolve = |handle: &PersistentHandle| again.handles().resolve(&again.cx, handle).wait();
    let entry = resolve(&kept).unwrap();
    let open = again.reader(entry.node);
    assert_eq!(again.read(open, 0, 10).unwrap(), b"kept");
    assert_eq!(again.lookup("sub/kept").unwrap().node, entry.node);
    let root_handle = world.handles().handle_of(&world.cx, ROOT).wait().unwrap();
    assert_eq!(resolve(&root_handle).unwrap().node, NodeId::ROOT);

    fs::rename(root.join("sub/moved"), dir.path().join("moved")).unwrap();
    fs::remove_file(root.join("sub/removed")).unwrap();
    assert!(matches!(resolve(&moved), Err(Error::Stale)));
    assert!(matches!(resolve(&removed), Err(Error::Stale)));
    fs::rename(root.join("sub"), dir.path().join("sub")).unwrap();
    assert!(matches!(resolve(&sub), Err(Error::Stale)));
    let mut forged = kept.clone();
    forged.bytes.iter_mut().for_each(|byte| *byte = !*byte);
    assert!(matches!(resolve(&forged), Err(Error::Stale)));
    forged.bytes = (0..200).collect();
    assert!(matches!(resolve(&forged), Err(Error::Stale)));
}

#[test]
fn forgotten_node_is_found_by_number_while_linked() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir(dir.path().join("directory")).unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    fs::write(dir.path().join("linked"), b"").unwrap();
    fs::hard_link(dir.path().join("linked"), dir.path().join("other name")).unwrap();
    let world = serve(dir.path(), Options::default());
    let nodes = ["directory", "file", "linked"].map(|text| world.lookup(text).unwrap().node);
    world.unlink("linked").unwrap();
    let handles = world.handles();
    for node in nodes {
        world.forget(node);
        assert_eq!(handles.node_by_number(&world.cx, node).wait().unwrap().node, node);
    }
    world.rmdir("directory").unwrap();
    fs::remove_file(dir.path().join("file")).unwrap();
    for node in [nodes[0], nodes[1]] {
        world.forget(node);
        assert!(matches!(handles.node_by_number(&world.cx, node).wait(), Err(Error::Stale)));
    }
}

/// Checks that a handle of a file on a submount is resolved by a server that has not registered the mount
/// yet.
#[test]
fn submount_handle_survives_restart() {
    let (dir, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = dir.path().join("export");
    for text in ["inner", "a bound"] {
        fs::create_dir_all(root.join(text)).unwrap();
    }
    let inner = Mounted::new(&["-t", "tmpfs", "inner-fs"], &root.join("inner"));
    // The same file system as the root's, mounted a second time.
    let bound = Mounted::new(&["--bind", beside.path().to_str().unwrap()], &root.join("a bound"));
    fs::write(root.join("inner/file"), "in memory").unwrap();
    fs::write(root.join("a bound/file"), "beside").unwrap();
    fs::write(root.join("file"), "plain").unwrap();
    let world = serve(&root, Options::default());
    let handle = |path: &str| {
        let node = world.lookup(path).unwrap().node;
        world.handles().handle_of(&world.cx, node).wait().unwrap()
    };
    let all = ["file", "inner/file", "a bound/file", "inner"].map(|path| (path, handle(path)));
    let far = handle("inner/file");
    assert!(all.iter().all(|(path, handle)| *path == "inner/file" || *handle != far));
    let resolve = |world: &crate::common::World, handle| world.handles().resolve(&world.cx, handle).wait();
    let again = serve(&root, Options::default());
    for (path, handle) in &all {
        let (found, expected) = (resolve(&again, handle).unwrap(), world.lookup(path).unwrap());
        assert_eq!(
            (found.attr.fsid, found.attr.fileid),
            (expected.attr.fsid, expected.attr.fileid),
            "{path}"
        );
    }
    let hiding = serve(&root, Options { submounts: Submounts::Hide, ..Options::default() });
    assert!(resolve(&hiding, &all[0].1).is_ok());
    assert!(matches!(resolve(&hiding, &far), Err(Error::Stale)));
    // The file system is not mounted any more.
    drop((world, again, inner));
    let later = serve(&root, Options::default());
    assert!(matches!(resolve(&later, &far), Err(Error::Stale)));
    assert!(resolve(&later, &all[2].1).is_ok());
    drop((later, hiding, bound));
}

#[test]
fn mutations_say_what_they_changed_when_asked() {
    let (_dir, mut world) = served();
    let quiet = world.created("quiet").unwrap();
    assert!(quiet.dir.before.is_none() && quiet.dir.after.is_none());
    world.session.cx.want = Want::CHANGE_ATTRS;
    let loud = world.created("loud").unwrap();
    let (before, after) = (loud.dir.before.unwrap(), loud.dir.after.unwrap());
    assert!(before.mtime < after.mtime);
    let change = world.unlink("loud").unwrap();
    assert_eq!(change.before.unwrap().mtime, after.mtime);
}

/// Checks that without root, and so without handles, nodes are found again by name and verified.
#[test]
fn without_privileges_nodes_are_found_again_by_name() {
    if again_as_nobody("beneath::without_privileges_nodes_are_found_again_by_name") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |text: &str| dir.path().join(text);
    fs::create_dir_all(path("a/b")).unwrap();
    fs::write(path("a/b/file"), b"text").unwrap();
    fs::write(path("a/b/victim"), b"text").unwrap();
    fs::write(path("a/b/replaced"), b"text").unwrap();
    let options = Options { descriptors: 1, ..Options::default() };
    let world = crate::common::serve_checked(dir.path(), options, PermissionCheck::BackEnd);
    assert!(world.fs.persistent_handles().is_none());
    assert_eq!(world.fs.profile().permission_check, PermissionCheck::Caller, "it cannot keep users apart");
    let file = world.lookup("a/b/file").unwrap();
    let victim = world.lookup("a/b/victim").unwrap();
    let replaced = world.lookup("a/b/replaced").unwrap();
    let b = world.lookup("a/b").unwrap();
    let made = std::cell::Cell::new(0);
    let make_room = || {
        for n in made.get()..made.get() + 100 {
            fs::write(path(&format!("other-{n}")), b"").unwrap();
            world.lookup(&format!("other-{n}")).unwrap();
        }
        made.set(made.get() + 100);
    };
    let text = |node| {
        let open = world.open(node, OpenFlags::READ)?;
        let text = world.read(open, 0, 10);
        world.release(open);
        text
    };
    make_room();
    assert!(crate::common::descriptors() < 60, "{} descriptors", crate::common::descriptors());
    assert_eq!(text(file.node).unwrap(), b"text");
    // Renames through the session are followed; those by the host are detected.
    world.rename((b.node, "file"), "renamed", RenameFlags::empty()).unwrap();
    world.unlink((b.node, "victim")).unwrap();
    fs::remove_file(path("a/b/replaced")).unwrap();
    fs::write(path("a/b/replaced"), b"else").unwrap();
    make_room();
    assert_eq!(text(file.node).unwrap(), b"text");
    assert_eq!(world.attr(victim.node).nlink, 0);
    assert!(matches!(text(replaced.node), Err(Error::Stale)));
    fs::rename(path("renamed"), path("gone")).unwrap();
    make_room();
    assert!(matches!(text(file.node), Err(Error::Stale)));
}
