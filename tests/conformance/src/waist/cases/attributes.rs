//! Attributes of nodes and of the file system.

use std::time::Duration;

use tombolo_core::Error;
use tombolo_core::fs::{
    AccessMask, FileType, Mode, OpenFlags, RenameFlags, SetAttr, SetTime, Timestamp, WeakAttr, Write,
};

use super::cases;
use crate::refused;
use crate::waist::{Verdict, World};

cases! { "attributes":
    the_mode_is_set,
    times_are_set_to_the_nanosecond,
    times_before_1970_are_times needs OLD_TIMES,
    times_are_set_to_the_present,
    each_attribute_is_set_alone,
    a_guard_that_does_not_hold_changes_nothing,
    changes_move_the_times,
    changes_of_a_directory_move_its_times,
    before_and_after_come_when_wanted,
    a_write_drops_privileges_when_asked needs KILLS,
    a_truncation_drops_privileges_when_asked needs KILLS,
    numbers_tell_nodes_apart,
    the_root_may_do_all,
    a_size_is_for_files,
    the_file_system_describes_itself,
}

/// Sleeps for longer than the timestamp granularity of any host file system.
pub(super) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn the_mode_is_set(w: &World) {
    let file = w.file_with("file", b"");
    for mode in [0, 0o777, 0o644, 0o4755, 0o2755, 0o1644] {
        assert_eq!(w.chmod(file, mode).expect("chmod").mode.bits(), mode);
        assert_eq!(w.attr(file).mode.bits(), mode);
    }
    let dir = w.dir("dir");
    assert_eq!(w.chmod(dir, 0o1777).expect("chmod").mode.bits(), 0o1777);
}

