//! Duplicates of each operation, sent after the reply.

use std::fmt::Debug;

use tombolo_core::fs::{
    AllocateMode, Device, File, FileType, Lock, LockFamily, LockKind, LockOwner, LockRange, Mode, NodeId,
    OpenFlags, RenameFlags, SetAttr, Write, XattrSet,
};
use tombolo_core::{Error, Result};
use tombolo_layer_replies::Options;
use tombolo_test_support::{Session, mode, name, wrapped, xattr_name};

use crate::fixture::{
    BOTTOMS, Bottom, Fixture, attach, call_key, fresh_key, keyed, numbered, plain, request, rpc,
};
use crate::without_handles::WithoutHandles;

/// Sends a request three times: all replies must be equal, and the bottom must perform it once.
fn thrice<T: Debug + PartialEq>(fixture: &Fixture, op: &str, send: impl Fn(&Session) -> Result<T>) -> T {
    let at = request(fixture);
    let before = fixture.ran(op);
    let first = send(&at).unwrap_or_else(|error| panic!("{op}: {error}"));
    for _ in 0..2 {
        let again = send(&at).unwrap_or_else(|error| panic!("{op}, sent again: {error}"));
        assert_eq!(again, first, "{op}, sent again");
    }
    assert_eq!(fixture.ran(op), before + 1, "{op} was performed more than once");
    first
}

fn on_every_bottom(case: impl Fn(&Fixture)) {
    for bottom in BOTTOMS {
        let fixture = Fixture::new(bottom);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(&fixture)));
        caught.unwrap_or_else(|_| panic!("over {bottom:?}: see above"));
    }
}

fn write_lock(owner: u64) -> Lock {
    let (family, range, owner) = (LockFamily::Posix, LockRange::ALL, LockOwner(owner));
    Lock { family, kind: LockKind::Write, range, owner, pid: 1 }
}

#[test]
fn creating_requests_run_once_and_name_their_node_again() {
    on_every_bottom(|fixture| {
        thrice(fixture, "mkdir", |at| {
            let made = at.mkdir("dir")?;
            assert!(made.dir.after.is_some(), "the directory's attributes");
            Ok(made.entry)
        });
        thrice(fixture, "symlink", |at| Ok(at.symlink("symlink", b"target")?.entry.attr.fileid));
        thrice(fixture, "mknod", |at| {
            let (fifo, rdev) = (FileType::Fifo, Device::default());
            Ok(at.fs.mknod(&at.cx, at.dir, name("fifo"), fifo, mode(0o755), rdev).wait()?.entry)
        });
        let file = fixture.file("file");
        thrice(fixture, "link", |at| Ok(at.link(file.node, "link")?.entry));
        assert_eq!(fixture.attr(file.node).nlink, 2);
    });
}

#[test]
fn repeated_create_opens_current_contents() {
    on_every_bottom(|fixture| {
        let at = request(fixture);
        let mut how = plain();
        how.flags |= OpenFlags::TRUNCATE;
        let send = || at.create("file", &how).expect("create");
        let first = send();
        let file = File { node: first.entry.node, open: first.open };
        fixture.write_all(file, 0, b"data");
        let again = send();
        assert_eq!(again.entry.node, first.entry.node);
        assert_ne!(again.open, first.open, "an opening of its own");
        let size = fixture.attr(again.entry.node).size;
        assert_eq!((again.entry.attr.size, size), (4, 4), "it was not cut again");
        fixture.release(file);
        let file = File { node: again.entry.node, open: again.open };
        fixture.write_all(file, 0, b"more");
        fixture.release(file);
        assert_eq!(fixture.ran("create"), 1);
    });
}

#[test]
fn repeated_create_opens_file_despite_its_mode() {
    on_every_bottom(|fixture| {
        let dir = fixture.mkdir_mode("dir", 0o777).expect("mkdir").entry.node;
        let at = request(fixture).by(1000);
        let how = tombolo_core::fs::Create { mode: mode(0o400), ..plain() };
        for _ in 0..2 {
            assert_eq!(at.create((dir, "file"), &how).expect("create").entry.attr.uid, 1000);
        }
    });
}

#[test]
fn unnamed_file_is_created_and_linked_once() {
    on_every_bottom(|fixture| {
        let at = request(fixture);
        at.fs.create_unnamed(&at.cx, at.dir, &plain()).wait().expect("the file");
        let again = at.fs.create_unnamed(&at.cx, at.dir, &plain()).wait();
        assert!(matches!(again, Err(Error::Stale)), "{again:?}");
        assert_eq!(fixture.ran("create_unnamed"), 1);
    });
}

#[test]
fn removals_and_renames_run_once() {
    on_every_bottom(|fixture| {
        fixture.file("file");
        fixture.dir("dir");
        fixture.file("from");
        thrice(fixture, "unlink", |at| {
            Ok(at.unlink("file")?.after.expect("the directory's attributes").fileid)
        });
        thrice(fixture, "rmdir", |at| at.rmdir("dir").map(drop));
        thrice(fixture, "rename", |at| at.rename("from", "to", RenameFlags::empty()).map(drop));
        let left = ["file", "dir", "from", "to"].map(|text| fixture.exists(text));
        assert_eq!(left, [false, false, false, true]);
    });
}

