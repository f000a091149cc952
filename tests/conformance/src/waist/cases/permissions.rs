//! Permission checks of the back end.

use tombolo_core::Error;
use tombolo_core::fs::{
    AccessMask, Exclusive, FileType, Mode, NewMode, OpenFlags, RenameFlags, SetAttr, SetTime, Timestamp,
};
use tombolo_test_support::{name, plain};

use super::cases;
use crate::refused;
use crate::waist::{Verdict, World};

cases! { "permissions":
    the_mode_binds_owner_group_and_others needs OWNERS | CHECKS,
    supplementary_groups_count needs OWNERS | CHECKS,
    the_first_class_that_matches_decides needs OWNERS | CHECKS,
    a_directory_is_searched_and_changed_with_leave needs OWNERS | CHECKS,
    a_sticky_directory_protects_its_entries needs OWNERS | CHECKS,
    only_the_owner_changes_the_mode needs OWNERS | CHECKS,
    only_the_superuser_gives_files_away needs OWNERS | CHECKS,
    times_are_the_owners_to_set needs OWNERS | CHECKS,
    truncation_is_writing needs OWNERS | CHECKS,
    access_answers_for_the_user needs OWNERS | CHECKS,
    devices_are_the_superusers needs OWNERS | CHECKS,
    an_opening_outlives_a_change_of_mode needs OWNERS | CHECKS | RIGHTS,
    moving_a_directory_writes_it needs OWNERS | CHECKS,
    creating_over_what_exists_asks_for_it needs OWNERS | CHECKS,
    foreign_writes_drop_privileges needs OWNERS | CHECKS,
    a_foreign_group_bit_is_not_kept needs OWNERS | CHECKS,
}

/// Creates a file of user 1000 and group 1001.
fn owned(w: &World, text: &str, mode: u32) -> tombolo_core::fs::NodeId {
    let node = w.file_with(text, b"secret");
    w.chown(node, 1000, 1001).expect("chown");
    w.chmod(node, mode).expect("chmod");
    node
}

fn opens(w: &World, node: tombolo_core::fs::NodeId, flags: OpenFlags) -> bool {
    match w.open(node, flags) {
        Ok(file) => {
            w.release(file);
            true
        }
        Err(Error::AccessDenied) => false,
        Err(error) => panic!("open: {error:?}"),
    }
}

fn the_mode_binds_owner_group_and_others(w: &World) -> Verdict {
    let users = [w.as_user(1000, 5, &[]), w.as_user(5, 1001, &[]), w.as_user(5, 5, &[])];
    for (class, user) in users.iter().enumerate() {
        for bits in 0..8_u32 {
            let mode = bits << (6 - 3 * class);
            let node = owned(w, "file", mode);
            assert_eq!(opens(user, node, OpenFlags::READ), bits & 4 != 0, "read, mode {mode:o}");
            assert_eq!(opens(user, node, OpenFlags::WRITE), bits & 2 != 0, "write, mode {mode:o}");
            w.unlink("file").expect("unlink");
        }
    }
    Ok(())
}

fn supplementary_groups_count(w: &World) -> Verdict {
    let node = owned(w, "file", 0o060);
    assert!(opens(&w.as_user(5, 5, &[7, 1001]), node, OpenFlags::READ | OpenFlags::WRITE));
    assert!(!opens(&w.as_user(5, 5, &[7]), node, OpenFlags::READ));
    Ok(())
}

fn the_first_class_that_matches_decides(w: &World) {
    let node = owned(w, "file", 0o077);
    assert!(!opens(&w.as_user(1000, 1001, &[]), node, OpenFlags::READ), "the owner is not one of the others");
    let node = owned(w, "file-2", 0o707);
    assert!(!opens(&w.as_user(5, 1001, &[]), node, OpenFlags::READ), "the group is not one of the others");
}

