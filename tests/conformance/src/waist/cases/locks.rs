//! Advisory locks.

use std::sync::mpsc;
use std::time::Duration;

use tombolo_core::fs::{File, Lock, LockFamily, LockKind, LockOwner, LockRange, OpenFlags};
use tombolo_core::{Answer, Error, Result};

use super::cases;
use crate::refused;
use crate::waist::{Verdict, World};

cases! { "locks":
    readers_share needs LOCKS,
    ranges_are_locked_apart needs LOCKS,
    one_owner_is_never_in_its_own_way needs LOCKS,
    the_conflicting_lock_is_reported needs LOCKS,
    sessions_exclude_each_other needs LOCKS,
    the_families_do_not_see_each_other needs LOCKS,
    flock_belongs_to_an_opening needs LOCKS,
    a_release_gives_flock_back needs LOCKS,
    a_flush_gives_its_owners_locks_back needs LOCKS,
    a_release_gives_back_what_was_locked_through_it needs LOCKS,
    an_ended_session_gives_all_back needs LOCKS,
    a_lock_needs_an_opening_that_could_do_it needs LOCKS,
    a_waiter_gets_the_lock needs LOCKS,
    a_waiter_for_flock_gets_the_lock needs LOCKS,
    a_waiter_may_give_up needs LOCKS,
    a_dropped_waiter_takes_no_lock needs LOCKS,
    a_flush_while_its_owner_waits_drops_what_is_held_only needs LOCKS,
    a_deadlock_is_told needs LOCKS,
    a_chain_of_waiters_is_no_deadlock needs LOCKS,
}

fn posix(kind: LockKind, owner: u64, start: u64, last: u64) -> Lock {
    let range = LockRange { start, last };
    Lock { family: LockFamily::Posix, kind, range, owner: LockOwner(owner), pid: owner as u32 }
}

fn flock(kind: LockKind, owner: u64) -> Lock {
    let owner = LockOwner(owner);
    Lock { family: LockFamily::Flock, kind, range: LockRange::ALL, owner, pid: owner.0 as u32 }
}

fn take(w: &World, file: File, lock: Lock) -> Result<()> {
    w.locks().lock(&w.cx, file, &lock, false).wait()
}

fn unlock(w: &World, file: File, lock: Lock) {
    w.locks().unlock(&w.cx, file, lock.family, lock.range, lock.owner).wait().expect("unlock");
}

fn readers_share(w: &World) {
    let file = w.file("file");
    take(w, file, posix(LockKind::Read, 1, 0, 9)).expect("lock");
    take(w, file, posix(LockKind::Read, 2, 0, 9)).expect("a second reader");
    refused!(take(w, file, posix(LockKind::Write, 1, 0, 9)), Error::WouldBlock);
    unlock(w, file, posix(LockKind::Read, 2, 0, 9));
    take(w, file, posix(LockKind::Write, 1, 0, 9)).expect("the only reader becomes the writer");
    refused!(take(w, file, posix(LockKind::Read, 2, 0, 9)), Error::WouldBlock);
    unlock(w, file, posix(LockKind::Write, 1, 0, 9));
    take(w, file, posix(LockKind::Write, 2, 0, 9)).expect("the way is free");
    w.release(file);
}

fn ranges_are_locked_apart(w: &World) -> Verdict {
    let file = w.file("file");
    take(w, file, posix(LockKind::Write, 1, 0, 99)).expect("lock");
    take(w, file, posix(LockKind::Write, 2, 100, 199)).expect("beside it");
    refused!(take(w, file, posix(LockKind::Write, 2, 99, 100)), Error::WouldBlock);
    unlock(w, file, posix(LockKind::Write, 1, 40, 59));
    take(w, file, posix(LockKind::Write, 2, 40, 59)).expect("the hole in the middle");
    refused!(take(w, file, posix(LockKind::Write, 2, 39, 39)), Error::WouldBlock);
    refused!(take(w, file, posix(LockKind::Write, 2, 60, 60)), Error::WouldBlock);
    take(w, file, posix(LockKind::Write, 3, 1 << 40, u64::MAX)).expect("far away");
    refused!(take(w, file, posix(LockKind::Read, 2, 1 << 50, u64::MAX)), Error::WouldBlock);
    w.release(file);
    Ok(())
}

fn one_owner_is_never_in_its_own_way(w: &World) {
    let file = w.file("file");
    let again = w.writer(file.node);
    take(w, file, posix(LockKind::Write, 1, 0, 99)).expect("lock");
    take(w, again, posix(LockKind::Read, 1, 50, 149)).expect("through another opening");
    take(w, file, posix(LockKind::Write, 2, 150, 160)).expect("beside both");
    take(w, file, posix(LockKind::Read, 2, 60, 149)).expect("the upper part is shared now");
    refused!(take(w, file, posix(LockKind::Read, 2, 0, 49)), Error::WouldBlock);
    w.release(file);
    w.release(again);
}

