//! Recovery of the state file by the next process. It gets a copy, taken while the first process still
//! serves: the state after a kill at that moment.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tombolo_core::fs::{
    Create, Device, Exclusive, Export, File, FileType, NewMode, NodeId, Op, RenameFlags, SetAttr, XattrSet,
};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_layer_basic::Layered;
use tombolo_layer_basic::around::{Around, Call, Payload};
use tombolo_layer_replies::{self as replies, Limits, OpenError, Options, Replies, Snapshot};
use tombolo_test_support::{Session, name, with_session, wrapped, xattr_name};

use crate::fixture::{BOTTOMS, Bottom, attach, keyed, numbered, plain, request, start_mkdir};
use crate::without_handles::WithoutHandles;

/// A layer that suppresses the answers of changes.
#[derive(Default)]
pub struct Silence(AtomicU8);

/// Treatment of changes by [`Silence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mood {
    /// Perform and answer.
    Answers,
    /// Perform without an answer.
    Performs,
    /// Neither perform nor answer.
    Sleeps,
    /// Do not perform, and panic later.
    Panics,
    /// Perform and answer the next one, after which no node has a handle.
    LosesHandles,
    HasNoHandles,
}

impl Silence {
    pub fn set(&self, mood: Mood) {
        self.0.store(mood as u8, Ordering::SeqCst);
    }
}

impl Around for Silence {
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let mood = self.0.load(Ordering::SeqCst);
        if call.op == Op::HandleOf && mood == Mood::HasNoHandles as u8 {
            return Answer::err(Error::NotSupported);
        }
        if !call.mutates || mood == Mood::Answers as u8 || mood == Mood::HasNoHandles as u8 {
            return inner();
        }
        if mood == Mood::LosesHandles as u8 {
            self.set(Mood::HasNoHandles);
            return inner();
        }
        if mood == Mood::Panics as u8 {
            return Answer::later(async { panic!("planted") });
        }
        if mood == Mood::Performs as u8 {
            inner().wait().map(drop).unwrap_or_default();
        }
        Answer::later(std::future::pending())
    }
}

/// An export, its state file, and a first process that serves it.
pub struct Server {
    pub bottom: Arc<dyn Export>,
    pub silence: Arc<Silence>,
    pub state: PathBuf,
    pub first: Replies,
    session: Session,
    pub folder: TempDir,
    /// Directory of the export, if it has one.
    pub tree: Option<TempDir>,
}

with_session!(Server, Next);

impl Server {
    pub fn new(bottom: Bottom) -> Self {
        Self::with(bottom, &Options::default())
    }

    pub fn with(bottom: Bottom, options: &Options) -> Self {
        let (bottom, tree) = bottom.export();
        let silence = Arc::<Silence>::default();
        let folder = tempfile::tempdir_in("/dev/shm").expect("a scratch directory");
        let state = folder.path().join("replies");
        let quiet = Arc::new(Layered::new(bottom.clone(), silence.clone()));
        let first = replies::open(quiet, options, &state).expect("the state file");
        assert!(first.survives_crashes());
        let session = attach(&first);
        Self { bottom, silence, state, first, session, folder, tree }
    }

    /// Copies the current state file.
    pub fn copy(&self, text: &str) -> PathBuf {
        let copy = self.folder.path().join(text);
        std::fs::copy(&self.state, &copy).expect("copy");
        copy
    }

    /// Returns the number of intents in the state file (docs/formats/replies.md).
    pub fn intents(&self) -> usize {
        let bytes = std::fs::read(&self.state).expect("the state file");
        bytes[4096..].chunks(1024).take(1024).filter(|slot| slot[0] == 1).count()
    }

    /// Starts the next process, as after a kill at this moment.
    pub fn next(&self) -> Next {
        Next::over(self.bottom.clone(), &self.copy("next"), &Options::default()).expect("the copy is good")
    }
}

/// A process after another one.
pub struct Next {
    pub export: Replies,
    session: Session,
}

