//! Compression of what goes far (`docs/protocols/side.md`), in a pool.

use tombolo_core::{Ctx, Error, Result};
use tombolo_host_runtime::thread_pool::Lane;
use tombolo_mem::Source;

/// The fastest level that has all of the format's means: half a gigabyte a second or so, far more than the lines have that it is for.
const LEVEL: i32 = 1;

/// What compresses.
pub(crate) struct Packer {
    lane: Lane,
}

impl Packer {
    pub(crate) fn new(lane: Lane) -> Self {
        Self { lane }
    }

    /// One frame of all these data.
    pub(crate) async fn pack(&self, cx: &Ctx, data: Source) -> Result<Vec<u8>> {
        let packed = self.lane.run(cx, move || {
            let mut bytes = vec![0; data.len()];
            let count = data.read_at(0, &mut bytes);
            zstd::bulk::compress(&bytes[..count], LEVEL).map_err(Error::io)
        });
        packed.resolve().await
    }
}