#[test]
fn guard_applies_to_its_own_request() {
    on_every_bottom(|fixture| {
        let file = fixture.file("file");
        let ctime = fixture.attr(file.node).ctime;
        // The change becomes visible only after a tick of the file system's clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let set = SetAttr { mode: Some(Mode::new(0o600)), guard_ctime: Some(ctime), ..SetAttr::default() };
        thrice(fixture, "setattr", |at| Ok(at.setattr(file.node, set)?.0));
        let refused = request(fixture).setattr(file.node, set);
        assert!(matches!(refused, Err(Error::NotSync)), "{refused:?}");
    });
}

#[test]
fn a_write_that_appends_does_so_once() {
    on_every_bottom(|fixture| {
        let node = fixture.file("file").node;
        let file = fixture.open(node, OpenFlags::WRITE | OpenFlags::APPEND).expect("open");
        thrice(fixture, "write", |at| {
            let written = at.write_as(file, &Write::default(), b"12345")?;
            assert_eq!(written.file.after.expect("the file's attributes").size, 5);
            Ok((written.count, written.stability))
        });
        assert_eq!(fixture.attr(node).size, 5);
    });
}

/// Checks positioned writes: duplicates of a fenced one cannot arrive late, and are idempotent.
#[test]
fn positioned_write_is_recorded_unless_fenced() {
    on_every_bottom(|fixture| {
        let node = fixture.file("file").node;
        let opened = |flags| fixture.open(node, flags).expect("open");
        let (stated, appending) = (opened(OpenFlags::WRITE), opened(OpenFlags::WRITE | OpenFlags::APPEND));
        let in_place = Write { in_place: true, ..Write::default() };
        let ran = |key, file, how: &Write| {
            let before = fixture.ran("write");
            for _ in 0..3 {
                assert_eq!(keyed(fixture, key).write_as(file, how, b"12345").expect("write").count, 5);
            }
            fixture.ran("write") - before
        };
        assert_eq!(ran(fresh_key(), stated, &Write::default()), 1);
        assert_eq!(ran(numbered(1, 1, 1), stated, &Write::default()), 3);
        assert_eq!(ran(numbered(1, 1, 2), appending, &Write::default()), 1);
        assert_eq!(ran(numbered(1, 1, 3), appending, &in_place), 3);
        assert_eq!(fixture.attr(node).size, 10);
    });
}

#[test]
fn attributes_locks_and_ranges_change_once() {
    on_every_bottom(|fixture| {
        let (file, lock) = (fixture.file("file"), write_lock(1));
        let Lock { family, range, owner, .. } = lock;
        thrice(fixture, "setxattr", |at| {
            let attribute = xattr_name("user.key");
            at.xattrs().set(&at.cx, file.node, attribute, b"value", XattrSet::Create, false).wait()
        });
        thrice(fixture, "removexattr", |at| at.remove_xattr(file.node, "user.key"));
        thrice(fixture, "lock", |at| at.locks().lock(&at.cx, file, &lock, false).wait());
        thrice(fixture, "unlock", |at| at.locks().unlock(&at.cx, file, family, range, owner).wait());
        thrice(fixture, "allocate", |at| {
            at.ranges().allocate(&at.cx, file, 0, 4096, AllocateMode::empty()).wait()
        });
    });
}

#[test]
fn a_failure_is_an_answer_and_stays_one() {
    on_every_bottom(|fixture| {
        let at = request(fixture);
        for _ in 0..2 {
            let refused = at.unlink("file");
            assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
            assert!(!fixture.exists("file"), "it was not made");
        }
        fixture.file("file");
        let refused = at.unlink("file");
        assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
        assert!(fixture.exists("file"), "the file that came later was not meant");
    });
}

#[test]
fn a_repeated_create_of_a_removed_node_is_stale() {
    on_every_bottom(|fixture| {
        let at = request(fixture);
        at.dir("dir");
        fixture.rmdir("dir").expect("rmdir");
        fixture.dir("dir");
        // The first one's id may live on in a session that still has the node; a new session has none.
        let again = keyed(&attach(&*fixture.export), at.cx.key).mkdir("dir");
        assert!(matches!(again, Err(Error::Stale)), "{again:?}");
    });
}

#[test]
fn a_repeated_create_of_a_moved_node_names_it() {
    on_every_bottom(|fixture| {
        let at = request(fixture);
        let made = || at.mkdir("dir").expect("mkdir").entry.attr.fileid;
        let first = made();
        fixture.rename("dir", "other", RenameFlags::empty()).expect("rename");
        assert_eq!(made(), first);
    });
}

