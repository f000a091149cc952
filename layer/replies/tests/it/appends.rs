//! Appends performed exactly once: repeated, and after the death of the process at any moment.

use tombolo_core::fs::{Create, File, OpenFlags, Write, Written};
use tombolo_core::{Answer, Stability};
use tombolo_mem::Source;
use tombolo_test_support::Session;

use crate::crash::{Mood, Next, Server};
use crate::fixture::{BOTTOMS, Bottom, attach, keyed, numbered, plain};

const RECORD: &[u8] = b"a record\n";

fn log(at: &Session) -> File {
    log_opened(at, OpenFlags::WRITE | OpenFlags::APPEND)
}

fn log_opened(at: &Session, flags: OpenFlags) -> File {
    let node = at.node("log").unwrap_or_else(|_| at.file("log").node);
    at.open(node, flags).expect("open")
}

fn append(at: &Session, file: File) -> Answer<Written> {
    at.fs.write(&at.cx, file, &Write::default(), Source::from(RECORD.to_vec()))
}

fn size(at: &Session) -> usize {
    at.attr("log").size as usize
}

fn numbered_by(at: &Session, number: u64) -> Session {
    keyed(at, numbered(1, 1, number))
}

fn again(next: &Next, number: u64) -> Written {
    append(&numbered_by(next, number), log(next)).wait().expect("the answer")
}

#[test]
fn an_answered_append_is_known_to_the_next_process() {
    for bottom in BOTTOMS {
        let server = Server::new(bottom);
        let file = log(&server);
        for _ in 0..2 {
            let written = append(&numbered_by(&server, 1), file).wait().expect("the answer");
            assert_eq!(written.count, RECORD.len());
        }
        assert_eq!(server.intents(), 0);
        let next = server.next();
        assert_eq!(next.reconciled(), (0, 0, 0));
        assert_eq!(again(&next, 1).count, RECORD.len());
        assert_eq!(size(&next), RECORD.len(), "{bottom:?}");
        assert_eq!(again(&next, 2).count, RECORD.len());
        assert_eq!(size(&next), 2 * RECORD.len(), "{bottom:?}: another request");
    }
}

#[test]
fn file_created_for_append_appends() {
    let server = Server::new(Bottom::Memory);
    let how = Create { flags: OpenFlags::WRITE | OpenFlags::APPEND, ..plain() };
    let file = server.file_as("log", &how).expect("create");
    append(&numbered_by(&server, 1), file).wait().expect("append");
    again(&server.next(), 1);
    assert_eq!(size(&server), RECORD.len());
}

/// Simulates an append during which the process was killed after `happened` bytes, and starts the next
/// process.
fn killed_after(bottom: Bottom, happened: usize) -> (Server, Next) {
    let server = Server::new(bottom);
    let file = log(&server);
    append(&server, file).wait().expect("what was there before");
    server.silence.set(Mood::Sleeps);
    let unanswered = append(&numbered_by(&server, 1), file);
    assert_eq!(server.intents(), 1);
    if happened > 0 {
        let at = attach(&*server.bottom);
        at.write(log(&at), 0, &RECORD[..happened]).expect("write");
    }
    let next = server.next();
    drop(unanswered);
    (server, next)
}

#[test]
fn an_append_that_happened_is_not_done_again() {
    for bottom in BOTTOMS {
        let (_server, next) = killed_after(bottom, RECORD.len());
        assert_eq!(next.reconciled(), (1, 0, 0));
        assert_eq!(again(&next, 1).count, RECORD.len());
        assert_eq!(size(&next), 2 * RECORD.len(), "{bottom:?}");
    }
}

#[test]
fn an_append_that_did_not_happen_is_done() {
    for bottom in BOTTOMS {
        let (_server, next) = killed_after(bottom, 0);
        assert_eq!(next.reconciled(), (0, 1, 0));
        assert_eq!(again(&next, 1).count, RECORD.len());
        assert_eq!(size(&next), 2 * RECORD.len(), "{bottom:?}");
    }
}

#[test]
fn partial_append_is_reported_as_short_write() {
    let (_server, next) = killed_after(Bottom::Tmpfs, 3);
    assert_eq!(next.reconciled(), (1, 0, 0));
    assert_eq!(again(&next, 1).count, 3);
    assert_eq!(size(&next), RECORD.len() + 3);
}

#[test]
fn append_followed_by_others_is_ambiguous() {
    let (server, next) = killed_after(Bottom::Tmpfs, RECORD.len());
    drop(next);
    let at = attach(&*server.bottom);
    append(&at, log(&at)).wait().expect("another writer's");
    let next = server.next();
    assert_eq!(next.reconciled(), (1, 0, 1));
    assert_eq!(again(&next, 1).count, RECORD.len());
}

/// Checks serialization, without which the origin of the bytes would be uncertain after a kill.
#[test]
fn appends_to_one_file_take_turns() {
    let server = Server::new(Bottom::Memory);
    let file = log(&server);
    server.silence.set(Mood::Sleeps);
    let first = append(&numbered_by(&server, 1), file);
    server.silence.set(Mood::Answers);
    let mut second = Box::pin(append(&numbered_by(&server, 2), file).resolve());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(second.as_mut().poll(&mut context).is_pending());
    assert_eq!((server.intents(), size(&server)), (1, 0), "the second waits");
    drop((first, second));
}

#[test]
fn repeated_stable_append_is_synced() {
    let (_server, next) = killed_after(Bottom::Disk, RECORD.len());
    let file = log_opened(&next, OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::SYNC);
    let written = append(&numbered_by(&next, 1), file).wait().expect("the answer");
    assert_eq!((written.count, written.stability), (RECORD.len(), Stability::FileSync));
}

#[test]
fn a_write_in_place_is_no_append() {
    let server = Server::new(Bottom::Memory);
    let file = log(&server);
    let before = std::fs::read(&server.state).unwrap();
    let how = Write { in_place: true, ..Write::default() };
    numbered_by(&server, 1).write_as(file, &how, RECORD).expect("write");
    assert!(std::fs::read(&server.state).unwrap() == before);
}
