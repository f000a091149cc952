//! Merging several redo logs into one.

use std::sync::Arc;

use tombolo_core::block::BlockDevice;
use tombolo_core::{Ctx, Result, Stability};
use tombolo_mem::Buffer;

use crate::Overlay;
use crate::layout::BLOCK_BYTES;
use crate::redo_log::RedoLog;
use crate::states::BlockState;

/// Maximum length of one copy, in bytes.
const PIECE_BYTES: u64 = 1 << 20;

impl Overlay {
    /// Merges `layers`, a chain of overlays from the top down, into the empty overlay `into`. `into` has the
    /// size of the uppermost and the base of the lowest; afterwards it reads as the uppermost does, and is
    /// not durable yet. None of the layers may be written meanwhile. `done` is called with the progress, in
    /// bytes of the disk.
    pub async fn merge(cx: &Ctx, layers: &[Arc<Self>], into: &Self, done: impl Fn(u64)) -> Result<()> {
        let Some(top) = layers.first() else { return Ok(()) };
        let end = top.0.size_bytes.div_ceil(BLOCK_BYTES);
        let mut block = 0;
        while block < end {
            let (state, run_end) = state_in_chain(layers, block, end);
            match state {
                BlockState::Base => {}
                BlockState::Zero => into.0.states.set(block..run_end, BlockState::Zero),
                BlockState::Log => copy(cx, &top.0, block..run_end, into, &done).await?,
            }
            block = run_end;
            done(top.0.size_bytes.min(block * BLOCK_BYTES));
        }
        Ok(())
    }
}

/// Returns the state of a block of the merged overlay, and the end of the blocks from it on with the same
/// state, at most `end`. `Log` means that the block must be copied.
fn state_in_chain(layers: &[Arc<Overlay>], block: u64, mut end: u64) -> (BlockState, u64) {
    let mut above_bytes = None;
    for layer in layers {
        let RedoLog { states, size_bytes, .. } = &*layer.0;
        let blocks = size_bytes.div_ceil(BLOCK_BYTES);
        // Beyond the end of a shorter overlay below it, an overlay reads as zeroes, whatever is further down.
        if block >= blocks {
            return (BlockState::Zero, end);
        }
        let is_cut = above_bytes.is_some_and(|above| *size_bytes < above);
        let whole = if is_cut { size_bytes / BLOCK_BYTES } else { blocks };
        let (state, run_end) = states.run(block, end.min(blocks));
        match state {
            BlockState::Base if block >= whole => return (BlockState::Log, blocks),
            BlockState::Base => end = run_end.min(whole),
            _ => return (state, run_end),
        }
        above_bytes = Some(*size_bytes);
    }
    (BlockState::Base, end)
}

async fn copy(
    cx: &Ctx,
    top: &Arc<RedoLog>,
    blocks: std::ops::Range<u64>,
    into: &Overlay,
    done: &impl Fn(u64),
) -> Result<()> {
    let end = top.size_bytes.min(blocks.end * BLOCK_BYTES);
    let mut offset = blocks.start * BLOCK_BYTES;
    while offset < end {
        let len = (end - offset).min(PIECE_BYTES) as usize;
        let buffer = Buffer::new(len);
        let read = top.read(cx, offset, buffer.sink(0..len));
        top.base.submit();
        top.log.submit();
        read.resolve().await?;
        let written = into.0.write(cx, offset, Stability::Unstable, buffer.source(0..len));
        into.submit();
        written.resolve().await?;
        offset += len as u64;
        done(offset);
    }
    Ok(())
}
