//! Compression for slow connections (`docs/protocols/side.md`), in a pool.

use tombolo_core::{Ctx, Error, Result};
use tombolo_host_runtime::thread_pool::Lane;
use tombolo_mem::{Sink, Source};

/// Compression level: the fastest with all features of the format. At about 0.5 GB/s it is much faster than
/// the slow connections that need it.
const LEVEL: i32 = 1;

/// Compressor and decompressor of zstd frames.
pub(crate) struct Packer {
    lane: Lane,
}

impl Packer {
    pub(crate) fn new(lane: Lane) -> Self {
        Self { lane }
    }

    /// Compresses the data into one frame.
    pub(crate) async fn pack(&self, cx: &Ctx, data: Source) -> Result<Vec<u8>> {
        let packed = self.lane.run(cx, move || {
            let mut bytes = vec![0; data.len()];
            let count = data.read_at(0, &mut bytes);
            zstd::bulk::compress(&bytes[..count], LEVEL).map_err(Error::io)
        });
        packed.resolve().await
    }

    /// Decompresses a frame into `into`. Returns `false` unless its data has exactly the length of `into`.
    pub(crate) async fn unpack(&self, cx: &Ctx, frame: Source, into: Sink) -> Result<bool> {
        let unpacked = self.lane.run(cx, move || {
            let (mut bytes, mut data) = (vec![0; frame.len()], vec![0; into.len()]);
            let frame_bytes = frame.read_at(0, &mut bytes);
            let count = zstd::bulk::decompress_to_buffer(&bytes[..frame_bytes], &mut data);
            Ok(count.is_ok_and(|count| count == into.len()) && into.write_at(0, &data) == data.len())
        });
        unpacked.resolve().await
    }
}
