//! Writes, zeroes and discards. The first write to a block stores the whole block, under a lock.

use std::ops;
use std::sync::{Arc, LazyLock};

use async_lock::MutexGuard;
use tombolo_core::block::{Range, Zeroing};
use tombolo_core::{Answer, Ctx, Error, Result, Stability};
use tombolo_host_runtime::to_its_end;
use tombolo_mem::{Buffer, Region, Source};

use crate::disk::all;
use crate::layout::{BLOCK_BYTES, SEGMENT_BYTES, data_at};
use crate::redo_log::{LOCKS, Location, RedoLog};
use crate::states::BlockState;

/// A block of zeroes shared by all overlays; never written.
static ZEROES: LazyLock<Region> = LazyLock::new(|| Region::heap(BLOCK_BYTES as usize));

fn zeroes(len: usize) -> Source {
    let mut source = Source::new();
    // `len` is always less than a block, so `push` cannot fail.
    let _ = source.push(&ZEROES, 0, len);
    source
}

/// Splits a range of the disk into parts that are contiguous in a redo log; returns offset and length of
/// each.
fn by_segment(mut range: ops::Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    std::iter::from_fn(move || {
        let (offset, rest) = (range.start, range.end - range.start);
        let len = rest.min(SEGMENT_BYTES - offset % SEGMENT_BYTES);
        range.start += len;
        (len > 0).then_some((offset, len))
    })
}

fn blocks_of(range: &ops::Range<u64>) -> ops::Range<u64> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

impl RedoLog {
    pub(crate) fn write(
        self: &Arc<Self>,
        cx: &Ctx,
        offset: u64,
        stability: Stability,
        from: Source,
    ) -> Answer<()> {
        if from.is_empty() {
            return Answer::ok(());
        }
        let range = offset..offset + from.len() as u64;
        let blocks = blocks_of(&range);
        // Blocks in the redo log are written in place and stay there, unless a concurrent request zeroes
        // them.
        let is_in_log = self.states.run(blocks.start, blocks.end) == (BlockState::Log, blocks.end);
        if is_in_log && stability == Stability::Unstable {
            return self.put(cx, offset, from);
        }
        let (redo, cx) = (self.clone(), cx.clone());
        to_its_end(async move {
            if is_in_log {
                redo.put_now(&cx, offset, from).await?;
            } else {
                let _locks = redo.lock(blocks).await;
                redo.write_first(&cx, range, from).await?;
            }
            redo.as_stable_as(&cx, stability).await
        })
    }

    /// Writes to blocks that are, or will be, in the redo log.
    fn put(&self, cx: &Ctx, offset: u64, mut from: Source) -> Answer<()> {
        let end = offset + from.len() as u64;
        if offset / SEGMENT_BYTES == (end - 1) / SEGMENT_BYTES {
            return self.log.write(cx, data_at(offset), Stability::Unstable, from);
        }
        let parts = by_segment(offset..end).map(|(offset, len)| {
            let rest = from.split_off(len as usize);
            let part = std::mem::replace(&mut from, rest);
            self.log.write(cx, data_at(offset), Stability::Unstable, part)
        });
        all(parts.collect())
    }

    async fn put_now(&self, cx: &Ctx, offset: u64, from: Source) -> Result<()> {
        let answer = self.put(cx, offset, from);
        self.log.submit();
        answer.resolve().await
    }

    /// Makes the answered changes durable if `stability` requires that.
    async fn as_stable_as(self: &Arc<Self>, cx: &Ctx, stability: Stability) -> Result<()> {
        if stability == Stability::Unstable {
            return Ok(());
        }
        let answer = self.make_durable(cx);
        self.log.submit();
        answer.resolve().await
    }

