//! Appends performed exactly once: repeated, and after the death of the process at any moment.

use tombolo_core::fs::{Create, File, FileSystem, NodeId, OpenFlags, Write, Written};
use tombolo_core::{Answer, Ctx, Result, Stability};
use tombolo_mem::Source;
use tombolo_test_support::name;

use crate::crash::{Mood, Next, Server};
use crate::fixture::{BOTTOMS, Bottom, keyed, numbered, plain};

const ROOT: NodeId = NodeId::ROOT;
const RECORD: &[u8] = b"a record\n";

fn log(fs: &dyn FileSystem, cx: &Ctx) -> File {
    log_opened(fs, cx, OpenFlags::WRITE | OpenFlags::APPEND)
}

fn log_opened(fs: &dyn FileSystem, cx: &Ctx, flags: OpenFlags) -> File {
    let node = match fs.lookup(cx, ROOT, name("log")).wait() {
        Ok(entry) => entry.node,
        Err(_) => fs.create(cx, ROOT, name("log"), &plain()).wait().expect("create").entry.node,
    };
    File { node, open: fs.open(cx, node, flags).wait().expect("open").open }
}

fn append(fs: &dyn FileSystem, cx: &Ctx, file: File) -> Answer<Written> {
    fs.write(cx, file, &Write::default(), Source::from(RECORD.to_vec()))
}

fn count(written: Result<Written>) -> usize {
    written.expect("the answer").count
}

fn size(fs: &dyn FileSystem, cx: &Ctx) -> usize {
    fs.lookup(cx, ROOT, name("log")).wait().expect("the log").attr.size as usize
}

fn again(next: &Next, number: u64) -> Written {
    let file = log(&*next.fs, &next.cx);
    append(&*next.fs, &keyed(&next.cx, numbered(1, 1, number)), file).wait().expect("the answer")
}

#[test]
fn an_answered_append_is_known_to_the_next_process() {
    for bottom in BOTTOMS {
        let server = Server::new(bottom);
        let file = log(&*server.fs, &server.cx);
        let cx = keyed(&server.cx, numbered(1, 1, 1));
        for _ in 0..2 {
            assert_eq!(count(append(&*server.fs, &cx, file).wait()), RECORD.len());
        }
        assert_eq!(server.intents(), 0);
        let next = server.next();
        assert_eq!(next.reconciled(), (0, 0, 0));
        assert_eq!(again(&next, 1).count, RECORD.len());
        assert_eq!(size(&*next.fs, &next.cx), RECORD.len(), "{bottom:?}");
        assert_eq!(again(&next, 2).count, RECORD.len());
        assert_eq!(size(&*next.fs, &next.cx), 2 * RECORD.len(), "{bottom:?}: another request");
    }
}

#[test]
fn file_created_for_append_appends() {
    let server = Server::new(Bottom::Memory);
    let how = Create { flags: OpenFlags::WRITE | OpenFlags::APPEND, ..plain() };
    let made = server.fs.create(&server.cx, ROOT, name("log"), &how).wait().expect("create");
    let file = File { node: made.entry.node, open: made.open };
    append(&*server.fs, &keyed(&server.cx, numbered(1, 1, 1)), file).wait().expect("append");
    again(&server.next(), 1);
    assert_eq!(size(&*server.fs, &server.cx), RECORD.len());
}

/// Simulates an append during which the process was killed after `happened` bytes, and starts the next
/// process.
fn killed_after(bottom: Bottom, happened: usize) -> (Server, Next) {
    let server = Server::new(bottom);
    let file = log(&*server.fs, &server.cx);
    append(&*server.fs, &server.cx, file).wait().expect("what was there before");
    server.silence.set(Mood::Sleeps);
    let unanswered = append(&*server.fs, &keyed(&server.cx, numbered(1, 1, 1)), file);
    assert_eq!(server.intents(), 1);
    if happened > 0 {
        let (fs, cx) = crate::fixture::attach(&*server.bottom);
        let file = log(&*fs, &cx);
        let part = Source::from(RECORD[..happened].to_vec());
        fs.write(&cx, file, &Write::default(), part).wait().expect("write");
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
        assert_eq!(size(&*next.fs, &next.cx), 2 * RECORD.len(), "{bottom:?}");
    }
}

#[test]
fn an_append_that_did_not_happen_is_done() {
    for bottom in BOTTOMS {
        let (_server, next) = killed_after(bottom, 0);
        assert_eq!(next.reconciled(), (0, 1, 0));
        assert_eq!(again(&next, 1).count, RECORD.len());
        assert_eq!(size(&*next.fs, &next.cx), 2 * RECORD.len(), "{bottom:?}");
    }
}

#[test]
fn partial_append_is_reported_as_short_write() {
    let (_server, next) = killed_after(Bottom::Tmpfs, 3);
    assert_eq!(next.reconciled(), (1, 0, 0));
    assert_eq!(again(&next, 1).count, 3);
    assert_eq!(size(&*next.fs, &next.cx), RECORD.len() + 3);
}

#[test]
fn append_followed_by_others_is_ambiguous() {
    let (server, next) = killed_after(Bottom::Tmpfs, RECORD.len());
    drop(next);
    let (fs, cx) = crate::fixture::attach(&*server.bottom);
    append(&*fs, &cx, log(&*fs, &cx)).wait().expect("another writer's");
    let next = server.next();
    assert_eq!(next.reconciled(), (1, 0, 1));
    assert_eq!(again(&next, 1).count, RECORD.len());
}

/// Checks serialization, without which the origin of the bytes would be uncertain after a kill.
#[test]
fn appends_to_one_file_take_turns() {
    let server = Server::new(Bottom::Memory);
    let file = log(&*server.fs, &server.cx);
    server.silence.set(Mood::Sleeps);
    let (one, other) = [1, 2].map(|number| keyed(&server.cx, numbered(1, 1, number))).into();
    let first = append(&*server.fs, &one, file);
    server.silence.set(Mood::Answers);
    let mut second = Box::pin(append(&*server.fs, &other, file).resolve());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(second.as_mut().poll(&mut context).is_pending());
    assert_eq!((server.intents(), size(&*server.fs, &server.cx)), (1, 0), "the second waits");
    drop((first, second));
}

#[test]
fn repeated_stable_append_is_synced() {
    let (_server, next) = killed_after(Bottom::Disk, RECORD.len());
    let file = log_opened(&*next.fs, &next.cx, OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::SYNC);
    let written = append(&*next.fs, &keyed(&next.cx, numbered(1, 1, 1)), file).wait().expect("the answer");
    assert_eq!((written.count, written.stability), (RECORD.len(), Stability::FileSync));
}

#[test]
fn a_write_in_place_is_no_append() {
    let server = Server::new(Bottom::Memory);
    let file = log(&*server.fs, &server.cx);
    let before = std::fs::read(&server.state).unwrap();
    let how = Write { in_place: true, ..Write::default() };
    let cx = keyed(&server.cx, numbered(1, 1, 1));
    server.fs.write(&cx, file, &how, Source::from(RECORD.to_vec())).wait().expect("write");
    assert!(std::fs::read(&server.state).unwrap() == before);
}
