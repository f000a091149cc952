//! Sending of files' data, which are stable at the origin before attributes and names follow.

use std::ops::Range;
use std::sync::Arc;

use tombolo_core::fs::{SetAttr, SyncScope, WeakAttr, Write, within};
use tombolo_core::{Error, Identity, Result, Stability};
use tombolo_mem::{Buffer, Source};

use super::nodes::{OpenBelow, is_same_data};
use super::plan::Chosen;
use super::round::Round;
use crate::data_file::DataFile;
use crate::tree::{LAYERS_MAX, Piece};

/// Length of a transfer from the local disk to the origin, in bytes.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// Maximum length of a file's only unsent range to be written as stable, without a COMMIT, in bytes.
const STABLE_BYTES_MAX: u64 = 64 << 10;

impl Round {
    /// Writes the local data of a file to the origin, sets its size, and makes the data stable.
    pub(super) async fn send_data(&self, chosen: &Chosen, open: &OpenBelow) -> Result<()> {
        let pieces = chosen.pieces();
        let mut end = open.attr.size;
        // Data beyond `cut` were truncated locally, even if the file has grown again since. The origin is
        // truncated first only if such data would otherwise be read in place of zeroes: a file being
        // overwritten should not be shorter there meanwhile than the shorter of its old and its new version.
        let cut = chosen.layers.iter().map(|layer| layer.below_len).min().unwrap_or(u64::MAX);
        if end > cut && pieces.iter().any(|piece| matches!(piece, Piece::Zeros(zeros) if zeros.start < end)) {
            self.set_size(open, cut).await?;
            end = cut;
        }
        let stability = match pieces.as_slice() {
            // One stable WRITE replaces a WRITE and a COMMIT.
            [Piece::Here(_, range)] if range.end - range.start <= STABLE_BYTES_MAX => Stability::FileSync,
            _ => Stability::Unstable,
        };
        for piece in pieces {
            let Piece::Here(file, range) = piece else { continue };
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min(start + CHUNK_BYTES);
                let source = self.read_here(&file, start..end).await?;
                self.write(open, start, source, stability).await?;
                start = end;
            }
            end = end.max(range.end);
        }
        if end != chosen.attr.size {
            self.set_size(open, chosen.attr.size).await?;
        }
        // COMMIT (RFC 1813 §3.3.21): data that the origin has lost, by its write verifier, are sent again.
        self.shared.below.fsync(&open.cx, open.file, SyncScope::All).resolve().await
    }

    /// Offers sent data to the cache below, so that they are not read back from the origin.
    pub(super) fn offer_data(self: &Arc<Self>) {
        if self.shared.below.data_cache().is_none() {
            return;
        }
        // With `LAYERS_MAX` layers, the top one may have been written to since.
        let is_unchanged = |chosen: &&Arc<Chosen>| (1..LAYERS_MAX).contains(&chosen.layers.len());
        for chosen in self.plan.files().filter(is_unchanged) {
            // With another size or modification time, another writer has written the file since.
            let is_ours = |version: &WeakAttr| is_same_data(version, &chosen.attr) && !self.is_over();
            let Some(version) = self.version_of(chosen.id).filter(is_ours) else { continue };
            let (round, chosen) = (self.clone(), chosen.clone());
            self.window.start(async move {
                // Without the cached copy, the data are read from the origin.
                if let Err(error) = round.offer(&chosen, &version).await {
                    tracing::debug!(node = chosen.id.0, %error, "cannot cache the sent data");
                }
            });
        }
        self.window.wait();
    }

    async fn offer(&self, chosen: &Chosen, version: &WeakAttr) -> Result<()> {
        let (below, cx) = (self.below(chosen.id)?, self.cx(Identity::ROOT));
        for piece in chosen.pieces() {
            let Piece::Here(file, range) = piece else { continue };
            let mut start = range.start;
            while start < range.end {
                // The end is aligned, so that no block of the cache is split.
                let end = range.end.min((start / CHUNK_BYTES + 1) * CHUNK_BYTES);
                let source = self.read_here(&file, start..end).await?;
                within(self.shared.below.data_cache(), |kept| kept.offer(&cx, below, version, start, source))
                    .resolve()
                    .await?;
                start = end;
            }
        }
        Ok(())
    }

    async fn read_here(&self, file: &Arc<DataFile>, range: Range<u64>) -> Result<Source> {
        let len = (range.end - range.start) as usize;
        let (buffer, file) = (Buffer::new(len), file.clone());
        let sink = buffer.sink(0..len);
        self.shared.in_pool(move || file.read(range.start, sink)).await?;
        Ok(buffer.source(0..len))
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
