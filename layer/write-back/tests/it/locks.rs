//! Locks granted by the proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_core::Error;
use tombolo_core::fs::{Lock, LockFamily, LockKind, LockOwner, LockRange};
use tombolo_test_support::Session;

use crate::world::Origin;

#[test]
fn locks_are_refused_while_others_may_use_the_tree() {
    let origin = Origin::new();
    let proxy = origin.proxy();
    let is_alone = Arc::new(AtomicBool::new(true));
    let told = is_alone.clone();
    proxy.write_back.grant_locks_while(move || told.load(Ordering::SeqCst));
    let (first, second) = (&proxy.session, Session::attach(&proxy.write_back));
    let (file, same) = (first.file("file"), second.writer("file"));
    let lock = Lock {
        family: LockFamily::Flock,
        kind: LockKind::Write,
        range: LockRange::ALL,
        owner: LockOwner(1),
        pid: 1,
    };
    let taken = |session: &Session, file| session.locks().lock(&session.cx, file, &lock, false).wait();
    taken(first, file).expect("nothing is in its way");
    assert!(matches!(taken(&second, same), Err(Error::WouldBlock)));
    // A request that has been waiting already.
    let waiting = second.locks().lock(&second.cx, same, &lock, true);
    assert!(!waiting.is_done());
    is_alone.store(false, Ordering::SeqCst);
    assert!(matches!(taken(&second, same), Err(Error::NoLocks)));
    let locks = first.locks();
    locks
        .unlock(&first.cx, file, LockFamily::Flock, LockRange::ALL, lock.owner)
        .wait()
        .expect("what is held is given back");
    assert!(matches!(waiting.wait(), Err(Error::NoLocks)));
    assert!(matches!(taken(first, file), Err(Error::NoLocks)));
    is_alone.store(true, Ordering::SeqCst);
    taken(&second, same).expect("it is free");
}