/// Sets both times of a file and verifies them.
fn set_times(w: &World, atime: (i64, u32), mtime: (i64, u32)) {
    let file = w.file_with("file", b"");
    let grain = w.fs.profile().time_granularity_ns.max(1);
    let time = |(secs, nanos): (i64, u32)| Timestamp { secs, nanos: nanos - nanos % grain };
    let (atime, mtime) = (time(atime), time(mtime));
    let set =
        SetAttr { atime: Some(SetTime::At(atime)), mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
    let (attr, _) = w.setattr(file, set).expect("setattr");
    assert_eq!((attr.atime, attr.mtime), (atime, mtime));
    w.unlink("file").expect("unlink");
}

fn times_are_set_to_the_nanosecond(w: &World) {
    set_times(w, (1_000_000_000, 123_456_789), (1_100_000_000, 999_999_999));
    // Beyond 2038.
    set_times(w, (2_500_000_000, 0), (4_200_000_000, 1));
}

fn times_before_1970_are_times(w: &World) {
    set_times(w, (-86_400, 5_000_000), (5_000_000_000, 1));
}

fn times_are_set_to_the_present(w: &World) {
    let file = w.file_with("file", b"");
    let past = Some(SetTime::At(Timestamp { secs: 1, nanos: 0 }));
    w.setattr(file, SetAttr { atime: past, mtime: past, ..SetAttr::default() }).expect("setattr");
    let (attr, _) =
        w.setattr(file, SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).expect("setattr");
    assert_eq!(attr.atime.secs, 1, "the other time stays");
    let difference = attr.mtime.secs - attr.ctime.secs;
    assert!(difference.abs() <= 1, "the present is {difference} s off");
}

fn each_attribute_is_set_alone(w: &World) {
    let file = w.file_with("file", b"12345");
    let before = w.attr(file);
    let after = w.chmod(file, 0o600).expect("chmod");
    assert_eq!((after.size, after.uid, after.gid), (before.size, before.uid, before.gid));
    assert_eq!((after.atime, after.mtime), (before.atime, before.mtime));
    let after = w.truncate(file, 3).expect("truncate");
    assert_eq!((after.size, after.mode), (3, Mode::new(0o600)));
    let set = SetAttr { mode: Some(Mode::new(0o640)), size: Some(2), ..SetAttr::default() };
    let (after, _) = w.setattr(file, set).expect("setattr");
    assert_eq!((after.size, after.mode.bits()), (2, 0o640), "both at once");
}

fn a_guard_that_does_not_hold_changes_nothing(w: &World) {
    let file = w.file_with("file", b"12345");
    let ctime = w.attr(file).ctime;
    let wrong = Timestamp { secs: ctime.secs - 1, ..ctime };
    let set = SetAttr { size: Some(0), guard_ctime: Some(wrong), ..SetAttr::default() };
    refused!(w.setattr(file, set), Error::NotSync);
    assert_eq!(w.attr(file).size, 5);
    let set = SetAttr { guard_ctime: Some(ctime), ..set };
    assert_eq!(w.setattr(file, set).expect("setattr").0.size, 0);
}

fn changes_move_the_times(w: &World) {
    let file = w.file("file");
    let mut last = w.open_attr(file);
    let mut step = |what: &str, data: bool, change: &dyn Fn()| {
        pause();
        change();
        let now = w.open_attr(file);
        assert!(now.ctime > last.ctime, "{what} leaves ctime alone");
        assert_eq!(now.mtime > last.mtime, data, "mtime after {what}");
        last = now;
    };
    step("write", true, &|| w.write_all(file, 0, b"data"));
    step("chmod", false, &|| w.chmod(file.node, 0o600).map(drop).expect("chmod"));
    step("truncate", true, &|| w.truncate(file.node, 1).map(drop).expect("truncate"));
    step("link", false, &|| w.link(file.node, "second").map(drop).expect("link"));
    step("rename", false, &|| w.rename("second", "third", RenameFlags::empty()).map(drop).expect("rename"));
    step("unlink", false, &|| w.unlink("third").map(drop).expect("unlink"));
    pause();
    w.read_all(file, 0, 10);
    let read = w.open_attr(file);
    assert_eq!((read.mtime, read.ctime), (last.mtime, last.ctime), "reading changes nothing but atime");
    w.release(file);
}

fn changes_of_a_directory_move_its_times(w: &World) {
    let mut last = w.attr(w.dir);
    let mut step = |what: &str, change: &dyn Fn()| {
        pause();
        change();
        let now = w.attr(w.dir);
        assert!(
            now.mtime > last.mtime && now.ctime > last.ctime,
            "{what} leaves the directory's times alone"
        );
        last = now;
    };
    step("create", &|| w.put("a", b""));
    step("mkdir", &|| w.mkdir("d").map(drop).expect("mkdir"));
    step("symlink", &|| w.symlink("s", b"t").map(drop).expect("symlink"));
    step("rename", &|| w.rename("a", "b", RenameFlags::empty()).map(drop).expect("rename"));
    step("unlink", &|| w.unlink("b").map(drop).expect("unlink"));
    step("rmdir", &|| w.rmdir("d").map(drop).expect("rmdir"));
}

fn before_and_after_come_when_wanted(w: &World) {
    let node = w.file_with("file", b"12345");
    let (_, unasked) = w.setattr(node, SetAttr { size: Some(6), ..SetAttr::default() }).expect("setattr");
    assert!(unasked.after.is_none(), "it was not asked for");
    let w = w.wanting_changes();
    let was = WeakAttr::from(&w.attr(node));
    let (attr, change) = w.setattr(node, SetAttr { size: Some(7), ..SetAttr::default() }).expect("setattr");
    // A back end may omit the attributes before, but must not report wrong ones (RFC 1813 §2.6).
    assert!(change.before.is_none_or(|before| before == was), "{change:?}");
    assert_eq!(change.after.expect("attributes after"), attr);

    let file = w.open(node, OpenFlags::READ | OpenFlags::WRITE).expect("open");
    let was = WeakAttr::from(&w.open_attr(file));
    let written = w.write_as(file, &Write { offset: 7, ..Write::default() }, b"8").expect("write");
    assert!(written.file.before.is_none_or(|before| before == was));
    assert_eq!(written.file.after.expect("attributes after").size, 8);
    w.release(file);

    let was = WeakAttr::from(&w.attr(w.dir));
    pause();
    let change = w.unlink("file").expect("unlink");
    assert!(change.before.is_none_or(|before| before == was));
    assert!(change.after.expect("attributes after").mtime > was.mtime);
    let made = w.mkdir("dir").expect("mkdir");
    assert!(made.dir.after.is_some());
    let renamed = w.rename("dir", "else", RenameFlags::empty()).expect("rename");
    assert!(renamed.from_dir.after.is_some() && renamed.to_dir.after.is_some());
}

fn a_write_drops_privileges_when_asked(w: &World) {
    let file = w.file("file");
    w.chmod(file.node, 0o6755).expect("chmod");
    w.write_as(file, &Write { kill_privileges: true, ..Write::default() }, b"x").expect("write");
    assert_eq!(w.open_attr(file).mode.bits(), 0o755);
    w.release(file);
}

fn a_truncation_drops_privileges_when_asked(w: &World) {
    let node = w.file_with("file", b"12345");
    w.chmod(node, 0o6755).expect("chmod");
    let set = SetAttr { size: Some(1), kill_privileges: true, ..SetAttr::default() };
    assert_eq!(w.setattr(node, set).expect("setattr").0.mode.bits(), 0o755);
    w.chmod(node, 0o4755).expect("chmod");
    let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE | OpenFlags::KILL_PRIVILEGES;
    let file = w.open(node, flags).expect("open");
    assert_eq!(w.open_attr(file).mode.bits(), 0o755);
    w.release(file);
}

fn numbers_tell_nodes_apart(w: &World) {
    let (a, b, dir) = (w.file_with("a", b""), w.file_with("b", b""), w.dir("dir"));
    let attrs = [w.attr(a), w.attr(b), w.attr(dir), w.attr(w.dir)];
    for (index, attr) in attrs.iter().enumerate() {
        assert_eq!(attr.fsid, attrs[0].fsid, "one file system");
        assert!(attrs[..index].iter().all(|other| other.fileid != attr.fileid), "two nodes, one number");
    }
    let other = w.other_session();
    let seen = other.lookup("a").expect("lookup").attr;
    assert_eq!(
        (seen.fsid, seen.fileid, seen.generation),
        (attrs[0].fsid, attrs[0].fileid, attrs[0].generation)
    );
    assert_eq!((attrs[0].file_type, attrs[2].file_type), (FileType::Regular, FileType::Directory));
}

fn the_root_may_do_all(w: &World) {
    let node = w.file_with("file", b"");
    w.chmod(node, 0o400).expect("chmod");
    let access = |mask| w.access(node, mask);
    access(AccessMask::empty()).expect("it exists");
    access(AccessMask::READ | AccessMask::WRITE).expect("the superuser reads and writes");
    refused!(access(AccessMask::EXECUTE), Error::AccessDenied);
    w.chmod(node, 0o100).expect("chmod");
    access(AccessMask::EXECUTE).expect("what has an execute bit, the superuser may execute");
}

fn a_size_is_for_files(w: &World) {
    refused!(w.truncate(w.dir, 0), Error::IsDirectory | Error::InvalidArgument);
    let link = w.symlink("link", b"target").expect("symlink").entry.node;
    refused!(w.truncate(link, 0), _);
}

fn the_file_system_describes_itself(w: &World) -> Verdict {
    let stat = w.fs.statfs(&w.cx, w.dir).wait().expect("statfs");
    assert!(stat.block_size > 0 && stat.name_max >= 255);
    assert!(stat.blocks > 0 && stat.blocks_free <= stat.blocks && stat.blocks_available <= stat.blocks_free);
    assert!(stat.files_free <= stat.files);
    let profile = w.fs.profile();
    assert!(!profile.read_only && profile.name_max >= 255 && profile.file_size_max >= 1 << 32);
    Ok(())
}
