//! Duplicates sent while the original is in progress.

use std::sync::Arc;
use std::time::Duration;

use tombolo_core::fs::{Lock, LockFamily, LockKind, LockOwner, LockRange, Op};
use tombolo_core::{Ctx, Error, Interrupt};
use tombolo_layer_basic::delay;
use tombolo_layer_basic::fault::{self, Plan, Rule, What, When};
use tombolo_layer_replies::Options;

use crate::fixture::{BOTTOMS, Bottom, Fixture, request, start_mkdir};

fn slow(bottom: Bottom) -> Fixture {
    Fixture::with(bottom, &Options::default(), |export| {
        Arc::new(delay::over(export, Duration::from_millis(20)).expect("a timer"))
    })
}

/// Creates a fixture whose first mkdir fails.
fn failing(error: fn() -> Error) -> Fixture {
    let rule = Rule { op: Some(Op::Mkdir), when: When::Nth(1), what: What::Fail(error) };
    Fixture::with(Bottom::Memory, &Options::default(), |export| {
        let slow = Arc::new(delay::over(export, Duration::from_millis(20)).expect("a timer"));
        Arc::new(fault::over(slow, Plan { rules: vec![rule], seed: 0 }))
    })
}

#[test]
fn duplicates_wait_for_the_first_and_get_its_answer() {
    for bottom in BOTTOMS {
        let fixture = slow(bottom);
        let at = request(&fixture);
        let answers: Vec<_> = (0..5).map(|_| start_mkdir(&at, "dir")).collect();
        assert!(answers.iter().all(|answer| !answer.is_done()));
        let threads: Vec<_> =
            answers.into_iter().rev().map(|answer| std::thread::spawn(move || answer.wait())).collect();
        let made: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().expect("mkdir")).collect();
        assert!(made.iter().all(|fileid| *fileid == made[0]), "{made:?}");
        assert_eq!(fixture.ran("mkdir"), 1);
        let counted = fixture.export.counters().read();
        assert_eq!((counted.hits_in_progress, counted.hits_done, counted.recorded), (4, 0, 1));
    }
}

#[test]
fn the_first_may_go_away_before_its_answer_comes() {
    let fixture = slow(Bottom::Memory);
    let at = request(&fixture);
    let first = start_mkdir(&at, "dir");
    let second = start_mkdir(&at, "dir");
    drop(first);
    second.wait().expect("the duplicate is answered");
    assert_eq!(fixture.ran("mkdir"), 1);
    // The first reply was dropped, so its look-up was given back; the second one's is retained.
    let node = fixture.node("dir").expect("the directory");
    fixture.rmdir("dir").expect("rmdir");
    fixture.fs.forget(&fixture.cx, &[(node, 2)]);
    fixture.fs.getattr(&fixture.cx, node, None).wait().expect_err("no look-up holds it");
}

#[test]
fn all_may_go_away_and_the_next_is_answered() {
    let fixture = slow(Bottom::Memory);
    let at = request(&fixture);
    drop((start_mkdir(&at, "dir"), start_mkdir(&at, "dir")));
    at.mkdir("dir").expect("the answer");
    assert_eq!(fixture.ran("mkdir"), 1);
}

#[test]
fn a_wait_for_a_lock_ends_with_its_caller() {
    let fixture = Fixture::new(Bottom::Memory);
    let file = fixture.file("file");
    let locks = fixture.locks();
    let (family, range) = (LockFamily::Posix, LockRange::ALL);
    let lock = |owner| Lock { family, kind: LockKind::Write, range, owner: LockOwner(owner), pid: 1 };
    locks.lock(&fixture.cx, file, &lock(1), false).wait().expect("it is free");
    let at = request(&fixture);
    let waiting = locks.lock(&at.cx, file, &lock(2), true);
    let duplicate = locks.lock(&at.cx, file, &lock(2), true);
    drop(waiting);
    let ended = duplicate.wait();
    assert!(matches!(ended, Err(Error::Interrupted)), "the lock is not awaited any more: {ended:?}");
    locks.unlock(&fixture.cx, file, family, range, LockOwner(1)).wait().expect("unlock");
    locks.lock(&fixture.cx, file, &lock(3), false).wait().expect("it was not taken meanwhile");
}

#[test]
fn interrupted_duplicate_leaves_original_running() {
    let fixture = slow(Bottom::Memory);
    let at = request(&fixture);
    let first = start_mkdir(&at, "dir");
    let interrupt = Interrupt::new();
    let second = start_mkdir(&at.with(Ctx { interrupt: interrupt.clone(), ..at.cx.clone() }), "dir");
    interrupt.raise();
    assert!(matches!(second.wait(), Err(Error::Interrupted)));
    first.wait().expect("the first");
}

#[test]
fn a_failure_reaches_all_waiters_and_is_kept() {
    let fixture = failing(|| Error::NoSpace);
    let at = request(&fixture);
    for _ in 0..2 {
        assert!(matches!(at.mkdir("dir"), Err(Error::NoSpace)));
    }
    assert_eq!(fixture.ran("mkdir"), 1);
}

#[test]
fn transient_errors_are_not_kept() {
    for error in [
        || Error::WouldBlock,
        || Error::Busy,
        || Error::Interrupted,
        || Error::TimedOut,
        || Error::NoMemory,
        || Error::Disconnected,
    ] {
        let fixture = failing(error);
        let at = request(&fixture);
        at.mkdir("dir").expect_err("the fault");
        at.mkdir("dir").expect("the next try runs");
        assert_eq!((fixture.ran("mkdir"), fixture.export.counters().read().recorded), (2, 1));
    }
}

#[test]
fn other_requests_do_not_wait() {
    let time = Duration::from_millis(200);
    let fixture = Fixture::with(Bottom::Memory, &Options::default(), |export| {
        Arc::new(delay::over(export, time).expect("a timer"))
    });
    let began = std::time::Instant::now();
    let threads: Vec<_> = (0..20)
        .map(|at| start_mkdir(&request(&fixture), &format!("dir{at}")))
        .map(|answer| std::thread::spawn(move || answer.wait().expect("mkdir")))
        .collect();
    assert_eq!(threads.into_iter().filter_map(|thread| thread.join().ok()).count(), 20);
    // Sequentially they would take twice the delay each: for the operation, and for its node's handle.
    assert!(began.elapsed() < 20 * 2 * time, "they took {:?}", began.elapsed());
}
