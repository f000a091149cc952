//! Creating and opening.

use tombolo_core::fs::{Create, Exclusive, File, FileType, Mode, NewMode, OpenFlags};
use tombolo_core::{Ctx, Error, Want};
use tombolo_test_support::{name, plain};

use super::cases;
use crate::refused;
use crate::waist::world::supported;
use crate::waist::{Verdict, World};

cases! { "create":
    create_makes_an_empty_open_file,
    create_opens_what_exists_and_leaves_it_alone,
    create_with_truncate_empties_what_exists,
    exclusive_create_refuses_what_exists,
    an_exclusive_create_may_be_retried_with_its_verifier,
    the_umask_is_taken_off,
    the_mode_does_not_bind_its_own_creator,
    an_unnamed_file_can_be_given_a_name,
    an_exclusive_unnamed_file_cannot,
    only_directories_are_opened_as_directories_never_to_write,
    open_truncates_when_asked,
    attributes_come_with_an_open_when_wanted,
    create_over_a_directory_is_refused,
}

fn create_makes_an_empty_open_file(w: &World) {
    let created = w.create("file", &plain()).expect("create");
    let attr = created.entry.attr;
    assert_eq!((attr.file_type, attr.size, attr.nlink), (FileType::Regular, 0, 1));
    assert_eq!(attr.mode.bits(), 0o644);
    let file = File { node: created.entry.node, open: created.open };
    w.write_all(file, 0, b"data");
    assert_eq!(w.read_all(file, 0, 10), b"data");
    assert_eq!(w.lookup("file").expect("lookup").attr.fileid, attr.fileid);
    w.release(file);
}

fn create_opens_what_exists_and_leaves_it_alone(w: &World) {
    let node = w.file_with("file", b"old");
    let how = Create { mode: NewMode::settled(Mode::new(0o600)), ..plain() };
    let created = w.create("file", &how).expect("create");
    assert_eq!(created.entry.attr.fileid, w.attr(node).fileid);
    assert_eq!(created.entry.attr.mode.bits(), 0o644, "the mode is for new files");
    let file = File { node: created.entry.node, open: created.open };
    assert_eq!(w.read_all(file, 0, 10), b"old");
    w.release(file);
}

fn create_with_truncate_empties_what_exists(w: &World) {
    let node = w.file_with("file", b"old");
    let how = Create { flags: plain().flags | OpenFlags::TRUNCATE, ..plain() };
    let created = w.create("file", &how).expect("create");
    assert_eq!(created.entry.attr.size, 0);
    assert_eq!(w.attr(node).size, 0);
    w.release(File { node: created.entry.node, open: created.open });
}

fn exclusive_create_refuses_what_exists(w: &World) {
    let how = Create { exclusive: Exclusive::Yes, ..plain() };
    w.file_with("file", b"old");
    w.symlink("link", b"nowhere").expect("symlink");
    refused!(w.create("file", &how), Error::Exists);
    refused!(w.create("link", &how), Error::Exists);
    assert!(!w.exists("nowhere"), "a dangling link is not created through");
}

fn an_exclusive_create_may_be_retried_with_its_verifier(w: &World) {
    let with = |verifier: [u8; 8]| Create { exclusive: Exclusive::Verifier(verifier), ..plain() };
    let first = w.create("file", &with(*b"verifier")).expect("create");
    let again = w.create("file", &with(*b"verifier")).expect("the same create, sent again");
    assert_eq!(first.entry.attr.fileid, again.entry.attr.fileid);
    refused!(w.create("file", &with(*b"another!")), Error::Exists);
    w.file_with("plain", b"");
    refused!(w.create("plain", &with(*b"verifier")), Error::Exists);
    for created in [first, again] {
        w.release(File { node: created.entry.node, open: created.open });
    }
}

fn the_umask_is_taken_off(w: &World) {
    let mode = NewMode { mode: Mode::new(0o777), umask: Mode::new(0o027) };
    let created = w.create("file", &Create { mode, ..plain() }).expect("create");
    assert_eq!(created.entry.attr.mode.bits(), 0o750);
    w.release(File { node: created.entry.node, open: created.open });
    let made = w.fs.mkdir(&w.cx, w.dir, name("dir"), mode).wait().expect("mkdir");
    assert_eq!(made.entry.attr.mode.bits(), 0o750);
}

fn the_mode_does_not_bind_its_own_creator(w: &World) {
    let how = Create { mode: NewMode::settled(Mode::new(0)), ..plain() };
    let file = w.file_as("file", &how).expect("create");
    w.write_all(file, 0, b"written");
    assert_eq!(w.read_all(file, 0, 10), b"written");
    w.release(file);
}

fn an_unnamed_file_can_be_given_a_name(w: &World) -> Verdict {
    let created = supported(w.fs.create_unnamed(&w.cx, w.dir, &plain()).wait())?;
    let file = File { node: created.entry.node, open: created.open };
    w.write_all(file, 0, b"prepared");
    assert_eq!(w.open_attr(file).nlink, 0);
    assert_eq!(w.names(w.dir), Vec::<String>::new());
    let linked = w.link(file.node, "name").expect("link").entry;
    w.release(file);
    assert_eq!(linked.attr.nlink, 1);
    assert_eq!(w.contents(w.lookup("name").expect("lookup").node), b"prepared");
    Ok(())
}

fn an_exclusive_unnamed_file_cannot(w: &World) -> Verdict {
    let how = Create { exclusive: Exclusive::Yes, ..plain() };
    let created = supported(w.fs.create_unnamed(&w.cx, w.dir, &how).wait())?;
    refused!(w.link(created.entry.node, "name"), Error::NotFound);
    w.release(File { node: created.entry.node, open: created.open });
    assert!(!w.exists("name"));
    Ok(())
}

fn only_directories_are_opened_as_directories_never_to_write(w: &World) {
    let dir = w.dir("dir");
    refused!(w.open(dir, OpenFlags::WRITE), Error::IsDirectory);
    refused!(w.open(dir, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::DIRECTORY), Error::IsDirectory);
    let file = w.file_with("file", b"");
    refused!(w.open(file, OpenFlags::READ | OpenFlags::DIRECTORY), Error::NotDirectory);
}

fn open_truncates_when_asked(w: &World) {
    let node = w.file_with("file", b"old contents");
    let file = w.open(node, OpenFlags::WRITE | OpenFlags::TRUNCATE).expect("open");
    assert_eq!(w.open_attr(file).size, 0);
    w.write_all(file, 0, b"new");
    w.release(file);
    assert_eq!(w.contents(node), b"new");
}

fn attributes_come_with_an_open_when_wanted(w: &World) {
    let node = w.file_with("file", b"12345");
    let cx = Ctx { want: Want::OPEN_ATTRS, ..w.cx.clone() };
    let opened = w.fs.open(&cx, node, OpenFlags::READ).wait().expect("open");
    assert_eq!(opened.attr.expect("attributes at open").size, 5);
    w.release(File { node, open: opened.open });
}

fn create_over_a_directory_is_refused(w: &World) {
    w.dir("dir");
    refused!(w.create("dir", &plain()), Error::IsDirectory | Error::Exists);
    let reading = Create { flags: OpenFlags::READ, ..plain() };
    refused!(w.create("dir", &reading), Error::IsDirectory | Error::Exists);
}
