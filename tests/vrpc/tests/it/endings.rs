//! Release of a session's resources at the end of its link.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_core::Error;
use tombolo_core::fs::{File, Lock, LockFamily, LockKind, LockOwner, LockRange};
use tombolo_test_support::{Session, until};
use tombolo_vrpc_tests::site::{Plan, Site, client};

fn lock(owner: u64) -> Lock {
    let (family, kind, range) = (LockFamily::Posix, LockKind::Write, LockRange::ALL);
    Lock { family, kind, range, owner: LockOwner(owner), pid: 1 }
}

/// Takes a lock of a whole file for an owner.
fn take(session: &Session, file: File, owner: u64) -> Result<(), Error> {
    session.locks().lock(&session.cx, file, &lock(owner), false).wait()
}

/// Cuts the link of a session that waits for a lock: the session must end and release its own lock.
#[test]
fn session_waiting_for_lock_ends_with_its_link() {
    let host = Site::serving(Arc::new(Memory::default()), Plan::default());
    let holder = Session::attach(&host.export());
    take(&holder, holder.file("file"), 1).expect("the lock is free");
    let fs = host.export().attach_session(&client()).expect("a session");
    let waiter = Session::of(fs.clone());
    let file = waiter.writer("file");
    take(&waiter, waiter.file("other"), 2).expect("the lock is free");
    let waiting = waiter.locks().lock(&waiter.cx, file, &lock(2), true);
    assert!(!waiting.is_done());
    fs.null(&waiter.cx).wait().expect("the server has taken the request");
    // Otherwise a new link would take the locks again.
    host.refuse(true);
    host.cut_newest();
    // Its other lock is released with the session, although the first holder keeps its own.
    let other = holder.writer("other");
    until("the session ends with its link", || take(&holder, other, 3).is_ok());
}
