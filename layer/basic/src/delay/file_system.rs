use tombolo_core::fs::{
    AccessMask, Attr, Change, Cookie, Create, Created, Device, DirPage, Entry, File, FileSystem, FileType,
    LockOwner, Locks, Made, Name, NewMode, NodeId, OpenFlags, Opened, PersistentHandles, Profile, Ranges,
    ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncWhat, Write, Written, Xattrs,
};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::{Sink, Source};

use super::Delayed;

impl FileSystem for Delayed {
    fn profile(&self) -> Profile {
        self.inner.profile()
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.lookup(cx, parent, name.as_name()))
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.inner.forget(cx, look_ups);
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.later(cx, move |fs, cx| fs.getattr(cx, node, file))
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let set = *set;
        self.later(cx, move |fs, cx| fs.setattr(cx, node, file, &set))
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.later(cx, move |fs, cx| fs.access(cx, node, mask))
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.later(cx, move |fs, cx| fs.readlink(cx, node))
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let (name, how) = (name.to_owned(), *how);
        self.later(cx, move |fs, cx| fs.create(cx, parent, name.as_name(), &how))
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        let how = *how;
        self.later(cx, move |fs, cx| fs.create_unnamed(cx, parent, &how))
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.mkdir(cx, parent, name.as_name(), mode))
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        let (name, target) = (name.to_owned(), target.to_vec());
        self.later(cx, move |fs, cx| fs.symlink(cx, parent, name.as_name(), &target))
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
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.mknod(cx, parent, name.as_name(), file_type, mode, rdev))
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.link(cx, node, parent, name.as_name()))
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.unlink(cx, parent, name.as_name()))
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.rmdir(cx, parent, name.as_name()))
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
        let (from, to) = (from.to_owned(), to.to_owned());
        self.later(cx, move |fs, cx| {
            fs.rename(cx, from_parent, from.as_name(), to_parent, to.as_name(), flags)
        })
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.later(cx, move |fs, cx| fs.open(cx, node, flags))
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.inner.release(cx, file);
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        self.later(cx, move |fs, cx| fs.flush(cx, file, owner))
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncWhat) -> Answer<()> {
        self.later(cx, move |fs, cx| fs.fsync(cx, file, what))
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.later(cx, move |fs, cx| fs.read(cx, file, offset, into))
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        let how = *how;
        self.later(cx, move |fs, cx| fs.write(cx, file, &how, from))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.later(cx, move |fs, cx| fs.readdir(cx, file, cookie, page))
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        self.later(cx, move |fs, cx| fs.statfs(cx, node))
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.later(cx, move |fs, cx| fs.syncfs(cx))
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
