//! Advisory locks between processes.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use tombolo_sys::lock::{LockKind, LockRange, conflict, try_lock, unlock};

use super::cases;
use crate::posix::World;
use crate::posix::world::Background;
use crate::report::Verdict;

cases! { "locks":
    processes_exclude_each_other,
    a_process_that_ends_gives_its_locks_back,
    closing_any_descriptor_gives_fcntl_locks_back,
    open_file_locks_belong_to_the_description,
    ranges_are_locked_apart,
    record_locks_and_flock_do_not_see_each_other,
    a_waiter_gets_the_lock,
    a_waiter_ends_by_a_signal,
    processes_that_wait_for_each_other_are_told,
}

const KINDS: [&str; 3] = ["fcntl", "flock", "ofd"];

fn try_in_child(w: &World, kind: &str) -> String {
    w.helper(&["lock-try", kind, &w.path("file").to_string_lossy()])
}

/// Starts a helper on the file that first prints `said`.
fn started(w: &World, helper: &str, kind: &str, said: &str) -> Background {
    let mut process = w.background(&[helper, kind, &w.path("file").to_string_lossy()]);
    assert_eq!(process.line(), said);
    process
}

fn held(w: &World, kind: &str) -> Background {
    started(w, "lock-hold", kind, "held")
}

fn processes_exclude_each_other(w: &World) {
    w.file_with("file", b"");
    for kind in KINDS {
        assert_eq!(try_in_child(w, kind), "taken", "{kind}");
        let holder = held(w, kind);
        assert_eq!(try_in_child(w, kind), "refused", "{kind}");
        holder.finish();
        assert_eq!(try_in_child(w, kind), "taken", "{kind}");
    }
}

fn a_process_that_ends_gives_its_locks_back(w: &World) {
    w.file_with("file", b"");
    for kind in KINDS {
        let holder = held(w, kind);
        holder.terminate();
        assert_eq!(try_in_child(w, kind), "taken", "{kind}");
    }
}

fn closing_any_descriptor_gives_fcntl_locks_back(w: &World) {
    let file = w.file("file");
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).expect("lock");
    assert_eq!(try_in_child(w, "fcntl"), "refused");
    drop(std::fs::File::open(w.path("file")).expect("open"));
    assert_eq!(try_in_child(w, "fcntl"), "taken", "POSIX asks for this");
}

fn open_file_locks_belong_to_the_description(w: &World) {
    let file = w.file("file");
    let all = LockRange { start: 0, len: 0 };
    try_lock(file.as_fd(), LockKind::Exclusive, all).expect("lock");
    let other = std::fs::OpenOptions::new().read(true).write(true).open(w.path("file")).expect("open");
    assert!(try_lock(other.as_fd(), LockKind::Exclusive, all).is_err(), "one process, two descriptions");
    drop(std::fs::File::open(w.path("file")).expect("open"));
    assert_eq!(try_in_child(w, "ofd"), "refused", "another descriptor's end does not matter");
    let copy = file.try_clone().expect("dup");
    drop(file);
    assert_eq!(try_in_child(w, "ofd"), "refused", "the description lives");
    drop(copy);
    assert_eq!(try_in_child(w, "ofd"), "taken");
}

fn ranges_are_locked_apart(w: &World) -> Verdict {
    let file = w.file("file");
    let other = std::fs::OpenOptions::new().read(true).write(true).open(w.path("file")).expect("open");
    let (ours, theirs) = (file.as_fd(), other.as_fd());
    let range = |start, len| LockRange { start, len };
    try_lock(ours, LockKind::Exclusive, range(0, 100)).expect("lock");
    try_lock(theirs, LockKind::Exclusive, range(100, 100)).expect("beside it");
    assert!(try_lock(theirs, LockKind::Shared, range(99, 1)).is_err());
    unlock(ours, range(40, 20)).expect("unlock");
    try_lock(theirs, LockKind::Exclusive, range(40, 20)).expect("the hole in the middle");
    assert!(try_lock(theirs, LockKind::Shared, range(39, 1)).is_err());
    let told = conflict(theirs, LockKind::Exclusive, range(60, 10)).expect("test").expect("in the way");
    assert_eq!((told.kind, told.range), (LockKind::Exclusive, range(60, 40)));
    try_lock(ours, LockKind::Shared, range(1000, 10)).expect("lock");
    try_lock(theirs, LockKind::Shared, range(1005, 10)).expect("readers share");
    Ok(())
}

fn record_locks_and_flock_do_not_see_each_other(w: &World) {
    w.file_with("file", b"");
    let holder = held(w, "flock");
    assert_eq!(try_in_child(w, "fcntl"), "taken");
    assert_eq!(try_in_child(w, "flock"), "refused");
    holder.finish();
}

fn a_waiter_gets_the_lock(w: &World) -> Verdict {
    w.file_with("file", b"");
    for kind in ["fcntl", "flock"] {
        let (holder, waiter) = (held(w, kind), started(w, "lock-wait", kind, "waiting"));
        std::thread::sleep(Duration::from_millis(100));
        holder.finish();
        assert_eq!(waiter.finish(), "taken", "{kind}");
    }
    Ok(())
}

fn a_waiter_ends_by_a_signal(w: &World) {
    w.file_with("file", b"");
    for kind in ["fcntl", "flock"] {
        let (holder, waiter) = (held(w, kind), started(w, "lock-wait", kind, "waiting"));
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        waiter.terminate();
        assert!(began.elapsed() < Duration::from_secs(5), "a waiter for {kind} does not end");
        holder.finish();
        assert_eq!(try_in_child(w, kind), "taken", "a waiter that gave up has no lock");
    }
}

/// Blocks two processes on each other's locks: the second gets EDEADLK, and the first gets its lock when the
/// second has exited (fcntl(2)).
fn processes_that_wait_for_each_other_are_told(w: &World) {
    let (one, two) = (w.file_with("one", b""), w.file_with("two", b""));
    let (one, two) = (one.to_string_lossy(), two.to_string_lossy());
    let mut first = w.background(&["lock-both", &one, &two]);
    let mut second = w.background(&["lock-both", &two, &one]);
    assert_eq!((first.line(), second.line()), ("held".into(), "held".into()));
    first.go_on();
    assert_eq!(first.line(), "waiting");
    std::thread::sleep(Duration::from_millis(100));
    second.go_on();
    assert_eq!(second.line(), "waiting");
    assert_eq!(second.line(), "deadlock");
    second.finish();
    assert_eq!(first.finish(), "taken");
}