fn the_conflicting_lock_is_reported(w: &World) {
    let file = w.file("file");
    let test = |lock: Lock| w.locks().test(&w.cx, file, &lock).wait().expect("test");
    let held = posix(LockKind::Write, 1, 10, 19);
    assert_eq!(test(posix(LockKind::Write, 2, 0, u64::MAX)), None);
    take(w, file, held).expect("lock");
    let told = test(posix(LockKind::Read, 2, 0, u64::MAX)).expect("a conflicting lock");
    assert_eq!((told.kind, told.range, told.pid), (held.kind, held.range, held.pid));
    assert_eq!(test(posix(LockKind::Write, 2, 20, 30)), None);
    assert_eq!(test(posix(LockKind::Write, 1, 0, u64::MAX)), None);
    w.release(file);
}

fn sessions_exclude_each_other(w: &World) {
    let (other, file) = (w.other_session(), w.file("file"));
    let theirs = other.writer("file");
    take(w, file, posix(LockKind::Write, 1, 0, 9)).expect("lock");
    // The same number in another session is another owner.
    refused!(take(&other, theirs, posix(LockKind::Write, 1, 0, 9)), Error::WouldBlock);
    unlock(&other, theirs, posix(LockKind::Write, 1, 0, 9));
    refused!(take(&other, theirs, posix(LockKind::Write, 1, 0, 9)), Error::WouldBlock);
    take(w, file, flock(LockKind::Write, 1)).expect("flock");
    refused!(take(&other, theirs, flock(LockKind::Read, 1)), Error::WouldBlock);
    w.release(file);
    other.release(theirs);
}

fn the_families_do_not_see_each_other(w: &World) {
    let file = w.file("file");
    take(w, file, posix(LockKind::Write, 1, 0, u64::MAX)).expect("lock");
    take(w, w.writer(file.node), flock(LockKind::Write, 2)).expect("another family");
    w.release(file);
}

fn flock_belongs_to_an_opening(w: &World) {
    let file = w.file("file");
    let again = w.writer(file.node);
    take(w, file, flock(LockKind::Write, 1)).expect("flock");
    refused!(take(w, again, flock(LockKind::Read, 2)), Error::WouldBlock);
    take(w, file, flock(LockKind::Read, 1)).expect("the same opening changes its lock");
    take(w, again, flock(LockKind::Read, 2)).expect("readers share");
    unlock(w, file, flock(LockKind::Read, 1));
    take(w, again, flock(LockKind::Write, 2)).expect("the way is free");
    w.release(file);
    w.release(again);
}

fn a_release_gives_flock_back(w: &World) {
    let file = w.file("file");
    let again = w.writer(file.node);
    take(w, file, flock(LockKind::Write, 1)).expect("flock");
    refused!(take(w, again, flock(LockKind::Write, 2)), Error::WouldBlock);
    w.release(file);
    take(w, again, flock(LockKind::Write, 2)).expect("the way is free");
    w.release(again);
}

fn a_flush_gives_its_owners_locks_back(w: &World) {
    let file = w.file("file");
    let again = w.writer(file.node);
    take(w, file, posix(LockKind::Write, 1, 0, 9)).expect("lock");
    take(w, file, posix(LockKind::Write, 2, 10, 19)).expect("lock");
    // Closing any descriptor of a file drops the process's locks on it (fcntl(2)).
    w.fs.flush(&w.cx, again, LockOwner(1)).wait().expect("flush");
    take(w, file, posix(LockKind::Write, 3, 0, 9)).expect("given back");
    refused!(take(w, file, posix(LockKind::Write, 3, 10, 19)), Error::WouldBlock);
    w.release(file);
    w.release(again);
}

/// Locks through two openings: those of an open file description (fcntl(2), `F_OFD_SETLK`) end with it, and
/// FUSE sends no flush for their owner.
fn a_release_gives_back_what_was_locked_through_it(w: &World) {
    let file = w.file("file");
    let again = w.writer(file.node);
    take(w, file, posix(LockKind::Write, 1, 0, 9)).expect("lock");
    take(w, again, posix(LockKind::Write, 2, 20, 29)).expect("lock");
    w.release(file);
    take(w, again, posix(LockKind::Write, 3, 0, 9)).expect("given back");
    refused!(take(w, again, posix(LockKind::Write, 3, 20, 29)), Error::WouldBlock);
    w.release(again);
}

