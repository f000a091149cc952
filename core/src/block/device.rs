//! The block-device trait.

use std::sync::Arc;

use tombolo_mem::{Sink, Source};

use super::{Extents, Geometry, Range, SizeWatch};
use crate::{Answer, Ctx, Stability};

/// Properties of a disk that never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `true` if every change is refused with [`Error::ReadOnly`](crate::Error::ReadOnly).
    pub read_only: bool,
    /// `true` if [`flush`](BlockDevice::flush) has an effect: `false` if every answered write is durable (or
    /// none ever is: memory).
    pub has_cache: bool,
    /// `true` if [`discard`](BlockDevice::discard) frees space.
    pub discards: bool,
    /// `true` if [`write_zeroes`](BlockDevice::write_zeroes) is faster than writing zeroes.
    pub zeroes_fast: bool,
}

/// Options of a write of zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zeroing {
    /// Permission to free the range's space, so that a later write to it may fail with
    /// [`Error::NoSpace`](crate::Error::NoSpace).
    pub may_unmap: bool,
    /// Fail with [`Error::NotSupported`](crate::Error::NotSupported), before anything is changed, unless
    /// zeroing is faster than writing zeroes.
    pub only_fast: bool,
    /// Required stability when the operation is answered.
    pub stability: Stability,
}

/// A disk. All operations may be called from any thread at any time. The caller has checked ranges against
/// [`geometry`](Self::geometry) ([`Geometry::check`]); a range that nevertheless ends beyond the disk is
/// refused with [`Error::InvalidArgument`](crate::Error::InvalidArgument). An operation that need not wait
/// answers `Done`; one that would block answers `Later`. A `Sink` or `Source` is in use until the answer.
pub trait BlockDevice: Send + Sync {
    /// Returns the disk's fixed properties.
    fn profile(&self) -> Profile;
    /// Returns the current sizes. Does not block.
    fn geometry(&self) -> Geometry;

    /// Fills all of `into` with the disk's bytes from `offset` on; there are no short reads.
    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()>;
    /// Writes all of `from` at `offset`; there are no short writes. [`Stability::DataSync`] and above:
    /// durable when answered (FUA).
    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()>;
    /// Makes all answered writes durable.
    fn flush(&self, cx: &Ctx) -> Answer<()>;
    /// Declares the contents of a range unused. Later reads of it are unspecified; its space may be freed.
    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()>;
    /// Makes a range read as zeroes, by whatever means `how` allows.
    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()>;
    /// Returns the allocation map of a range: at least its first extent, at most `count_max` of them.
    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents>;

    /// Starts the requests that the disk has collected, to start them together. A front end must call this
    /// after each batch of requests, or some of them may wait forever.
    fn submit(&self) {}

    /// Returns the operations that resize the disk; `None` if its size is fixed.
    fn resize(&self) -> Option<&dyn Resize> {
        None
    }
}

/// A disk whose size can change during its life.
pub trait Resize: Send + Sync {
    /// Sets the length, a multiple of the block size. Added space reads as zeroes. Fails with
    /// [`Error::NotSupported`](crate::Error::NotSupported) on a disk whose size is determined elsewhere.
    fn set_size(&self, cx: &Ctx, size_bytes: u64) -> Answer<()>;
    /// Adopts an external change of the underlying storage's size. Returns the current size, in bytes.
    fn follow_size(&self, cx: &Ctx) -> Answer<u64>;
    /// Notifies `watch` of each new size from now on, until its last reference is dropped.
    fn watch(&self, watch: &Arc<SizeWatch>);
}
