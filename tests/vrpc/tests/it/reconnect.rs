//! Server restarts under a session: open files stay open, and each request is answered once.

use std::future::Future;
use std::ops::Deref;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::{
    Connect, ConnectError, Connected, LinkLossPolicy, VrpcExport, VrpcFileSystem,
};
use tombolo_conformance::waist::{Case, Needs, Setup, run_some};
use tombolo_core::fs::{
    Client, Cookie, Create, DirPage, Export, FileSystem, Lock, LockFamily, LockKind, LockOwner, LockRange,
    NodeId, OpenFlags, PermissionCheck, Profile, Write,
};
use tombolo_core::{Answer, Ctx, Error, Interrupt};
use tombolo_front_vrpc_server::VrpcServer;
use tombolo_host_runtime::signing_keys::Keys;
use tombolo_layer_replies as replies;
use tombolo_mem::{Buffer, Source};
use tombolo_shm::link::Incarnation;
use tombolo_vrpc_tests::made_up::{Dial, MadeUp, Said, said, terms};
use tombolo_vrpc_tests::site::{Plan, Site, client, root};
use tombolo_wire_vrpc::{Kind, Reply, Session as Terms};

mod halting;

use halting::{Halting, Mute};
use tombolo_test_support::{Session, budget, plain, until};

use crate::local;

/// A tree that outlives its servers, and a server of it.
struct Tree {
    dir: tempfile::TempDir,
    site: Arc<Site>,
    fs: Arc<VrpcFileSystem>,
    session: Session,
}

impl Tree {
    fn new() -> Tree {
        Tree::with(Plan::default(), LinkLossPolicy::Hard)
    }

    fn with(plan: Plan, link_loss_policy: LinkLossPolicy) -> Tree {
        let dir = tempfile::tempdir_in(Path::new("/dev/shm")).expect("a scratch directory");
        let site = Site::serving(local(&dir), plan);
        let export = site.export().with_link_loss_policy(link_loss_policy);
        let fs = export.attach_session(&client()).expect("a session");
        let session = Session::of(fs.clone());
        Tree { dir, site, fs, session }
    }

    /// Restarts the server without any state.
    fn restart(&self) {
        self.site.start(local(&self.dir));
    }
}

