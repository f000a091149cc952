//! The waist's operations, each performed by a `View`.

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

impl FileSystem for WriteBackFileSystem {
    fn profile(&self) -> Profile {
        self.0.profile
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        Answer::later(self.view(cx).lookup(parent, name.to_owned()))
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

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        Answer::later(self.view(cx).setattr(node, file, *set))
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        Answer::later(self.view(cx).access(node, mask))
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        Answer::later(self.view(cx).readlink(node))
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        Answer::later(self.view(cx).create(parent, name.to_owned(), *how))
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        Answer::later(self.view(cx).create_unnamed(parent, *how))
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

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        Answer::later(self.view(cx).link(node, parent, name.to_owned()))
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        Answer::later(self.view(cx).remove(parent, name.to_owned(), false))
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        Answer::later(self.view(cx).remove(parent, name.to_owned(), true))
    }

    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed> {
        let (from, to) = ((from_parent, from.to_owned()), (to_parent, to.to_owned()));
        Answer::later(self.view(cx).rename(from, to, flags))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        Answer::later(self.view(cx).open(node, flags))
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

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        Answer::later(self.view(cx).read(file, offset, into))
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        Answer::later(self.view(cx).write(file, *how, from))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        Answer::later(self.view(cx).readdir(file, cookie, page))
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        Answer::later(self.view(cx).statfs(node))
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        Answer::later(self.view(cx).sync())
    }

    /// Returns this layer's group even if the origin has none: this layer provides one attribute of the root.
    fn xattrs(&self) -> Option<&dyn Xattrs> {
        Some(self)
    }

    /// Returns local locks: all users of the tree use this layer, so the origin is not involved.
    fn locks(&self) -> Option<&dyn Locks> {
        Some(self)
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        self.0.shared.below.persistent_handles().map(|_| self as &dyn PersistentHandles)
    }

    /// Returns the group below: only the origin's data are lent.
    fn lending(&self) -> Option<&dyn Lending> {
        self.0.shared.below.lending()
    }
}
