//! Recovery of the state file by the next process. It gets a copy, taken while the first process still
//! serves: the state after a kill at that moment.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tombolo_core::fs::Op;
use tombolo_core::fs::{
    Device, Exclusive, Export, FileSystem, FileType, NewMode, NodeId, RenameFlags, SetAttr, XattrName,
    XattrSet, within,
};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_layer_basic::Layered;
use tombolo_layer_basic::around::{Around, Call, Payload};
use tombolo_layer_replies::{self as replies, Limits, OpenError, Options, Replies, Snapshot};
use tombolo_test_support::{name, wrapped};

use crate::fixture::{BOTTOMS, Bottom, attach, fresh_key, keyed, numbered, plain};
use crate::without_handles::WithoutHandles;

const ROOT: NodeId = NodeId::ROOT;

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
    pub fs: Arc<dyn FileSystem>,
    pub cx: Ctx,
    pub folder: TempDir,
    /// Directory of the export, if it has one.
    pub tree: Option<TempDir>,
}

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
        let (fs, cx) = attach(&first);
        Self { bottom, silence, state, first, fs, cx, folder, tree }
    }

    pub fn request(&self) -> Ctx {
        keyed(&self.cx, fresh_key())
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
    pub fs: Arc<dyn FileSystem>,
    pub cx: Ctx,
}

