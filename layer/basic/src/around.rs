//! Layers that treat all operations alike: one function around any of them.

use std::sync::Arc;

use tombolo_core::fs::{
    AccessMask, AllocateMode, Attr, BackingFiles, Change, Changes, Client, Created, DirPage, Entry, Export,
    File, FileSystem, Lock, LockFamily, LockOwner, LockRange, Locks, Made, NodeId, Op, OpenFlags, Opened,
    PersistentHandle, PersistentHandles, Profile, Ranges, ReadDone, Renamed, StatFs, Versions, Volume,
    Whence, Write, Written, XattrName, XattrSet, Xattrs,
};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_mem::{Sink, Source};

/// What a layer does around every operation.
pub trait Around: Send + Sync + 'static {
    /// Performs `inner`, or refuses it. Called once for each operation that is answered.
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T>;

    /// Performs an operation that is not answered (`forget`, `release`).
    #[inline]
    fn unanswered(&self, _op: Op, inner: impl FnOnce()) {
        inner();
    }

    /// How much of a transfer of `len_bytes` is passed on.
    #[inline]
    fn transfer_limit(&self, _op: Op, len_bytes: usize) -> usize {
        len_bytes
    }

    /// What the file system says of itself, seen through the layer.
    fn profile(&self, inner: Profile) -> Profile {
        inner
    }
}

/// One call of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Which operation.
    pub op: Op,
    /// Whether this call changes the file system, or asks for the right to.
    pub mutates: bool,
}

impl Call {
    /// A call whose arguments do not matter.
    #[inline]
    pub const fn of(op: Op) -> Self {
        Self { op, mutates: op.mutates() }
    }
}

/// What operations answer with.
pub trait Payload: Send + 'static {
    /// The file data that it stands for, in bytes.
    #[inline]
    fn transferred_bytes(&self) -> u64 {
        0
    }
}

impl Payload for ReadDone {
    #[inline]
    fn transferred_bytes(&self) -> u64 {
        self.count as u64
    }
}

impl Payload for Written {
    #[inline]
    fn transferred_bytes(&self) -> u64 {
        self.count as u64
    }
}

macro_rules! carries_no_file_data {
    ($($answer:ty),+ $(,)?) => { $(impl Payload for $answer {})+ };
}

carries_no_file_data!(
    (),
    u64,
    Vec<u8>,
    Attr,
    (Attr, Change),
    Change,
    Created,
    DirPage,
    Entry,
    Made,
    Opened,
    Option<Lock>,
    PersistentHandle,
    Renamed,
    StatFs,
);

/// A waist with a layer around it: an [`Export`] over an export, or one session's [`FileSystem`] over another.
pub struct Layered<I: ?Sized, A> {
    around: Arc<A>,
    inner: Arc<I>,
}

impl<A: Around> Layered<dyn Export, A> {
    /// Puts `around` over all sessions of `inner`.
    pub fn new(inner: Arc<dyn Export>, around: Arc<A>) -> Self {
        Self { around, inner }
    }
}

impl<A: Around> Layered<dyn FileSystem, A> {
    /// Puts `around` over one session.
    pub fn over_session(inner: Arc<dyn FileSystem>, around: Arc<A>) -> Self {
        Self { around, inner }
    }
}

impl<A: Around> Export for Layered<dyn Export, A> {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let inner = self.inner.attach(client)?;
        Ok(Arc::new(Layered::over_session(inner, self.around.clone())))
    }
}

impl<A: Around> Layered<dyn FileSystem, A> {
    #[inline]
    fn call<T: Payload>(&self, op: Op, call: impl FnOnce(&dyn FileSystem) -> Answer<T>) -> Answer<T> {
        self.around.around(Call::of(op), || call(&*self.inner))
    }
}

impl<A: Around> FileSystem for Layered<dyn FileSystem, A> {
    tombolo_core::forward!(through self.call;
        lookup getattr setattr readlink create create_unnamed mkdir symlink mknod link unlink rmdir
        rename flush fsync readdir statfs syncfs
    );

    fn profile(&self) -> Profile {
        self.around.profile(self.inner.profile())
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.around.unanswered(Op::Forget, || self.inner.forget(cx, look_ups));
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        let call = Call { op: Op::Access, mutates: mask.contains(AccessMask::WRITE) };
        self.around.around(call, || self.inner.access(cx, node, mask))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let mutates = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        self.around.around(Call { op: Op::Open, mutates }, || self.inner.open(cx, node, flags))
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.around.unanswered(Op::Release, || self.inner.release(cx, file));
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

    // Not a call to be counted, delayed or refused: it pends until something happens.
    fn changes(&self) -> Option<&dyn Changes> {
        self.inner.changes()
    }

    fn versions(&self) -> Option<&dyn Versions> {
        self.inner.versions()
    }

    fn backing_files(&self) -> Option<&dyn BackingFiles> {
        self.inner.backing_files()
    }
}

impl<A: Around> Layered<dyn FileSystem, A> {
    /// An operation of an optional group. Each group is offered only when the layer below has it; asked for all the same, it is not supported.
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
