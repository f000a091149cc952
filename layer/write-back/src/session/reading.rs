//! Reads: locally written data from the local disk, other data from the cache (`below`).

use tombolo_core::fs::{File, FileType, OpenFlags, ReadDone};
use tombolo_core::{Error, Result};
use tombolo_mem::Sink;

use super::{Opening, View};
use crate::tree::Piece;

impl View {
    pub(super) async fn read(self, file: File, offset: u64, mut into: Sink) -> Result<ReadDone> {
        let opening = self.session.opening(file)?;
        if !opening.flags.intersects(OpenFlags::READ | OpenFlags::EXECUTE) {
            return Err(Error::BadOpen);
        }
        if self.attr(opening.node).await?.file_type == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        let here = {
            let tree = self.shared().tree();
            let node = tree.nodes.get(&opening.node);
            let node = node.filter(|node| !node.layers.is_empty() || node.below.is_none());
            node.map(|node| {
                let end = offset.saturating_add(into.len() as u64);
                (node.pieces(offset..end), node.attr.size)
            })
        };
        let Some((pieces, size)) = here else {
            let below = self.opened_below(&opening).await?;
            return self.shared().below.read(&self.below_cx(), below, offset, into).resolve().await;
        };
        let count = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        into.truncate(count);
        for piece in pieces {
            let part = |range: &std::ops::Range<u64>| (range.end - range.start) as usize;
            match piece {
                Piece::Zeros(range) => {
                    into.zero(0, part(&range));
                    into.advance(part(&range));
                }
                Piece::Here(file, range) => {
                    let mut sink = into.clone();
                    sink.truncate(part(&range));
                    if !file.read_at_once(range.start, &sink)? {
                        self.shared().in_pool(move || file.read(range.start, sink)).await?;
                    }
                    into.advance((range.end - range.start) as usize);
                }
                Piece::Below(range) => {
                    let mut sink = into.clone();
                    sink.truncate(part(&range));
                    self.read_below(&opening, range.start, sink).await?;
                    into.advance(part(&range));
                }
            }
        }
        Ok(ReadDone { count, eof: offset.saturating_add(count as u64) >= size })
    }

    /// Fills `into` from the cache, with zeroes beyond the end of the file there.
    async fn read_below(&self, opening: &Opening, mut offset: u64, mut into: Sink) -> Result<()> {
        let below = self.opened_below(opening).await?;
        while !into.is_empty() {
            let fs = &self.shared().below;
            let done = fs.read(&self.below_cx(), below, offset, into.clone()).resolve().await?;
            into.advance(done.count);
            offset += done.count as u64;
            if done.eof || done.count == 0 {
                into.zero(0, into.len());
                break;
            }
        }
        Ok(())
    }
}