impl Next {
    pub fn over(
        bottom: Arc<dyn Export>,
        state: &Path,
        options: &Options,
    ) -> std::result::Result<Self, OpenError> {
        let export = replies::open(bottom, options, state)?;
        let (fs, cx) = attach(&export);
        Ok(Self { export, fs, cx })
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
    prepare: fn(&dyn FileSystem, &Ctx),
    send: fn(&dyn FileSystem, &Ctx) -> Answer<()>,
}

impl Case {
    /// Returns `true` if a second request for the same effect must fail.
    fn fails_twice(&self) -> bool {
        !["cut", "replace an attribute", "create with a verifier"].contains(&self.op)
    }
}

fn file(fs: &dyn FileSystem, cx: &Ctx, text: &str) -> NodeId {
    fs.create(cx, ROOT, name(text), &plain()).wait().expect("create").entry.node
}

fn node(fs: &dyn FileSystem, cx: &Ctx, text: &str) -> NodeId {
    fs.lookup(&Ctx { key: None, ..cx.clone() }, ROOT, name(text)).wait().expect("there").node
}

fn mkdir(fs: &dyn FileSystem, cx: &Ctx, text: &str) -> Result<()> {
    fs.mkdir(cx, ROOT, name(text), NewMode::default()).wait().map(drop)
}

/// Runs each case over each bottom, prepared, with a request to be sent.
fn each_case(run: impl Fn(&Case, &Server, &Ctx, &str)) {
    for (bottom, case) in BOTTOMS.into_iter().flat_map(|bottom| CASES.iter().map(move |case| (bottom, case)))
    {
        let server = Server::new(bottom);
        (case.prepare)(&*server.fs, &server.cx);
        run(case, &server, &server.request(), &format!("{} over {bottom:?}", case.op));
    }
}

/// Repeats the request to the next process, and checks that it succeeds with this number of hits.
fn assert_answered_again(case: &Case, next: &Next, request: &Ctx, hits: u64, what: &str) {
    sent(case, &*next.fs, &keyed(&next.cx, request.key))
        .unwrap_or_else(|error| panic!("{what}, again: {error}"));
    assert_eq!(next.export.counters().read().hits_done, hits, "{what}");
    assert_happened_once(case, &*next.fs, &next.cx, what);
}

const CASES: [Case; 15] = [
    Case {
        op: "create",
        prepare: |_, _| {},
        send: |fs, cx| fs.create(cx, ROOT, name("new"), &plain()).map(drop),
    },
    Case {
        op: "create with a verifier",
        prepare: |_, _| {},
        send: |fs, cx| {
            let how = tombolo_core::fs::Create { exclusive: Exclusive::Verifier([7; 8]), ..plain() };
            fs.create(cx, ROOT, name("new"), &how).map(drop)
        },
    },
    Case {
        op: "mkdir",
        prepare: |_, _| {},
        send: |fs, cx| fs.mkdir(cx, ROOT, name("new"), NewMode::default()).map(drop),
    },
    Case {
        op: "symlink",
        prepare: |_, _| {},
        send: |fs, cx| fs.symlink(cx, ROOT, name("new"), b"target").map(drop),
    },
    Case {
        op: "mknod",
        prepare: |_, _| {},
        send: |fs, cx| {
            fs.mknod(cx, ROOT, name("new"), FileType::Fifo, NewMode::default(), Device::default()).map(drop)
        },
    },
    Case {
        op: "link",
        prepare: |fs, cx| {
            file(fs, cx, "old");
        },
        send: |fs, cx| fs.link(cx, node(fs, cx, "old"), ROOT, name("new")).map(drop),
    },
    Case {
        op: "unlink",
        prepare: |fs, cx| {
            file(fs, cx, "old");
        },
        send: |fs, cx| fs.unlink(cx, ROOT, name("old")).map(drop),
    },
    Case {
        op: "unlink of what the caller found",
        prepare: |fs, cx| {
            file(fs, cx, "old");
        },
        send: |fs, cx| {
            let found = fs.lookup(&Ctx { key: None, ..cx.clone() }, ROOT, name("old")).wait();
            let found = found.ok().map(|entry| Arc::new(entry.attr));
            fs.unlink(&Ctx { found, ..cx.clone() }, ROOT, name("old")).map(drop)
        },
    },
    Case {
        op: "rmdir",
        prepare: |fs, cx| {
            fs.mkdir(cx, ROOT, name("old"), NewMode::default()).wait().expect("mkdir");
        },
        send: |fs, cx| fs.rmdir(cx, ROOT, name("old")).map(drop),
    },
    Case {
        op: "rename",
        prepare: |fs, cx| {
            file(fs, cx, "old");
        },
        send: |fs, cx| fs.rename(cx, ROOT, name("old"), ROOT, name("new"), RenameFlags::empty()).map(drop),
    },
    Case {
        op: "rename over another",
        prepare: |fs, cx| {
            file(fs, cx, "old");
            file(fs, cx, "new");
        },
        send: |fs, cx| fs.rename(cx, ROOT, name("old"), ROOT, name("new"), RenameFlags::empty()).map(drop),
    },
    Case {
        op: "cut",
        prepare: |fs, cx| {
            file(fs, cx, "old");
        },
        send: |fs, cx| {
            let set = SetAttr { size: Some(7), ..SetAttr::default() };
            fs.setattr(cx, node(fs, cx, "old"), None, &set).map(drop)
        },
    },
    Case {
        op: "make an attribute",
        prepare: |fs, cx| {
            file(fs, cx, "old");
        },
        send: |fs, cx| set_attribute(fs, cx, b"new", XattrSet::Create),
    },
    Case {
        op: "replace an attribute",
        prepare: file_with_attribute,
        send: |fs, cx| set_attribute(fs, cx, b"new", XattrSet::Replace),
    },
    Case {
        op: "remove an attribute",
        prepare: file_with_attribute,
        send: |fs, cx| {
            let name = XattrName::new(b"user.test").expect("a good name");
            within(fs.xattrs(), |xattrs| xattrs.remove(cx, node(fs, cx, "old"), name))
        },
    },
];

fn file_with_attribute(fs: &dyn FileSystem, cx: &Ctx) {
    file(fs, cx, "old");
    set_attribute(fs, cx, b"old", XattrSet::Any).wait().expect("an attribute");
}

fn set_attribute(fs: &dyn FileSystem, cx: &Ctx, value: &[u8], how: XattrSet) -> Answer<()> {
    let name = XattrName::new(b"user.test").expect("a good name");
    within(fs.xattrs(), |xattrs| xattrs.set(cx, node(fs, cx, "old"), name, value, how, false))
}

fn sent(case: &Case, fs: &dyn FileSystem, cx: &Ctx) -> Result<()> {
    (case.send)(fs, cx).wait()
}

/// Checks by a second request for the same effect that the operation happened exactly once.
fn assert_happened_once(case: &Case, fs: &dyn FileSystem, cx: &Ctx, what: &str) {
    let other = sent(case, fs, &keyed(cx, fresh_key()));
    assert_eq!(other.is_err(), case.fails_twice(), "{what}: another request came to {other:?}");
}

#[test]
fn an_answer_is_known_to_the_next_process() {
    each_case(|case, server, cx, what| {
        sent(case, &*server.fs, cx).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(server.intents(), 0, "{what}");
        let next = server.next();
        assert_eq!(next.reconciled(), (0, 0, 0), "{what}");
        assert_answered_again(case, &next, cx, 1, what);
    });
}

#[test]
fn performed_but_unanswered_requests_are_recognized() {
    each_case(|case, server, cx, what| {
        // A change is visible in a ctime only after a tick of the file system's clock.
        std::thread::sleep(Duration::from_millis(20));
        server.silence.set(Mood::Performs);
        let unanswered = (case.send)(&*server.fs, cx);
        let next = server.next();
        assert_eq!(next.reconciled(), (1, 0, 0), "{what}");
        assert_answered_again(case, &next, cx, 1, what);
        drop(unanswered);
    });
}

#[test]
fn unperformed_requests_run_when_sent_again() {
    each_case(|case, server, cx, what| {
        server.silence.set(Mood::Sleeps);
        let unanswered = (case.send)(&*server.fs, cx);
        let next = server.next();
        assert_eq!(next.reconciled(), (0, 1, 0), "{what}");
        assert_answered_again(case, &next, cx, 0, what);
        drop(unanswered);
    });
}

#[test]
fn a_failure_is_known_to_the_next_process_too() {
    let server = Server::new(Bottom::Memory);
    let cx = server.request();
    let unlink = |fs: &dyn FileSystem, cx: &Ctx| fs.unlink(cx, ROOT, name("file")).wait();
    assert!(matches!(unlink(&*server.fs, &cx), Err(Error::NotFound)));
    file(&*server.fs, &server.cx, "file");
    let next = server.next();
    assert!(matches!(unlink(&*next.fs, &keyed(&next.cx, cx.key)), Err(Error::NotFound)));
    node(&*next.fs, &next.cx, "file");
}

#[test]
fn repeated_create_after_crash_gets_an_opening() {
    let server = Server::new(Bottom::Tmpfs);
    let cx = server.request();
    let first = server.fs.create(&cx, ROOT, name("file"), &plain()).wait().expect("create");
    let next = server.next();
    let again = next.fs.create(&keyed(&next.cx, cx.key), ROOT, name("file"), &plain()).wait().expect("again");
    assert_eq!(again.entry.attr.fileid, first.entry.attr.fileid);
    let file = tombolo_core::fs::File { node: again.entry.node, open: again.open };
    let from = tombolo_mem::Source::from(b"data".to_vec());
    next.fs.write(&next.cx, file, &tombolo_core::fs::Write::default(), from).wait().expect("write");
}

#[test]
fn looking_before_leaves_nothing_behind() {
    let server = Server::new(Bottom::Memory);
    for (text, remove) in [("one", true), ("other", false)] {
        let node = file(&*server.fs, &server.cx, text);
        let cx = server.request();
        match remove {
            true => drop(server.fs.unlink(&cx, ROOT, name(text)).wait().expect("unlink")),
            false => {
                server
                    .fs
                    .rename(&cx, ROOT, name(text), ROOT, name("x"), RenameFlags::empty())
                    .wait()
                    .unwrap();
                server.fs.unlink(&server.request(), ROOT, name("x")).wait().expect("unlink");
            }
        }
        server.fs.forget(&server.cx, &[(node, 1)]);
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
        let other = server.request();
        // Both record their intents before either runs, as two threads would.
        server.silence.set(Mood::Sleeps);
        let unanswered = ((case.send)(&*server.fs, one), (case.send)(&*server.fs, &other));
        // One of them runs.
        let (plain_fs, plain_cx) = attach(&*server.bottom);
        sent(case, &*plain_fs, &plain_cx).unwrap_or_else(|error| panic!("{what}: {error}"));
        let next = server.next();
        assert_eq!(next.reconciled(), (1, 1, 1), "{what}");
        sent(case, &*next.fs, &keyed(&next.cx, one.key)).unwrap_or_else(|error| panic!("{what}: {error}"));
        sent(case, &*next.fs, &keyed(&next.cx, other.key)).expect_err(what);
        drop(unanswered);
    });
}

