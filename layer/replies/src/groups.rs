//! The optional groups that change something. Handles are the inner file system's own.

use tombolo_core::fs::{
    AllocateMode, File, Lock, LockFamily, LockOwner, LockRange, Locks, NodeId, Ranges, Whence, XattrName,
    XattrSet, Xattrs,
};
use tombolo_core::{Answer, Ctx, Error};

use super::call;
use super::session::Session;

fn within<G: ?Sized, T>(group: Option<&G>, call: impl FnOnce(&G) -> Answer<T>) -> Answer<T> {
    group.map_or(Answer::err(Error::NotSupported), call)
}

impl Xattrs for Session {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        within(self.inner.xattrs(), |xattrs| xattrs.get(cx, node, name, limit_bytes))
    }

    fn set(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: XattrName<'_>,
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Answer<()> {
        let plain =
            || within(self.inner.xattrs(), |xattrs| xattrs.set(cx, node, name, value, how, kill_set_gid));
        self.once(cx, plain, || call::SetXattr {
            node,
            name: name.as_bytes().into(),
            value: value.into(),
            how,
            kill_set_gid,
        })
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        within(self.inner.xattrs(), |xattrs| xattrs.list(cx, node, limit_bytes))
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        let plain = || within(self.inner.xattrs(), |xattrs| xattrs.remove(cx, node, name));
        self.once(cx, plain, || call::RemoveXattr { node, name: name.as_bytes().into() })
    }
}

impl Locks for Session {
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        within(self.inner.locks(), |locks| locks.test(cx, file, lock))
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let plain = || within(self.inner.locks(), |locks| locks.lock(cx, file, lock, wait));
        self.once(cx, plain, || call::TakeLock { file, lock: *lock, wait })
    }

    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        let plain = || within(self.inner.locks(), |locks| locks.unlock(cx, file, family, range, owner));
        self.once(cx, plain, || call::GiveLock { file, family, range, owner })
    }
}

impl Ranges for Session {
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        let plain = || within(self.inner.ranges(), |ranges| ranges.allocate(cx, file, offset, len, mode));
        self.once(cx, plain, || call::Allocate { file, offset, len, mode })
    }

    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64> {
        within(self.inner.ranges(), |ranges| ranges.seek(cx, file, offset, whence))
    }

    fn copy(
        &self,
        cx: &Ctx,
        from: File,
        from_offset: u64,
        to: File,
        to_offset: u64,
        len: u64,
    ) -> Answer<u64> {
        within(self.inner.ranges(), |ranges| ranges.copy(cx, from, from_offset, to, to_offset, len))
    }
}