impl Deref for Tree {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

/// Returns `true` if the answer is ready.
fn is_ready<T>(answer: &mut Answer<T>) -> bool {
    match answer {
        Answer::Done(_) => true,
        Answer::Later(later) => {
            let ready = pin!(later).poll(&mut Context::from_waker(Waker::noop()));
            assert!(ready.is_pending(), "polled after it was ready");
            false
        }
    }
}

#[test]
fn open_files_and_directories_survive_restarts() {
    let tree = Tree::new();
    let file = tree.file("file");
    assert_eq!(tree.write(file, 0, &[1; 100_000]).expect("written"), 100_000);
    std::fs::create_dir(tree.dir.path().join("dir")).expect("made");
    let dir = tree.lookup("dir").expect("found").node;
    let listed = tree.open_dir("").expect("opened");
    for round in 2..5_u8 {
        tree.restart();
        assert_eq!(tree.read(file, 50_000, 10).expect("read"), [round - 1; 10]);
        assert_eq!(tree.write(file, 0, &[round; 100_000]).expect("written"), 100_000);
        assert_eq!(tree.fs.link_number(), u32::from(round));
        tree.mkdir((dir, &round.to_string())).expect("a directory in one that the former server found");
        let page = tree.readdir(listed, Cookie::START, budget(8192, true)).expect("listed");
        assert_eq!(page.iter().filter(|entry| entry.entry.is_some()).count(), 2);
    }
    assert_eq!(tree.open_attr(file).size, 100_000);
    tree.release(file);
    assert!(matches!(tree.read(file, 0, 1), Err(Error::BadOpen)));
}

#[test]
fn node_has_one_number_by_name_and_handle() {
    let tree = Tree::new();
    let file = tree.file("file");
    let other = tree.file("other");
    tree.restart();
    assert_eq!(tree.node("file").expect("found"), file.node);
    let handle = tree.handle_of(other.node).expect("a handle");
    tree.restart();
    assert_eq!(tree.resolve(&handle).expect("found").node, other.node);
    // After as many forgets as look-ups the node is gone; resolving it again gives a new one.
    tree.release(other);
    tree.fs.forget(&root(), &[(other.node, 2)]);
    assert!(matches!(tree.lookup(other.node), Err(Error::Stale)));
    assert_ne!(tree.resolve(&handle).expect("found").node, other.node);
}

#[test]
fn removed_nodes_are_stale_and_renamed_ones_survive() {
    let tree = Tree::new();
    let (gone, moved) = (tree.file("gone"), tree.file("moved"));
    tree.site.kill();
    std::fs::remove_file(tree.dir.path().join("gone")).expect("removed");
    std::fs::rename(tree.dir.path().join("moved"), tree.dir.path().join("there")).expect("moved");
    tree.restart();
    assert!(matches!(tree.lookup(gone.node), Err(Error::Stale)));
    assert!(matches!(tree.read(gone, 0, 1), Err(Error::Stale)));
    assert_eq!(tree.write(moved, 0, b"on").expect("written"), 2);
    assert_eq!(std::fs::read(tree.dir.path().join("there")).expect("there"), b"on");
}

/// Reopens with the flags of an open that truncated; the file must keep its data.
#[test]
fn openings_are_reopened_without_side_effects() {
    let tree = Tree::new();
    std::fs::write(tree.dir.path().join("file"), "data").expect("made");
    let node = tree.lookup("file").expect("found").node;
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE | OpenFlags::APPEND;
    let file = tree.open(node, flags).expect("opened");
    assert_eq!(tree.write(file, 0, b"one").expect("written"), 3);
    tree.restart();
    assert_eq!(tree.write(file, 0, b"two").expect("written"), 3);
    assert_eq!(tree.read(file, 0, 100).expect("read"), b"onetwo");
    // An opening survives the restart even if its user could not open the file any more.
    let user = tree.by(65_534);
    tree.chmod(node, 0o666).expect("changed");
    let theirs = user.reader(node);
    tree.chmod(node, 0).expect("changed");
    tree.restart();
    assert_eq!(user.read(theirs, 0, 6).expect("read"), b"onetwo");
    assert!(matches!(user.open(node, OpenFlags::READ), Err(Error::AccessDenied)));
}

fn lock(owner: u64, start: u64, last: u64) -> Lock {
    let (family, kind) = (LockFamily::Posix, LockKind::Write);
    Lock { family, kind, range: LockRange { start, last }, owner: LockOwner(owner), pid: 1 }
}

#[test]
fn locks_survive_restart_and_lost_lock_breaks_its_file() {
    let export: Arc<dyn Export> = Arc::new(Memory::default());
    let site = Site::serving(export.clone(), Plan::default());
    let fs = site.export().attach_session(&client()).expect("a session");
    let session = Session::of(fs.clone());
    let file = session.file("file");
    let locks = session.locks();
    locks.lock(&root(), file, &lock(1, 0, 99), false).wait().expect("free");
    let middle = LockRange { start: 40, last: 49 };
    locks.unlock(&root(), file, LockFamily::Posix, middle, LockOwner(1)).wait().expect("given back");
    site.start(export.clone());
    until("the session is linked again", || fs.link_number() == 2);
    // Another client finds the lock held and the unlocked part free.
    let other = Session::attach(&*export);
    let theirs = other.writer("file");
    let take = |lock: Lock| other.locks().lock(&root(), theirs, &lock, false).wait();
    assert!(matches!(take(lock(2, 0, 0)), Err(Error::WouldBlock)));
    assert!(matches!(take(lock(2, 99, 99)), Err(Error::WouldBlock)));
    take(lock(2, 40, 49)).expect("the hole is free");
    // While the server is down, the other session, which is local, acquires the lock.
    site.kill();
    take(lock(2, 0, 39)).expect("free: its holder is away");
    site.start(export.clone());
    let broken = fs.getattr(&session.cx, file.node, Some(file)).wait();
    assert!(matches!(broken, Err(Error::Io { .. })), "{broken:?}");
    session.lookup(file.node).expect("only the opening is broken");
    session.open_attr(session.reader(file.node));
}

#[test]
fn requests_wait_for_an_absent_server() {
    let tree = Tree::new();
    let file = tree.file("file");
    tree.site.kill();
    let mut answers: Vec<_> = (0..200_u64)
        .map(|at| {
            let how = Write { offset: at * 1000, ..Write::default() };
            tree.fs.write(&root(), file, &how, Source::from(vec![at as u8; 1000]))
        })
        .collect();
    assert!(!answers.iter_mut().any(is_ready));
    until("the session knows that it waits", || tree.fs.disconnected_for().is_some());
    tree.restart();
    for answer in answers {
        assert_eq!(answer.wait().expect("written").count, 1000);
    }
    assert_eq!(tree.fs.disconnected_for(), None);
    let data = tree.read(file, 0, 200_000).expect("read");
    assert!(data.chunks(1000).zip(0..).all(|(piece, at)| piece.iter().all(|byte| *byte == at as u8)));
}

#[test]
fn interrupted_requests_do_not_wait_for_absent_server() {
    let tree = Tree::new();
    let file = tree.file("file");
    tree.site.kill();
    let cx = Ctx { interrupt: Interrupt::new(), ..root() };
    let mut waiting = tree.fs.getattr(&cx, file.node, None);
    assert!(!is_ready(&mut waiting));
    let buffer = Buffer::new(100_000);
    let mut reading = tree.fs.read(&cx, file, 0, buffer.sink(0..100_000));
    assert!(!is_ready(&mut reading));
    cx.interrupt.raise();
    assert!(matches!(waiting.wait(), Err(Error::Interrupted)));
    assert!(matches!(reading.wait(), Err(Error::Interrupted)));
    let away = tree.fs.disconnected_for().expect("no server is there");
    assert!(away >= Duration::from_secs(2), "it was not waited for: {away:?}");
    // Operations without a reply need no server, nor does the end of a session.
    tree.release(file);
    tree.forget(file.node);
    let Tree { fs, session, .. } = tree;
    drop((fs, session));
}

#[test]
fn soft_session_times_out_and_resumes_with_server() {
    let tree = Tree::with(Plan::default(), LinkLossPolicy::Soft(Duration::from_millis(300)));
    let file = tree.file("file");
    tree.site.kill();
    assert!(matches!(tree.read(file, 0, 1), Err(Error::TimedOut)));
    tree.restart();
    until("the session is linked again", || tree.fs.disconnected_for().is_none());
    assert_eq!(tree.write(file, 0, b"on").expect("written"), 2);
}

/// Dials once; from then on it takes until the test is over.
struct Stuck {
    first: Dial,
    was_dialled: AtomicBool,
    over: Mutex<Receiver<()>>,
}

impl Connect for Stuck {
    fn connect(&self, client: &Client, incarnation: Incarnation) -> Result<Connected, ConnectError> {
        if self.was_dialled.swap(true, Ordering::SeqCst) {
            let _ = self.over.lock().expect("no panic").recv();
        }
        self.first.connect(client, incarnation)
    }
}

#[test]
fn soft_session_times_out_during_long_connect() {
    let (end, over) = mpsc::channel();
    let first = Dial(MadeUp::replying(nonsense));
    let stuck = Stuck { first, was_dialled: AtomicBool::new(false), over: Mutex::new(over) };
    let export =
        VrpcExport::new(stuck).with_link_loss_policy(LinkLossPolicy::Soft(Duration::from_millis(300)));
    let session = Session::attach(&export);
    session.lookup(NodeId::ROOT).expect_err("nonsense, which ends the link");
    assert!(matches!(session.lookup(NodeId::ROOT), Err(Error::TimedOut)));
    drop(end);
}

#[test]
fn refusal_ends_soft_session_while_hard_one_retries() {
    let soft = Tree::with(Plan::default(), LinkLossPolicy::Soft(Duration::from_secs(60)));
    soft.site.refuse(true);
    soft.site.kill();
    assert!(matches!(soft.lookup(NodeId::ROOT), Err(Error::Disconnected)));
    let hard = Tree::new();
    hard.site.refuse(true);
    hard.site.kill();
    let asked = hard.site.asked();
    until("it asks again", || hard.site.asked() > asked + 1);
    hard.site.refuse(false);
    hard.restart();
    hard.lookup(NodeId::ROOT).expect("served");
}

#[test]
fn next_link_may_be_smaller() {
    let tree = Tree::new();
    let file = tree.file("file");
    let data: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 1000) as u8).collect();
    tree.site.kill();
    let mut write = tree.fs.write(&root(), file, &Write::default(), Source::from(data.clone()));
    assert!(!is_ready(&mut write));
    let options =
        tombolo_front_vrpc_server::Options { transfer_bytes_max: 6000, callers_max: 1, ..Default::default() };
    tree.site.plan(Plan { slots: 8, bulk_bytes: 16 << 10, options, ..Plan::default() });
    tree.restart();
    assert_eq!(write.wait().expect("written").count, data.len());
    assert!(tree.read(file, 0, data.len()).expect("read") == data);
}

