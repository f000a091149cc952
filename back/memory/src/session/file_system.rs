//! The waist's operations, each atomic under the lock.

use tombolo_core::fs::{
    AccessMask, Attr, Change, Changes, Cookie, Create, Created, Device, DirPage, Entry, File, FileSystem,
    FileType, LockOwner, Locks, Made, NAME_MAX, Name, NewMode, NodeId, OpenFlags, Opened, PersistentHandles,
    Profile, Ranges, ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncScope, Versions, Write, Written,
    Xattrs,
};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::{Sink, Source};

use super::Session;
use crate::content::SIZE_MAX;

impl FileSystem for Session {
    fn profile(&self) -> Profile {
        Profile {
            permission_check: self.checks,
            read_only: false,
            name_max: NAME_MAX as u32,
            file_size_max: SIZE_MAX,
            time_granularity_ns: 1,
            writes_by_owner: true,
        }
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        self.view().lookup(cx, parent, name).into()
    }

    fn forget(&self, _cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        let mut view = self.view();
        look_ups.iter().for_each(|&(node, count)| view.forget(node, count));
    }

    fn getattr(&self, _cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.view().getattr(node, file).into()
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        self.view().setattr(cx, node, file, set).into()
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.view().access(cx, node, mask).into()
    }

    fn readlink(&self, _cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.view().readlink(node).into()
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        self.view().create(cx, parent, name, how).into()
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        self.view().create_unnamed(cx, parent, how).into()
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        self.view().mkdir(cx, parent, name, mode).into()
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        self.view().symlink(cx, parent, name, target).into()
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
        self.view().mknod(cx, parent, name, file_type, mode, rdev).into()
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.view().link(cx, node, parent, name).into()
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.view().unlink(cx, parent, name).into()
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.view().rmdir(cx, parent, name).into()
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
        self.view().rename(cx, (from_parent, from), (to_parent, to), flags).into()
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.view().open(cx, node, flags).into()
    }

    fn release(&self, _cx: &Ctx, file: File) {
        self.view().release(file);
    }

    fn flush(&self, _cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        self.view().flush(file, owner).into()
    }

    fn is_prompt(&self, file: File) -> bool {
        self.view().opening(file).is_ok()
    }

    fn fsync(&self, _cx: &Ctx, file: File, _what: SyncScope) -> Answer<()> {
        self.view().opening(file).map(drop).into()
    }

    fn read(&self, _cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.view().read(file, offset, &into).into()
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        self.view().write(cx, file, how, &from).into()
    }

    fn readdir(&self, _cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.view().readdir(file, cookie, page).into()
    }

    fn statfs(&self, _cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        self.view().statfs(node).into()
    }

    fn syncfs(&self, _cx: &Ctx) -> Answer<()> {
        Answer::ok(())
    }

    fn xattrs(&self) -> Option<&dyn Xattrs> {
        Some(self)
    }

    fn locks(&self) -> Option<&dyn Locks> {
        Some(self)
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        Some(self)
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        Some(self)
    }

    fn changes(&self) -> Option<&dyn Changes> {
        Some(self)
    }

    fn versions(&self) -> Option<&dyn Versions> {
        Some(self)
    }
}
