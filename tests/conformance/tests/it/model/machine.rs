//! Execution of actions on a file system, with results as comparable text.

use std::collections::BTreeMap;
use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Client, Cookie, Create, Device, DirBudget, DirPage, Entry, Export, File, FileSystem, FileType,
    Lock, LockFamily, LockKind, LockOwner, LockRange, Mode, Name, NewMode, NodeId, OpenFlags,
    PermissionCheck, SetAttr, Write, XattrName,
};
use tombolo_core::{Ctx, Identity, Result, SessionId};
use tombolo_mem::{Buffer, Source};

use crate::model::action::{Action, Place, What};

pub struct Machine {
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
    /// Known nodes in order of discovery. A forgotten one leaves an empty entry.
    nodes: Vec<Option<NodeId>>,
    opens: Vec<Option<File>>,
}

/// The lock owners.
pub const OWNERS: std::ops::Range<u64> = 1..3;

/// Uid, gid, and one more group.
const USERS: [(u32, u32, u32); 3] = [(0, 0, 0), (1000, 1000, 2000), (1001, 1001, 1001)];

const SESSION: SessionId = SessionId(1);

fn session(export: &dyn Export) -> Arc<dyn FileSystem> {
    let client = Client { session: SESSION, label: "model".into(), checks: PermissionCheck::BackEnd };
    export.attach(&client).expect("a session")
}

impl Machine {
    pub fn new(export: &dyn Export) -> Self {
        let (fs, cx) = (session(export), Ctx::root(SESSION));
        let mode = SetAttr { mode: Some(Mode::new(0o777)), ..SetAttr::default() };
        fs.setattr(&cx, NodeId::ROOT, None, &mode).wait().expect("the root's mode");
        Self { fs, cx, nodes: vec![Some(NodeId::ROOT)], opens: Vec::new() }
    }

    /// Ends the session with its openings; returns the node numbers, which clients retain.
    pub fn into_nodes(self) -> Vec<Option<NodeId>> {
        self.nodes
    }

    /// Continues after a restart.
    pub fn continued(export: &dyn Export, nodes: Vec<Option<NodeId>>) -> Self {
        let mut machine = Self { fs: session(export), cx: Ctx::root(SESSION), nodes, opens: Vec::new() };
        machine.forget_what_is_gone();
        machine
    }

    /// Ends all openings.
    pub fn release_all(&mut self) {
        for file in std::mem::take(&mut self.opens).into_iter().flatten() {
            self.fs.release(&self.cx, file);
        }
        self.forget_what_is_gone();
    }

    /// Syncs the file system.
    pub fn sync(&self) {
        self.fs.syncfs(&self.cx).wait().expect("stable");
    }

    /// Returns `true` if the waist determines the action's result. It does not for nodes without a name,
    /// which may be alive or stale.
    pub fn applies(&self, action: &Action) -> bool {
        let named = |node: usize| {
            let node = self.node(node);
            node.is_some_and(|node| {
                self.fs.getattr(&self.cx, node, None).wait().is_ok_and(|attr| attr.nlink > 0)
            })
        };
        let opened = |open: usize| self.file(open).is_some();
        // Data operations apply to regular files, listings to directories; others may fail with any error.
        let is = |open: usize, file_type: FileType| {
            let attr = self.file(open).map(|file| self.fs.getattr(&self.cx, file.node, Some(file)).wait());
            attr.is_some_and(|attr| attr.is_ok_and(|attr| attr.file_type == file_type))
        };
        let readable = |open: usize| is(open, FileType::Regular);
        match &action.what {
            // No kernel forgets an open node.
            What::Forget(node) => self.node(*node).is_some_and(|node| {
                node != NodeId::ROOT && !self.opens.iter().flatten().any(|file| file.node == node)
            }),
            What::Getattr(node)
            | What::Chmod(node, _)
            | What::Chown(node, ..)
            | What::Resize(node, _)
            | What::Access(node, _)
            | What::Readlink(node)
            | What::CreateUnnamed(node)
            | What::SetXattr(node, ..)
            | What::GetXattr(node, _)
            | What::ListXattrs(node)
            | What::RemoveXattr(node, _) => named(*node),
            // Opens directories only to list them.
            What::Open(node, flags) => {
                let to_list = flags.contains(OpenFlags::DIRECTORY);
                let is_directory = |node| {
                    self.fs
                        .getattr(&self.cx, node, None)
                        .wait()
                        .is_ok_and(|attr| attr.file_type == FileType::Directory)
                };
                named(*node) && (to_list || !self.node(*node).is_some_and(is_directory))
            }
            What::Lookup(place)
            | What::Create(place, ..)
            | What::Mkdir(place, _)
            | What::Symlink(place)
            | What::Mknod(place, _)
            | What::Unlink(place)
            | What::Rmdir(place) => named(place.dir),
            // By default hosts refuse links to files of other users (proc(5), protected_hardlinks).
            What::Link(node, place) => action.user == 0 && named(*node) && named(place.dir),
            What::Rename(from, to, _) => named(from.dir) && named(to.dir),
            // The waist leaves open if these operations drop set-user-id and set-group-id: they carry no such
            // request.
            What::Copy(from, _, to, ..) => action.user == 0 && readable(*from) && readable(*to),
            What::Allocate(open, ..) => action.user == 0 && readable(*open),
            What::List(open) => {
                is(*open, FileType::Directory) && self.file(*open).is_some_and(|file| self.has_name(file))
            }
            What::Release(open) | What::OpenGetattr(open) => opened(*open),
            What::Read(open, ..)
            | What::Write(open, ..)
            | What::OpenResize(open, _)
            | What::Lock(open, ..)
            | What::Unlock(open, ..)
            | What::Flush(open, _) => readable(*open),
        }
    }