fn a_directory_is_searched_and_changed_with_leave(w: &World) -> Verdict {
    let dir = w.dir("dir");
    let inner = w.file((dir, "inner"));
    w.release(inner);
    let user = w.as_user(5, 5, &[]);
    w.chmod(dir, 0o755).expect("chmod");
    user.lookup((dir, "inner")).expect("search");
    refused!(user.create((dir, "new"), &plain()), Error::AccessDenied);
    refused!(user.mkdir((dir, "new")), Error::AccessDenied);
    refused!(user.unlink((dir, "inner")), Error::AccessDenied);
    refused!(user.link(inner.node, (dir, "again")), Error::AccessDenied | Error::NotPermitted);
    refused!(user.rename((dir, "inner"), (w.dir, "out"), RenameFlags::empty()), Error::AccessDenied);
    w.chmod(dir, 0o744).expect("chmod");
    refused!(user.lookup((dir, "inner")), Error::AccessDenied);
    refused!(user.lookup((dir, "nothing")), Error::AccessDenied);
    let listing = user.open(dir, OpenFlags::READ | OpenFlags::DIRECTORY).expect("list");
    user.release(listing);
    w.chmod(dir, 0o711).expect("chmod");
    user.lookup((dir, "inner")).expect("search without reading");
    refused!(user.open(dir, OpenFlags::READ | OpenFlags::DIRECTORY), Error::AccessDenied);
    Ok(())
}

fn a_sticky_directory_protects_its_entries(w: &World) -> Verdict {
    let dir = w.dir("dir");
    w.chmod(dir, 0o1777).expect("chmod");
    let (owner, other) = (w.as_user(1000, 1000, &[]), w.as_user(2000, 2000, &[]));
    for text in ["a", "b"] {
        owner.release(owner.file((dir, text)));
    }
    other.mkdir((dir, "theirs")).expect("mkdir");
    let unlink = |w: &World, text: &str| w.unlink((dir, text));
    refused!(unlink(&other, "a"), Error::NotPermitted);
    refused!(other.rename((dir, "a"), (dir, "c"), RenameFlags::empty()), Error::NotPermitted);
    refused!(owner.rmdir((dir, "theirs")), Error::NotPermitted);
    other.release(other.file((dir, "mine")));
    refused!(other.rename((dir, "mine"), (dir, "a"), RenameFlags::empty()), Error::NotPermitted);
    unlink(&owner, "a").expect("one's own");
    w.chown(dir, 2000, 2000).expect("chown");
    unlink(&other, "b").expect("the directory's owner");
    Ok(())
}

fn only_the_owner_changes_the_mode(w: &World) {
    let node = owned(w, "file", 0o666);
    refused!(w.as_user(5, 1001, &[]).chmod(node, 0o777), Error::NotPermitted);
    assert_eq!(w.as_user(1000, 5, &[]).chmod(node, 0o600).expect("chmod").mode.bits(), 0o600);
}

fn only_the_superuser_gives_files_away(w: &World) {
    let node = owned(w, "file", 0o644);
    let owner = w.as_user(1000, 1000, &[7]);
    refused!(owner.chown(node, 5, 1001), Error::NotPermitted);
    let group = |gid| SetAttr { gid: Some(gid), ..SetAttr::default() };
    refused!(owner.setattr(node, group(8)), Error::NotPermitted);
    assert_eq!(owner.setattr(node, group(7)).expect("to a group of one's own").0.gid, 7);
    refused!(w.as_user(5, 7, &[]).setattr(node, group(7)), Error::NotPermitted);
}

fn times_are_the_owners_to_set(w: &World) {
    let node = owned(w, "file", 0o664);
    let at = SetAttr { mtime: Some(SetTime::At(Timestamp { secs: 5, nanos: 0 })), ..SetAttr::default() };
    let now = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    let (owner, writer, reader) = (w.as_user(1000, 5, &[]), w.as_user(5, 1001, &[]), w.as_user(5, 5, &[]));
    owner.setattr(node, at).expect("the owner sets any time");
    refused!(writer.setattr(node, at), Error::NotPermitted);
    writer.setattr(node, now).expect("a writer may set the present time");
    refused!(reader.setattr(node, now), Error::AccessDenied);
}