impl Next {
    pub fn over(
        bottom: Arc<dyn Export>,
        state: &Path,
        options: &Options,
    ) -> std::result::Result<Self, OpenError> {
        let export = replies::open(bottom, options, state)?;
        let session = attach(&export);
        Ok(Self { export, session })
    }

    /// Returns the session, for a repetition of an earlier process's request.
    pub fn again(&self, request: &Session) -> Session {
        keyed(self, request.cx.key)
    }

    /// Returns the numbers of operations done, not done and ambiguous.
    pub fn reconciled(&self) -> (u64, u64, u64) {
        let Snapshot { reconciled_done, reconciled_not_done, reconciled_ambiguous, .. } =
            self.export.counters().read();
        (reconciled_done, reconciled_not_done, reconciled_ambiguous)
    }
}

/// An operation, with its preconditions. Most are changes that fail when repeated as a new request.
struct Case {
    op: &'static str,
    prepare: fn(&Session),
    send: fn(&Session) -> Answer<()>,
}

impl Case {
    /// Returns `true` if a second request for the same effect must fail.
    fn fails_twice(&self) -> bool {
        !["cut", "replace an attribute", "create with a verifier"].contains(&self.op)
    }

    fn sent(&self, at: &Session) -> Result<()> {
        (self.send)(at).wait()
    }

    /// Checks by a second request for the same effect that the operation happened exactly once.
    fn assert_happened_once(&self, at: &Session, what: &str) {
        let other = self.sent(&request(at));
        assert_eq!(other.is_err(), self.fails_twice(), "{what}: another request came to {other:?}");
    }

    /// Repeats the request to the next process, and checks that it succeeds with this number of hits.
    fn assert_answered_again(&self, next: &Next, request: &Session, hits: u64, what: &str) {
        self.sent(&next.again(request)).unwrap_or_else(|error| panic!("{what}, again: {error}"));
        assert_eq!(next.export.counters().read().hits_done, hits, "{what}");
        self.assert_happened_once(next, what);
    }
}

/// Finds a node, apart from the request.
fn node(at: &Session, text: &str) -> NodeId {
    keyed(at, None).node(text).expect("there")
}

/// Runs each case over each bottom, prepared, with a request to be sent.
fn each_case(run: impl Fn(&Case, &Server, &Session, &str)) {
    for (bottom, case) in BOTTOMS.into_iter().flat_map(|bottom| CASES.iter().map(move |case| (bottom, case)))
    {
        let server = Server::new(bottom);
        (case.prepare)(&server);
        run(case, &server, &request(&server), &format!("{} over {bottom:?}", case.op));
    }
}

const fn case(op: &'static str, prepare: fn(&Session), send: fn(&Session) -> Answer<()>) -> Case {
    Case { op, prepare, send }
}

const CASES: [Case; 15] = [
    case("create", |_| {}, |at| created(at, &plain())),
    case("create with a verifier", |_| {}, verified),
    case("mkdir", |_| {}, |at| start_mkdir(at, "new").map(drop)),
    case("symlink", |_| {}, |at| at.fs.symlink(&at.cx, at.dir, name("new"), b"target").map(drop)),
    case("mknod", |_| {}, made_fifo),
    case("link", with_old, |at| at.fs.link(&at.cx, node(at, "old"), at.dir, name("new")).map(drop)),
    case("unlink", with_old, |at| at.fs.unlink(&at.cx, at.dir, name("old")).map(drop)),
    case("unlink of what the caller found", with_old, |at| {
        let found = keyed(at, None).lookup("old").ok().map(|entry| Arc::new(entry.attr));
        at.fs.unlink(&Ctx { found, ..at.cx.clone() }, at.dir, name("old")).map(drop)
    }),
    case(
        "rmdir",
        |at| at.mkdir("old").map(drop).expect("made"),
        |at| at.fs.rmdir(&at.cx, at.dir, name("old")).map(drop),
    ),
    case("rename", with_old, renamed),
    case("rename over another", with_both, renamed),
    case("cut", with_old, |at| {
        let set = SetAttr { size: Some(7), ..SetAttr::default() };
        at.fs.setattr(&at.cx, node(at, "old"), None, &set).map(drop)
    }),
    case("make an attribute", with_old, |at| set_attribute(at, b"new", XattrSet::Create)),
    case("replace an attribute", with_attribute, |at| set_attribute(at, b"new", XattrSet::Replace)),
    case("remove an attribute", with_attribute, |at| {
        at.xattrs().remove(&at.cx, node(at, "old"), xattr_name("user.test"))
    }),
];

