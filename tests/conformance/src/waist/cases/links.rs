//! Hard links, symbolic links, and nodes that are neither file nor directory.

use tombolo_core::Error;
use tombolo_core::fs::{Device, FileType, Mode, NewMode, OpenFlags};
use tombolo_test_support::name;

use super::cases;
use crate::refused;
use crate::waist::{Verdict, World};

cases! { "links":
    two_names_are_one_file,
    the_last_name_takes_the_file_along,
    a_directory_has_one_name,
    directories_count_their_children,
    a_symbolic_link_keeps_its_target,
    a_symbolic_link_is_not_followed,
    only_links_have_targets,
    a_link_to_a_link_is_a_link,
    fifos_and_sockets_are_made,
    devices_are_made needs OWNERS,
    mknod_makes_plain_files,
}

fn two_names_are_one_file(w: &World) {
    let first = w.file_with("first", b"shared");
    let dir = w.dir("dir");
    let second = w.link(first, (dir, "second")).expect("link").entry;
    assert_eq!(second.attr.nlink, 2);
    assert_eq!(second.attr.fileid, w.attr(first).fileid);
    assert_eq!(w.contents(second.node), b"shared");
    w.chmod(second.node, 0o600).expect("chmod");
    let found = w.lookup("first").expect("lookup");
    assert_eq!(found.attr.mode.bits(), 0o600, "a change through one name shows through the other");
    assert_eq!(found.attr.fileid, second.attr.fileid);
}

fn the_last_name_takes_the_file_along(w: &World) {
    let file = w.file_with("first", b"still here");
    w.link(file, "second").expect("link");
    w.unlink("first").expect("unlink");
    let second = w.lookup("second").expect("lookup");
    assert_eq!(second.attr.nlink, 1);
    assert_eq!(w.contents(second.node), b"still here");
    w.unlink("second").expect("unlink");
    refused!(w.lookup("second"), Error::NotFound);
}

fn a_directory_has_one_name(w: &World) {
    let dir = w.dir("dir");
    refused!(w.link(dir, "again"), Error::NotPermitted | Error::IsDirectory);
}

fn directories_count_their_children(w: &World) -> Verdict {
    let dir = w.dir("dir");
    if w.attr(dir).nlink == 1 {
        return Err(crate::waist::Skip("this file system does not count a directory's links".into()));
    }
    assert_eq!(w.attr(dir).nlink, 2);
    w.mkdir((dir, "one")).expect("mkdir");
    w.mkdir((dir, "two")).expect("mkdir");
    w.release(w.file((dir, "file")));
    assert_eq!(w.attr(dir).nlink, 4, "files do not count, directories do");
    w.rmdir((dir, "one")).expect("rmdir");
    assert_eq!(w.attr(dir).nlink, 3);
    Ok(())
}

fn a_symbolic_link_keeps_its_target(w: &World) -> Verdict {
    let long = vec![b't'; 4095];
    for (index, target) in [&b"../else/where"[..], b"/", b"\xff\xfe", &long].into_iter().enumerate() {
        let made = w.symlink(&format!("link-{index}"), target).expect("symlink").entry;
        assert_eq!(made.attr.file_type, FileType::Symlink);
        assert_eq!(made.attr.size, target.len() as u64);
        assert_eq!(w.fs.readlink(&w.cx, made.node).wait().expect("readlink"), target);
    }
    refused!(w.symlink("too-long", &[b't'; 4096]), Error::NameTooLong | Error::InvalidArgument);
    refused!(w.symlink("empty", b""), Error::NotFound | Error::InvalidArgument);
    Ok(())
}

fn a_symbolic_link_is_not_followed(w: &World) {
    let dir = w.dir("dir");
    w.symlink("link", b"dir").expect("symlink");
    let link = w.lookup("link").expect("lookup");
    assert_eq!(link.attr.file_type, FileType::Symlink);
    refused!(w.lookup((link.node, "inner")), Error::NotDirectory | Error::SymlinkLoop);
    refused!(w.mkdir((link.node, "inner")), Error::NotDirectory | Error::SymlinkLoop);
    assert_eq!(w.names(dir), Vec::<String>::new());
    refused!(w.open(link.node, OpenFlags::READ), _);
}

fn only_links_have_targets(w: &World) {
    let file = w.file_with("file", b"not a link");
    refused!(w.fs.readlink(&w.cx, file).wait(), Error::InvalidArgument);
    refused!(w.fs.readlink(&w.cx, w.dir).wait(), Error::InvalidArgument);
}

fn a_link_to_a_link_is_a_link(w: &World) {
    let link = w.symlink("link", b"nowhere").expect("symlink").entry.node;
    let again = w.link(link, "again").expect("link").entry;
    assert_eq!((again.attr.file_type, again.attr.nlink), (FileType::Symlink, 2));
    assert_eq!(w.fs.readlink(&w.cx, again.node).wait().expect("readlink"), b"nowhere");
}

fn make(w: &World, text: &str, file_type: FileType, rdev: Device) -> tombolo_core::fs::Attr {
    let mode = NewMode { mode: Mode::new(0o666), umask: Mode::new(0o022) };
    let made = w.fs.mknod(&w.cx, w.dir, name(text), file_type, mode, rdev).wait().expect("mknod");
    let found = w.lookup(text).expect("lookup").attr;
    assert_eq!(found.fileid, made.entry.attr.fileid);
    assert_eq!((found.file_type, found.mode.bits(), found.nlink), (file_type, 0o644, 1));
    found
}

fn fifos_and_sockets_are_made(w: &World) {
    make(w, "fifo", FileType::Fifo, Device::default());
    make(w, "socket", FileType::Socket, Device::default());
    w.unlink("fifo").expect("unlink");
    w.unlink("socket").expect("unlink");
}

fn devices_are_made(w: &World) {
    let rdev = Device { major: 1, minor: 3 };
    assert_eq!(make(w, "null", FileType::CharDevice, rdev).rdev, rdev);
    let rdev = Device { major: 259, minor: 70_000 };
    assert_eq!(make(w, "disk", FileType::BlockDevice, rdev).rdev, rdev);
}

fn mknod_makes_plain_files(w: &World) {
    make(w, "file", FileType::Regular, Device::default());
    let node = w.lookup("file").expect("lookup").node;
    let file = w.open(node, OpenFlags::READ | OpenFlags::WRITE).expect("open");
    w.write_all(file, 0, b"usable");
    assert_eq!(w.read_all(file, 0, 10), b"usable");
    w.release(file);
    refused!(
        w.fs.mknod(&w.cx, w.dir, name("dir"), FileType::Directory, NewMode::default(), Device::default())
            .wait(),
        _
    );
}
