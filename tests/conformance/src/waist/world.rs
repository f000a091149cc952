//! Environment of a case: a session, a directory of its own, a user, and short forms of operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::fs::{
    Attr, Change, Client, Cookie, Create, Created, DirBudget, DirPage, Entry, Exclusive, Export, File,
    FileSystem, FileType, LockOwner, Locks, Made, Mode, Name, NewMode, NodeId, OpenFlags, Opened,
    PermissionCheck, PersistentHandles, Ranges, RenameFlags, Renamed, SetAttr, Write, Written, Xattrs,
};
use tombolo_core::{Ctx, Error, Identity, Interrupt, Result, SessionId, Want};
use tombolo_mem::{Buffer, Source};

use super::Skip;

/// A session's view of a case's own directory, as one user. Every method waits for its answer.
#[derive(Clone)]
pub struct World {
    /// The export, for cases that need a second session.
    pub export: Arc<dyn Export>,
    /// Party that checks permissions.
    pub checks: PermissionCheck,
    /// The session.
    pub fs: Arc<dyn FileSystem>,
    /// The case's own directory, mode 0777.
    pub dir: NodeId,
    /// The context of all requests.
    pub cx: Ctx,
    name: String,
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// Its inode number.
    pub fileid: u64,
    /// Type, if the listing contains it.
    pub file_type: Option<FileType>,
    /// Cookie with which the listing continues.
    pub cookie: Cookie,
    /// The node, in listings with attributes.
    pub entry: Option<Entry>,
}

/// Returns a page budget of `size_bytes` in the layout of a FUSE directory.
pub fn budget(size_bytes: usize, plus: bool) -> DirBudget {
    DirBudget { size_bytes, entry_bytes: 24, align: 8, plus }
}

/// Converts a valid name.
pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a good name")
}

/// Returns the usual parameters of a new file: mode 0644, for reading and writing.
pub fn plain() -> Create {
    Create {
        mode: NewMode::settled(Mode::new(0o644)),
        flags: OpenFlags::READ | OpenFlags::WRITE,
        exclusive: Exclusive::No,
    }
}

fn attach(export: &dyn Export, checks: PermissionCheck) -> (Arc<dyn FileSystem>, Ctx) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let session = SessionId(NEXT.fetch_add(1, Ordering::Relaxed));
    let client = Client { session, label: "conformance".into(), checks };
    (export.attach(&client).expect("a session"), Ctx::root(session))
}

impl World {
    /// Begins a session and creates its directory `name`.
    pub fn new(export: Arc<dyn Export>, checks: PermissionCheck, name: &str) -> Self {
        let (fs, cx) = attach(&*export, checks);
        let mode = NewMode::settled(Mode::new(0o777));
        let made = fs.mkdir(&cx, NodeId::ROOT, self::name(name), mode).wait().expect("the case's directory");
        Self { export, checks, fs, dir: made.entry.node, cx, name: name.to_owned() }
    }

    /// Returns the directory's name in the root.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the same directory in another session.
    pub fn other_session(&self) -> Self {
        self.through(self.export.clone())
    }

    /// Opens the same directory through another export of the tree, such as another client of a server.
    pub fn through(&self, export: Arc<dyn Export>) -> Self {
        let (fs, cx) = attach(&*export, self.checks);
        let dir = fs.lookup(&cx, NodeId::ROOT, name(&self.name)).wait().expect("the case's directory").node;
        Self { export, fs, cx, dir, ..self.clone() }
    }

    /// Returns the same session acting for another user.
    pub fn as_user(&self, uid: u32, gid: u32, groups: &[u32]) -> Self {
        let groups = (!groups.is_empty()).then(|| Arc::from(groups));
        let identity = Identity { uid, gid, groups };
        Self { cx: Ctx { identity, ..self.cx.clone() }, ..self.clone() }
    }

    /// Returns the same session requesting attributes from before and after each change.
    pub fn wanting_changes(&self) -> Self {
        Self { cx: Ctx { want: Want::CHANGE_ATTRS, ..self.cx.clone() }, ..self.clone() }
    }

    /// Returns the same session with an interrupt that the case can raise.
    pub fn interruptible(&self) -> (Self, Interrupt) {
        let interrupt = Interrupt::new();
        let cx = Ctx { interrupt: interrupt.clone(), ..self.cx.clone() };
        (Self { cx, ..self.clone() }, interrupt)
    }

    /// Returns the optional group; a case that uses it must list it in its needs.
    pub fn xattrs(&self) -> &dyn Xattrs {
        self.fs.xattrs().expect("extended attributes")
    }
    /// Returns the group of locks.
    pub fn locks(&self) -> &dyn Locks {
        self.fs.locks().expect("locks")
    }
    /// Returns the group of persistent handles.
    pub fn handles(&self) -> &dyn PersistentHandles {
        self.fs.persistent_handles().expect("persistent handles")
    }
    /// Returns the group of operations on ranges.
    pub fn ranges(&self) -> &dyn Ranges {
        self.fs.ranges().expect("ranges")
    }