fn with_old(at: &Session) {
    at.file("old");
}

fn with_both(at: &Session) {
    with_old(at);
    at.file("new");
}

fn with_attribute(at: &Session) {
    with_old(at);
    set_attribute(at, b"old", XattrSet::Any).wait().expect("an attribute");
}

fn created(at: &Session, how: &Create) -> Answer<()> {
    at.fs.create(&at.cx, at.dir, name("new"), how).map(drop)
}

fn verified(at: &Session) -> Answer<()> {
    created(at, &Create { exclusive: Exclusive::Verifier([7; 8]), ..plain() })
}

fn made_fifo(at: &Session) -> Answer<()> {
    let (mode, rdev) = (NewMode::default(), Device::default());
    at.fs.mknod(&at.cx, at.dir, name("new"), FileType::Fifo, mode, rdev).map(drop)
}

fn renamed(at: &Session) -> Answer<()> {
    at.fs.rename(&at.cx, at.dir, name("old"), at.dir, name("new"), RenameFlags::empty()).map(drop)
}

fn set_attribute(at: &Session, value: &[u8], how: XattrSet) -> Answer<()> {
    at.xattrs().set(&at.cx, node(at, "old"), xattr_name("user.test"), value, how, false)
}

#[test]
fn an_answer_is_known_to_the_next_process() {
    each_case(|case, server, at, what| {
        case.sent(at).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(server.intents(), 0, "{what}");
        let next = server.next();
        assert_eq!(next.reconciled(), (0, 0, 0), "{what}");
        case.assert_answered_again(&next, at, 1, what);
    });
}

#[test]
fn performed_but_unanswered_requests_are_recognized() {
    each_case(|case, server, at, what| {
        // A change is visible in a ctime only after a tick of the file system's clock.
        std::thread::sleep(Duration::from_millis(20));
        server.silence.set(Mood::Performs);
        let unanswered = (case.send)(at);
        let next = server.next();
        assert_eq!(next.reconciled(), (1, 0, 0), "{what}");
        case.assert_answered_again(&next, at, 1, what);
        drop(unanswered);
    });
}

#[test]
fn unperformed_requests_run_when_sent_again() {
    each_case(|case, server, at, what| {
        server.silence.set(Mood::Sleeps);
        let unanswered = (case.send)(at);
        let next = server.next();
        assert_eq!(next.reconciled(), (0, 1, 0), "{what}");
        case.assert_answered_again(&next, at, 0, what);
        drop(unanswered);
    });
}

#[test]
fn a_failure_is_known_to_the_next_process_too() {
    let server = Server::new(Bottom::Memory);
    let at = request(&server);
    assert!(matches!(at.unlink("file"), Err(Error::NotFound)));
    server.file("file");
    let next = server.next();
    assert!(matches!(next.again(&at).unlink("file"), Err(Error::NotFound)));
    assert!(next.exists("file"));
}

#[test]
fn repeated_create_after_crash_gets_an_opening() {
    let server = Server::new(Bottom::Tmpfs);
    let at = request(&server);
    let first = at.create("file", &plain()).expect("create");
    let next = server.next();
    let again = next.again(&at).create("file", &plain()).expect("again");
    assert_eq!(again.entry.attr.fileid, first.entry.attr.fileid);
    next.write_all(File { node: again.entry.node, open: again.open }, 0, b"data");
}

#[test]
fn looking_before_leaves_nothing_behind() {
    let server = Server::new(Bottom::Memory);
    for (text, remove) in [("one", true), ("other", false)] {
        let node = server.file(text).node;
        let at = request(&server);
        match remove {
            true => drop(at.unlink(text).expect("unlink")),
            false => {
                at.rename(text, "x", RenameFlags::empty()).expect("rename");
                request(&server).unlink("x").expect("unlink");
            }
        }
        server.forget(node);
        let open = server.fs.getattr(&server.cx, node, None).wait();
        assert!(open.is_err(), "{text}: its only look-up was given back, and its opening is not asked");
    }
}

