//! Data of files: written, and stable at the origin before anything relies on them.

use tombolo_core::fs::{SetAttr, SyncWhat, Write};
use tombolo_core::{Error, Result, Stability};
use tombolo_mem::{Buffer, Source};

use super::nodes::OpenBelow;
use super::plan::Chosen;
use super::round::Round;
use crate::tree::Piece;

/// So much is read from the local disk and written at a time, in bytes.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// A file with no more data than this is written as stable, in bytes.
const STABLE_BYTES_MAX: u64 = 64 << 10;

impl Round {
    /// Gives a file below the size and the data that it has here.
    pub(super) async fn send_data(&self, chosen: &Chosen, open: &OpenBelow) -> Result<()> {
        let pieces = chosen.pieces();
        let mut end = open.attr.size;
        // What lies beyond was cut off here, though it may have become longer again. Only where something of it would show: what is
        // written over is never seen shorter there than it was or is to be, above all where this is done again.
        let cut = chosen.layers.iter().map(|layer| layer.below_len).min().unwrap_or(u64::MAX);
        if end > cut && pieces.iter().any(|piece| matches!(piece, Piece::Zeros(zeros) if zeros.start < end)) {
            self.set_size(open, cut).await?;
            end = cut;
        }
        let stability = match pieces.as_slice() {
            // One call makes it stable, not two.
            [Piece::Here(_, range)] if range.end - range.start <= STABLE_BYTES_MAX => Stability::FileSync,
            _ => Stability::Unstable,
        };
        for piece in pieces {
            let Piece::Here(file, range) = piece else { continue };
            let mut start = range.start;
            while start < range.end {
                let len = CHUNK_BYTES.min(range.end - start) as usize;
                let (buffer, file) = (Buffer::new(len), file.clone());
                let (sink, at) = (buffer.sink(0..len), start);
                self.shared.in_pool(move || file.read(at, sink)).await?;
                self.write(open, start, buffer.source(0..len), stability).await?;
                start += len as u64;
            }
            end = end.max(range.end);
        }
        if end != chosen.attr.size {
            self.set_size(open, chosen.attr.size).await?;
        }
        // COMMIT: where the origin has lost what it had taken, with another verifier, it is sent again or this fails.
        self.shared.below.fsync(&open.cx, open.file, SyncWhat::All).resolve().await
    }

    async fn write(
        &self,
        open: &OpenBelow,
        mut offset: u64,
        mut from: Source,
        stability: Stability,
    ) -> Result<()> {
        while !from.is_empty() {
            let how = Write { offset, stability, retainable: true, ..Write::default() };
            let written = self.shared.below.write(&open.cx, open.file, &how, from.clone()).resolve().await?;
            if written.count == 0 {
                return Err(Error::NoSpace);
            }
            from.advance(written.count);
            offset += written.count as u64;
        }
        Ok(())
    }

    async fn set_size(&self, open: &OpenBelow, size: u64) -> Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let fs = &self.shared.below;
        fs.setattr(&open.cx, open.file.node, Some(open.file), &set).resolve().await.map(drop)
    }
}