    /// Looks a name up.
    pub fn lookup(&self, parent: NodeId, text: &str) -> Result<Entry> {
        self.fs.lookup(&self.cx, parent, name(text)).wait()
    }

    /// Returns `true` if the name exists in the case's directory.
    pub fn exists(&self, text: &str) -> bool {
        match self.lookup(self.dir, text) {
            Ok(_) => true,
            Err(Error::NotFound) => false,
            Err(error) => panic!("lookup of {text}: {error:?}"),
        }
    }

    /// Returns a node's attributes.
    pub fn attr(&self, node: NodeId) -> Attr {
        self.fs.getattr(&self.cx, node, None).wait().expect("attributes")
    }

    /// Returns an opened node's attributes.
    pub fn open_attr(&self, file: File) -> Attr {
        self.fs.getattr(&self.cx, file.node, Some(file)).wait().expect("attributes through an opening")
    }

    /// Changes attributes.
    pub fn setattr(&self, node: NodeId, set: SetAttr) -> Result<(Attr, Change)> {
        self.fs.setattr(&self.cx, node, None, &set).wait()
    }

    /// Changes the mode.
    pub fn chmod(&self, node: NodeId, mode: u32) -> Result<Attr> {
        let set = SetAttr { mode: Some(Mode::new(mode)), ..SetAttr::default() };
        self.setattr(node, set).map(|(attr, _)| attr)
    }

    /// Changes owner and group.
    pub fn chown(&self, node: NodeId, uid: u32, gid: u32) -> Result<Attr> {
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.setattr(node, set).map(|(attr, _)| attr)
    }