    /// Executes an action; returns its result as text.
    pub fn perform(&mut self, action: &Action) -> String {
        let (uid, gid, group) = USERS[action.user];
        self.cx.identity = Identity { uid, gid, groups: (uid != 0).then(|| Arc::from([group])) };
        let told = self.act(&action.what);
        self.cx.identity = Identity::ROOT;
        self.forget_what_is_gone();
        match told {
            Ok(text) => text,
            Err(error) => format!("{error:?}"),
        }
    }

    /// Returns attributes and contents of every path.
    pub fn whole_tree(&self) -> BTreeMap<String, String> {
        let mut tree = BTreeMap::new();
        self.walk(NodeId::ROOT, "", &mut tree);
        tree
    }

    fn act(&mut self, what: &What) -> Result<String> {
        let (fs, cx) = (self.fs.clone(), self.cx.clone());
        match *what {
            What::Lookup(place) => {
                let entry = fs.lookup(&cx, self.dir(place), name(place.name)).wait()?;
                Ok(self.met(entry))
            }
            What::Forget(node) => {
                let forgotten = self.known(node);
                self.nodes.iter_mut().filter(|node| **node == Some(forgotten)).for_each(|node| *node = None);
                fs.forget(&cx, &[(forgotten, u64::MAX)]);
                Ok("forgotten".into())
            }
            What::Getattr(node) => Ok(words(&fs.getattr(&cx, self.known(node), None).wait()?)),
            What::Chmod(node, mode) => {
                self.set(node, SetAttr { mode: Some(Mode::new(mode)), ..SetAttr::default() })
            }
            What::Chown(node, uid, gid) => self.set(node, SetAttr { uid, gid, ..SetAttr::default() }),
            What::Resize(node, size) => self.set(node, SetAttr { size: Some(size), ..SetAttr::default() }),
            What::Access(node, mask) => {
                fs.access(&cx, self.known(node), mask).wait().map(|()| "allowed".into())
            }
            What::Readlink(node) => Ok(format!("{:?}", fs.readlink(&cx, self.known(node)).wait()?)),
            What::Create(place, mode, flags, exclusive) => {
                let how = Create { mode: with_umask(mode), flags, exclusive };
                let created = fs.create(&cx, self.dir(place), name(place.name), &how).wait()?;
                self.opens.push(Some(File { node: created.entry.node, open: created.open }));
                Ok(self.met(created.entry))
            }
            What::CreateUnnamed(dir) => {
                let flags = OpenFlags::READ | OpenFlags::WRITE;
                let how = Create { mode: with_umask(0o666), flags, ..Create::default() };
                let created = fs.create_unnamed(&cx, self.known(dir), &how).wait()?;
                self.opens.push(Some(File { node: created.entry.node, open: created.open }));
                Ok(self.met(created.entry))
            }
            What::Mkdir(place, mode) => {
                let made = fs.mkdir(&cx, self.dir(place), name(place.name), with_umask(mode)).wait()?;
                Ok(self.met(made.entry))
            }
            What::Symlink(place) => {
                let made = fs.symlink(&cx, self.dir(place), name(place.name), b"some/where").wait()?;
                Ok(self.met(made.entry))
            }
            What::Mknod(place, file_type) => {
                let rdev = Device { major: 1, minor: 3 };
                let mode = with_umask(0o666);
                let made = fs.mknod(&cx, self.dir(place), name(place.name), file_type, mode, rdev).wait()?;
                Ok(self.met(made.entry))
            }
            What::Link(node, place) => {
                let made = fs.link(&cx, self.known(node), self.dir(place), name(place.name)).wait()?;
                Ok(self.met(made.entry))
            }
            What::Unlink(place) => {
                fs.unlink(&cx, self.dir(place), name(place.name)).wait().map(|_| "unlinked".into())
            }
            What::Rmdir(place) => {
                fs.rmdir(&cx, self.dir(place), name(place.name)).wait().map(|_| "removed".into())
            }
            What::Rename(from, to, flags) => {
                let (from_dir, to_dir) = (self.dir(from), self.dir(to));
                let renamed = fs.rename(&cx, from_dir, name(from.name), to_dir, name(to.name), flags);
                renamed.wait().map(|_| "renamed".into())
            }
            What::Open(node, flags) => {
                let node = self.known(node);
                let opened = fs.open(&cx, node, flags).wait()?;
                self.opens.push(Some(File { node, open: opened.open }));
                Ok("opened".into())
            }
            _ => self.act_on_opening(what),
        }
    }

