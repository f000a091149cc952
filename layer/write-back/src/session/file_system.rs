//! Dispatch of the waist's operations, most of them to a `View`.

use std::sync::Arc;

use tombolo_core::fs::{
    AccessMask, Attr, Change, Cookie, Create, Created, Device, DirPage, Entry, File, FileSystem, FileType,
    Lending, LockOwner, Locks, Made, Name, NewMode, NodeId, OpenFlags, Opened, PersistentHandles, Profile,
    ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncScope, Write, Written, Xattrs,
};
use tombolo_core::{Answer, Ctx, lock, or_answer};
use tombolo_mem::{Sink, Source};

use super::making::New;
use super::{Session, View};

/// A session as a file system of the waist.
pub(crate) struct WriteBackFileSystem(Arc<Session>);

impl WriteBackFileSystem {
    pub(crate) fn new(session: Session) -> Self {
        Self(Arc::new(session))
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.0
    }

    pub(super) fn view(&self, cx: &Ctx) -> View {
        View { session: self.0.clone(), cx: cx.clone() }
    }
}

/// Methods that a [`View`] performs later, with copies of borrowed arguments.
macro_rules! later {
    ($($method:ident($($argument:ident: $kind:ty $(= $owned:expr)?),+) -> $answer:ty;)+) => {
        $(fn $method(&self, cx: &Ctx, $($argument: $kind),+) -> Answer<$answer> {
            $($(let $argument = $owned;)?)+
            Answer::later(self.view(cx).$method($($argument),+))
        })+
    };
}

impl FileSystem for WriteBackFileSystem {
    later! {
        lookup(parent: NodeId, name: Name<'_> = name.to_owned()) -> Entry;
        setattr(node: NodeId, file: Option<File>, set: &SetAttr = *set) -> (Attr, Change);
        access(node: NodeId, mask: AccessMask) -> ();
        readlink(node: NodeId) -> Vec<u8>;
        create(parent: NodeId, name: Name<'_> = name.to_owned(), how: &Create = *how) -> Created;
        create_unnamed(parent: NodeId, how: &Create = *how) -> Created;
        link(node: NodeId, parent: NodeId, name: Name<'_> = name.to_owned()) -> Made;
        rename(from_parent: NodeId, from: Name<'_> = from.to_owned(), to_parent: NodeId,
            to: Name<'_> = to.to_owned(), flags: RenameFlags) -> Renamed;
        open(node: NodeId, flags: OpenFlags) -> Opened;
        read(file: File, offset: u64, into: Sink) -> ReadDone;
        write(file: File, how: &Write = *how, from: Source) -> Written;
        readdir(file: File, cookie: Cookie, page: DirPage) -> DirPage;
        statfs(node: NodeId) -> StatFs;
    }

    fn profile(&self) -> Profile {
        self.0.profile
    }

    /// Ignores forgets: a node is a number without state of its own.
    fn forget(&self, _: &Ctx, _: &[(NodeId, u64)]) {}

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        let view = self.view(cx);
        Answer::later(async move {
            let id = view.through(node, file)?;
            view.attr(id).await
        })
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        let new = New::of(FileType::Directory, mode);
        Answer::later(self.view(cx).mknod(parent, name.to_owned(), new))
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        let link = Some(target.to_vec());
        let new = New { link, ..New::of(FileType::Symlink, NewMode::default()) };
        Answer::later(self.view(cx).mknod(parent, name.to_owned(), new))
    }

    fn mknod(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Answer<Made> {
        if matches!(file_type, FileType::Directory | FileType::Symlink) {
            return Answer::err(tombolo_core::Error::InvalidArgument);
        }
        let new = New { rdev, ..New::of(file_type, mode) };
        Answer::later(self.view(cx).mknod(parent, name.to_owned(), new))
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        Answer::later(self.view(cx).remove(parent, name.to_owned(), false))
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        Answer::later(self.view(cx).remove(parent, name.to_owned(), true))
    }

    fn release(&self, _: &Ctx, file: File) {
        if self.0.opening(file).is_ok() {
            // The opening is dropped outside of the lock, because its end may write to the journal.
            let ended = lock(&self.0.openings).remove(&file.open);
            drop(ended);
            drop(self.0.locks.released(file));
        }
    }

    fn flush(&self, _: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        let opening = self.0.opening(file);
        opening.map(|opening| drop(self.0.locks.closed(opening.node, owner))).into()
    }

    fn fsync(&self, cx: &Ctx, file: File, _: SyncScope) -> Answer<()> {
        or_answer!(self.0.opening(file));
        Answer::later(self.view(cx).sync())
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        Answer::later(self.view(cx).sync())
    }

    /// Returns this layer's operations even if the origin has none: one attribute of the root is this
    /// layer's.
    fn xattrs(&self) -> Option<&dyn Xattrs> {
        Some(self)
    }

    /// Returns local locks, which are granted only while all users of the tree go through this layer.
    fn locks(&self) -> Option<&dyn Locks> {
        Some(self)
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        self.0.shared.below.persistent_handles().map(|_| self as &dyn PersistentHandles)
    }

    /// Returns the cache's operations: only the origin's data are lent, no local changes.
    fn lending(&self) -> Option<&dyn Lending> {
        self.0.shared.below.lending()
    }
}