#[test]
fn request_overtaken_by_recorded_one_has_not_happened() {
    for case in CASES.iter().filter(|case| case.fails_twice()) {
        let server = Server::new(Bottom::Memory);
        (case.prepare)(&*server.fs, &server.cx);
        let (one, other) = (server.request(), server.request());
        server.silence.set(Mood::Sleeps);
        let unanswered = (case.send)(&*server.fs, &one);
        server.silence.set(Mood::Answers);
        sent(case, &*server.fs, &other).unwrap_or_else(|error| panic!("{}: {error}", case.op));
        let next = server.next();
        assert_eq!(next.reconciled(), (0, 1, 1), "{}", case.op);
        sent(case, &*next.fs, &keyed(&next.cx, one.key)).expect_err(case.op);
        sent(case, &*next.fs, &keyed(&next.cx, other.key))
            .unwrap_or_else(|error| panic!("{}: {error}", case.op));
        drop(unanswered);
    }
}

#[test]
fn node_found_by_caller_may_be_gone() {
    let server = Server::new(Bottom::Memory);
    file(&*server.fs, &server.cx, "old");
    let entry = server.fs.lookup(&server.cx, ROOT, name("old")).wait().expect("there");
    let found = Some(Arc::new(entry.attr));
    let [one, other] = [0; 2].map(|_| Ctx { found: found.clone(), ..server.request() });
    server.fs.unlink(&one, ROOT, name("old")).wait().expect("unlink");
    server.silence.set(Mood::Performs);
    let unanswered = server.fs.unlink(&other, ROOT, name("old"));
    let next = server.next();
    let again = next.fs.unlink(&keyed(&next.cx, other.key), ROOT, name("old")).wait();
    assert!(matches!(again, Err(Error::NotFound)), "{again:?}");
    drop(unanswered);
}