fn truncation_is_writing(w: &World) {
    let node = owned(w, "file", 0o644);
    let other = w.as_user(5, 5, &[]);
    refused!(other.truncate(node, 0), Error::AccessDenied);
    refused!(other.open(node, OpenFlags::READ | OpenFlags::TRUNCATE), Error::AccessDenied);
    assert_eq!(w.attr(node).size, 6);
    w.as_user(1000, 5, &[]).truncate(node, 0).expect("the owner truncates");
}

fn access_answers_for_the_user(w: &World) {
    let node = owned(w, "file", 0o754);
    let ask = |w: &World, mask| w.access(node, mask);
    let (owner, group, other) = (w.as_user(1000, 5, &[]), w.as_user(5, 1001, &[]), w.as_user(5, 5, &[]));
    ask(&owner, AccessMask::all()).expect("rwx");
    ask(&group, AccessMask::READ | AccessMask::EXECUTE).expect("r-x");
    refused!(ask(&group, AccessMask::WRITE), Error::AccessDenied);
    ask(&other, AccessMask::READ).expect("r--");
    refused!(ask(&other, AccessMask::READ | AccessMask::EXECUTE), Error::AccessDenied);
}

fn devices_are_the_superusers(w: &World) {
    let user = w.as_user(5, 5, &[]);
    let rdev = tombolo_core::fs::Device { major: 1, minor: 3 };
    let mode = NewMode::settled(Mode::new(0o666));
    let make = |file_type| user.fs.mknod(&user.cx, w.dir, name("node"), file_type, mode, rdev).wait();
    refused!(make(FileType::CharDevice), Error::NotPermitted);
    refused!(make(FileType::BlockDevice), Error::NotPermitted);
    make(FileType::Fifo).expect("any user makes a fifo");
}

fn an_opening_outlives_a_change_of_mode(w: &World) {
    let node = owned(w, "file", 0o666);
    let user = w.as_user(5, 5, &[]);
    let file = user.open(node, OpenFlags::READ | OpenFlags::WRITE).expect("open");
    w.chmod(node, 0).expect("chmod");
    user.write_all(file, 0, b"SECRET");
    assert_eq!(user.read_all(file, 0, 10), b"SECRET");
    refused!(user.open(node, OpenFlags::READ), Error::AccessDenied);
    user.release(file);
}

fn moving_a_directory_writes_it(w: &World) {
    let (there, user) = (w.dir("there"), w.as_user(1000, 1000, &[]));
    w.chmod(there, 0o777).expect("chmod");
    w.chmod(w.dir, 0o777).expect("chmod");
    let theirs = user.mkdir((w.dir, "theirs")).expect("mkdir").entry.node;
    w.chmod(theirs, 0o555).expect("chmod");
    refused!(user.rename((w.dir, "theirs"), (there, "moved"), RenameFlags::empty()), Error::AccessDenied);
    user.rename("theirs", "renamed", RenameFlags::empty()).expect("its `..` stays as it is");
}

fn creating_over_what_exists_asks_for_it(w: &World) {
    owned(w, "file", 0o600);
    let user = w.as_user(5, 5, &[]);
    refused!(user.create((w.dir, "file"), &plain()), Error::AccessDenied);
    let how = tombolo_core::fs::Create { exclusive: Exclusive::Yes, ..plain() };
    refused!(user.create((w.dir, "file"), &how), Error::Exists);
}

fn foreign_writes_drop_privileges(w: &World) {
    let node = owned(w, "file", 0o6777);
    let user = w.as_user(5, 5, &[]);
    let file = user.open(node, OpenFlags::WRITE).expect("open");
    // The writer may not change the mode, but its write does.
    let how = tombolo_core::fs::Write { kill_privileges: true, ..Default::default() };
    user.write_as(file, &how, b"x").expect("write");
    user.release(file);
    assert_eq!(w.attr(node).mode.bits(), 0o777);
}

fn a_foreign_group_bit_is_not_kept(w: &World) {
    let node = owned(w, "file", 0o755);
    let attr = w.as_user(1000, 5, &[]).chmod(node, 0o2755).expect("chmod");
    assert_eq!(attr.mode.bits(), 0o755, "the owner is not of the file's group");
    let attr = w.as_user(1000, 1001, &[]).chmod(node, 0o2755).expect("chmod");
    assert_eq!(attr.mode.bits(), 0o2755);
}