    /// Locks these blocks against first writes and zeroing by other requests, always in the same order, so
    /// that requests do not deadlock. [`LOCKS`] adjacent blocks have all locks, so more need no further ones.
    async fn lock(&self, blocks: ops::Range<u64>) -> Vec<MutexGuard<'_, ()>> {
        let mut numbers: Vec<usize> =
            blocks.take(LOCKS).map(|block| (block % LOCKS as u64) as usize).collect();
        numbers.sort_unstable();
        let mut guards = Vec::with_capacity(numbers.len());
        for number in numbers {
            guards.push(self.locks[number].lock().await);
        }
        guards
    }

    /// Writes whole, locked blocks: those at both ends are completed by their present contents, unless they
    /// are in the redo log already.
    async fn write_first(&self, cx: &Ctx, range: ops::Range<u64>, from: Source) -> Result<()> {
        let disk_end = self.size_bytes;
        let blocks = blocks_of(&range);
        let is_in_log = |offset: u64| {
            self.states.run(offset / BLOCK_BYTES, offset / BLOCK_BYTES + 1).0 == BlockState::Log
        };
        let first = if is_in_log(range.start) { range.start } else { blocks.start * BLOCK_BYTES };
        let last = if is_in_log(range.end - 1) { range.end } else { disk_end.min(blocks.end * BLOCK_BYTES) };
        let mut whole = self.now(cx, first..range.start).await?;
        whole.append(from);
        whole.append(self.now(cx, range.end..last).await?);
        self.put_now(cx, first, whole).await?;
        self.states.set(blocks, BlockState::Log);
        Ok(())
    }

    /// Reads a part of a block that is not in the redo log: from the base, or zeroes.
    async fn now(&self, cx: &Ctx, range: ops::Range<u64>) -> Result<Source> {
        let len = (range.end - range.start) as usize;
        if len == 0 {
            return Ok(Source::new());
        }
        if self.locate(range.start, range.end) == (Location::Zero, len as u64) {
            return Ok(zeroes(len));
        }
        let buffer = Buffer::new(len);
        let answer = self.read(cx, range.start, buffer.sink(0..len));
        self.base.submit();
        answer.resolve().await?;
        Ok(buffer.source(0..len))
    }

    /// Returns the whole blocks of a range; a partial block at the disk's end counts as whole.
    fn whole_blocks(&self, range: &ops::Range<u64>) -> ops::Range<u64> {
        let start = range.start.div_ceil(BLOCK_BYTES);
        let end = match range.end == self.size_bytes {
            true => range.end.div_ceil(BLOCK_BYTES),
            false => range.end / BLOCK_BYTES,
        };
        start..end.max(start)
    }

    /// Discards whole blocks, which read as zeroes then; partial ones are left unchanged.
    pub(crate) fn discard(self: &Arc<Self>, cx: &Ctx, range: Range) -> Answer<()> {
        let blocks = self.whole_blocks(&(range.offset..range.end()));
        if blocks.is_empty() {
            return Answer::ok(());
        }
        let (redo, cx) = (self.clone(), cx.clone());
        to_its_end(async move {
            let _locks = redo.lock(blocks.clone()).await;
            redo.mark_zero(&cx, blocks).await
        })
    }

    /// Marks locked blocks as zeroes, and frees their space if the redo log supports that.
    async fn mark_zero(&self, cx: &Ctx, blocks: ops::Range<u64>) -> Result<()> {
        self.states.set(blocks.clone(), BlockState::Zero);
        if !self.log.profile().discards {
            return Ok(());
        }
        let parts = by_segment(blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES)
            .map(|(offset, len_bytes)| self.log.discard(cx, Range { offset: data_at(offset), len_bytes }));
        let parts = all(parts.collect());
        self.log.submit();
        match parts.resolve().await {
            Err(Error::NotSupported) => Ok(()),
            result => result,
        }
    }

    pub(crate) fn write_zeroes(self: &Arc<Self>, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        if range.len_bytes == 0 {
            return Answer::ok(());
        }
        let (redo, cx) = (self.clone(), cx.clone());
        to_its_end(async move {
            let range = range.offset..range.end();
            let _locks = redo.lock(blocks_of(&range)).await;
            let blocks = redo.whole_blocks(&range);
            if !blocks.is_empty() {
                match how.may_unmap {
                    true => redo.mark_zero(&cx, blocks.clone()).await?,
                    false => redo.zero_in_log(&cx, blocks.clone(), how).await?,
                }
            }
            let (start, end) = (blocks.start * BLOCK_BYTES, blocks.end * BLOCK_BYTES);
            let parts = match blocks.is_empty() {
                // The range lies within one block, or spans two adjacent ones.
                true => [range.start..range.end.min(start), start.max(range.start)..range.end],
                false => [range.start..start, end..range.end.max(end)],
            };
            for part in parts.into_iter().filter(|part| !part.is_empty()) {
                let len = (part.end - part.start) as usize;
                redo.write_first(&cx, part, zeroes(len)).await?;
            }
            redo.as_stable_as(&cx, how.stability).await
        })
    }

    /// Writes zeroes to locked blocks, allocated in the redo log.
    async fn zero_in_log(&self, cx: &Ctx, blocks: ops::Range<u64>, how: Zeroing) -> Result<()> {
        let of_log = Zeroing { stability: Stability::Unstable, ..how };
        let parts =
            by_segment(blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES).map(|(offset, len_bytes)| {
                self.log.write_zeroes(cx, Range { offset: data_at(offset), len_bytes }, of_log)
            });
        let parts = all(parts.collect());
        self.log.submit();
        parts.resolve().await?;
        self.states.set(blocks, BlockState::Log);
        Ok(())
    }
}
