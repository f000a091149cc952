//! Compressed writes to a distant server of this product, by UNPACK (`docs/protocols/side.md`); all other
//! writes use WRITE. `server.rs` requests a compressed frame for each WRITE that it sends.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tombolo_core::fs::{COMPRESSED_BYTES_MAX, COMPRESSED_RTT_MIN};
use tombolo_mem::Source;

use super::Session;

/// Compression level of zstd: the fastest of its regular ones.
const LEVEL: i32 = 1;

/// Minimum size to compress, in bytes; smaller writes hardly load the network.
const BYTES_MIN: usize = 4 << 10;

/// Compressed size in per cent above which compression has not paid off, and the number of writes sent
/// uncompressed after that.
const DENSE_PERCENT: usize = 90;
const NOT_TRIED: u32 = 15;

/// Selection of writes to compress.
#[derive(Debug, Default)]
pub(super) struct PackedWrites {
    /// Number of writes still to be sent uncompressed; `u32::MAX` for all.
    not_tried: AtomicU32,
}

impl PackedWrites {
    /// Compresses the data. Returns `None` if the server is not known to be distant or lacks the side
    /// program, the size is unsuitable, or these or recent data are hardly compressible.
    pub(super) fn frame(&self, session: &Session, data: &Source) -> Option<Source> {
        let is_fit = (BYTES_MIN..=COMPRESSED_BYTES_MAX as usize).contains(&data.len());
        let is_far = || session.nfs.rpc().round_trip_min().is_some_and(|time| time >= COMPRESSED_RTT_MIN);
        if !is_fit || !session.has_side_program.load(Relaxed) || !is_far() || self.is_not_tried() {
            return None;
        }
        let mut bytes = vec![0; data.len()];
        data.read_at(0, &mut bytes);
        let mut frame = zstd::bulk::compress(&bytes, LEVEL).ok()?;
        if frame.len() * 100 > bytes.len() * DENSE_PERCENT {
            let _ = self.not_tried.compare_exchange(0, NOT_TRIED, Relaxed, Relaxed);
            return None;
        }
        // The frame is retained until the reply.
        frame.shrink_to_fit();
        Some(frame.into())
    }

    /// Stops compression, which the server does not support.
    pub(super) fn give_up(&self) {
        self.not_tried.store(u32::MAX, Relaxed);
    }

    fn is_not_tried(&self) -> bool {
        let one_less = |left: u32| if left == u32::MAX { Some(left) } else { left.checked_sub(1) };
        self.not_tried.fetch_update(Relaxed, Relaxed, one_less).is_ok()
    }
}
