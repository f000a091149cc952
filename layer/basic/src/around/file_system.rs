use tombolo_core::fs::{
    AccessMask, Attr, Change, Cookie, Create, Created, Device, DirPage, Entry, File, FileSystem, FileType,
    LockOwner, Locks, Made, Name, NewMode, NodeId, OpenFlags, Opened, PersistentHandles, Profile, Ranges,
    ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncWhat, Write, Written, Xattrs,
};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::{Sink, Source};

use super::{Around, Call, Layered};
use tombolo_core::fs::Op;

impl<A: Around> FileSystem for Layered<dyn FileSystem, A> {
    fn profile(&self) -> Profile {
        self.around.profile(self.inner.profile())
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        self.around.around(Call::of(Op::Lookup), || self.inner.lookup(cx, parent, name))
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.around.unanswered(Op::Forget, || self.inner.forget(cx, look_ups));
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.around.around(Call::of(Op::Getattr), || self.inner.getattr(cx, node, file))
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        self.around.around(Call::of(Op::Setattr), || self.inner.setattr(cx, node, file, set))
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        let call = Call { op: Op::Access, mutates: mask.contains(AccessMask::WRITE) };
        self.around.around(call, || self.inner.access(cx, node, mask))
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.around.around(Call::of(Op::Readlink), || self.inner.readlink(cx, node))
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        self.around.around(Call::of(Op::Create), || self.inner.create(cx, parent, name, how))
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        self.around.around(Call::of(Op::CreateUnnamed), || self.inner.create_unnamed(cx, parent, how))
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        self.around.around(Call::of(Op::Mkdir), || self.inner.mkdir(cx, parent, name, mode))
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        self.around.around(Call::of(Op::Symlink), || self.inner.symlink(cx, parent, name, target))
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
        self.around.around(Call::of(Op::Mknod), || self.inner.mknod(cx, parent, name, file_type, mode, rdev))
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.around.around(Call::of(Op::Link), || self.inner.link(cx, node, parent, name))
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.around.around(Call::of(Op::Unlink), || self.inner.unlink(cx, parent, name))
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.around.around(Call::of(Op::Rmdir), || self.inner.rmdir(cx, parent, name))
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
        self.around
            .around(Call::of(Op::Rename), || self.inner.rename(cx, from_parent, from, to_parent, to, flags))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let mutates = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        self.around.around(Call { op: Op::Open, mutates }, || self.inner.open(cx, node, flags))
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.around.unanswered(Op::Release, || self.inner.release(cx, file));
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        self.around.around(Call::of(Op::Flush), || self.inner.flush(cx, file, owner))
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncWhat) -> Answer<()> {
        self.around.around(Call::of(Op::Fsync), || self.inner.fsync(cx, file, what))
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, mut into: Sink) -> Answer<ReadDone> {
        let limit = self.around.transfer_limit(Op::Read, into.len());
        into.truncate(limit);
        self.around.around(Call::of(Op::Read), || self.inner.read(cx, file, offset, into))
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, mut from: Source) -> Answer<Written> {
        let limit = self.around.transfer_limit(Op::Write, from.len());
        from.truncate(limit);
        self.around.around(Call::of(Op::Write), || self.inner.write(cx, file, how, from))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.around.around(Call::of(Op::Readdir), || self.inner.readdir(cx, file, cookie, page))
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        self.around.around(Call::of(Op::Statfs), || self.inner.statfs(cx, node))
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.around.around(Call::of(Op::Syncfs), || self.inner.syncfs(cx))
    }

    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.inner.xattrs().map(|_| self as &dyn Xattrs)
    }

    fn locks(&self) -> Option<&dyn Locks> {
        self.inner.locks().map(|_| self as &dyn Locks)
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        self.inner.persistent_handles().map(|_| self as &dyn PersistentHandles)
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        self.inner.ranges().map(|_| self as &dyn Ranges)
    }
}
