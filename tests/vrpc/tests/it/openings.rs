//! Directories opened without a request by sessions with change notices, only where the server would have
//! granted it.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::Error;
use tombolo_core::fs::{
    Cookie, File, FileSystem, Lock, LockFamily, LockKind, LockOwner, LockRange, NodeId, Notice,
};
use tombolo_test_support::{Session, budget};
use tombolo_vrpc_tests::site::{Plan, Site, client};

/// A session with change notices, another session, and the directory `dir` with an entry `in it`.
pub(crate) struct Told {
    site: Arc<Site>,
    pub(crate) fs: Arc<VrpcFileSystem>,
    pub(crate) root: Session,
    user: Session,
    other_fs: Arc<VrpcFileSystem>,
    pub(crate) other: Session,
    dir: NodeId,
    since: u64,
}

impl Told {
    pub(crate) fn new() -> Self {
        let site = Site::serving(Arc::new(Memory::default()), Plan::default());
        let session = || site.export().attach_session(&client()).expect("a session");
        let (fs, other_fs) = (session(), session());
        let (root, other) = (Session::of(fs.clone()), Session::of(other_fs.clone()));
        other.dir("dir");
        other.dir("dir/in it");
        let user = root.by(1000);
        let mut told = Self { site, fs, root, user, other_fs, other, dir: NodeId::ROOT, since: 0 };
        told.next();
        told.dir = told.root.node("dir").expect("found");
        told
    }

    fn next(&mut self) -> Vec<Notice> {
        let changes = self.fs.changes().expect("word of changes");
        let notices = changes.next(&self.root.cx, self.since, 4096).wait().expect("notices");
        self.since = notices.last;
        notices.list
    }

    /// Opens and closes `dir`; returns `true` if that sent a request, `None` if access was denied.
    fn asks(&self, session: &Session) -> Option<bool> {
        let before = self.fs.counts().calls;
        match session.open_dir(self.dir) {
            Ok(file) => session.release(file),
            Err(Error::AccessDenied) => return None,
            Err(error) => panic!("{error}"),
        }
        Some(self.fs.counts().calls != before)
    }

    fn warm(&self, session: &Session) {
        self.asks(session).expect("opened");
        assert_eq!(self.asks(session), Some(false), "it was opened before, and nothing has changed");
    }

    fn chmod_by_other(&mut self, mode: u32) {
        self.other.chmod("dir", mode).expect("changed");
        while !self.next().contains(&Notice::Attributes(self.dir)) {}
    }
}

fn list(session: &Session, file: File) -> Vec<String> {
    let page = session.readdir(file, Cookie::START, budget(4096, false)).expect("listed");
    let names = page.iter().map(|line| String::from_utf8_lossy(line.name).into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

#[test]
fn reopened_directory_needs_no_request() {
    let told = Told::new();
    assert_eq!(told.asks(&told.root), Some(true));
    told.warm(&told.root);
    assert_eq!(told.asks(&told.user), Some(true), "another user was not let in yet");
    let file = told.user.open_dir(told.dir).expect("opened");
    assert_eq!(list(&told.user, file), ["in it"], "the server opens it when it is listed");
    told.user.release(file);
    // A session without notices sends a request.
    let dir = told.other.node("dir").expect("found");
    let asks = || {
        let before = told.other_fs.counts().calls;
        told.other.release(told.other.open_dir(dir).expect("opened"));
        told.other_fs.counts().calls - before
    };
    assert_eq!((asks(), asks()), (2, 2));
}

#[test]
fn directory_with_changed_permissions_is_opened_by_server() {
    let mut told = Told::new();
    told.warm(&told.user);
    let before = told.user.open_dir(told.dir).expect("opened");
    told.chmod_by_other(0o700);
    assert_eq!(told.asks(&told.user), None, "another session has closed it");
    assert_eq!(list(&told.user, before), ["in it"], "what is open stays open");
    told.chmod_by_other(0o755);
    told.warm(&told.user);
    told.root.chmod(told.dir, 0o700).expect("changed");
    assert_eq!(told.asks(&told.user), None, "this session has closed it");
    told.warm(&told.root);
    told.root.set_xattr(told.dir, "user.a", b"b").expect("set");
    assert_eq!(told.asks(&told.root), Some(true), "it may have been an access list");
    told.warm(&told.root);
    told.root.remove_xattr(told.dir, "user.a").expect("removed");
    assert_eq!(told.asks(&told.root), Some(true));
}

#[test]
fn local_opening_takes_locks_and_outlives_its_link() {
    let mut told = Told::new();
    told.warm(&told.root);
    let [file, listed] = [0, 1].map(|_| told.root.open_dir(told.dir).expect("opened"));
    let lock = |session: &Session, file, owner| {
        let (family, kind, range) = (LockFamily::Flock, LockKind::Write, LockRange::ALL);
        let whole = Lock { family, kind, range, owner: LockOwner(owner), pid: 1 };
        session.locks().lock(&session.cx, file, &whole, false).wait()
    };
    lock(&told.root, file, 1).expect("locked");
    let refused = lock(&told.other, told.other.open_dir("dir").expect("opened"), 2);
    assert!(matches!(refused, Err(Error::WouldBlock)), "the server holds the lock");
    told.site.cut();
    while !told.next().contains(&Notice::Everything) {}
    assert_eq!(list(&told.root, listed), ["in it"]);
    assert_eq!(told.asks(&told.root), Some(true), "what the server said over another link is not known");
}
