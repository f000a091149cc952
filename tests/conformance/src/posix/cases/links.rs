//! Names that are removed, symbolic links, devices.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use super::cases;
use crate::posix::World;
use crate::report::Verdict;

cases! { "links":
    an_open_file_survives_its_name,
    an_open_directory_survives_its_name,
    a_symbolic_link_keeps_its_target;
    root: a_device_keeps_its_number,
}

fn an_open_file_survives_its_name(w: &World) -> Verdict {
    let file = w.file("file");
    file.write_all_at(b"before", 0).expect("write");
    fs::remove_file(w.path("file")).expect("unlink");
    assert!(w.names().is_empty());
    file.write_all_at(b" and after", 6).expect("write");
    let mut bytes = [0; 32];
    let count = file.read_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes[..count], b"before and after");
    let stat = file.metadata().expect("fstat");
    assert_eq!((stat.nlink(), stat.len()), (0, 16));
    file.set_len(3).expect("ftruncate");
    file.sync_all().expect("fsync");
    assert_eq!(file.metadata().expect("fstat").len(), 3);
    // A new file of that name is another node.
    w.file_with("file", b"new");
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), 3);
    assert_eq!(&bytes[..3], b"bef");
    Ok(())
}

fn an_open_directory_survives_its_name(w: &World) {
    let dir = w.mkdir("dir");
    let open = File::open(&dir).expect("open");
    fs::remove_dir(&dir).expect("rmdir");
    assert!(open.metadata().expect("fstat").is_dir());
    let made = rustix::fs::mkdirat(&open, "inner", Mode::RWXU);
    assert_eq!(made.expect_err("a removed directory"), Errno::NOENT);
}

fn a_symbolic_link_keeps_its_target(w: &World) -> Verdict {
    for (index, target) in ["../else/where", "/", &"t".repeat(4000)].into_iter().enumerate() {
        let link = w.path(&format!("link-{index}"));
        symlink(target, &link).expect("symlink");
        assert_eq!(fs::read_link(&link).expect("readlink").to_str(), Some(target));
        let stat = fs::symlink_metadata(&link).expect("lstat");
        assert!(stat.is_symlink());
        assert_eq!(stat.len(), target.len() as u64);
    }
    assert_eq!(rustix::fs::readlink(&w.dir, Vec::new()).expect_err("no link"), Errno::INVAL);
    Ok(())
}

fn a_device_keeps_its_number(w: &World) -> Verdict {
    let rdev = rustix::fs::makedev(259, 70_000);
    let path = w.path("device");
    match rustix::fs::mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR, rdev) {
        Ok(()) => {}
        Err(Errno::PERM) => return Err(crate::report::Skip("no devices may be made here".into())),
        Err(error) => panic!("{error}"),
    }
    let stat = fs::symlink_metadata(&path).expect("lstat");
    assert!(stat.file_type().is_block_device());
    assert_eq!(stat.rdev(), rdev);
    Ok(())
}