#[test]
fn replaced_tree_is_not_mistaken_for_original() {
    let tree = Tree::new();
    let file = tree.file("file");
    tree.site.start(Arc::new(Memory::default()));
    assert!(matches!(tree.read(file, 0, 1), Err(Error::Stale)));
    assert!(matches!(tree.lookup(file.node), Err(Error::Stale)));
    tree.lookup(NodeId::ROOT).expect("the root is whatever is served");
}

/// Repeats non-idempotent operations over links that break before or after execution.
#[test]
fn performed_but_unanswered_requests_are_not_performed_again() {
    let dir = tempfile::tempdir_in(Path::new("/dev/shm")).expect("a scratch directory");
    let kept: Arc<dyn Export> = Arc::new(replies::over(local(&dir), &replies::Options::default()));
    let site = Site::serving(kept, Plan { cut_every: 7, ..Plan::default() });
    let session = Session::attach(&site.export());
    let flags = OpenFlags::WRITE | OpenFlags::APPEND;
    let log = session.file_as("log", &Create { flags, ..plain() }).expect("created");
    for round in 0..100_u32 {
        let text = format!("d{round}");
        session.mkdir(&text).expect("made, once");
        let moved = format!("e{round}");
        let flags = tombolo_core::fs::RenameFlags::NO_REPLACE;
        session.rename(&text, &moved, flags).expect("moved, once");
        let record = format!("{round:04}\n");
        assert_eq!(session.write(log, 0, record.as_bytes()).expect("written"), 5);
        session.rmdir(&moved).expect("removed, once");
    }
    assert!(site.cuts() > 50, "{} links were cut", site.cuts());
    let expected: String = (0..100).map(|round| format!("{round:04}\n")).collect();
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).expect("the log"), expected);
}

