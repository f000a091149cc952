//! Duplicates of each operation, sent after the reply.

use std::fmt::Debug;

use tombolo_core::fs::{
    AllocateMode, Device, File, FileType, Lock, LockFamily, LockKind, LockOwner, LockRange, Mode, NewMode,
    NodeId, OpenFlags, RenameFlags, SetAttr, Write, XattrName, XattrSet,
};
use tombolo_core::{Ctx, Error, Result};
use tombolo_layer_replies::Options;
use tombolo_mem::Source;
use tombolo_test_support::{name, wrapped};

use crate::fixture::{
    BOTTOMS, Bottom, Fixture, attach, by_user, call_key, fresh_key, keyed, numbered, plain, rpc,
};

const ROOT: NodeId = NodeId::ROOT;

/// Sends a request three times: all replies must be equal, and the bottom must perform it once.
fn thrice<T: Debug + PartialEq>(fixture: &Fixture, op: &str, send: impl Fn(&Ctx) -> Result<T>) -> T {
    let cx = fixture.request();
    let before = fixture.ran(op);
    let first = send(&cx).unwrap_or_else(|error| panic!("{op}: {error}"));
    for _ in 0..2 {
        let again = send(&cx).unwrap_or_else(|error| panic!("{op}, sent again: {error}"));
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

#[test]
fn creating_requests_run_once_and_name_their_node_again() {
    on_every_bottom(|fixture| {
        let (fs, mode) = (&fixture.fs, NewMode::settled(Mode::new(0o755)));
        thrice(fixture, "mkdir", |cx| {
            let made = fs.mkdir(cx, ROOT, name("dir"), mode).wait()?;
            assert!(made.dir.after.is_some(), "the directory's attributes");
            Ok(made.entry)
        });
        thrice(fixture, "symlink", |cx| {
            Ok(fs.symlink(cx, ROOT, name("symlink"), b"target").wait()?.entry.attr.fileid)
        });
        thrice(fixture, "mknod", |cx| {
            let made = fs.mknod(cx, ROOT, name("fifo"), FileType::Fifo, mode, Device::default()).wait()?;
            Ok(made.entry)
        });
        let file = fixture.create("file");
        thrice(fixture, "link", |cx| Ok(fs.link(cx, file.node, ROOT, name("link")).wait()?.entry));
        assert_eq!(fs.getattr(&fixture.cx, file.node, None).wait().unwrap().nlink, 2);
    });
}

#[test]
fn repeated_create_opens_current_contents() {
    on_every_bottom(|fixture| {
        let cx = fixture.request();
        let mut how = plain();
        how.flags |= OpenFlags::TRUNCATE;
        let send = || fixture.fs.create(&cx, ROOT, name("file"), &how).wait().expect("create");
        let first = send();
        let file = File { node: first.entry.node, open: first.open };
        fixture
            .fs
            .write(&fixture.cx, file, &Write::default(), Source::from(b"data".to_vec()))
            .wait()
            .unwrap();
        let again = send();
        assert_eq!(again.entry.node, first.entry.node);
        assert_ne!(again.open, first.open, "an opening of its own");
        let attr = fixture.fs.getattr(&fixture.cx, again.entry.node, None).wait().unwrap();
        assert_eq!((again.entry.attr.size, attr.size), (4, 4), "it was not cut again");
        fixture.fs.release(&fixture.cx, file);
        let file = File { node: again.entry.node, open: again.open };
        fixture
            .fs
            .write(&fixture.cx, file, &Write::default(), Source::from(b"more".to_vec()))
            .wait()
            .unwrap();
        fixture.fs.release(&fixture.cx, file);
        assert_eq!(fixture.ran("create"), 1);
    });
}

#[test]
fn repeated_create_opens_file_despite_its_mode() {
    on_every_bottom(|fixture| {
        let mode = NewMode::settled(Mode::new(0o777));
        let dir = fixture.fs.mkdir(&fixture.cx, ROOT, name("dir"), mode).wait().unwrap().entry.node;
        let cx = by_user(&fixture.request(), 1000);
        let how = tombolo_core::fs::Create { mode: NewMode::settled(Mode::new(0o400)), ..plain() };
        for _ in 0..2 {
            let created = fixture.fs.create(&cx, dir, name("file"), &how).wait().expect("create");
            assert_eq!(created.entry.attr.uid, 1000);
        }
    });
}

#[test]
fn unnamed_file_is_created_and_linked_once() {
    on_every_bottom(|fixture| {
        let cx = fixture.request();
        fixture.fs.create_unnamed(&cx, ROOT, &plain()).wait().expect("the file");
        let again = fixture.fs.create_unnamed(&cx, ROOT, &plain()).wait();
        assert!(matches!(again, Err(Error::Stale)), "{again:?}");
        assert_eq!(fixture.ran("create_unnamed"), 1);
    });
}

#[test]
fn removals_and_renames_run_once() {
    on_every_bottom(|fixture| {
        let fs = &fixture.fs;
        fixture.create("file");
        fixture.mkdir(&fixture.cx, "dir").unwrap();
        fixture.create("from");
        thrice(fixture, "unlink", |cx| {
            let change = fs.unlink(cx, ROOT, name("file")).wait()?;
            Ok(change.after.expect("the directory's attributes").fileid)
        });
        thrice(fixture, "rmdir", |cx| fs.rmdir(cx, ROOT, name("dir")).wait().map(drop));
        thrice(fixture, "rename", |cx| {
            let flags = RenameFlags::empty();
            fs.rename(cx, ROOT, name("from"), ROOT, name("to"), flags).wait().map(drop)
        });
        let left = ["file", "dir", "from", "to"].map(|text| fixture.exists(text));
        assert_eq!(left, [false, false, false, true]);
    });
}

#[test]
fn guard_applies_to_its_own_request() {
    on_every_bottom(|fixture| {
        let file = fixture.create("file");
        let ctime = fixture.fs.getattr(&fixture.cx, file.node, None).wait().unwrap().ctime;
        // The change becomes visible only after a tick of the file system's clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let set = SetAttr { mode: Some(Mode::new(0o600)), guard_ctime: Some(ctime), ..SetAttr::default() };
        thrice(fixture, "setattr", |cx| Ok(fixture.fs.setattr(cx, file.node, None, &set).wait()?.0));
        let refused = fixture.fs.setattr(&fixture.request(), file.node, None, &set).wait();
        assert!(matches!(refused, Err(Error::NotSync)), "{refused:?}");
    });
}

#[test]
fn a_write_that_appends_does_so_once() {
    on_every_bottom(|fixture| {
        let node = fixture.create("file").node;
        let open =
            fixture.fs.open(&fixture.cx, node, OpenFlags::WRITE | OpenFlags::APPEND).wait().unwrap().open;
        thrice(fixture, "write", |cx| {
            let file = File { node, open };
            let written =
                fixture.fs.write(cx, file, &Write::default(), Source::from(b"12345".to_vec())).wait()?;
            assert_eq!(written.file.after.expect("the file's attributes").size, 5);
            Ok((written.count, written.stability))
        });
        assert_eq!(fixture.fs.getattr(&fixture.cx, node, None).wait().unwrap().size, 5);
    });
}

/// Checks positioned writes: duplicates of a fenced one cannot arrive late, and are idempotent.
#[test]
fn positioned_write_is_recorded_unless_fenced() {
    on_every_bottom(|fixture| {
        let node = fixture.create("file").node;
        let opened =
            |flags| File { node, open: fixture.fs.open(&fixture.cx, node, flags).wait().unwrap().open };
        let (stated, appending) = (opened(OpenFlags::WRITE), opened(OpenFlags::WRITE | OpenFlags::APPEND));
        let in_place = Write { in_place: true, ..Write::default() };
        let ran = |key, file, how: &Write| {
            let (cx, before) = (keyed(&fixture.cx, key), fixture.ran("write"));
            for _ in 0..3 {
                let written =
                    fixture.fs.write(&cx, file, how, Source::from(b"12345".to_vec())).wait().unwrap();
                assert_eq!(written.count, 5);
            }
            fixture.ran("write") - before
        };
        assert_eq!(ran(fresh_key(), stated, &Write::default()), 1);
        assert_eq!(ran(numbered(1, 1, 1), stated, &Write::default()), 3);
        assert_eq!(ran(numbered(1, 1, 2), appending, &Write::default()), 1);
        assert_eq!(ran(numbered(1, 1, 3), appending, &in_place), 3);
        assert_eq!(fixture.fs.getattr(&fixture.cx, node, None).wait().unwrap().size, 10);
    });
}

#[test]
fn attributes_locks_and_ranges_change_once() {
    on_every_bottom(|fixture| {
        let file = fixture.create("file");
        let attribute = XattrName::new(b"user.key").unwrap();
        let xattrs = fixture.fs.xattrs().expect("extended attributes");
        thrice(fixture, "setxattr", |cx| {
            xattrs.set(cx, file.node, attribute, b"value", XattrSet::Create, false).wait()
        });
        thrice(fixture, "removexattr", |cx| xattrs.remove(cx, file.node, attribute).wait());
        let (family, range, owner) = (LockFamily::Posix, LockRange::ALL, LockOwner(1));
        let lock = Lock { family, kind: LockKind::Write, range, owner, pid: 1 };
        let locks = fixture.fs.locks().expect("locks");
        thrice(fixture, "lock", |cx| locks.lock(cx, file, &lock, false).wait());
        thrice(fixture, "unlock", |cx| locks.unlock(cx, file, family, range, owner).wait());
        let ranges = fixture.fs.ranges().expect("ranges");
        thrice(fixture, "allocate", |cx| ranges.allocate(cx, file, 0, 4096, AllocateMode::empty()).wait());
    });
}

#[test]
fn a_failure_is_an_answer_and_stays_one() {
    on_every_bottom(|fixture| {
        let cx = fixture.request();
        for _ in 0..2 {
            let refused = fixture.fs.unlink(&cx, ROOT, name("file")).wait();
            assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
            fixture.exists("file").then(|| panic!("it was not made"));
        }
        fixture.create("file");
        let refused = fixture.fs.unlink(&cx, ROOT, name("file")).wait();
        assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
        assert!(fixture.exists("file"), "the file that came later was not meant");
    });
}

#[test]
fn a_repeated_create_of_a_removed_node_is_stale() {
    on_every_bottom(|fixture| {
        let cx = fixture.request();
        fixture.mkdir(&cx, "dir").unwrap();
        fixture.fs.rmdir(&fixture.cx, ROOT, name("dir")).wait().unwrap();
        fixture.mkdir(&fixture.cx, "dir").unwrap();
        // The first one's id may live on in a session that still has the node; a new session has none.
        let (fs, other) = attach(&*fixture.export);
        let again = fs.mkdir(&keyed(&other, cx.key), ROOT, name("dir"), NewMode::default()).wait();
        assert!(matches!(again, Err(Error::Stale)), "{again:?}");
    });
}

#[test]
fn a_repeated_create_of_a_moved_node_names_it() {
    on_every_bottom(|fixture| {
        let cx = fixture.request();
        let first = fixture.mkdir(&cx, "dir").unwrap();
        let flags = RenameFlags::empty();
        fixture.fs.rename(&fixture.cx, ROOT, name("dir"), ROOT, name("other"), flags).wait().unwrap();
        assert_eq!(fixture.mkdir(&cx, "dir").unwrap(), first);
    });
}

#[test]
fn a_duplicate_may_come_over_another_connection() {
    on_every_bottom(|fixture| {
        let cx = fixture.request();
        let first = fixture.mkdir(&cx, "dir").unwrap();
        let (fs, other) = attach(&*fixture.export);
        let other = keyed(&other, cx.key);
        let made = fs.mkdir(&other, ROOT, name("dir"), NewMode::default()).wait().expect("the answer");
        assert_eq!(made.entry.attr.fileid, first);
        fs.getattr(&other, made.entry.node, None).wait().expect("a node of this session");
    });
}

#[test]
fn one_request_may_perform_several_operations() {
    on_every_bottom(|fixture| {
        let cx = fixture.request();
        for _ in 0..2 {
            let created = fixture.fs.create(&cx, ROOT, name("file"), &plain()).wait().unwrap();
            let set = SetAttr { size: Some(10), ..SetAttr::default() };
            let (attr, _) = fixture.fs.setattr(&cx, created.entry.node, None, &set).wait().unwrap();
            assert_eq!(attr.size, 10);
        }
        assert_eq!((fixture.ran("create"), fixture.ran("setattr")), (1, 1));
    });
}

#[test]
fn another_request_is_not_a_duplicate() {
    let fixture = Fixture::new(Bottom::Memory);
    let (client, xid, procedure, checksum) = (8, 1, 9, 1);
    let cx =
        |client, xid, procedure, checksum| keyed(&fixture.cx, call_key(client, xid, procedure, checksum));
    let same = cx(client, xid, procedure, checksum);
    fixture.mkdir(&same, "dir").unwrap();
    let others = [
        cx(client + 1, xid, procedure, checksum),
        cx(client, xid + 1_000_000, procedure, checksum),
        cx(client, xid, procedure + 1, checksum),
        cx(client, xid, procedure, checksum + 1),
        by_user(&same, 1000),
        keyed(&fixture.cx, numbered(1, 1, u64::from(xid))),
        fixture.cx.clone(),
    ];
    for other in others {
        let refused = fixture.mkdir(&other, "dir");
        assert!(matches!(refused, Err(Error::Exists | Error::AccessDenied)), "{:?}: {refused:?}", other.key);
    }
    fixture.mkdir(&same, "dir").expect("and the first is still known");
}

/// Checks a client that lost its link: it repeats unanswered requests in another session.
#[test]
fn numbered_request_is_recognised_in_next_session() {
    on_every_bottom(|fixture| {
        let key = numbered(1, 1, 1);
        fixture.mkdir(&keyed(&fixture.cx, key), "dir").unwrap();
        let (fs, other) = attach(&*fixture.export);
        let made = fs.mkdir(&keyed(&other, key), ROOT, name("dir"), NewMode::default()).wait();
        let made = made.expect("the answer of the first");
        fs.getattr(&other, made.entry.node, None).wait().expect("a node of the new session");
        drop(fs);
        fixture.mkdir(&keyed(&fixture.cx, key), "dir").expect("a session's end takes nothing away");
        assert_eq!(fixture.ran("mkdir"), 1);
    });
}

#[test]
fn replies_are_not_given_to_other_clients_or_users() {
    let fixture = Fixture::new(Bottom::Memory);
    let cx = keyed(&fixture.cx, numbered(1, 1, 1));
    fixture.mkdir(&cx, "dir").unwrap();
    let others = [
        keyed(&fixture.cx, numbered(2, 1, 1)),
        keyed(&fixture.cx, numbered(1, 2, 1)),
        keyed(&fixture.cx, numbered(1, 1, 2)),
        by_user(&cx, 1000),
    ];
    for other in others {
        let refused = fixture.mkdir(&other, "dir");
        assert!(matches!(refused, Err(Error::Exists | Error::AccessDenied)), "{:?}: {refused:?}", other.key);
    }
}

/// Checks that results bound to a session are created anew in the next one.
#[test]
fn locks_and_unnamed_files_are_of_their_session() {
    let fixture = Fixture::new(Bottom::Tmpfs);
    let file = fixture.create("file");
    let (family, range, owner) = (LockFamily::Posix, LockRange::ALL, LockOwner(1));
    let lock = Lock { family, kind: LockKind::Write, range, owner, pid: 1 };
    let (fs, other) = attach(&*fixture.export);
    let again = fs.lookup(&other, ROOT, name("file")).wait().unwrap().node;
    let open = fs.open(&other, again, OpenFlags::READ | OpenFlags::WRITE).wait().unwrap().open;
    fs.locks()
        .unwrap()
        .lock(&keyed(&other, numbered(1, 1, 1)), File { node: again, open }, &lock, false)
        .wait()
        .unwrap();
    fs.create_unnamed(&keyed(&other, numbered(1, 1, 2)), ROOT, &plain()).wait().unwrap();
    drop(fs);
    fixture
        .fs
        .locks()
        .unwrap()
        .lock(&keyed(&fixture.cx, numbered(1, 1, 1)), file, &lock, false)
        .wait()
        .unwrap();
    let (third, cx) = attach(&*fixture.export);
    let node = third.lookup(&cx, ROOT, name("file")).wait().unwrap().node;
    let open = third.open(&cx, node, OpenFlags::READ | OpenFlags::WRITE).wait().unwrap().open;
    let held = third.locks().unwrap().test(&cx, File { node, open }, &lock).wait().unwrap();
    assert!(held.is_some(), "the lock was taken anew");
    let unnamed = fixture.fs.create_unnamed(&keyed(&fixture.cx, numbered(1, 1, 2)), ROOT, &plain()).wait();
    let unnamed = unnamed.expect("the first is gone: here is another");
    let file = File { node: unnamed.entry.node, open: unnamed.open };
    let from = tombolo_mem::Source::from(b"data".to_vec());
    fixture.fs.write(&fixture.cx, file, &Write::default(), from).wait().expect("write");
}

#[test]
fn look_ups_are_counted_for_every_answer() {
    let fixture = Fixture::new(Bottom::Memory);
    let cx = fixture.request();
    let made = || fixture.fs.mkdir(&cx, ROOT, name("dir"), NewMode::default()).wait().unwrap().entry.node;
    let (node, again) = (made(), made());
    assert_eq!(node, again);
    fixture.fs.rmdir(&fixture.cx, ROOT, name("dir")).wait().unwrap();
    fixture.fs.forget(&fixture.cx, &[(node, 1)]);
    fixture.fs.getattr(&fixture.cx, node, None).wait().expect("the second answer still holds it");
    fixture.fs.forget(&fixture.cx, &[(node, 1)]);
    fixture.fs.getattr(&fixture.cx, node, None).wait().expect_err("no look-up holds it");
}

#[test]
fn without_handles_the_name_must_still_lead_there() {
    let fixture = Fixture::with(Bottom::Memory, &Options::default(), |export| {
        wrapped(export, crate::without_handles::WithoutHandles)
    });
    let cx = keyed(&fixture.cx, rpc(1, 1));
    let first = fixture.mkdir(&cx, "dir").unwrap();
    assert_eq!(fixture.mkdir(&cx, "dir").unwrap(), first);
    assert_eq!(fixture.ran("mkdir"), 1);
    fixture
        .fs
        .rename(&fixture.cx, ROOT, name("dir"), ROOT, name("other"), RenameFlags::empty())
        .wait()
        .unwrap();
    assert!(matches!(fixture.mkdir(&cx, "dir"), Err(Error::Stale)));
    fixture.mkdir(&fixture.cx, "dir").unwrap();
    assert!(matches!(fixture.mkdir(&cx, "dir"), Err(Error::Stale)), "another directory of that name");
}