    fn act_on_opening(&mut self, what: &What) -> Result<String> {
        let (fs, cx) = (self.fs.clone(), self.cx.clone());
        match *what {
            What::Release(open) => {
                let file = self.opened(open);
                self.opens.iter_mut().filter(|other| **other == Some(file)).for_each(|other| *other = None);
                // Kernels flush for each process that closes before they release.
                for owner in OWNERS {
                    fs.flush(&cx, file, LockOwner(owner)).wait()?;
                }
                fs.release(&cx, file);
                Ok("released".into())
            }
            What::OpenGetattr(open) => {
                let file = self.opened(open);
                Ok(words(&fs.getattr(&cx, file.node, Some(file)).wait()?))
            }
            What::Read(open, offset, len) => {
                let mut buffer = Buffer::new(len);
                let done = fs.read(&cx, self.opened(open), offset, buffer.sink(0..len)).wait()?;
                Ok(format!("{:?}", &buffer.as_slice().expect("free again")[..done.count]))
            }
            What::Write(open, offset, len, kill_privileges) => {
                let bytes: Vec<u8> =
                    (0..len).map(|index| ((index as u64 + offset) % 251) as u8 + 1).collect();
                let how = Write { offset, kill_privileges, ..Write::default() };
                let written = fs.write(&cx, self.opened(open), &how, Source::from(bytes)).wait()?;
                Ok(format!("{} bytes", written.count))
            }
            What::OpenResize(open, size) => {
                let file = self.opened(open);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                Ok(words(&fs.setattr(&cx, file.node, Some(file), &set).wait()?.0))
            }
            What::List(open) => self.list(self.opened(open)).map(|names| format!("{names:?}")),
            What::Allocate(open, offset, len, mode) => {
                let ranges = fs.ranges().expect("ranges");
                ranges.allocate(&cx, self.opened(open), offset, len, mode).wait().map(|()| "allocated".into())
            }
            What::Copy(from, from_offset, to, to_offset, len) => {
                let (from, to) = (self.opened(from), self.opened(to));
                let ranges = fs.ranges().expect("ranges");
                let copied = ranges.copy(&cx, from, from_offset, to, to_offset, len).wait()?;
                Ok(format!("{copied} bytes"))
            }
            What::Lock(open, owner, write, start, last) => {
                let kind = if write { LockKind::Write } else { LockKind::Read };
                let (range, owner) = (LockRange { start, last }, LockOwner(owner));
                let lock = Lock { family: LockFamily::Posix, kind, range, owner, pid: 1 };
                let locks = fs.locks().expect("locks");
                locks.lock(&cx, self.opened(open), &lock, false).wait().map(|()| "locked".into())
            }
            What::Unlock(open, owner, start, last) => {
                let range = LockRange { start, last };
                let locks = fs.locks().expect("locks");
                let unlocked =
                    locks.unlock(&cx, self.opened(open), LockFamily::Posix, range, LockOwner(owner));
                unlocked.wait().map(|()| "unlocked".into())
            }
            What::Flush(open, owner) => {
                fs.flush(&cx, self.opened(open), LockOwner(owner)).wait().map(|()| "flushed".into())
            }
            _ => self.act_on_xattrs(what),
        }
    }

    fn act_on_xattrs(&self, what: &What) -> Result<String> {
        let xattrs = self.fs.xattrs().expect("extended attributes");
        let named = |text: &'static str| XattrName::new(text.as_bytes()).expect("a good name");
        match *what {
            What::SetXattr(node, text, len, how) => {
                let value = vec![b'v'; len];
                let set = xattrs.set(&self.cx, self.known(node), named(text), &value, how, false);
                set.wait().map(|()| "set".into())
            }
            What::GetXattr(node, text) => {
                Ok(format!("{:?}", xattrs.get(&self.cx, self.known(node), named(text), 1000).wait()?))
            }
            What::ListXattrs(node) => {
                let names = xattrs.list(&self.cx, self.known(node), 1000).wait()?;
                let mut names: Vec<_> =
                    names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")).collect();
                names.sort_unstable();
                Ok(format!("{names:?}"))
            }
            What::RemoveXattr(node, text) => {
                let removed = xattrs.remove(&self.cx, self.known(node), named(text));
                removed.wait().map(|()| "removed".into())
            }
            _ => Ok("nothing".into()),
        }
    }