fn an_ended_session_gives_all_back(w: &World) {
    let (other, file) = (w.other_session(), w.file("file"));
    let theirs = other.writer("file");
    take(&other, theirs, posix(LockKind::Write, 1, 0, 9)).expect("lock");
    take(&other, theirs, flock(LockKind::Write, 1)).expect("flock");
    refused!(take(w, file, posix(LockKind::Write, 1, 0, 9)), Error::WouldBlock);
    drop(other);
    take(w, file, posix(LockKind::Write, 1, 0, 9)).expect("given back");
    take(w, file, flock(LockKind::Write, 1)).expect("given back");
    w.release(file);
}

fn a_lock_needs_an_opening_that_could_do_it(w: &World) {
    let node = w.file_with("file", b"");
    let (reader, writer) =
        (w.open(node, OpenFlags::READ).expect("open"), w.open(node, OpenFlags::WRITE).expect("open"));
    refused!(take(w, reader, posix(LockKind::Write, 1, 0, 9)), Error::BadOpen);
    refused!(take(w, writer, posix(LockKind::Read, 1, 0, 9)), Error::BadOpen);
    take(w, reader, posix(LockKind::Read, 1, 0, 9)).expect("lock");
    take(w, writer, posix(LockKind::Write, 1, 20, 29)).expect("lock");
    take(w, reader, flock(LockKind::Write, 1)).expect("flock asks for no such thing");
    w.release(reader);
    w.release(writer);
}

/// Waits for an answer on another thread.
fn in_background<T: Send + 'static>(answer: Answer<T>) -> mpsc::Receiver<Result<T>> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver is dropped if the case has failed.
        let _ = tell.send(answer.wait());
    });
    told
}

const SOON: Duration = Duration::from_secs(10);
const A_WHILE: Duration = Duration::from_millis(50);

fn a_waiter_gets_the_lock(w: &World) -> Verdict {
    let (other, file) = (w.other_session(), w.file("file"));
    let theirs = other.writer("file");
    let ours = posix(LockKind::Write, 1, 0, 9);
    take(w, file, ours).expect("lock");
    let told = in_background(other.locks().lock(&other.cx, theirs, &posix(LockKind::Write, 2, 5, 14), true));
    assert!(told.recv_timeout(A_WHILE).is_err(), "the lock is held");
    unlock(w, file, posix(LockKind::Write, 1, 0, 4));
    assert!(told.recv_timeout(A_WHILE).is_err(), "a part of it is still held");
    unlock(w, file, ours);
    told.recv_timeout(SOON).expect("an answer").expect("the lock");
    refused!(take(w, file, ours), Error::WouldBlock);
    w.release(file);
    other.release(theirs);
    Ok(())
}

fn a_waiter_for_flock_gets_the_lock(w: &World) {
    let file = w.file("file");
    let again = w.writer(file.node);
    take(w, file, flock(LockKind::Write, 1)).expect("flock");
    let told = in_background(w.locks().lock(&w.cx, again, &flock(LockKind::Write, 2), true));
    assert!(told.recv_timeout(A_WHILE).is_err(), "the lock is held");
    w.release(file);
    told.recv_timeout(SOON).expect("an answer").expect("the lock");
    w.release(again);
}

fn a_waiter_may_give_up(w: &World) {
    let file = w.file("file");
    take(w, file, posix(LockKind::Write, 1, 0, 9)).expect("lock");
    let (waiting, interrupt) = w.interruptible();
    let lock = posix(LockKind::Write, 2, 0, 9);
    let told = in_background(waiting.locks().lock(&waiting.cx, file, &lock, true));
    assert!(told.recv_timeout(A_WHILE).is_err(), "the lock is held");
    interrupt.raise();
    refused!(told.recv_timeout(SOON).expect("an answer"), Error::Interrupted);
    unlock(w, file, posix(LockKind::Write, 1, 0, 9));
    take(w, file, posix(LockKind::Write, 3, 0, 9)).expect("a waiter that gave up has no lock");
    w.release(file);
}

fn a_dropped_waiter_takes_no_lock(w: &World) {
    let file = w.file("file");
    let (ours, theirs) = (posix(LockKind::Write, 1, 0, 9), posix(LockKind::Write, 2, 0, 9));
    take(w, file, ours).expect("lock");
    drop(w.locks().lock(&w.cx, file, &theirs, true));
    unlock(w, file, ours);
    std::thread::sleep(A_WHILE);
    take(w, file, posix(LockKind::Write, 3, 0, 9)).expect("a dropped waiter has no lock");
    w.release(file);
}