#[test]
fn ambiguous_requests_are_counted() {
    let server = Server::new(Bottom::Tmpfs);
    let tree = server.tree.as_ref().expect("a directory").path().to_owned();
    file(&*server.fs, &server.cx, "from");
    file(&*server.fs, &server.cx, "victim");
    server.silence.set(Mood::Performs);
    let (rename, unlink) = (server.request(), server.request());
    let flags = RenameFlags::empty();
    let renamed = server.fs.rename(&rename, ROOT, name("from"), ROOT, name("to"), flags);
    let removed = server.fs.unlink(&unlink, ROOT, name("victim"));
    // A program of the host.
    std::fs::remove_file(tree.join("to")).unwrap();
    std::fs::write(tree.join("victim"), b"another").unwrap();
    let next = server.next();
    assert_eq!(next.reconciled(), (2, 0, 2));
    let (rename, unlink) = (keyed(&next.cx, rename.key), keyed(&next.cx, unlink.key));
    next.fs.rename(&rename, ROOT, name("from"), ROOT, name("to"), flags).wait().expect("taken for done");
    next.fs.unlink(&unlink, ROOT, name("victim")).wait().expect("taken for done");
    assert!(tree.join("victim").exists(), "it is not ours");
    drop((renamed, removed));
}

#[test]
fn outcomes_go_from_process_to_process() {
    let server = Server::new(Bottom::Memory);
    let cx = server.request();
    server.fs.mkdir(&cx, ROOT, name("dir"), NewMode::default()).wait().unwrap();
    let state = server.copy("handed on");
    for _ in 0..3 {
        let next = Next::over(server.bottom.clone(), &state, &Options::default()).unwrap();
        let cx = keyed(&next.cx, cx.key);
        next.fs.mkdir(&cx, ROOT, name("dir"), NewMode::default()).wait().expect("the answer");
    }
}

#[test]
fn evicted_outcomes_are_not_in_the_file() {
    let limits = Limits { entries: 2, ..Limits::default() };
    let server = Server::with(Bottom::Memory, &Options { durable: limits, ..Options::default() });
    let requests: Vec<_> = (0..6).map(|_| server.request()).collect();
    for (at, cx) in requests.iter().enumerate() {
        mkdir(&*server.fs, cx, &format!("dir{at}")).unwrap();
    }
    let next = server.next();
    let known =
        |at: &usize| mkdir(&*next.fs, &keyed(&next.cx, requests[*at].key), &format!("dir{at}")).is_ok();
    assert_eq!((0..6).filter(known).collect::<Vec<_>>(), [4, 5]);
}

