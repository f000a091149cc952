//! Attributes.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, Timespec, Timestamps};

use super::cases;
use crate::posix::World;
use crate::report::Verdict;

cases! { "attributes":
    the_mode_is_set,
    times_are_set_to_the_nanosecond,
    times_are_set_one_by_one,
    changes_move_the_times,
    changes_of_a_directory_move_its_times,
    directories_count_their_children,
    statx_agrees_with_stat,
    numbers_tell_nodes_apart,
    the_file_system_describes_itself,
    attributes_through_a_descriptor_agree;
    root: owner_and_group_are_set,
}

fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn the_mode_is_set(w: &World) -> Verdict {
    let (file, dir) = (w.file_with("file", b""), w.mkdir("dir"));
    for mode in [0o600, 0o777, 0o4755, 0o2755, 0o644] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("chmod");
        assert_eq!(fs::metadata(&file).expect("stat").mode() & 0o7777, mode);
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).expect("chmod");
    assert_eq!(fs::metadata(&dir).expect("stat").mode() & 0o7777, 0o1777);
    Ok(())
}

fn set_times(path: &Path, atime: Timespec, mtime: Timespec) {
    let times = Timestamps { last_access: atime, last_modification: mtime };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimensat");
}

fn times_are_set_to_the_nanosecond(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    std::os::unix::fs::symlink("file", w.path("link")).expect("symlink");
    for path in [&file, &w.path("link")] {
        let atime = Timespec { tv_sec: 1_000_000_000, tv_nsec: 123_456_789 };
        let mtime = Timespec { tv_sec: 5_000_000_000, tv_nsec: 999_999_999 };
        set_times(path, atime, mtime);
        let stat = fs::symlink_metadata(path).expect("lstat");
        assert_eq!((stat.atime(), stat.atime_nsec()), (atime.tv_sec, atime.tv_nsec));
        assert_eq!((stat.mtime(), stat.mtime_nsec()), (mtime.tv_sec, mtime.tv_nsec));
    }
    Ok(())
}

fn times_are_set_one_by_one(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    let (past, omitted) =
        (Timespec { tv_sec: 7, tv_nsec: 0 }, Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT });
    set_times(&file, past, past);
    set_times(&file, omitted, Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW });
    let stat = fs::metadata(&file).expect("stat");
    assert_eq!(stat.atime(), 7, "the other time stays");
    assert!((stat.mtime() - stat.ctime()).abs() <= 1, "the present");
    Ok(())
}

fn changes_move_the_times(w: &World) -> Verdict {
    let file = w.file("file");
    let path = w.path("file");
    let stamps = || {
        let stat = fs::metadata(&path).expect("stat");
        ((stat.mtime(), stat.mtime_nsec()), (stat.ctime(), stat.ctime_nsec()))
    };
    let mut last = stamps();
    let mut step = |what: &str, data: bool, change: &dyn Fn()| {
        pause();
        change();
        let now = stamps();
        assert!(now.1 > last.1, "{what} leaves ctime alone");
        assert_eq!(now.0 > last.0, data, "mtime after {what}");
        last = now;
    };
    step("write", true, &|| file.write_all_at(b"data", 0).expect("write"));
    step("chmod", false, &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod"));
    step("truncate", true, &|| file.set_len(1).expect("ftruncate"));
    step("link", false, &|| fs::hard_link(&path, w.path("second")).expect("link"));
    step("unlink", false, &|| fs::remove_file(w.path("second")).expect("unlink"));
    Ok(())
}

fn changes_of_a_directory_move_its_times(w: &World) -> Verdict {
    let stamps = || {
        let stat = fs::metadata(&w.dir).expect("stat");
        ((stat.mtime(), stat.mtime_nsec()), (stat.ctime(), stat.ctime_nsec()))
    };
    let mut last = stamps();
    let mut step = |what: &str, change: &dyn Fn()| {
        pause();
        change();
        let now = stamps();
        assert!(now.0 > last.0 && now.1 > last.1, "{what} leaves the directory's times alone");
        last = now;
    };
    step("create", &|| {
        w.file_with("a", b"");
    });
    step("mkdir", &|| {
        w.mkdir("d");
    });
    step("rename", &|| fs::rename(w.path("a"), w.path("b")).expect("rename"));
    step("unlink", &|| fs::remove_file(w.path("b")).expect("unlink"));
    step("rmdir", &|| fs::remove_dir(w.path("d")).expect("rmdir"));
    Ok(())
}

fn directories_count_their_children(w: &World) -> Verdict {
    let dir = w.mkdir("dir");
    let links = || fs::metadata(&dir).expect("stat").nlink();
    if links() == 1 {
        return Err(crate::report::Skip("this file system does not count a directory's links".into()));
    }
    fs::create_dir(dir.join("one")).expect("mkdir");
    fs::create_dir(dir.join("two")).expect("mkdir");
    fs::write(dir.join("file"), b"").expect("write");
    assert_eq!(links(), 4);
    fs::remove_dir(dir.join("one")).expect("rmdir");
    assert_eq!(links(), 3);
    fs::rename(dir.join("two"), w.path("moved")).expect("rename");
    assert_eq!(links(), 2);
    Ok(())
}

fn statx_agrees_with_stat(w: &World) -> Verdict {
    let path = w.file_with("file", b"12345");
    let stat = fs::metadata(&path).expect("stat");
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), wanted).expect("statx");
    assert_eq!((statx.stx_ino, statx.stx_size, statx.stx_nlink), (stat.ino(), 5, 1));
    assert_eq!(u32::from(statx.stx_mode), stat.mode());
    assert_eq!(statx.stx_mtime.tv_sec, stat.mtime());
    Ok(())
}

fn numbers_tell_nodes_apart(w: &World) -> Verdict {
    let numbers: Vec<_> = (0..50)
        .map(|index| {
            let stat = fs::metadata(w.file_with(&format!("file-{index}"), b"")).expect("stat");
            (stat.dev(), stat.ino())
        })
        .collect();
    for (index, number) in numbers.iter().enumerate() {
        assert_eq!(number.0, numbers[0].0, "one file system");
        assert!(!numbers[..index].contains(number), "two files, one number");
        let again = fs::metadata(w.path(&format!("file-{index}"))).expect("stat");
        assert_eq!((again.dev(), again.ino()), *number, "a number stays");
    }
    Ok(())
}

fn the_file_system_describes_itself(w: &World) -> Verdict {
    let stat = rustix::fs::statvfs(&w.dir).expect("statvfs");
    assert!(stat.f_bsize > 0 && stat.f_namemax >= 255);
    assert!(stat.f_blocks > 0 && stat.f_bfree <= stat.f_blocks && stat.f_bavail <= stat.f_bfree);
    Ok(())
}

fn attributes_through_a_descriptor_agree(w: &World) -> Verdict {
    let file = w.file("file");
    file.write_all_at(b"12345", 0).expect("write");
    let (by_name, by_descriptor) =
        (fs::metadata(w.path("file")).expect("stat"), file.metadata().expect("fstat"));
    assert_eq!(
        (by_name.ino(), by_name.len(), by_name.mode(), by_name.mtime_nsec()),
        (by_descriptor.ino(), by_descriptor.len(), by_descriptor.mode(), by_descriptor.mtime_nsec())
    );
    file.set_permissions(fs::Permissions::from_mode(0o640)).expect("fchmod");
    assert_eq!(fs::metadata(w.path("file")).expect("stat").mode() & 0o7777, 0o640);
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
