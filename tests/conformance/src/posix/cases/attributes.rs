//! Attributes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::cases;
use crate::posix::World;
use crate::report::Verdict;

cases! { "attributes":
    statx_agrees_with_stat,
    the_file_system_describes_itself;
    root: owner_and_group_are_set,
}

fn statx_agrees_with_stat(w: &World) {
    let path = w.file_with("file", b"12345");
    let stat = fs::metadata(&path).expect("stat");
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), wanted).expect("statx");
    assert_eq!((statx.stx_ino, statx.stx_size, statx.stx_nlink), (stat.ino(), 5, 1));
    assert_eq!(u32::from(statx.stx_mode), stat.mode());
    assert_eq!(statx.stx_mtime.tv_sec, stat.mtime());
}

fn the_file_system_describes_itself(w: &World) -> Verdict {
    let stat = rustix::fs::statvfs(&w.dir).expect("statvfs");
    assert!(stat.f_bsize > 0 && stat.f_namemax >= 255);
    assert!(stat.f_blocks > 0 && stat.f_bfree <= stat.f_blocks && stat.f_bavail <= stat.f_bfree);
    Ok(())
}

fn owner_and_group_are_set(w: &World) -> Verdict {
    let path = w.file_with("file", b"");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("chmod");
    std::os::unix::fs::chown(&path, Some(1234), Some(5678)).expect("chown");
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!((stat.uid(), stat.gid()), (1234, 5678));
    assert_eq!(stat.mode() & 0o7777, 0o755, "a new owner gets no privileges");
    std::os::unix::fs::symlink("file", w.path("link")).expect("symlink");
    std::os::unix::fs::lchown(w.path("link"), Some(42), Some(43)).expect("lchown");
    assert_eq!(fs::symlink_metadata(w.path("link")).expect("lstat").uid(), 42);
    assert_eq!(fs::metadata(&path).expect("stat").uid(), 1234);
    Ok(())
}
