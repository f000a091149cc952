//! Layers around a disk. The disk's operations are treated like the most similar ones of a file: `read`,
//! `write`, `flush`; `allocate` for discards and zeroes, `seek` for extents, `setattr` for a new size,
//! `getattr` for following the size.

use std::sync::Arc;

use tombolo_core::block::{BlockDevice, Extents, Resize, SizeWatch};
use tombolo_core::fs::{Op, within};
use tombolo_core::{Answer, Ctx};

use super::{Around, Call, Payload};

impl Payload for Extents {}

/// A disk with a layer around it. Disk transfers are indivisible, so [`Around::transfer_limit`] is ignored.
pub struct LayeredDisk<A> {
    around: Arc<A>,
    inner: Arc<dyn BlockDevice>,
}

impl<A: Around> LayeredDisk<A> {
    /// Wraps `inner` in `around`.
    pub fn new(inner: Arc<dyn BlockDevice>, around: Arc<A>) -> Self {
        Self { around, inner }
    }

    #[inline]
    fn call<T: Payload>(&self, op: Op, call: impl FnOnce(&dyn BlockDevice) -> Answer<T>) -> Answer<T> {
        self.around.around(Call::of(op), || call(&*self.inner))
    }
}

impl<A: Around> BlockDevice for LayeredDisk<A> {
    tombolo_core::forward_disk!(to self.inner; profile geometry submit);
    tombolo_core::forward_disk!(through self.call; read write flush discard write_zeroes extents);

    fn resize(&self) -> Option<&dyn Resize> {
        self.inner.resize().map(|_| self as &dyn Resize)
    }
}

impl<A: Around> Resize for LayeredDisk<A> {
    fn set_size(&self, cx: &Ctx, size_bytes: u64) -> Answer<()> {
        self.call(Op::Setattr, |inner| within(inner.resize(), |resize| resize.set_size(cx, size_bytes)))
    }

    fn follow_size(&self, cx: &Ctx) -> Answer<u64> {
        self.call(Op::Getattr, |inner| within(inner.resize(), |resize| resize.follow_size(cx)))
    }

    fn watch(&self, watch: &Arc<SizeWatch>) {
        if let Some(resize) = self.inner.resize() {
            resize.watch(watch);
        }
    }
}
