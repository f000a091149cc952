//! Servers that restart with new handles or another tree.

use std::path::Path;

use tombolo_core::Error;
use tombolo_core::fs::{OpenFlags, SyncScope};
use tombolo_nfs_client_tests::mount::{hard, mounted, world};
use tombolo_nfs_client_tests::server::{Scripted, ScriptedReply};
use tombolo_nfs_tests::fixture::{local_dir, scratch};
use tombolo_nfs_tests::test_server::{Plan, TestServer};

use crate::hostile::stage::{in_time, told};

/// Starts a server of a directory with a new key, to which handles of others are invalid.
fn serve(tree: &Path) -> TestServer {
    Plan::over(local_dir(tree)).start()
}

#[test]
fn stale_handles_are_replaced_by_path() {
    in_time(|| {
        let tree = scratch();
        let first = serve(tree.path());
        let server = Scripted::start(first.address(), |_| ScriptedReply::Forward);
        let world = world(mounted(server.address(), hard()));
        let sub = world.dir("sub");
        let deep = world.dir((sub, "deep"));
        let file = world.file((deep, "file"));
        world.write_all(file, 0, b"as it was before");
        world.fs.fsync(&world.cx, file, SyncScope::All).wait().expect("synced");

        let second = serve(tree.path());
        server.replace(second.address());
        first.stop();

        // By node, by opening, and below a directory that was only looked up.
        assert_eq!(world.attr(deep).nlink, 2);
        assert_eq!(world.read_all(file, 0, 100), b"as it was before");
        world.write_all(file, 0, b"as it is");
        world.fs.fsync(&world.cx, file, SyncScope::All).wait().expect("synced");
        assert_eq!(world.contents(file.node), b"as it iss before");
        world.mkdir((sub, "more")).expect("mkdir in a directory found again");
        world.release(file);
    });
}

#[test]
fn file_replaced_at_restart_is_stale() {
    in_time(|| {
        let tree = scratch();
        let first = serve(tree.path());
        let server = Scripted::start(first.address(), |_| ScriptedReply::Forward);
        let world = world(mounted(server.address(), hard()));
        let node = world.file_with("file", b"the first file");
        let file = world.open(node, OpenFlags::READ).expect("open");

        // Another file of the same name and size; the first is kept, so that its inode number is not reused.
        let (path, kept) = (tree.path().join(world.name()).join("file"), tree.path().join("kept"));
        std::fs::rename(&path, kept).expect("moved");
        std::fs::write(&path, b"another file!!").expect("written");
        let second = serve(tree.path());
        server.replace(second.address());
        first.stop();

        let read = world.read_eof(file, 0, 100);
        let error = read.expect_err("the file is gone");
        assert!(matches!(error, Error::Stale) || told(&error).contains("127.0.0.1"), "{}", told(&error));
        world.release(file);
        // Its name leads to the new file.
        assert_eq!(world.contents("file"), b"another file!!");
    });
}

#[test]
fn a_replaced_server_yields_no_wrong_data() {
    in_time(|| {
        let (tree, other) = (scratch(), scratch());
        let first = serve(tree.path());
        let server = Scripted::start(first.address(), |_| ScriptedReply::Forward);
        let world = world(mounted(server.address(), hard()));
        let node = world.file_with("file", b"of the first server");
        let file = world.open(node, OpenFlags::READ | OpenFlags::WRITE).expect("open");

        // The other server has files at the same paths.
        let there = other.path().join(world.name());
        std::fs::create_dir(&there).expect("mkdir");
        std::fs::write(there.join("file"), b"of another server!!").expect("written");
        let second = serve(other.path());
        server.replace(second.address());
        first.stop();

        let error = world.read_eof(file, 0, 100).expect_err("not the file that was opened");
        assert!(matches!(error, Error::Stale) || told(&error).contains("127.0.0.1"), "{}", told(&error));
        let written = world.write_as(file, &Default::default(), b"not for this one");
        let synced = world.fs.fsync(&world.cx, file, SyncScope::All).wait();
        written.map(drop).and(synced).expect_err("not the file that was opened");
        world.release(file);
        assert_eq!(std::fs::read(there.join("file")).expect("read"), b"of another server!!");
    });
}

#[test]
fn removed_file_stays_stale_while_its_directory_recovers() {
    in_time(|| {
        let tree = scratch();
        let server = serve(tree.path());
        let world = world(mounted(server.address(), hard()));
        let node = world.file_with("file", b"contents");
        let file = world.open(node, OpenFlags::READ).expect("open");
        // Removed by another session, which does not know that the file is open.
        world.other_session().unlink("file").expect("unlink");
        let gone = world.read_eof(file, 0, 8);
        if let Ok((bytes, _)) = gone {
            // Data read ahead at open may still be cached.
            assert_eq!(bytes, b"contents");
        }
        let attr = world.fs.getattr(&world.cx, node, None).wait();
        assert!(matches!(attr, Err(Error::Stale | Error::NotFound)), "{attr:?}");
        world.release(file);
        world.file_with("file", b"another");
        assert!(world.exists("file"));
    });
}