#[test]
fn a_smaller_limit_keeps_the_newest() {
    let server = Server::new(Bottom::Memory);
    let requests: Vec<_> = (0..10).map(|_| server.request()).collect();
    for (at, cx) in requests.iter().enumerate() {
        mkdir(&*server.fs, cx, &format!("dir{at}")).unwrap();
    }
    let durable = Limits { entries: 3, ..Limits::default() };
    let options = Options { durable, ..Options::default() };
    let next = Next::over(server.bottom.clone(), &server.copy("smaller"), &options).unwrap();
    let known =
        |at: &usize| mkdir(&*next.fs, &keyed(&next.cx, requests[*at].key), &format!("dir{at}")).is_ok();
    assert_eq!((0..10).rev().filter(known).collect::<Vec<_>>(), [9, 8, 7]);
}

#[test]
fn outcomes_older_than_their_time_stay_behind() {
    let server = Server::new(Bottom::Memory);
    let (old, new) = (server.request(), server.request());
    mkdir(&*server.fs, &old, "old").unwrap();
    std::thread::sleep(Duration::from_millis(4100));
    mkdir(&*server.fs, &new, "new").unwrap();
    let durable = Limits { age: Duration::from_secs(3), ..Limits::default() };
    let options = Options { durable, ..Options::default() };
    let next = Next::over(server.bottom.clone(), &server.copy("aged"), &options).unwrap();
    mkdir(&*next.fs, &keyed(&next.cx, new.key), "new").expect("the answer");
    assert!(matches!(mkdir(&*next.fs, &keyed(&next.cx, old.key), "old"), Err(Error::Exists)));
}

#[test]
fn numbered_request_is_recognised_after_restart_per_client() {
    let server = Server::new(Bottom::Memory);
    let (done, in_doubt) = (numbered(3, 1, u64::MAX), numbered(3, 1, 7));
    mkdir(&*server.fs, &keyed(&server.cx, done), "done").unwrap();
    server.silence.set(Mood::Performs);
    drop(server.fs.mkdir(&keyed(&server.cx, in_doubt), ROOT, name("in doubt"), NewMode::default()));
    let next = server.next();
    for other in [numbered(4, 1, u64::MAX), numbered(3, 2, u64::MAX), numbered(3, 1, 8)] {
        let refused = mkdir(&*next.fs, &keyed(&next.cx, other), "done");
        assert!(matches!(refused, Err(Error::Exists)), "{other:?}: {refused:?}");
    }
    mkdir(&*next.fs, &keyed(&next.cx, done), "done").expect("the answer");
    mkdir(&*next.fs, &keyed(&next.cx, in_doubt), "in doubt").expect("what it came to");
}

#[test]
fn plain_writes_and_modes_are_not_in_the_file() {
    let server = Server::new(Bottom::Memory);
    let made = server.fs.create(&server.cx, ROOT, name("file"), &plain()).wait().unwrap();
    let before = std::fs::read(&server.state).unwrap();
    let set = SetAttr { mode: Some(tombolo_core::fs::Mode::new(0o700)), ..SetAttr::default() };
    server.fs.setattr(&server.request(), ROOT, None, &set).wait().unwrap();
    let file = tombolo_core::fs::File { node: made.entry.node, open: made.open };
    let from = tombolo_mem::Source::from(b"data".to_vec());
    let how = tombolo_core::fs::Write::default();
    server.fs.write(&server.request(), file, &how, from).wait().unwrap();
    assert!(std::fs::read(&server.state).unwrap() == before);
    server.fs.mkdir(&server.request(), ROOT, name("other"), NewMode::default()).wait().unwrap();
    assert!(std::fs::read(&server.state).unwrap() != before);
}

#[test]
fn two_servers_do_not_share_a_state_file() {
    let server = Server::new(Bottom::Memory);
    let refused = replies::open(server.bottom.clone(), &Options::default(), &server.state).map(drop);
    assert!(matches!(refused, Err(OpenError::InUse { .. })), "{refused:?}");
    let Server { first, fs, state, bottom, folder, .. } = server;
    drop((first, fs));
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
