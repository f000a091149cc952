//! Layers that treat all operations alike: one function around any of them.

mod disk;

use std::sync::Arc;

use tombolo_core::fs::{
    AccessMask, Attr, Change, Client, Created, DirPage, Entry, Export, File, FileSystem, Lock, Locks, Made,
    NodeId, Op, OpenFlags, Opened, PersistentHandle, PersistentHandles, Profile, Ranges, ReadDone, Renamed,
    StatFs, Write, Written, Xattrs,
};
use tombolo_core::{Answer, Ctx, Result};
use tombolo_mem::{Sink, Source};

pub use disk::LayeredDisk;

/// The behaviour of a layer, applied to every operation.
pub trait Around: Send + Sync + 'static {
    /// Performs the operation `inner`, or refuses it. Called once for each operation of [`Op`] that has an
    /// answer.
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T>;

    /// Performs an operation without an answer (`forget`, `release`).
    #[inline]
    fn unanswered(&self, _op: Op, inner: impl FnOnce()) {
        inner();
    }

    /// Returns the maximum number of bytes that a read or write of `len_bytes` may transfer.
    #[inline]
    fn transfer_limit(&self, _op: Op, len_bytes: usize) -> usize {
        len_bytes
    }

    /// Returns the file system's profile, as changed by the layer.
    fn profile(&self, inner: Profile) -> Profile {
        inner
    }
}

/// A call of an operation, as a layer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// `true` if the call changes the file system, or asks for write access.
    pub mutates: bool,
}

impl Call {
    /// Creates a call of an operation of which the arguments do not decide whether it is a change.
    #[inline]
    pub const fn of(op: Op) -> Self {
        Self { op, mutates: op.mutates() }
    }
}

/// A successful result of any operation.
pub trait Payload: Send + 'static {
    /// Returns the length of the file data transferred, in bytes.
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

/// A waist with a layer around it: an [`Export`] over an export, or a session's [`FileSystem`] over another
/// one.
pub struct Layered<I: ?Sized, A> {
    around: Arc<A>,
    inner: Arc<I>,
}

impl<A: Around> Layered<dyn Export, A> {
    /// Wraps all sessions of `inner` in `around`.
    pub fn new(inner: Arc<dyn Export>, around: Arc<A>) -> Self {
        Self { around, inner }
    }
}

impl<A: Around> Export for Layered<dyn Export, A> {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Layered { around: self.around.clone(), inner: self.inner.attach(client)? }))
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

    tombolo_core::forward!(offer self.inner; xattrs locks persistent_handles ranges);

    // These groups are passed on without the layer's behaviour: a request for notices of changes, for
    // example, is pending until there is one.
    tombolo_core::forward!(to self.inner;
        is_prompt changes versions backing_files descriptors digests packing lending
    );
}

impl<A: Around> Xattrs for Layered<dyn FileSystem, A> {
    tombolo_core::forward!(through self.call; get set list remove);
}

impl<A: Around> Locks for Layered<dyn FileSystem, A> {
    tombolo_core::forward!(through self.call; test lock unlock);
}

impl<A: Around> PersistentHandles for Layered<dyn FileSystem, A> {
    tombolo_core::forward!(to self.inner; volume record recall);
    tombolo_core::forward!(through self.call; handle_of resolve parent node_by_number);
}

impl<A: Around> Ranges for Layered<dyn FileSystem, A> {
    tombolo_core::forward!(through self.call; allocate seek copy);
}
