//! Byte access to a disk, as to a file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use async_lock::RwLock;
use tombolo_core::block::{Allocation, BlockDevice, Range, Zeroing};
use tombolo_core::fs::{ReadDone, Whence};
use tombolo_core::{Answer, Ctx, Error, Result, Stability};
use tombolo_host_runtime::task;
use tombolo_mem::{Buffer, Sink, Source};

/// A disk with byte access, which records that a write has failed.
pub(crate) struct DiskFile {
    disk: Arc<dyn BlockDevice>,
    /// Locked exclusively by a write of partial blocks, which first reads the blocks: a concurrent write to
    /// them would be lost. Writes of whole blocks share the lock.
    writing: Arc<RwLock<()>>,
    /// `true` once a write has failed. A kernel whose write-back failed discards the pages nevertheless and
    /// reports the error only once (fsync(2)), so the file must remember it.
    has_failed: AtomicBool,
    /// Callback at the first failed write.
    pub(crate) when_failed: OnceLock<WhenFailed>,
}

/// Function called at a file's first failed write.
pub(crate) type WhenFailed = Arc<dyn Fn() + Send + Sync>;

impl DiskFile {
    pub(crate) fn new(disk: Arc<dyn BlockDevice>) -> Self {
        Self {
            disk,
            writing: Arc::default(),
            has_failed: AtomicBool::new(false),
            when_failed: OnceLock::new(),
        }
    }

    pub(crate) fn disk(&self) -> &dyn BlockDevice {
        &*self.disk
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.disk.geometry().size_bytes
    }

    /// Returns `true` if a write has failed, so that data may be lost.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns `done`. If the write failed, marks the file as failed and calls `when_failed` the first time.
    fn record_failure<T>(&self, done: Result<T>) -> Result<T> {
        if let Err(error) = &done {
            tracing::error!(%error, "a write failed: the file's contents are incomplete");
            if !self.has_failed.swap(true, Ordering::AcqRel)
                && let Some(when_failed) = self.when_failed.get()
            {
                when_failed();
            }
        }
        done
    }

    /// Submits the request of `answer` to the disk at once, because no further requests are queued with it.
    fn submitted<T>(&self, answer: Answer<T>) -> Answer<T> {
        self.disk.submit();
        answer
    }

    /// Returns the whole blocks that contain a range.
    fn blocks_of(&self, range: Range) -> Range {
        let block = u64::from(self.disk.geometry().block_bytes);
        let offset = range.offset - range.offset % block;
        Range { offset, len_bytes: range.end().next_multiple_of(block) - offset }
    }

    pub(crate) fn read(self: &Arc<Self>, cx: &Ctx, offset: u64, mut into: Sink) -> Answer<ReadDone> {
        let size_bytes = self.size_bytes();
        let rest = size_bytes.saturating_sub(offset);
        into.truncate(usize::try_from(rest).unwrap_or(usize::MAX));
        let count = into.len();
        let done = ReadDone { count, eof: count as u64 == rest };
        if count == 0 {
            return Answer::ok(done);
        }
        let range = Range { offset, len_bytes: count as u64 };
        let blocks = self.blocks_of(range);
        if blocks == range {
            return self.submitted(self.disk.read(cx, offset, into)).map(move |()| done);
        }
        let (file, cx) = (self.clone(), cx.clone());
        Answer::later(async move {
            let buffer = file.read_blocks(&cx, blocks).await?;
            let from = (offset - blocks.offset) as usize;
            buffer.source(from..from + count).copy_to_sink(&into);
            Ok(done)
        })
    }

    async fn read_blocks(&self, cx: &Ctx, blocks: Range) -> Result<Buffer> {
        let buffer = Buffer::new(blocks.len_bytes as usize);
        let sink = buffer.sink(0..buffer.len());
        self.submitted(self.disk.read(cx, blocks.offset, sink)).resolve().await?;
        Ok(buffer)
    }

