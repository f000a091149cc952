//! Layers that treat all operations alike: one function around any of them.

mod file_system;
mod groups;

use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Change, Client, Created, DirPage, Entry, Export, FileSystem, Lock, Made, Opened, PersistentHandle,
    Profile, ReadDone, Renamed, StatFs, Written,
};
use tombolo_core::{Answer, Result};

use tombolo_core::fs::Op;

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
