//! The optional groups, each offered only when the layer below has it.

use tombolo_core::fs::{
    AllocateMode, Entry, File, Lock, LockFamily, LockOwner, LockRange, Locks, NodeId, PersistentHandle,
    PersistentHandles, Ranges, Volume, Whence, XattrName, XattrSet, Xattrs,
};
use tombolo_core::{Answer, Ctx, Error};

use super::Delayed;

/// A name that was checked when the request came in.
fn checked(name: &[u8]) -> Result<XattrName<'_>, Error> {
    XattrName::new(name).map_err(Error::from)
}

/// A call of a group that may be missing.
fn within<G: ?Sized, T>(group: Option<&G>, call: impl FnOnce(&G) -> Answer<T>) -> Answer<T> {
    group.map_or_else(|| Answer::err(Error::NotSupported), call)
}

impl Xattrs for Delayed {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        let name = name.as_bytes().to_vec();
        self.later(cx, move |fs, cx| match checked(&name) {
            Ok(name) => within(fs.xattrs(), |xattrs| xattrs.get(cx, node, name, limit_bytes)),
            Err(error) => Answer::err(error),
        })
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
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        self.later(cx, move |fs, cx| match checked(&name) {
            Ok(name) => within(fs.xattrs(), |xattrs| xattrs.set(cx, node, name, &value, how, kill_set_gid)),
            Err(error) => Answer::err(error),
        })
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.later(cx, move |fs, cx| within(fs.xattrs(), |xattrs| xattrs.list(cx, node, limit_bytes)))
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        let name = name.as_bytes().to_vec();
        self.later(cx, move |fs, cx| match checked(&name) {
            Ok(name) => within(fs.xattrs(), |xattrs| xattrs.remove(cx, node, name)),
            Err(error) => Answer::err(error),
        })
    }
}

impl Locks for Delayed {
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        let lock = *lock;
        self.later(cx, move |fs, cx| within(fs.locks(), |locks| locks.test(cx, file, &lock)))
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let lock = *lock;
        self.later(cx, move |fs, cx| within(fs.locks(), |locks| locks.lock(cx, file, &lock, wait)))
    }

    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        self.later(cx, move |fs, cx| within(fs.locks(), |locks| locks.unlock(cx, file, family, range, owner)))
    }
}

impl PersistentHandles for Delayed {
    fn volume(&self) -> Volume {
        self.inner.persistent_handles().map(|handles| handles.volume()).unwrap_or_default()
    }

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        self.later(cx, move |fs, cx| within(fs.persistent_handles(), |handles| handles.handle_of(cx, node)))
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let handle = handle.clone();
        self.later(cx, move |fs, cx| within(fs.persistent_handles(), |handles| handles.resolve(cx, &handle)))
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.later(cx, move |fs, cx| within(fs.persistent_handles(), |handles| handles.parent(cx, node)))
    }

    fn again(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.later(cx, move |fs, cx| within(fs.persistent_handles(), |handles| handles.again(cx, node)))
    }
}

impl Ranges for Delayed {
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        self.later(cx, move |fs, cx| {
            within(fs.ranges(), |ranges| ranges.allocate(cx, file, offset, len, mode))
        })
    }

    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64> {
        self.later(cx, move |fs, cx| within(fs.ranges(), |ranges| ranges.seek(cx, file, offset, whence)))
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
        self.later(cx, move |fs, cx| {
            within(fs.ranges(), |ranges| ranges.copy(cx, from, from_offset, to, to_offset, len))
        })
    }
}
