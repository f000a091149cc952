//! A user's session of a file system. Every method waits for its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::fs::{
    AccessMask, Attr, Change, Client, Cookie, Create, Created, Device, DirBudget, DirPage, Entry, Exclusive,
    Export, File, FileSystem, FileType, Locks, Made, Mode, Name, NewMode, NodeId, OpenFlags, PermissionCheck,
    PersistentHandle, PersistentHandles, Ranges, RenameFlags, Renamed, SetAttr, Write, Written, XattrName,
    XattrSet, Xattrs,
};
use tombolo_core::{Ctx, Error, Identity, Result, SessionId};
use tombolo_mem::{Buffer, Source};

use crate::place::{Place, name};

/// A session with a user and a directory in which paths begin.
#[derive(Clone)]
pub struct Session {
    /// The session.
    pub fs: Arc<dyn FileSystem>,
    /// The context of all requests.
    pub cx: Ctx,
    /// The directory in which paths begin.
    pub dir: NodeId,
}

/// Makes fixtures usable as the [`Session`] in their field `session`.
#[macro_export]
macro_rules! with_session {
    ($($fixture:ty),+) => {
        $(impl std::ops::Deref for $fixture {
            type Target = $crate::Session;

            fn deref(&self) -> &$crate::Session {
                &self.session
            }
        })+
    };
}

/// Flags of an opening for reading and writing.
pub const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Returns a page budget of `size_bytes` in the layout of a FUSE directory.
pub fn budget(size_bytes: usize, plus: bool) -> DirBudget {
    DirBudget { size_bytes, entry_bytes: 24, align: 8, plus }
}

/// Returns the mode of a new node, to which no umask is applied.
pub fn mode(bits: u32) -> NewMode {
    NewMode::settled(Mode::new(bits))
}

/// Returns the usual parameters of a new file: mode 0644, for reading and writing.
pub fn plain() -> Create {
    Create { mode: mode(0o644), flags: READ_WRITE, exclusive: Exclusive::No }
}

/// Converts a valid name of an extended attribute.
pub fn xattr_name(text: &str) -> XattrName<'_> {
    XattrName::new(text.as_bytes()).expect("a good name")
}

impl Session {
    /// Begins a session whose permissions the back end checks.
    pub fn attach(export: &dyn Export) -> Self {
        Self::checked(export, PermissionCheck::BackEnd)
    }

