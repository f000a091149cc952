//! A base with another block size.

use std::sync::Arc;

use tombolo_core::block::{BlockDevice, Geometry};

/// A disk with blocks of this length.
pub struct InBlocks(pub Arc<dyn BlockDevice>, pub u32);

impl BlockDevice for InBlocks {
    tombolo_core::forward_disk!(to self.0; profile read write flush discard write_zeroes extents);

    fn geometry(&self) -> Geometry {
        Geometry::of_file(1 << 20).in_blocks(self.1).expect("a block size")
    }
}