#[test]
fn only_one_of_two_equal_requests_has_happened() {
    each_case(|case, server, one, what| {
        if !case.fails_twice() {
            return;
        }
        let other = request(server);
        // Both record their intents before either runs, as two threads would.
        server.silence.set(Mood::Sleeps);
        let unanswered = ((case.send)(one), (case.send)(&other));
        // One of them runs.
        case.sent(&attach(&*server.bottom)).unwrap_or_else(|error| panic!("{what}: {error}"));
        let next = server.next();
        assert_eq!(next.reconciled(), (1, 1, 1), "{what}");
        case.sent(&next.again(one)).unwrap_or_else(|error| panic!("{what}: {error}"));
        case.sent(&next.again(&other)).expect_err(what);
        drop(unanswered);
    });
}

#[test]
fn request_overtaken_by_recorded_one_has_not_happened() {
    for case in CASES.iter().filter(|case| case.fails_twice()) {
        let server = Server::new(Bottom::Memory);
        (case.prepare)(&server);
        let (one, other) = (request(&server), request(&server));
        server.silence.set(Mood::Sleeps);
        let unanswered = (case.send)(&one);
        server.silence.set(Mood::Answers);
        case.sent(&other).unwrap_or_else(|error| panic!("{}: {error}", case.op));
        let next = server.next();
        assert_eq!(next.reconciled(), (0, 1, 1), "{}", case.op);
        case.sent(&next.again(&one)).expect_err(case.op);
        case.sent(&next.again(&other)).unwrap_or_else(|error| panic!("{}: {error}", case.op));
        drop(unanswered);
    }
}

#[test]
fn node_found_by_caller_may_be_gone() {
    let server = Server::new(Bottom::Memory);
    server.file("old");
    let found = Some(Arc::new(server.attr("old")));
    let [one, other] = [0; 2].map(|_| {
        let at = request(&server);
        at.with(Ctx { found: found.clone(), ..at.cx.clone() })
    });
    one.unlink("old").expect("unlink");
    server.silence.set(Mood::Performs);
    let unanswered = other.fs.unlink(&other.cx, other.dir, name("old"));
    let again = server.next().again(&other).unlink("old");
    assert!(matches!(again, Err(Error::NotFound)), "{again:?}");
    drop(unanswered);
}

#[test]
fn ambiguous_requests_are_counted() {
    let server = Server::new(Bottom::Tmpfs);
    let tree = server.tree.as_ref().expect("a directory").path().to_owned();
    server.file("old");
    server.file("victim");
    server.silence.set(Mood::Performs);
    let (rename, unlink) = (request(&server), request(&server));
    let moved = renamed(&rename);
    let removed = unlink.fs.unlink(&unlink.cx, unlink.dir, name("victim"));
    // A program of the host.
    std::fs::remove_file(tree.join("new")).unwrap();
    std::fs::write(tree.join("victim"), b"another").unwrap();
    let next = server.next();
    assert_eq!(next.reconciled(), (2, 0, 2));
    renamed(&next.again(&rename)).wait().expect("taken for done");
    next.again(&unlink).unlink("victim").expect("taken for done");
    assert!(tree.join("victim").exists(), "it is not ours");
    drop((moved, removed));
}

#[test]
fn outcomes_go_from_process_to_process() {
    let server = Server::new(Bottom::Memory);
    let at = request(&server);
    at.dir("dir");
    let state = server.copy("handed on");
    for _ in 0..3 {
        let next = Next::over(server.bottom.clone(), &state, &Options::default()).unwrap();
        next.again(&at).mkdir("dir").expect("the answer");
    }
}

/// Makes directories; returns the requests.
fn made(server: &Server, count: usize) -> Vec<Session> {
    let requests: Vec<_> = (0..count).map(|_| request(server)).collect();
    for (number, at) in requests.iter().enumerate() {
        at.dir(&format!("dir{number}"));
    }
    requests
}