/// Checks a client that lost its link: it repeats unanswered requests in another session.
#[test]
fn a_duplicate_may_come_over_another_connection() {
    on_every_bottom(|fixture| {
        for (text, key) in [("plain", fresh_key()), ("numbered", numbered(1, 1, 1))] {
            let first = keyed(fixture, key).mkdir(text).expect("mkdir").entry.attr.fileid;
            let other = keyed(&attach(&*fixture.export), key);
            let made = other.mkdir(text).expect("the answer of the first").entry;
            assert_eq!(made.attr.fileid, first, "{text}");
            // A node of this session.
            other.attr(made.node);
            drop(other);
            keyed(fixture, key).mkdir(text).expect("a session's end takes nothing away");
        }
        assert_eq!(fixture.ran("mkdir"), 2);
    });
}

#[test]
fn one_request_may_perform_several_operations() {
    on_every_bottom(|fixture| {
        let at = request(fixture);
        for _ in 0..2 {
            let file = at.file("file");
            assert_eq!(at.truncate(file.node, 10).expect("setattr").size, 10);
        }
        assert_eq!((fixture.ran("create"), fixture.ran("setattr")), (1, 1));
    });
}

#[test]
fn another_request_is_not_a_duplicate() {
    let fixture = Fixture::new(Bottom::Memory);
    let (client, xid, procedure, checksum) = (8, 1, 9, 1);
    let at = |client, xid, procedure, checksum| keyed(&fixture, call_key(client, xid, procedure, checksum));
    let same = at(client, xid, procedure, checksum);
    same.mkdir("dir").expect("mkdir");
    let others = [
        at(client + 1, xid, procedure, checksum),
        at(client, xid + 1_000_000, procedure, checksum),
        at(client, xid, procedure + 1, checksum),
        at(client, xid, procedure, checksum + 1),
        same.by(1000),
        keyed(&fixture, numbered(1, 1, u64::from(xid))),
        fixture.clone(),
    ];
    refused_to(&others);
    same.mkdir("dir").expect("and the first is still known");
}

fn refused_to(others: &[Session]) {
    for other in others {
        let refused = other.mkdir("dir");
        assert!(
            matches!(refused, Err(Error::Exists | Error::AccessDenied)),
            "{:?}: {refused:?}",
            other.cx.key
        );
    }
}

#[test]
fn replies_are_not_given_to_other_clients_or_users() {
    let fixture = Fixture::new(Bottom::Memory);
    let at = |incarnation, peer, number| keyed(&fixture, numbered(incarnation, peer, number));
    at(1, 1, 1).dir("dir");
    refused_to(&[at(2, 1, 1), at(1, 2, 1), at(1, 1, 2), at(1, 1, 1).by(1000)]);
}

/// Checks that results bound to a session are created anew in the next one.
#[test]
fn locks_and_unnamed_files_are_of_their_session() {
    let fixture = Fixture::new(Bottom::Tmpfs);
    let (file, lock) = (fixture.file("file"), write_lock(1));
    let take = |at: &Session, file| {
        let at = keyed(at, numbered(1, 1, 1));
        at.locks().lock(&at.cx, file, &lock, false).wait().expect("locked");
    };
    let make_unnamed = |at: &Session| {
        let at = keyed(at, numbered(1, 1, 2));
        at.fs.create_unnamed(&at.cx, at.dir, &plain()).wait()
    };
    let other = attach(&*fixture.export);
    take(&other, other.writer("file"));
    make_unnamed(&other).expect("a file");
    drop(other);
    take(&fixture, file);
    let third = attach(&*fixture.export);
    let held = third.locks().test(&third.cx, third.writer("file"), &lock).wait().expect("a test");
    assert!(held.is_some(), "the lock was taken anew");
    let unnamed = make_unnamed(&fixture).expect("the first is gone: here is another");
    fixture.write_all(File { node: unnamed.entry.node, open: unnamed.open }, 0, b"data");
}

#[test]
fn look_ups_are_counted_for_every_answer() {
    let fixture = Fixture::new(Bottom::Memory);
    let at = request(&fixture);
    let attr = |node: NodeId| fixture.fs.getattr(&fixture.cx, node, None).wait();
    let (node, again) = (at.dir("dir"), at.dir("dir"));
    assert_eq!(node, again);
    fixture.rmdir("dir").expect("rmdir");
    fixture.forget(node);
    attr(node).expect("the second answer still holds it");
    fixture.forget(node);
    attr(node).expect_err("no look-up holds it");
}

#[test]
fn without_handles_the_name_must_still_lead_there() {
    let fixture =
        Fixture::with(Bottom::Memory, &Options::default(), |export| wrapped(export, WithoutHandles));
    let at = keyed(&fixture, rpc(1, 1));
    let first = at.mkdir("dir").expect("mkdir").entry.attr.fileid;
    assert_eq!(at.mkdir("dir").expect("again").entry.attr.fileid, first);
    assert_eq!(fixture.ran("mkdir"), 1);
    fixture.rename("dir", "other", RenameFlags::empty()).expect("rename");
    assert!(matches!(at.mkdir("dir"), Err(Error::Stale)));
    fixture.dir("dir");
    assert!(matches!(at.mkdir("dir"), Err(Error::Stale)), "another directory of that name");
}
