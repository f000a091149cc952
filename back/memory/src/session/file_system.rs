//! The waist's operations, each atomic under the lock.

use tombolo_core::fs::{
    Attr, Cookie, DirPage, File, FileSystem, LockOwner, NAME_MAX, Name, NodeId, Profile, ReadDone,
    RenameFlags, Renamed, StatFs, SyncScope, Write, Written,
};
use tombolo_core::{Answer, Ctx};
use tombolo_mem::{Sink, Source};

use super::Session;
use crate::content::SIZE_MAX;

impl FileSystem for Session {
    tombolo_core::forward!(now self.view;
        lookup setattr access create create_unnamed mkdir symlink mknod link unlink rmdir open
    );
    tombolo_core::forward!(own self; xattrs locks persistent_handles ranges changes versions);

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

    fn forget(&self, _cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        let mut view = self.view();
        look_ups.iter().for_each(|&(node, count)| view.forget(node, count));
    }

    fn getattr(&self, _cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.view().getattr(node, file).into()
    }

    fn readlink(&self, _cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.view().readlink(node).into()
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
}
