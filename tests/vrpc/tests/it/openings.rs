//! Directories opened without a request by sessions with change notices, only where the server would have
//! granted it.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::fs::{
    Cookie, DirBudget, DirPage, Export, File, FileSystem, Lock, LockFamily, LockKind, LockOwner, LockRange,
    Mode, Name, NewMode, NodeId, Notice, OpenFlags, SetAttr, XattrName, XattrSet,
};
use tombolo_core::{Ctx, Error, Identity, SessionId};
use tombolo_vrpc_tests::site::{Plan, Site, client, root};

const LISTING: OpenFlags = OpenFlags::READ.union(OpenFlags::DIRECTORY);

fn user() -> Ctx {
    Ctx { identity: Identity { uid: 1000, gid: 1000, groups: None }, ..Ctx::root(SessionId(1)) }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

/// A session with change notices, another session, and the directory `dir` with an entry `in it`.
pub(crate) struct Told {
    site: Arc<Site>,
    pub(crate) fs: Arc<VrpcFileSystem>,
    dir: NodeId,
    pub(crate) other: Arc<VrpcFileSystem>,
    dir_of_other: NodeId,
    since: u64,
}

impl Told {
    pub(crate) fn new() -> Self {
        let export: Arc<dyn Export> = Arc::new(Memory::default());
        let site = Site::serving(export, Plan::default());
        let session = || site.export().attach_session(&client()).expect("a session");
        let (fs, other) = (session(), session());
        let mode = |bits| NewMode::settled(Mode::new(bits));
        let made = other.mkdir(&root(), NodeId::ROOT, name("dir"), mode(0o755)).wait().expect("made");
        other.mkdir(&root(), made.entry.node, name("in it"), mode(0o755)).wait().expect("made");
        let mut told = Self { site, fs, dir: NodeId::ROOT, other, dir_of_other: made.entry.node, since: 0 };
        told.next();
        told.dir = told.fs.lookup(&root(), NodeId::ROOT, name("dir")).wait().expect("found").node;
        told
    }

    fn next(&mut self) -> Vec<Notice> {
        let changes = self.fs.changes().expect("word of changes");
        let notices = changes.next(&root(), self.since, 4096).wait().expect("notices");
        self.since = notices.last;
        notices.list
    }

    fn open(&self, cx: &Ctx) -> Result<File, Error> {
        let opened = self.fs.open(cx, self.dir, LISTING).wait()?;
        Ok(File { node: self.dir, open: opened.open })
    }

    /// Opens and closes `dir`; returns `true` if that sent a request, `None` if access was denied.
    fn asks(&self, cx: &Ctx) -> Option<bool> {
        let before = self.fs.counts().calls;
        match self.open(cx) {
            Ok(file) => self.fs.release(cx, file),
            Err(Error::AccessDenied) => return None,
            Err(error) => panic!("{error}"),
        }
        Some(self.fs.counts().calls != before)
    }

    fn warm(&self, cx: &Ctx) {
        self.asks(cx).expect("opened");
        assert_eq!(self.asks(cx), Some(false), "it was opened before, and nothing has changed");
    }

    fn list(&self, cx: &Ctx, file: File) -> Vec<String> {
        let page = DirPage::new(DirBudget { size_bytes: 4096, entry_bytes: 24, align: 8, plus: false });
        let page = self.fs.readdir(cx, file, Cookie::START, page).wait().expect("listed");
        let names = page.iter().map(|line| String::from_utf8_lossy(line.name).into_owned());
        names.filter(|name| !name.starts_with('.')).collect()
    }

    fn chmod_by_other(&mut self, mode: u32) {
        let set = SetAttr { mode: Some(Mode::new(mode)), ..SetAttr::default() };
        self.other.setattr(&root(), self.dir_of_other, None, &set).wait().expect("changed");
        while !self.next().contains(&Notice::Attributes(self.dir)) {}
    }
}

#[test]
fn reopened_directory_needs_no_request() {
    let told = Told::new();
    assert_eq!(told.asks(&root()), Some(true));
    told.warm(&root());
    assert_eq!(told.asks(&user()), Some(true), "another user was not let in yet");
    let file = told.open(&user()).expect("opened");
    assert_eq!(told.list(&user(), file), ["in it"], "the server opens it when it is listed");
    told.fs.release(&user(), file);
    // A session without notices sends a request.
    let asks = || {
        let before = told.other.counts().calls;
        let opened = told.other.open(&root(), told.dir_of_other, LISTING).wait().expect("opened");
        told.other.release(&root(), File { node: told.dir_of_other, open: opened.open });
        told.other.counts().calls - before
    };
    assert_eq!((asks(), asks()), (2, 2));
}

#[test]
fn directory_with_changed_permissions_is_opened_by_server() {
    let mut told = Told::new();
    told.warm(&user());
    let before = told.open(&user()).expect("opened");
    told.chmod_by_other(0o700);
    assert_eq!(told.asks(&user()), None, "another session has closed it");
    assert_eq!(told.list(&user(), before), ["in it"], "what is open stays open");
    told.chmod_by_other(0o755);
    told.warm(&user());
    let set = SetAttr { mode: Some(Mode::new(0o700)), ..SetAttr::default() };
    told.fs.setattr(&root(), told.dir, None, &set).wait().expect("changed");
    assert_eq!(told.asks(&user()), None, "this session has closed it");
    told.warm(&root());
    let (xattrs, attribute) =
        (told.fs.xattrs().expect("attributes"), XattrName::new(b"user.a").expect("a name"));
    xattrs.set(&root(), told.dir, attribute, b"b", XattrSet::Any, false).wait().expect("set");
    assert_eq!(told.asks(&root()), Some(true), "it may have been an access list");
    told.warm(&root());
    xattrs.remove(&root(), told.dir, attribute).wait().expect("removed");
    assert_eq!(told.asks(&root()), Some(true));
}

#[test]
fn local_opening_takes_locks_and_outlives_its_link() {
    let mut told = Told::new();
    told.warm(&root());
    let (file, listed) = (told.open(&root()).expect("opened"), told.open(&root()).expect("opened"));
    let whole = |owner| Lock {
        family: LockFamily::Flock,
        kind: LockKind::Write,
        range: LockRange::ALL,
        owner: LockOwner(owner),
        pid: 1,
    };
    let locks = told.fs.locks().expect("locks");
    locks.lock(&root(), file, &whole(1), false).wait().expect("locked");
    let theirs = told.other.open(&root(), told.dir_of_other, LISTING).wait().expect("opened").open;
    let theirs = File { node: told.dir_of_other, open: theirs };
    let refused = told.other.locks().expect("locks").lock(&root(), theirs, &whole(2), false).wait();
    assert!(matches!(refused, Err(Error::WouldBlock)), "the server holds the lock");
    told.site.cut();
    while !told.next().contains(&Notice::Everything) {}
    assert_eq!(told.list(&root(), listed), ["in it"]);
    assert_eq!(told.asks(&root()), Some(true), "what the server said over another link is not known");
}
