//! Failures of the host: a root that disappears, a full or broken disk; and limits.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Mounted, ROOT, World, run, serve};
use tombolo_back_local_dir::{LocalDir, OpenError, Options};
use tombolo_core::fs::{Device, FileType, OpenFlags, RenameFlags, Write};
use tombolo_core::{Error, Limits};
use tombolo_test_support::{READ_WRITE, mode, name};

#[test]
fn missing_or_non_directory_root_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    for (path, reason) in [("missing", "No such file"), ("file", "Not a directory")] {
        let error = LocalDir::open(&dir.path().join(path), Options::default()).expect_err(path);
        assert!(
            matches!(&error, OpenError::Root { source, .. } if source.to_string().contains(reason)),
            "{error:?}"
        );
        assert!(error.to_string().contains(path), "{error}");
    }
}

#[test]
fn removed_root_is_not_found_but_openings_stay() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let world = serve(&root, Options::default());
    let file = world.file("file");
    world.write(file, 0, b"text").unwrap();
    fs::remove_dir_all(&root).unwrap();
    assert!(matches!(world.lookup("file"), Err(Error::NotFound)));
    assert!(matches!(world.created("new"), Err(Error::NotFound)));
    assert!(matches!(world.mkdir("new"), Err(Error::NotFound)));
    assert_eq!(world.attr(ROOT).nlink, 0);
    assert_eq!(world.read(file, 0, 10).unwrap(), b"text");
    // A new directory with the same name is not the export.
    fs::create_dir(&root).unwrap();
    assert!(matches!(world.created("new"), Err(Error::NotFound)));
}

/// Checks this on a disk, because O_DIRECT requires whole blocks there but not in memory.
#[test]
fn direct_write_back_may_end_inside_a_block() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let world = serve(dir.path(), Options::default());
    fs::write(dir.path().join("file"), [b'.'; 10_000]).unwrap();
    let node = world.lookup("file").unwrap().node;
    let file = world.open(node, READ_WRITE | OpenFlags::DIRECT).unwrap();
    let how = Write { offset: 8192, in_place: true, ..Write::default() };
    let written = world.write_as(file, &how, &[b'x'; 1808]).unwrap();
    assert_eq!(written.count, 1808);
    let content = fs::read(dir.path().join("file")).unwrap();
    assert!(content.len() == 10_000 && content[8192..] == [b'x'; 1808]);
}

#[test]
fn full_file_system_reports_short_writes() {
    let dir = tempfile::tempdir().unwrap();
    let _full = Mounted::new(&["-t", "tmpfs", "-o", "size=1m", "small"], dir.path());
    let world = serve(dir.path(), Options::default());
    let file = world.file("file");
    let written = world.write(file, 0, &vec![7; 2 << 20]).unwrap();
    assert!((900 << 10..2 << 20).contains(&written), "{written}");
    assert!(matches!(world.write(file, written as u64, &[7; 8192]), Err(Error::NoSpace)));
    assert_eq!(world.attr(file.node).size, written as u64);
}

/// Checks reads from an ext4 whose disk was truncated underneath.
#[test]
fn broken_disk_is_io_error_with_cause() {
    let dir = tempfile::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    fs::create_dir(&at).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&image));
    {
        let _mounted = Mounted::new(&["-o", "loop", path(&image)], &at);
        fs::write(at.join("file"), vec![7; 16 << 20]).unwrap();
    }
    let _mounted = Mounted::new(&["-o", "loop,ro", path(&image)], &at);
    let world = serve(&at, Options::default());
    let node = world.lookup("file").unwrap().node;
    let file = world.reader(node);
    // The inode and the file's extents are cached by now; most of the data is not.
    world.read(file, 0, 4096).unwrap();
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(9 << 20).unwrap();
    run(Command::new("sh").arg("-c").arg(format!("dd if={}/file iflag=nocache count=0 2>&1", path(&at))));
    match world.read(file, 15 << 20, 1 << 19) {
        Err(Error::Io { source }) => assert!(source.is_some(), "the cause is kept"),
        other => panic!("{:?}", other.map(|bytes| bytes.len())),
    }
}