#[test]
fn callers_under_load_see_restart_as_pause_only() {
    let tree = Tree::new();
    let test = Arc::new(());
    // Created before any restart: a server without reply records could not tell whether it executed a
    // creation.
    let files = [0, 1, 2].map(|thread| tree.file(&format!("file-{thread}")));
    std::thread::scope(|scope| {
        for file in files {
            let (tree, running) = (&tree, Arc::downgrade(&test));
            scope.spawn(move || {
                let mut round = 0_u64;
                while running.strong_count() > 0 {
                    let len = if round.is_multiple_of(2) { 100 } else { 20_000 };
                    let data = vec![(round % 251) as u8; len];
                    let offset = (round % 10) * 20_000;
                    assert_eq!(tree.write(file, offset, &data).expect("written"), len);
                    assert!(tree.read(file, offset, len).expect("read") == data);
                    round += 1;
                }
            });
        }
        for life in 2..12 {
            tree.restart();
            until("it is linked again", || {
                tree.fs.link_number() >= life && tree.fs.disconnected_for().is_none()
            });
        }
        drop(test);
    });
}

/// Runs the whole suite while each link is cut after a number of requests.
#[test]
fn the_suite_over_links_that_break() {
    let plan = Plan { cut_every: 97, ..Plan::default() };
    let kept: Arc<dyn Export> =
        Arc::new(replies::over(Arc::new(Memory::default()), &replies::Options::default()));
    let site = Site::serving(kept, plan);
    let export: Arc<dyn Export> = Arc::new(site.export());
    let setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks: Needs::empty() };
    // Change notices restart with each link, so they are less exact; but none is missed.
    let holds = |case: &Case| !case.name.starts_with("changes::") || case.name.ends_with("is_as_it_was");
    run_some(&export, setup, holds).expect("over links that break", &[]);
    assert!(site.cuts() > 20, "{} links were cut", site.cuts());
}