    /// Changes the size.
    pub fn truncate(&self, node: NodeId, size: u64) -> Result<Attr> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.setattr(node, set).map(|(attr, _)| attr)
    }

    /// Makes a directory, mode 0755.
    pub fn mkdir(&self, parent: NodeId, text: &str) -> Result<Made> {
        self.fs.mkdir(&self.cx, parent, name(text), NewMode::settled(Mode::new(0o755))).wait()
    }

    /// Makes a directory in the case's own.
    pub fn dir(&self, text: &str) -> NodeId {
        self.mkdir(self.dir, text).expect("mkdir").entry.node
    }

    /// Creates or opens a file.
    pub fn create(&self, parent: NodeId, text: &str, how: &Create) -> Result<Created> {
        self.fs.create(&self.cx, parent, name(text), how).wait()
    }

    /// Makes a file in the case's directory and keeps it open.
    pub fn file(&self, text: &str) -> File {
        self.file_in(self.dir, text)
    }

    /// Makes a file and keeps it open.
    pub fn file_in(&self, parent: NodeId, text: &str) -> File {
        let created =
            self.create(parent, text, &Create { exclusive: Exclusive::Yes, ..plain() }).expect("create");
        File { node: created.entry.node, open: created.open }
    }

    /// Makes a file with contents, and closes it.
    pub fn file_with(&self, text: &str, bytes: &[u8]) -> NodeId {
        let file = self.file(text);
        self.put(file, 0, bytes);
        self.fs.flush(&self.cx, file, LockOwner(0)).wait().expect("closed");
        self.release(file);
        file.node
    }

    /// Adds a name to a node.
    pub fn link(&self, node: NodeId, parent: NodeId, text: &str) -> Result<Made> {
        self.fs.link(&self.cx, node, parent, name(text)).wait()
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, text: &str, target: &[u8]) -> Result<Made> {
        self.fs.symlink(&self.cx, self.dir, name(text), target).wait()
    }

    /// Removes a name from the case's directory.
    pub fn unlink(&self, text: &str) -> Result<Change> {
        self.fs.unlink(&self.cx, self.dir, name(text)).wait()
    }

    /// Removes a directory from the case's own.
    pub fn rmdir(&self, text: &str) -> Result<Change> {
        self.fs.rmdir(&self.cx, self.dir, name(text)).wait()
    }

    /// Renames within the case's directory.
    pub fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<Renamed> {
        self.rename_to(self.dir, from, self.dir, to, flags)
    }

    /// Renames from one directory to another.
    pub fn rename_to(
        &self,
        from: NodeId,
        old: &str,
        to: NodeId,
        new: &str,
        flags: RenameFlags,
    ) -> Result<Renamed> {
        self.fs.rename(&self.cx, from, name(old), to, name(new), flags).wait()
    }

    /// Opens a node.
    pub fn open(&self, node: NodeId, flags: OpenFlags) -> Result<File> {
        let opened: Result<Opened> = self.fs.open(&self.cx, node, flags).wait();
        opened.map(|opened| File { node, open: opened.open })
    }

    /// Ends an opening.
    pub fn release(&self, file: File) {
        self.fs.release(&self.cx, file);
    }

    /// Writes by one call.
    pub fn write(&self, file: File, how: &Write, bytes: &[u8]) -> Result<Written> {
        self.fs.write(&self.cx, file, how, Source::from(bytes.to_vec())).wait()
    }

    /// Writes all of `bytes` in as many calls as needed.
    pub fn put(&self, file: File, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let how = Write { offset: offset + done as u64, ..Write::default() };
            let written = self.write(file, &how, &bytes[done..]).expect("write");
            assert!(written.count > 0, "a write that makes no progress");
            done += written.count;
        }
    }

    /// Reads by one call; returns the bytes, and `true` if the file ended.
    pub fn read(&self, file: File, offset: u64, len: usize) -> Result<(Vec<u8>, bool)> {
        let mut buffer = Buffer::new(len);
        let done = self.fs.read(&self.cx, file, offset, buffer.sink(0..len)).wait()?;
        assert!(done.count <= len, "a read of more than there is room for");
        let bytes = buffer.as_slice().expect("the read is over, and the buffer is free");
        Ok((bytes[..done.count].to_vec(), done.eof))
    }

    /// Reads `len` bytes, or up to the end of the file, in as many calls as needed.
    pub fn get(&self, file: File, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let (piece, eof) = self.read(file, offset + bytes.len() as u64, len - bytes.len()).expect("read");
            let ended = eof || piece.is_empty();
            bytes.extend(piece);
            if ended {
                break;
            }
        }
        bytes
    }

    /// Reads a whole file.
    pub fn contents(&self, node: NodeId) -> Vec<u8> {
        let size = self.attr(node).size as usize;
        let file = self.open(node, OpenFlags::READ).expect("open");
        let bytes = self.get(file, 0, size + 1);
        self.release(file);
        bytes
    }

    /// Reads one page of a listing.
    pub fn page(&self, file: File, cookie: Cookie, budget: DirBudget) -> Result<(Vec<Listed>, bool)> {
        let page = self.fs.readdir(&self.cx, file, cookie, DirPage::new(budget)).wait()?;
        let listed = page.iter().map(|entry| Listed {
            name: String::from_utf8_lossy(entry.name).into_owned(),
            fileid: entry.fileid,
            file_type: entry.file_type,
            cookie: entry.cookie,
            entry: entry.entry.copied(),
        });
        Ok((listed.collect(), page.is_end()))
    }

    /// Lists a directory, with `.` and `..`, in pages of `size_bytes`.
    pub fn list(&self, dir: NodeId, size_bytes: usize) -> Vec<Listed> {
        let file = self.open(dir, OpenFlags::READ | OpenFlags::DIRECTORY).expect("open directory");
        let listed = self.list_from(file, Cookie::START, size_bytes);
        self.release(file);
        listed
    }

    /// Lists the entries behind `cookie`, in pages of `size_bytes`.
    pub fn list_from(&self, file: File, cookie: Cookie, size_bytes: usize) -> Vec<Listed> {
        let mut listed: Vec<Listed> = Vec::new();
        loop {
            let cookie = listed.last().map_or(cookie, |last| last.cookie);
            let (page, end) = self.page(file, cookie, budget(size_bytes, false)).expect("readdir");
            assert!(end || !page.is_empty(), "a listing that makes no progress");
            listed.extend(page);
            if end {
                return listed;
            }
        }
    }

    /// Returns the names in a directory, sorted, without `.` and `..`.
    pub fn names(&self, dir: NodeId) -> Vec<String> {
        let listed = self.list(dir, 8192).into_iter().map(|listed| listed.name);
        let mut names: Vec<_> = listed.filter(|name| name != "." && name != "..").collect();
        names.sort();
        names
    }
}

/// Converts "not supported" to a skip, for features that the host's file system may lack.
pub fn supported<T>(result: Result<T>) -> std::result::Result<T, Skip> {
    match result {
        Ok(value) => Ok(value),
        Err(Error::NotSupported | Error::NotImplemented) => {
            Err(Skip("the file system beneath does not support it".into()))
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// Fails the case unless the result is an error of this pattern.
#[macro_export]
macro_rules! refused {
    ($result:expr, $pattern:pat) => {
        match $result {
            Ok(_) => panic!("{} succeeded; it must fail with {}", stringify!($result), stringify!($pattern)),
            #[allow(unreachable_patterns, reason = "the pattern may be any error")]
            Err(error) => match error {
                $pattern => {}
                error => {
                    panic!("{} failed with {error:?}, not with {}", stringify!($result), stringify!($pattern))
                }
            },
        }
    };
}
