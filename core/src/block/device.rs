//! The waist itself.

use std::sync::Arc;

use tombolo_mem::{Sink, Source};

use super::{Extents, Geometry, Range, SizeWatch};
use crate::{Answer, Ctx, Stability};

/// What a disk says of itself. It does not change during its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// True when every change is refused with [`Error::ReadOnly`](crate::Error::ReadOnly).
    pub read_only: bool,
    /// Whether [`flush`](BlockDevice::flush) does anything: false when all that is answered is durable (or
    /// nothing ever is: memory).
    pub has_cache: bool,
    /// Whether [`discard`](BlockDevice::discard) gives room back.
    pub discards: bool,
    /// Whether [`write_zeroes`](BlockDevice::write_zeroes) is quicker than a write of zeroes.
    pub zeroes_fast: bool,
}

/// How to write zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zeroing {
    /// The room may be given back.
    pub may_unmap: bool,
    /// Refuse with [`Error::NotSupported`](crate::Error::NotSupported), before anything is changed, if it is
    /// no quicker than a write.
    pub only_fast: bool,
    /// How stable the zeroes must be when it is answered.
    pub stability: Stability,
}

/// A disk. All operations may be called from any thread at any time. Ranges have been checked against
/// [`geometry`](Self::geometry) ([`Geometry::check`]); one that ends beyond the disk all the same is refused
/// with [`Error::InvalidArgument`](crate::Error::InvalidArgument). One that can answer without waiting does
/// so (`Done`); one that would block answers `Later`. A `Sink` or `Source` is in use until the answer is
/// there.
pub trait BlockDevice: Send + Sync {
    /// What this disk says of itself.
    fn profile(&self) -> Profile;
    /// Its present sizes. Does not wait.
    fn geometry(&self) -> Geometry;

    /// Fills `into` from the disk's bytes at `offset`, all of it.
    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()>;
    /// Writes all of `from` at `offset`. [`Stability::DataSync`] and more: durable when it is answered (FUA).
    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()>;
    /// Makes durable all that was answered before.
    fn flush(&self, cx: &Ctx) -> Answer<()>;
    /// The range's bytes are not needed any more; what reading them gives is not said. Room may be given
    /// back.
    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()>;
    /// The range reads as zeroes.
    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()>;
    /// What lies where in the range: at least the first extent, at most `count_max` of them.
    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents>;

    /// No more requests follow at once: what was gathered to be handed over together is handed over now. A
    /// front end calls it after each batch of requests; one that forgets may wait for ever.
    fn submit(&self) {}

    /// Changing its size, where that is possible.
    fn resize(&self) -> Option<&dyn Resize> {
        None
    }
}

/// A disk whose size can change during its life.
pub trait Resize: Send + Sync {
    /// Makes it so long; a multiple of the block size. What is new reads as zeroes. One whose size others
    /// determine refuses it with [`Error::NotSupported`](crate::Error::NotSupported).
    fn set_size(&self, cx: &Ctx, size_bytes: u64) -> Answer<()>;
    /// Takes in that others have changed the size of what the disk lies in. The size now, in bytes.
    fn follow_size(&self, cx: &Ctx) -> Answer<u64>;
    /// From now on `watch` is told each new size, as long as it lives.
    fn watch(&self, watch: &Arc<SizeWatch>);
}