/// Replaces the server by hostile ones: a session must neither accept nor be ended by them.
#[test]
fn hostile_server_is_retried_at_long_intervals() {
    let tree = Tree::new();
    let file = tree.file("file");
    assert_eq!(tree.write(file, 0, b"data").expect("written"), 4);
    // Invalid replies to everything; no session terms; a server that leaves permission checks to the client.
    let violations: [fn(Kind) -> Said; 3] = [
        nonsense,
        |_| said(Kind::Null, &Reply::Done),
        |kind| match kind {
            Kind::Profile => {
                let profile = Profile { permission_check: PermissionCheck::Caller, ..terms().profile };
                said(kind, &Reply::Session(Terms { profile, ..terms() }))
            }
            _ => said(Kind::Null, &Reply::Done),
        },
    ];
    let test = Arc::new(());
    let running = Arc::downgrade(&test);
    std::thread::scope(|scope| {
        // A caller that keeps sending requests to the current server.
        scope.spawn(|| {
            while running.strong_count() > 0 {
                let _ = tree.lookup(NodeId::ROOT);
            }
        });
        for hostile in violations {
            let asked = tree.site.asked();
            let begun = Instant::now();
            tree.site.start_any(MadeUp::replying(hostile));
            until("it was tried again", || tree.site.asked() > asked + 2);
            let tries = u128::from(tree.site.asked() - asked);
            let most = 3 + begun.elapsed().as_millis() / 25;
            assert!(tries <= most, "{tries} links in {:?}", begun.elapsed());
        }
        drop(test);
        tree.restart();
        // A hostile peer reports another volume: the file is stale while that link lasts.
        until("the file is back", || tree.read(file, 0, 4).is_ok_and(|data| data == b"data"));
    });
}

#[test]
fn root_is_never_stale_during_reconnect() {
    let tree = Tree::new();
    tree.file("file");
    let listed = tree.open_dir("").expect("opened");
    let mute = Mute::default();
    tree.site.start_any(mute.service());
    until("what was open is asked for", || mute.was_asked());
    let page = DirPage::new(budget(8192, false));
    let mut names = tree.fs.readdir(&root(), listed, Cookie::START, page);
    assert!(!is_ready(&mut names));
    mute.let_go();
    tree.restart();
    assert!(names.wait().expect("listed").iter().any(|entry| entry.name == b"file"));
}

#[test]
fn files_closed_during_reconnect_are_closed_on_next_link() {
    let export: Arc<dyn Export> = Arc::new(Memory::default());
    let keys = Arc::new(Keys::random().expect("randomness"));
    let session_ids = Arc::new(AtomicU64::new(1));
    let server = || {
        let server = VrpcServer::new().with_keys(keys.clone()).with_session_ids(session_ids.clone());
        Arc::new(server.with_export("export", export.clone(), Default::default()))
    };
    let site = Site::new(Plan::default());
    site.start_any(server());
    let fs = site.export().attach_session(&client()).expect("a session");
    let session = Session::of(fs.clone());
    let [locked, _other] = ["locked", "other"].map(|text| session.file(text));
    session.locks().lock(&root(), locked, &lock(1, 0, 99), false).wait().expect("free");
    let halting = Halting::default();
    site.start_any(halting.over(server()));
    until("the other file is opened anew", || halting.has_halted());
    session.release(locked);
    session.forget(locked.node);
    assert_eq!(fs.link_number(), 1, "the link is not made yet");
    halting.go_on();
    // Another client can acquire the lock: it is free.
    let other = Session::attach(&*export);
    let theirs = other.writer("locked");
    let take = || other.locks().lock(&root(), theirs, &lock(2, 0, 99), false).wait();
    until("the lock is given back", || take().is_ok());
}

/// Replies to everything but the request for the session's terms with nonsense.
fn nonsense(kind: Kind) -> Said {
    match kind {
        Kind::Profile => said(kind, &Reply::Session(terms())),
        _ => (u32::MAX, [0xff; 48], vec![0xff; 100]),
    }
}
