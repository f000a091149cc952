//! The optional groups. Each is offered only when the layer below has it; asked for all the same, it is not supported.

use tombolo_core::fs::{
    AllocateMode, Entry, File, FileSystem, Lock, LockFamily, LockOwner, LockRange, Locks, NodeId,
    PersistentHandle, PersistentHandles, Ranges, Volume, Whence, XattrName, XattrSet, Xattrs,
};
use tombolo_core::{Answer, Ctx, Error};

use super::{Around, Call, Layered, Payload};
use tombolo_core::fs::Op;

impl<A: Around> Layered<dyn FileSystem, A> {
    fn in_group<G: ?Sized, T: Payload>(
        &self,
        op: Op,
        group: Option<&G>,
        call: impl FnOnce(&G) -> Answer<T>,
    ) -> Answer<T> {
        self.around.around(Call::of(op), || match group {
            Some(group) => call(group),
            None => Answer::err(Error::NotSupported),
        })
    }
}

impl<A: Around> Xattrs for Layered<dyn FileSystem, A> {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.in_group(Op::Getxattr, self.inner.xattrs(), |xattrs| xattrs.get(cx, node, name, limit_bytes))
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
        self.in_group(Op::Setxattr, self.inner.xattrs(), |xattrs| {
            xattrs.set(cx, node, name, value, how, kill_set_gid)
        })
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.in_group(Op::Listxattr, self.inner.xattrs(), |xattrs| xattrs.list(cx, node, limit_bytes))
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        self.in_group(Op::Removexattr, self.inner.xattrs(), |xattrs| xattrs.remove(cx, node, name))
    }
}

impl<A: Around> Locks for Layered<dyn FileSystem, A> {
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        self.in_group(Op::TestLock, self.inner.locks(), |locks| locks.test(cx, file, lock))
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        self.in_group(Op::Lock, self.inner.locks(), |locks| locks.lock(cx, file, lock, wait))
    }

    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        self.in_group(Op::Unlock, self.inner.locks(), |locks| locks.unlock(cx, file, family, range, owner))
    }
}

impl<A: Around> PersistentHandles for Layered<dyn FileSystem, A> {
    fn volume(&self) -> Volume {
        self.inner.persistent_handles().map(|handles| handles.volume()).unwrap_or_default()
    }

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        self.in_group(Op::HandleOf, self.inner.persistent_handles(), |handles| handles.handle_of(cx, node))
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        self.in_group(Op::Resolve, self.inner.persistent_handles(), |handles| handles.resolve(cx, handle))
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.in_group(Op::Parent, self.inner.persistent_handles(), |handles| handles.parent(cx, node))
    }

    fn again(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.in_group(Op::Resolve, self.inner.persistent_handles(), |handles| handles.again(cx, node))
    }
}

impl<A: Around> Ranges for Layered<dyn FileSystem, A> {
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        self.in_group(Op::Allocate, self.inner.ranges(), |ranges| {
            ranges.allocate(cx, file, offset, len, mode)
        })
    }

    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64> {
        self.in_group(Op::Seek, self.inner.ranges(), |ranges| ranges.seek(cx, file, offset, whence))
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
        self.in_group(Op::Copy, self.inner.ranges(), |ranges| {
            ranges.copy(cx, from, from_offset, to, to_offset, len)
        })
    }
}
