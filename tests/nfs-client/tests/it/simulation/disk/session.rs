use std::sync::Arc;

use tombolo_core::fs::{
    AccessMask, Attr, Change, Cookie, Create, Created, Device, DirPage, Entry, File, FileSystem, FileType,
    LockOwner, Made, Name, NewMode, NodeId, OpenFlags, Opened, PersistentHandles, Profile, ReadDone,
    RenameFlags, Renamed, SetAttr, StatFs, SyncWhat, Write, Written,
};
use tombolo_core::{Answer, Ctx, Stability};
use tombolo_mem::{Sink, Source};

use super::{Shared, Step};

/// A session on the disk. Memory answers at once, so nothing comes between what is done and what is kept of it.
pub(super) struct Session {
    pub(super) inner: Arc<dyn FileSystem>,
    pub(super) shared: Arc<Shared>,
}

impl Session {
    fn was_cut(&self, node: NodeId, size: u64) {
        self.shared.after(node, || Step::Size(size as usize));
    }
}

impl FileSystem for Session {
    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        if how.stability == Stability::Unstable
            && let Err(error) = self.shared.before_unstable(file.node)
        {
            return Answer::err(error);
        }
        let bytes = from.to_vec(usize::MAX);
        let mut written = match self.inner.write(cx, file, how, from).wait() {
            Ok(written) => written,
            Err(error) => return Answer::err(error),
        };
        self.shared.after(file.node, || Step::Write {
            offset: how.offset as usize,
            bytes: bytes[..written.count].to_vec(),
            is_stable: how.stability > Stability::Unstable,
        });
        written.stability = how.stability;
        Answer::ok(written)
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncWhat) -> Answer<()> {
        self.shared.is_settled(file.node);
        self.inner.fsync(cx, file, what)
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.shared.all_are_settled();
        self.inner.syncfs(cx)
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let answer = self.inner.setattr(cx, node, file, set);
        if let (Some(size), Answer::Done(Ok(_))) = (set.size, &answer) {
            self.was_cut(node, size);
        }
        answer
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let answer = self.inner.open(cx, node, flags);
        if flags.contains(OpenFlags::TRUNCATE) && matches!(answer, Answer::Done(Ok(_))) {
            self.was_cut(node, 0);
        }
        answer
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let answer = self.inner.create(cx, parent, name, how);
        if let (true, Answer::Done(Ok(created))) = (how.flags.contains(OpenFlags::TRUNCATE), &answer) {
            self.was_cut(created.entry.node, 0);
        }
        answer
    }

    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        self.inner.lookup(cx, parent, name)
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.inner.forget(cx, look_ups);
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.inner.getattr(cx, node, file)
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.inner.access(cx, node, mask)
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.inner.readlink(cx, node)
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        self.inner.create_unnamed(cx, parent, how)
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        self.inner.mkdir(cx, parent, name, mode)
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        self.inner.symlink(cx, parent, name, target)
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
        self.inner.mknod(cx, parent, name, file_type, mode, rdev)
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.inner.link(cx, node, parent, name)
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.inner.unlink(cx, parent, name)
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.inner.rmdir(cx, parent, name)
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
        self.inner.rename(cx, from_parent, from, to_parent, to, flags)
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.inner.release(cx, file);
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        self.inner.flush(cx, file, owner)
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.inner.read(cx, file, offset, into)
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.inner.readdir(cx, file, cookie, page)
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        self.inner.statfs(cx, node)
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        self.inner.persistent_handles()
    }
}