/// Flushes, as another thread's close does, while the owner waits for a lock: drops its current locks, not
/// later ones (fcntl(2)).
fn a_flush_while_its_owner_waits_drops_what_is_held_only(w: &World) {
    let file = w.file("file");
    let again = w.writer(file.node);
    let (held, wanted) = (posix(LockKind::Write, 1, 100, 109), posix(LockKind::Write, 1, 0, 9));
    let in_the_way = posix(LockKind::Write, 2, 0, 9);
    take(w, file, held).expect("lock");
    take(w, file, in_the_way).expect("lock");
    let told = in_background(w.locks().lock(&w.cx, file, &wanted, true));
    assert!(told.recv_timeout(A_WHILE).is_err(), "the lock is held");
    w.fs.flush(&w.cx, again, LockOwner(1)).wait().expect("flush");
    w.release(again);
    let theirs = Lock { owner: LockOwner(3), ..held };
    take(w, file, theirs).expect("given back, though its owner still waits for another");
    unlock(w, file, in_the_way);
    told.recv_timeout(SOON).expect("an answer").expect("the lock");
    refused!(take(w, file, Lock { range: wanted.range, ..theirs }), Error::WouldBlock);
    w.fs.flush(&w.cx, file, LockOwner(1)).wait().expect("flush");
    take(w, file, Lock { range: wanted.range, ..theirs }).expect("given back by the next close");
    w.release(file);
}

/// Builds a cycle of three owners on two files: the request that would close it gets EDEADLK.
fn a_deadlock_is_told(w: &World) {
    let (file, other) = (w.file("file"), w.file("other"));
    let owned = |owner, at| posix(LockKind::Write, owner, at, at);
    take(w, file, owned(1, 0)).expect("lock");
    take(w, file, owned(2, 1)).expect("lock");
    take(w, other, owned(3, 2)).expect("lock");
    let wait = |file, lock| in_background(w.locks().lock(&w.cx, file, &lock, true));
    // Both have to wait before the third asks, also on a busy machine.
    let one = wait(file, owned(1, 1));
    assert!(one.recv_timeout(10 * A_WHILE).is_err(), "the lock is held");
    let two = wait(other, Lock { kind: LockKind::Read, ..owned(2, 2) });
    assert!(two.recv_timeout(10 * A_WHILE).is_err(), "the lock is held");
    let three = wait(file, owned(3, 0));
    refused!(three.recv_timeout(SOON).expect("an answer"), Error::Deadlock);
    assert!(one.recv_timeout(A_WHILE).is_err() && two.recv_timeout(A_WHILE).is_err(), "they wait on");
    unlock(w, other, owned(3, 2));
    two.recv_timeout(SOON).expect("an answer").expect("the lock");
    w.fs.flush(&w.cx, file, LockOwner(2)).wait().expect("flush");
    one.recv_timeout(SOON).expect("an answer").expect("the lock");
    w.release(file);
    w.release(other);
}

/// Waits for a waiting owner, which is no deadlock; released and abandoned locks are no edges either.
fn a_chain_of_waiters_is_no_deadlock(w: &World) {
    let file = w.file("file");
    let owned = |owner, at| posix(LockKind::Write, owner, at, at);
    take(w, file, owned(1, 0)).expect("lock");
    take(w, file, owned(2, 1)).expect("lock");
    take(w, file, owned(2, 5)).expect("lock");
    let two = in_background(w.locks().lock(&w.cx, file, &owned(2, 0), true));
    assert!(two.recv_timeout(A_WHILE).is_err(), "the lock is held");
    let three = in_background(w.locks().lock(&w.cx, file, &owned(3, 1), true));
    assert!(three.recv_timeout(A_WHILE).is_err(), "the lock is held");
    let (waiting, interrupt) = w.interruptible();
    let gave_up = in_background(waiting.locks().lock(&waiting.cx, file, &owned(4, 5), true));
    assert!(gave_up.recv_timeout(A_WHILE).is_err(), "the lock is held");
    interrupt.raise();
    refused!(gave_up.recv_timeout(SOON).expect("an answer"), Error::Interrupted);
    take(w, file, owned(4, 9)).expect("lock");
    unlock(w, file, owned(1, 0));
    two.recv_timeout(SOON).expect("an answer").expect("the lock");
    let two = in_background(w.locks().lock(&w.cx, file, &owned(2, 9), true));
    assert!(two.recv_timeout(A_WHILE).is_err(), "the lock is held, but its owner waits for nothing");
    unlock(w, file, owned(4, 9));
    two.recv_timeout(SOON).expect("an answer").expect("the lock");
    unlock(w, file, owned(2, 1));
    three.recv_timeout(SOON).expect("an answer").expect("the lock");
    w.release(file);
}
