//! A base with another block size.

use std::sync::Arc;

use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::{BlockDevice, Extents, Geometry, Profile, Range, Zeroing};
use tombolo_core::{Answer, Ctx, Stability};
use tombolo_mem::{Sink, Source};

/// A disk with blocks of this length.
pub struct InBlocks(pub Arc<MemoryDisk>, pub u32);

impl BlockDevice for InBlocks {
    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn geometry(&self) -> Geometry {
        Geometry::of_file(1 << 20).in_blocks(self.1).expect("a block size")
    }

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.0.read(cx, offset, into)
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.0.write(cx, offset, stability, from)
    }

    fn flush(&self, cx: &Ctx) -> Answer<()> {
        self.0.flush(cx)
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.0.discard(cx, range)
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.0.write_zeroes(cx, range, how)
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.0.extents(cx, range, count_max)
    }
}