    /// Forgets nodes that have neither a name nor an opening, as every kernel does.
    fn forget_what_is_gone(&mut self) {
        for node in self.nodes.iter_mut() {
            let Some(known) = *node else { continue };
            let open = self.opens.iter().flatten().any(|file| file.node == known);
            let named = self.fs.getattr(&self.cx, known, None).wait().is_ok_and(|attr| attr.nlink > 0);
            if !open && !named {
                self.fs.forget(&self.cx, &[(known, u64::MAX)]);
                *node = None;
            }
        }
    }

    fn set(&self, node: usize, set: SetAttr) -> Result<String> {
        Ok(words(&self.fs.setattr(&self.cx, self.known(node), None, &set).wait()?.0))
    }

    /// Registers a node that an operation has returned.
    fn met(&mut self, entry: Entry) -> String {
        self.nodes.push(Some(entry.node));
        words(&entry.attr)
    }

    fn list(&self, file: File) -> Result<Vec<(String, Option<FileType>)>> {
        let page = DirPage::new(DirBudget { size_bytes: 1 << 16, entry_bytes: 24, align: 8, plus: false });
        let page = self.fs.readdir(&self.cx, file, Cookie::START, page).wait()?;
        assert!(page.is_end(), "a few names fit on a page");
        let listed =
            page.iter().map(|entry| (String::from_utf8_lossy(entry.name).into_owned(), entry.file_type));
        let mut names: Vec<_> = listed.collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }

    fn walk(&self, dir: NodeId, path: &str, tree: &mut BTreeMap<String, String>) {
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        let open = self.fs.open(&self.cx, dir, flags).wait().expect("open directory").open;
        let file = File { node: dir, open };
        for (text, _) in self.list(file).expect("a listing") {
            if text == "." || text == ".." {
                continue;
            }
            let entry = self.fs.lookup(&self.cx, dir, name(&text)).wait().expect("a listed name");
            let path = format!("{path}/{text}");
            let mut told = words(&entry.attr);
            match entry.attr.file_type {
                FileType::Directory => self.walk(entry.node, &path, tree),
                FileType::Regular => told += &self.contents(entry.node, entry.attr.size as usize),
                _ => {}
            }
            tree.insert(path, told);
        }
        self.fs.release(&self.cx, file);
    }

    fn contents(&self, node: NodeId, size: usize) -> String {
        let open = self.fs.open(&self.cx, node, OpenFlags::READ).wait().expect("open").open;
        let file = File { node, open };
        let mut buffer = Buffer::new(size + 1);
        let done = self.fs.read(&self.cx, file, 0, buffer.sink(0..size + 1)).wait().expect("read");
        self.fs.release(&self.cx, file);
        format!(" {:?}", &buffer.as_slice().expect("free again")[..done.count])
    }

    fn has_name(&self, file: File) -> bool {
        self.fs.getattr(&self.cx, file.node, Some(file)).wait().is_ok_and(|attr| attr.nlink > 0)
    }

    fn node(&self, index: usize) -> Option<NodeId> {
        self.nodes[index % self.nodes.len()]
    }

    /// Returns a node for which [`Machine::applies`] returned `true`.
    fn known(&self, index: usize) -> NodeId {
        self.node(index).expect("a known node")
    }

    fn dir(&self, place: Place) -> NodeId {
        self.known(place.dir)
    }

    fn file(&self, index: usize) -> Option<File> {
        if self.opens.is_empty() { None } else { self.opens[index % self.opens.len()] }
    }

    fn opened(&self, index: usize) -> File {
        self.file(index).expect("an opening")
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a good name")
}

fn with_umask(mode: u32) -> NewMode {
    NewMode { mode: Mode::new(mode), umask: Mode::new(0o022) }
}

/// Formats the attributes in which file systems agree. The size of a directory is not among them.
fn words(attr: &Attr) -> String {
    let size = if attr.file_type == FileType::Directory { 0 } else { attr.size };
    let Attr { file_type, mode, nlink, uid, gid, rdev, .. } = attr;
    format!("{file_type:?} {:o} links {nlink} of {uid}:{gid} size {size} {rdev:?}", mode.bits())
}
