//! The optional groups with operations that must not run twice, and descriptors, whose appending openings are
//! registered. Persistent handles are those of the inner file system.

use std::os::fd::OwnedFd;

use tombolo_core::fs::{
    AllocateMode, Descriptors, File, Lock, LockFamily, LockOwner, LockRange, Locks, NodeId, OpenFlags,
    OpenId, PersistentHandle, Ranges, XattrName, XattrSet, Xattrs, within,
};
use tombolo_core::{Answer, Ctx, Error, Result};

use super::call;
use super::session::Session;

impl Xattrs for Session {
    tombolo_core::forward!(to self.inner; get list);

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
            name: name.to_owned(),
            value: value.into(),
            how,
            kill_set_gid,
        })
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        let plain = || within(self.inner.xattrs(), |xattrs| xattrs.remove(cx, node, name));
        self.once(cx, plain, || call::RemoveXattr { node, name: name.to_owned() })
    }
}

impl Locks for Session {
    tombolo_core::forward!(to self.inner; test);

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

impl Descriptors for Session {
    fn of_opening(&self, file: File) -> Result<OwnedFd> {
        self.inner.descriptors().ok_or(Error::NotSupported)?.of_opening(file)
    }

    fn of_records(&self, file: File, owner: LockOwner) -> Result<Option<OwnedFd>> {
        self.inner.descriptors().ok_or(Error::NotSupported)?.of_records(file, owner)
    }

    fn opening(
        &self,
        cx: &Ctx,
        node: &PersistentHandle,
        descriptor: OwnedFd,
        flags: OpenFlags,
    ) -> Result<(NodeId, OpenId)> {
        let descriptors = self.inner.descriptors().ok_or(Error::NotSupported)?;
        let (node, open) = descriptors.opening(cx, node, descriptor, flags)?;
        self.appending.note(flags, open);
        Ok((node, open))
    }

    fn records(&self, file: File, owner: LockOwner, descriptor: OwnedFd) -> Result<()> {
        self.inner.descriptors().ok_or(Error::NotSupported)?.records(file, owner, descriptor)
    }
}

impl Ranges for Session {
    tombolo_core::forward!(to self.inner; seek copy);

    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        let plain = || within(self.inner.ranges(), |ranges| ranges.allocate(cx, file, offset, len, mode));
        self.once(cx, plain, || call::Allocate { file, offset, len, mode })
    }
}