    /// Writes up to the end of the disk, and returns the length written. Fails with `NoSpace` from the end
    /// on.
    pub(crate) fn write(
        self: &Arc<Self>,
        cx: &Ctx,
        offset: u64,
        stability: Stability,
        mut from: Source,
    ) -> Answer<usize> {
        let rest = self.size_bytes().saturating_sub(offset);
        if !from.is_empty() && rest == 0 {
            return Answer::err(Error::NoSpace);
        }
        from.truncate(usize::try_from(rest).unwrap_or(usize::MAX));
        let count = from.len();
        let range = Range { offset, len_bytes: count as u64 };
        if count == 0 {
            return Answer::ok(0);
        }
        if self.blocks_of(range) == range
            && let Some(turn) = self.writing.try_read_arc()
        {
            let file = self.clone();
            return self.submitted(self.disk.write(cx, offset, stability, from)).map_result(move |done| {
                task::defer_woken_tasks(|| drop(turn));
                file.record_failure(done).map(|()| count)
            });
        }
        let (file, cx) = (self.clone(), cx.clone());
        Answer::later(async move {
            file.record_failure(file.write_locked(&cx, range, stability, from).await)?;
            Ok(count)
        })
    }

    async fn write_locked(&self, cx: &Ctx, range: Range, stability: Stability, from: Source) -> Result<()> {
        let blocks = self.blocks_of(range);
        if blocks == range {
            let _turn = self.writing.read_arc().await;
            return self.submitted(self.disk.write(cx, range.offset, stability, from)).resolve().await;
        }
        let _turn = self.writing.write_arc().await;
        let buffer = self.read_blocks(cx, blocks).await?;
        let at = (range.offset - blocks.offset) as usize;
        from.copy_to_sink(&buffer.sink(at..at + from.len()));
        let whole = buffer.source(0..buffer.len());
        self.submitted(self.disk.write(cx, blocks.offset, stability, whole)).resolve().await
    }

    /// Flushes the disk. Fails permanently once a write has failed, because its data will never be durable. A
    /// failed flush is not recorded, because the disk itself remembers it.
    pub(crate) fn flush(&self, cx: &Ctx) -> Answer<()> {
        if self.has_failed() {
            return Answer::err(Error::io("an earlier write has failed"));
        }
        self.submitted(self.disk.flush(cx))
    }

    /// Zeroes a range within the file: whole blocks by the disk's own operation, partial ones by writes. If
    /// the disk's operation fails, the error is only returned, as no other data are affected; a failed write
    /// is also recorded, as it may have torn the rest of its block.
    pub(crate) fn zero(self: &Arc<Self>, cx: &Ctx, range: Range, may_unmap: bool) -> Answer<()> {
        let (file, cx) = (self.clone(), cx.clone());
        let end = range.end().min(self.size_bytes());
        let block = u64::from(self.disk.geometry().block_bytes);
        let first = range.offset.next_multiple_of(block).min(end);
        let last = (end - end % block).max(first);
        Answer::later(async move {
            for part in [range.offset..first, last..end].into_iter().filter(|part| !part.is_empty()) {
                let zeroes = Buffer::new((part.end - part.start) as usize);
                let source = zeroes.source(0..zeroes.len());
                file.write(&cx, part.start, Stability::Unstable, source).resolve().await?;
            }
            if last == first {
                return Ok(());
            }
            let whole = Range { offset: first, len_bytes: last - first };
            let how = Zeroing { may_unmap, ..Zeroing::default() };
            let _turn = file.writing.read_arc().await;
            file.submitted(file.disk.write_zeroes(&cx, whole, how)).resolve().await
        })
    }

    /// Finds data or a hole from `offset` on (lseek(2)); the end of the file is a hole. `NoDevice`: none.
    pub(crate) fn seek(self: &Arc<Self>, cx: &Ctx, offset: u64, whence: Whence) -> Answer<u64> {
        let (file, cx) = (self.clone(), cx.clone());
        Answer::later(async move {
            let size_bytes = file.size_bytes();
            let mut at = offset;
            while at < size_bytes {
                let start = file.blocks_of(Range { offset: at, len_bytes: 1 }).offset;
                let rest = Range { offset: start, len_bytes: size_bytes - start };
                let found = file.submitted(file.disk.extents(&cx, rest, EXTENTS)).resolve().await?;
                let mut begins = start;
                for extent in found.as_slice() {
                    let is_data = extent.allocation == Allocation::Data;
                    if is_data == (whence == Whence::Data) {
                        return Ok(begins.max(offset));
                    }
                    begins += extent.len_bytes;
                }
                at = begins;
            }
            match whence {
                Whence::Hole if offset < size_bytes => Ok(size_bytes),
                _ => Err(Error::NoDevice),
            }
        })
    }
}

/// Number of extents examined at once.
const EXTENTS: usize = 64;