    /// Begins a session as the superuser; `checks` is the party that checks permissions.
    pub fn checked(export: &dyn Export, checks: PermissionCheck) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let session = SessionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let client = Client { session, label: "test".into(), checks };
        Self { cx: Ctx::root(session), ..Self::of(export.attach(&client).expect("a session")) }
    }

    /// Uses an existing session as the superuser.
    pub fn of(fs: Arc<dyn FileSystem>) -> Self {
        Self { fs, cx: Ctx::root(SessionId(1)), dir: NodeId::ROOT }
    }

    /// Returns the same session acting for a user whose only group has the same number.
    pub fn by(&self, uid: u32) -> Self {
        self.as_user(uid, uid, &[])
    }

    /// Returns the same session acting for another user.
    pub fn as_user(&self, uid: u32, gid: u32, groups: &[u32]) -> Self {
        let groups = (!groups.is_empty()).then(|| Arc::from(groups));
        self.with(Ctx { identity: Identity { uid, gid, groups }, ..self.cx.clone() })
    }

    /// Returns the same session with another context.
    pub fn with(&self, cx: Ctx) -> Self {
        Self { cx, ..self.clone() }
    }

    /// Returns the group of extended attributes.
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

    /// Looks up the names of a path.
    pub fn lookup<'a>(&self, at: impl Into<Place<'a>>) -> Result<Entry> {
        let Place { dir, path } = at.into();
        let mut node = dir.unwrap_or(self.dir);
        let mut found = None;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let entry = self.fs.lookup(&self.cx, node, name(part)).wait()?;
            (node, found) = (entry.node, Some(entry));
        }
        match found {
            Some(entry) => Ok(entry),
            None => Ok(Entry { node, attr: self.fs.getattr(&self.cx, node, None).wait()? }),
        }
    }

    /// Returns the node at a place.
    pub fn node<'a>(&self, at: impl Into<Place<'a>>) -> Result<NodeId> {
        let at = at.into();
        match at.path {
            "" => Ok(at.dir.unwrap_or(self.dir)),
            _ => self.lookup(at).map(|entry| entry.node),
        }
    }

    /// Returns the parent of a place, and the last name.
    pub fn parent<'a>(&self, at: impl Into<Place<'a>>) -> Result<(NodeId, Name<'a>)> {
        let Place { dir, path } = at.into();
        let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.node(Place { dir, path: parent })?, name(last)))
    }

    /// Returns `true` if the name exists.
    #[track_caller]
    pub fn exists<'a>(&self, at: impl Into<Place<'a>>) -> bool {
        match self.lookup(at) {
            Ok(_) => true,
            Err(Error::NotFound) => false,
            Err(error) => panic!("lookup: {error:?}"),
        }
    }

    /// Returns a node's attributes.
    #[track_caller]
    pub fn attr<'a>(&self, at: impl Into<Place<'a>>) -> Attr {
        self.lookup(at).expect("attributes").attr
    }

    /// Returns an opened node's attributes.
    #[track_caller]
    pub fn open_attr(&self, file: File) -> Attr {
        self.fs.getattr(&self.cx, file.node, Some(file)).wait().expect("attributes through an opening")
    }

    /// Changes attributes.
    pub fn setattr<'a>(&self, at: impl Into<Place<'a>>, set: SetAttr) -> Result<(Attr, Change)> {
        self.fs.setattr(&self.cx, self.node(at)?, None, &set).wait()
    }

    /// Changes the mode.
    pub fn chmod<'a>(&self, at: impl Into<Place<'a>>, mode: u32) -> Result<Attr> {
        let set = SetAttr { mode: Some(Mode::new(mode)), ..SetAttr::default() };
        self.setattr(at, set).map(|(attr, _)| attr)
    }

    /// Changes owner and group.
    pub fn chown<'a>(&self, at: impl Into<Place<'a>>, uid: u32, gid: u32) -> Result<Attr> {
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.setattr(at, set).map(|(attr, _)| attr)
    }

    /// Changes the size.
    pub fn truncate<'a>(&self, at: impl Into<Place<'a>>, size: u64) -> Result<Attr> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.setattr(at, set).map(|(attr, _)| attr)
    }

    /// Asks for rights to a node.
    pub fn access<'a>(&self, at: impl Into<Place<'a>>, mask: AccessMask) -> Result<()> {
        self.fs.access(&self.cx, self.node(at)?, mask).wait()
    }

    /// Returns the value of an extended attribute.
    pub fn xattr<'a>(&self, at: impl Into<Place<'a>>, attribute: &str) -> Result<Vec<u8>> {
        self.xattrs().get(&self.cx, self.node(at)?, xattr_name(attribute), 1 << 16).wait()
    }

    /// Sets an extended attribute.
    pub fn set_xattr<'a>(&self, at: impl Into<Place<'a>>, attribute: &str, value: &[u8]) -> Result<()> {
        let (node, attribute) = (self.node(at)?, xattr_name(attribute));
        self.xattrs().set(&self.cx, node, attribute, value, XattrSet::Any, false).wait()
    }

    /// Removes an extended attribute.
    pub fn remove_xattr<'a>(&self, at: impl Into<Place<'a>>, attribute: &str) -> Result<()> {
        self.xattrs().remove(&self.cx, self.node(at)?, xattr_name(attribute)).wait()
    }

    /// Returns the names of extended attributes, sorted.
    pub fn xattr_list<'a>(&self, at: impl Into<Place<'a>>) -> Result<Vec<String>> {
        let listed = self.xattrs().list(&self.cx, self.node(at)?, 1 << 16).wait()?;
        let names = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let mut names: Vec<_> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        names.sort();
        Ok(names)
    }

    /// Returns a node's persistent handle.
    pub fn handle_of<'a>(&self, at: impl Into<Place<'a>>) -> Result<PersistentHandle> {
        self.handles().handle_of(&self.cx, self.node(at)?).wait()
    }

    /// Finds a node by its persistent handle.
    pub fn resolve(&self, handle: &PersistentHandle) -> Result<Entry> {
        self.handles().resolve(&self.cx, handle).wait()
    }

    /// Makes a directory, mode 0755.
    pub fn mkdir<'a>(&self, at: impl Into<Place<'a>>) -> Result<Made> {
        self.mkdir_mode(at, 0o755)
    }

    /// Makes a directory.
    pub fn mkdir_mode<'a>(&self, at: impl Into<Place<'a>>, bits: u32) -> Result<Made> {
        let (dir, last) = self.parent(at)?;
        self.fs.mkdir(&self.cx, dir, last, mode(bits)).wait()
    }

    /// Makes a directory, mode 0755, and returns its node.
    #[track_caller]
    pub fn dir<'a>(&self, at: impl Into<Place<'a>>) -> NodeId {
        self.mkdir(at).expect("mkdir").entry.node
    }

    /// Creates or opens a file.
    pub fn create<'a>(&self, at: impl Into<Place<'a>>, how: &Create) -> Result<Created> {
        let (dir, last) = self.parent(at)?;
        self.fs.create(&self.cx, dir, last, how).wait()
    }

    /// Creates or opens a file, and keeps it open.
    pub fn file_as<'a>(&self, at: impl Into<Place<'a>>, how: &Create) -> Result<File> {
        self.create(at, how).map(|created| File { node: created.entry.node, open: created.open })
    }

    /// Makes a file that does not exist yet, and keeps it open.
    #[track_caller]
    pub fn file<'a>(&self, at: impl Into<Place<'a>>) -> File {
        self.file_as(at, &Create { exclusive: Exclusive::Yes, ..plain() }).expect("create")
    }

    /// Creates or truncates a file, and writes it.
    pub fn try_put<'a>(&self, at: impl Into<Place<'a>>, bytes: &[u8]) -> Result<()> {
        let flags = READ_WRITE | OpenFlags::TRUNCATE;
        let file = self.file_as(at, &Create { flags, ..plain() })?;
        let written = if bytes.is_empty() { Ok(0) } else { self.write(file, 0, bytes) };
        self.release(file);
        written.map(|count| assert_eq!(count, bytes.len(), "a short write"))
    }

    /// Creates or truncates a file, and writes it, which must succeed.
    #[track_caller]
    pub fn put<'a>(&self, at: impl Into<Place<'a>>, bytes: &[u8]) {
        self.try_put(at, bytes).expect("written");
    }

    /// Reads a whole file through an opening of its own.
    pub fn get<'a>(&self, at: impl Into<Place<'a>>) -> Result<Vec<u8>> {
        let file = self.open(at, OpenFlags::READ)?;
        let bytes = self.read_pieces(file, 0, usize::MAX, 128 << 10);
        self.release(file);
        bytes
    }

    /// Reads a whole file through an opening of its own, which must succeed.
    #[track_caller]
    pub fn contents<'a>(&self, at: impl Into<Place<'a>>) -> Vec<u8> {
        self.get(at).expect("contents")
    }

    /// Adds a name to a node.
    pub fn link<'a>(&self, node: impl Into<Place<'a>>, to: impl Into<Place<'a>>) -> Result<Made> {
        let (node, (dir, last)) = (self.node(node)?, self.parent(to)?);
        self.fs.link(&self.cx, node, dir, last).wait()
    }

    /// Makes an empty file by MKNOD, mode 0644.
    #[track_caller]
    pub fn mknod<'a>(&self, at: impl Into<Place<'a>>) -> Entry {
        let (dir, last) = self.parent(at).expect("a directory");
        let made = self.fs.mknod(&self.cx, dir, last, FileType::Regular, mode(0o644), Device::default());
        made.wait().expect("mknod").entry
    }

    /// Makes a symbolic link.
    pub fn symlink<'a>(&self, at: impl Into<Place<'a>>, target: &[u8]) -> Result<Made> {
        let (dir, last) = self.parent(at)?;
        self.fs.symlink(&self.cx, dir, last, target).wait()
    }

    /// Removes a name.
    pub fn unlink<'a>(&self, at: impl Into<Place<'a>>) -> Result<Change> {
        let (dir, last) = self.parent(at)?;
        self.fs.unlink(&self.cx, dir, last).wait()
    }

    /// Removes a directory.
    pub fn rmdir<'a>(&self, at: impl Into<Place<'a>>) -> Result<Change> {
        let (dir, last) = self.parent(at)?;
        self.fs.rmdir(&self.cx, dir, last).wait()
    }

    /// Renames, with `flags` empty over what has that name.
    pub fn rename<'a>(
        &self,
        from: impl Into<Place<'a>>,
        to: impl Into<Place<'a>>,
        flags: RenameFlags,
    ) -> Result<Renamed> {
        let ((from, old), (to, new)) = (self.parent(from)?, self.parent(to)?);
        self.fs.rename(&self.cx, from, old, to, new, flags).wait()
    }

    /// Opens a node.
    pub fn open<'a>(&self, at: impl Into<Place<'a>>, flags: OpenFlags) -> Result<File> {
        let node = self.node(at)?;
        self.fs.open(&self.cx, node, flags).wait().map(|opened| File { node, open: opened.open })
    }

    /// Opens a node for reading.
    #[track_caller]
    pub fn reader<'a>(&self, at: impl Into<Place<'a>>) -> File {
        self.open(at, OpenFlags::READ).expect("open")
    }

    /// Opens a node for reading and writing.
    #[track_caller]
    pub fn writer<'a>(&self, at: impl Into<Place<'a>>) -> File {
        self.open(at, READ_WRITE).expect("open")
    }

    /// Opens a directory for listing.
    pub fn open_dir<'a>(&self, at: impl Into<Place<'a>>) -> Result<File> {
        self.open(at, OpenFlags::READ | OpenFlags::DIRECTORY)
    }

    /// Ends an opening.
    pub fn release(&self, file: File) {
        self.fs.release(&self.cx, file);
    }

    /// Releases one look-up.
    pub fn forget(&self, node: NodeId) {
        self.fs.forget(&self.cx, &[(node, 1)]);
    }

    /// Writes by one call; returns the number of bytes written.
    pub fn write(&self, file: File, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_as(file, &Write { offset, ..Write::default() }, bytes).map(|written| written.count)
    }

    /// Writes by one call.
    pub fn write_as(&self, file: File, how: &Write, bytes: &[u8]) -> Result<Written> {
        self.fs.write(&self.cx, file, how, Source::from(bytes.to_vec())).wait()
    }

    /// Writes all of `bytes` in as many calls as needed.
    #[track_caller]
    pub fn write_all(&self, file: File, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let count = self.write(file, offset + done as u64, &bytes[done..]).expect("write");
            assert!(count > 0, "a write that makes no progress");
            done += count;
        }
    }

    /// Writes into a file through an opening of its own, without a change of its other bytes.
    #[track_caller]
    pub fn overwrite<'a>(&self, at: impl Into<Place<'a>>, offset: u64, bytes: &[u8]) {
        let file = self.writer(at);
        self.write_all(file, offset, bytes);
        self.release(file);
    }

    /// Reads by one call.
    pub fn read(&self, file: File, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.read_eof(file, offset, len).map(|(bytes, _)| bytes)
    }

    /// Reads by one call; returns the bytes, and `true` if the file ended.
    pub fn read_eof(&self, file: File, offset: u64, len: usize) -> Result<(Vec<u8>, bool)> {
        let mut buffer = Buffer::new(len);
        let done = self.fs.read(&self.cx, file, offset, buffer.sink(0..len)).wait()?;
        assert!(done.count <= len, "a read of more than there is room for");
        let bytes = buffer.as_slice().expect("the read is over, and the buffer is free");
        Ok((bytes[..done.count].to_vec(), done.eof))
    }

    /// Reads `len` bytes, or up to the end of the file, in as many calls as needed. Each requests all of the
    /// rest, up to 16 MiB.
    #[track_caller]
    pub fn read_all(&self, file: File, offset: u64, len: usize) -> Vec<u8> {
        self.read_pieces(file, offset, len, 16 << 20).expect("read")
    }

    fn read_pieces(&self, file: File, offset: u64, len: usize, piece_max: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let rest = (len - bytes.len()).min(piece_max);
            let (piece, eof) = self.read_eof(file, offset + bytes.len() as u64, rest)?;
            let ended = eof || piece.is_empty();
            bytes.extend(piece);
            if ended {
                break;
            }
        }
        Ok(bytes)
    }

    /// Makes all changes stable.
    #[track_caller]
    pub fn sync(&self) {
        self.fs.syncfs(&self.cx).wait().expect("stable");
    }

    /// Reads one page of a listing.
    pub fn readdir(&self, file: File, cookie: Cookie, budget: DirBudget) -> Result<DirPage> {
        self.fs.readdir(&self.cx, file, cookie, DirPage::new(budget)).wait()
    }

    /// Lists the names in a directory, sorted, without `.` and `..`.
    #[track_caller]
    pub fn names<'a>(&self, dir: impl Into<Place<'a>>) -> Vec<String> {
        let file = self.open_dir(dir).expect("open directory");
        let (mut names, mut cookie) = (Vec::new(), Cookie::START);
        loop {
            let page = self.readdir(file, cookie, budget(8192, false)).expect("readdir");
            for entry in page.iter() {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                cookie = entry.cookie;
            }
            if page.is_end() {
                break;
            }
            assert!(!page.is_empty(), "a listing that makes no progress");
        }
        self.release(file);
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }
}