#[test]
fn a_read_only_export_refuses_every_change() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"text").unwrap();
    let world = serve(dir.path(), Options { read_only: true, ..Options::default() });
    let node = world.lookup("file").unwrap().node;
    let refused = |error: Option<Error>| assert!(matches!(error, Some(Error::ReadOnly)), "{error:?}");
    refused(world.created("new").err());
    refused(world.open(node, READ_WRITE).err());
    refused(world.open(node, OpenFlags::READ | OpenFlags::TRUNCATE).err());
    refused(world.mkdir("d").err());
    refused(world.symlink("l", b"x").err());
    refused(world.link(node, "l").err());
    refused(world.unlink("file").err());
    refused(world.rmdir("file").err());
    refused(world.truncate(node, 0).err());
    refused(world.rename("file", "g", RenameFlags::empty()).err());
    refused(world.set_xattr(node, "user.x", b"").err());
    refused(world.remove_xattr(node, "user.x").err());
    let open = world.reader(node);
    assert_eq!(world.read(open, 0, 10).unwrap(), b"text");
    assert_eq!(world.list(ROOT, true).unwrap(), [".", "..", "file"]);
}

#[test]
fn session_gets_its_descriptor_share_and_returns_it() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { nodes: 3, opens: 2, bytes_in_flight: 1 << 16, ..Limits::default() };
    let world = serve(dir.path(), Options { limits, ..Options::default() });
    for text in ["a", "b", "c", "d"] {
        fs::write(dir.path().join(text), b"").unwrap();
    }
    let nodes: Vec<_> = ["a", "b", "c"].iter().map(|text| world.lookup(text).unwrap().node).collect();
    assert!(matches!(world.lookup("d"), Err(Error::NoMemory)));
    assert_eq!(world.lookup("a").unwrap().node, nodes[0], "what is known costs nothing more");
    world.forget(nodes[1]);
    world.lookup("d").unwrap();

    let open = |world: &World| world.open(nodes[0], READ_WRITE);
    let (first, _second) = (open(&world).unwrap(), open(&world).unwrap());
    assert!(matches!(open(&world), Err(Error::TooManyOpen)));
    world.release(first);
    let third = open(&world).unwrap();
    // Transfers in the pool count against the session's budget: this one is too large.
    assert!(matches!(world.write(third, 0, &vec![0; 2 << 20]), Err(Error::WouldBlock)));
    world.write(third, 0, &[0; 1 << 16]).unwrap();
}

#[test]
fn requests_refused_at_a_limit_neither_create_nor_truncate() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { nodes: 2, opens: 1, ..Limits::default() };
    let world = serve(dir.path(), Options { limits, ..Options::default() });
    let file = world.file("file");
    world.write(file, 0, b"text").unwrap();
    // No further opening fits the budget.
    assert!(matches!(world.created("more"), Err(Error::TooManyOpen)));
    assert!(matches!(world.open(file.node, READ_WRITE | OpenFlags::TRUNCATE), Err(Error::TooManyOpen)));
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"text");
    world.release(file);
    // No further node fits the budget.
    world.mkdir("dir").unwrap();
    assert!(matches!(world.created("more"), Err(Error::NoMemory)));
    assert!(matches!(world.mkdir("more"), Err(Error::NoMemory)));
    assert!(matches!(world.symlink("more", b"x"), Err(Error::NoMemory)));
    let (fs, cx, fifo) = (&world.fs, &world.cx, FileType::Fifo);
    let fifo = fs.mknod(cx, ROOT, name("more"), fifo, mode(0o644), Device::default()).wait();
    assert!(matches!(fifo, Err(Error::NoMemory)));
    assert_eq!(world.list(ROOT, false).unwrap().len(), 4);
    world.forget(file.node);
    world.created("more").unwrap();
}

fn path(path: &Path) -> &str {
    path.to_str().expect("plain text")
}
