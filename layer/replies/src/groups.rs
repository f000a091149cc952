//! The waist's optional groups that concern this layer: extended attributes, locks and ranges have operations
//! that must not run twice; descriptors create openings, which are registered if they append.

use std::os::fd::OwnedFd;

use tombolo_core::fs::{
    AllocateMode, Descriptors, File, FileSystem, Lock, LockFamily, LockOwner, LockRange, Locks, NodeId, Op,
    OpenFlags, OpenId, PersistentHandle, Ranges, XattrName, XattrSet, Xattrs, within,
};
use tombolo_core::{Answer, Ctx, Error, Result};

use super::call::WithoutResult;
use super::intent::{ExpectedEffect, ValueMark, XattrChange};
use super::key::EntryKey;
use super::session::Session;

impl Session {
    /// Performs an operation without a result exactly once. Its outcome is kept in memory only, because the
    /// operation is idempotent or has no effect after the process.
    fn fleeting(
        &self,
        cx: &Ctx,
        op: Op,
        is_cancellable: bool,
        run: impl FnOnce(&dyn FileSystem, &Ctx) -> Answer<()> + Send + 'static,
    ) -> Answer<()> {
        match EntryKey::of(cx, op) {
            None => run(&*self.inner, cx),
            Some(key) => self.perform_once(cx, key, WithoutResult { effect: None, is_cancellable, run }),
        }
    }

    fn descriptors_below(&self) -> Result<&dyn Descriptors> {
        self.inner.descriptors().ok_or(Error::NotSupported)
    }
}

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
        self.once(cx, Op::Setxattr, plain, || {
            let (name, value) = (name.to_owned(), Box::<[u8]>::from(value));
            let change = match how {
                // Unconditional setting is idempotent.
                XattrSet::Any => None,
                XattrSet::Create => Some(XattrChange::Make(ValueMark::of(&value))),
                XattrSet::Replace => Some(XattrChange::Replace(ValueMark::of(&value))),
            };
            let effect = change.map(|change| ExpectedEffect::Xattr { node, name: name.clone(), change });
            let run = move |fs: &dyn FileSystem, cx: &Ctx| {
                let name = name.as_name();
                within(fs.xattrs(), |xattrs| xattrs.set(cx, node, name, &value, how, kill_set_gid))
            };
            WithoutResult { effect, is_cancellable: false, run }
        })
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        let plain = || within(self.inner.xattrs(), |xattrs| xattrs.remove(cx, node, name));
        self.once(cx, Op::Removexattr, plain, || {
            let (name, change) = (name.to_owned(), XattrChange::Remove);
            let effect = Some(ExpectedEffect::Xattr { node, name: name.clone(), change });
            let run = move |fs: &dyn FileSystem, cx: &Ctx| {
                within(fs.xattrs(), |xattrs| xattrs.remove(cx, node, name.as_name()))
            };
            WithoutResult { effect, is_cancellable: false, run }
        })
    }
}

impl Locks for Session {
    tombolo_core::forward!(to self.inner; test);

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let lock = *lock;
        self.fleeting(cx, Op::Lock, wait, move |fs, cx| {
            within(fs.locks(), |locks| locks.lock(cx, file, &lock, wait))
        })
    }

    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        self.fleeting(cx, Op::Unlock, false, move |fs, cx| {
            within(fs.locks(), |locks| locks.unlock(cx, file, family, range, owner))
        })
    }
}

impl Descriptors for Session {
    fn of_opening(&self, file: File) -> Result<OwnedFd> {
        self.descriptors_below()?.of_opening(file)
    }

    fn of_records(&self, file: File, owner: LockOwner) -> Result<Option<OwnedFd>> {
        self.descriptors_below()?.of_records(file, owner)
    }

    fn opening(
        &self,
        cx: &Ctx,
        node: &PersistentHandle,
        descriptor: OwnedFd,
        flags: OpenFlags,
    ) -> Result<(NodeId, OpenId)> {
        let (node, open) = self.descriptors_below()?.opening(cx, node, descriptor, flags)?;
        self.appending.note(flags, open);
        Ok((node, open))
    }

    fn records(&self, file: File, owner: LockOwner, descriptor: OwnedFd) -> Result<()> {
        self.descriptors_below()?.records(file, owner, descriptor)
    }
}

impl Ranges for Session {
    tombolo_core::forward!(to self.inner; seek copy);

    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        self.fleeting(cx, Op::Allocate, false, move |fs, cx| {
            within(fs.ranges(), |ranges| ranges.allocate(cx, file, offset, len, mode))
        })
    }
}
