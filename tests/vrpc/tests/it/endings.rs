//! Release of a session's resources at the end of its link.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::Error;
use tombolo_core::fs::{
    Create, File, FileSystem, Lock, LockFamily, LockKind, LockOwner, LockRange, Mode, Name, NewMode, NodeId,
    OpenFlags,
};
use tombolo_vrpc_tests::test_host::{Plan, TestHost, client, root};

/// Far longer than it takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn lock(owner: u64) -> Lock {
    let (family, kind, range) = (LockFamily::Posix, LockKind::Write, LockRange::ALL);
    Lock { family, kind, range, owner: LockOwner(owner), pid: 1 }
}

fn opened(fs: &VrpcFileSystem) -> File {
    let mode = NewMode::settled(Mode::new(0o600));
    let how = Create { mode, flags: OpenFlags::READ | OpenFlags::WRITE, ..Create::default() };
    let name = Name::new(b"file").expect("a name");
    let created = fs.create(&root(), NodeId::ROOT, name, &how).wait().expect("create");
    File { node: created.entry.node, open: created.open }
}

fn take(fs: &VrpcFileSystem, file: File, owner: u64) -> Result<(), Error> {
    fs.locks().expect("locks").lock(&root(), file, &lock(owner), false).wait()
}

/// Cuts the link of a session that waits for a lock: the session must end and release its own lock.
#[test]
fn session_waiting_for_lock_ends_with_its_link() {
    let host = TestHost::new(Arc::new(Memory::default()), Plan::default());
    let export = host.export();
    let holder = export.attach_session(&client()).expect("a session");
    let held = opened(&holder);
    take(&holder, held, 1).expect("the lock is free");
    let waiter = export.attach_session(&client()).expect("a session");
    let file = opened(&waiter);
    let other = {
        let name = Name::new(b"other").expect("a name");
        let how = Create { flags: OpenFlags::WRITE, ..Create::default() };
        let created = waiter.create(&root(), NodeId::ROOT, name, &how).wait().expect("create");
        File { node: created.entry.node, open: created.open }
    };
    take(&waiter, other, 2).expect("the lock is free");
    let waiting = waiter.locks().expect("locks").lock(&root(), file, &lock(2), true);
    assert!(!waiting.is_done());
    waiter.null(&root()).wait().expect("the server has taken the request");
    host.cut_newest();
    // Its other lock is released with the session, although the first holder keeps its own.
    let name = Name::new(b"other").expect("a name");
    let node = holder.lookup(&root(), NodeId::ROOT, name).wait().expect("look-up").node;
    let open = holder.open(&root(), node, OpenFlags::WRITE).wait().expect("open").open;
    let until = Instant::now() + PATIENCE;
    while take(&holder, File { node, open }, 3).is_err() {
        assert!(Instant::now() < until, "the session outlives its link");
        std::thread::yield_now();
    }
}

/// Verifies that dropping a session releases its locks.
#[test]
fn locks_of_an_ended_session_are_given_back() {
    let host = TestHost::new(Arc::new(Memory::default()), Plan::default());
    let export = host.export();
    let first = export.attach_session(&client()).expect("a session");
    let file = opened(&first);
    take(&first, file, 1).expect("the lock is free");
    let second = export.attach_session(&client()).expect("a session");
    let same = opened(&second);
    assert!(matches!(take(&second, same, 2), Err(Error::WouldBlock)));
    drop(first);
    take(&second, same, 2).expect("given back");
}