/// Returns the numbers of the requests that are known, from the newest on: an unknown one evicts another.
fn known(next: &Next, requests: &[Session]) -> Vec<usize> {
    let is_known = |number: &usize| next.again(&requests[*number]).mkdir(&format!("dir{number}")).is_ok();
    (0..requests.len()).rev().filter(is_known).collect()
}

#[test]
fn evicted_outcomes_are_not_in_the_file() {
    let limits = Limits { entries: 2, ..Limits::default() };
    let server = Server::with(Bottom::Memory, &Options { durable: limits, ..Options::default() });
    let requests = made(&server, 6);
    assert_eq!(known(&server.next(), &requests), [5, 4]);
}

#[test]
fn a_smaller_limit_keeps_the_newest() {
    let server = Server::new(Bottom::Memory);
    let requests = made(&server, 10);
    let durable = Limits { entries: 3, ..Limits::default() };
    let options = Options { durable, ..Options::default() };
    let next = Next::over(server.bottom.clone(), &server.copy("smaller"), &options).unwrap();
    assert_eq!(known(&next, &requests), [9, 8, 7]);
}

#[test]
fn outcomes_older_than_their_time_stay_behind() {
    let server = Server::new(Bottom::Memory);
    let (old, new) = (request(&server), request(&server));
    old.dir("old");
    std::thread::sleep(Duration::from_millis(4100));
    new.dir("new");
    let durable = Limits { age: Duration::from_secs(3), ..Limits::default() };
    let options = Options { durable, ..Options::default() };
    let next = Next::over(server.bottom.clone(), &server.copy("aged"), &options).unwrap();
    next.again(&new).mkdir("new").expect("the answer");
    assert!(matches!(next.again(&old).mkdir("old"), Err(Error::Exists)));
}

#[test]
fn numbered_request_is_recognised_after_restart_per_client() {
    let server = Server::new(Bottom::Memory);
    let (done, in_doubt) = (keyed(&server, numbered(3, 1, u64::MAX)), keyed(&server, numbered(3, 1, 7)));
    done.dir("done");
    server.silence.set(Mood::Performs);
    drop(start_mkdir(&in_doubt, "in doubt"));
    let next = server.next();
    for other in [numbered(4, 1, u64::MAX), numbered(3, 2, u64::MAX), numbered(3, 1, 8)] {
        let refused = keyed(&next, other).mkdir("done");
        assert!(matches!(refused, Err(Error::Exists)), "{other:?}: {refused:?}");
    }
    next.again(&done).mkdir("done").expect("the answer");
    next.again(&in_doubt).mkdir("in doubt").expect("what it came to");
}

#[test]
fn plain_writes_and_modes_are_not_in_the_file() {
    let server = Server::new(Bottom::Memory);
    let file = server.file("file");
    let before = std::fs::read(&server.state).unwrap();
    request(&server).chmod("", 0o700).expect("chmod");
    request(&server).write(file, 0, b"data").expect("write");
    assert!(std::fs::read(&server.state).unwrap() == before);
    request(&server).dir("other");
    assert!(std::fs::read(&server.state).unwrap() != before);
}

#[test]
fn two_servers_do_not_share_a_state_file() {
    let server = Server::new(Bottom::Memory);
    let refused = replies::open(server.bottom.clone(), &Options::default(), &server.state).map(drop);
    assert!(matches!(refused, Err(OpenError::InUse { .. })), "{refused:?}");
    let Server { first, session, state, bottom, folder, .. } = server;
    drop((first, session));
    replies::open(bottom, &Options::default(), &state).expect("it is free again");
    drop(folder);
}

#[test]
fn without_handles_there_is_no_state_file() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = folder.path().join("replies");
    let (bottom, _tree) = Bottom::Memory.export();
    let export =
        replies::open(wrapped(bottom, WithoutHandles), &Options::default(), &state).expect("in memory");
    assert!(!export.survives_crashes() && !state.exists());
}
