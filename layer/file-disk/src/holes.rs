//! Discards, zeroes and extents by fallocate(2) and lseek(2) on the file, as far as its file system supports
//! them.

use std::sync::{Arc, LazyLock};

use tombolo_core::block::{Allocation, Extents, Range, Zeroing};
use tombolo_core::fs::{AllocateMode, Whence};
use tombolo_core::{Answer, Ctx, Error, Result, Stability};
use tombolo_mem::{Region, Source};

use crate::disk::OpenFile;

/// Maximum length of one write of zeroes, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Zeroes shared by all disks; never written.
static ZEROES: LazyLock<Region> = LazyLock::new(|| Region::heap(PIECE_BYTES));

const PUNCH: AllocateMode = AllocateMode::PUNCH_HOLE.union(AllocateMode::KEEP_SIZE);
const ZERO: AllocateMode = AllocateMode::ZERO_RANGE.union(AllocateMode::KEEP_SIZE);

fn is_unsupported(error: &Error) -> bool {
    matches!(error, Error::NotSupported | Error::NotImplemented)
}

impl OpenFile {
    fn allocate(&self, cx: &Ctx, range: Range, mode: AllocateMode) -> Answer<()> {
        match self.fs.ranges() {
            Some(ranges) => ranges.allocate(cx, self.file, range.offset, range.len_bytes, mode),
            None => Answer::err(Error::NotSupported),
        }
    }

    /// Frees the range's space, if the file system supports it.
    pub(crate) fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        if range.len_bytes == 0 {
            return Answer::ok(());
        }
        self.allocate(cx, range, PUNCH).map_result(|result| match result {
            Err(error) if is_unsupported(&error) => Ok(()),
            result => result,
        })
    }

    pub(crate) fn write_zeroes(self: &Arc<Self>, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        if range.len_bytes == 0 {
            return Answer::ok(());
        }
        let fast = self.allocate(cx, range, if how.may_unmap { PUNCH } else { ZERO });
        if matches!(fast, Answer::Done(Ok(()))) && how.stability == Stability::Unstable {
            return Answer::ok(());
        }
        let (file, cx) = (self.clone(), cx.clone());
        Answer::later(async move {
            match fast.resolve().await {
                Err(error) if is_unsupported(&error) && !how.only_fast => {
                    file.write_out_zeroes(&cx, range).await?
                }
                Err(error) if is_unsupported(&error) => return Err(Error::NotSupported),
                result => result?,
            }
            match how.stability {
                Stability::Unstable => Ok(()),
                _ => file.make_durable(&cx).resolve().await,
            }
        })
    }

    async fn write_out_zeroes(self: &Arc<Self>, cx: &Ctx, range: Range) -> Result<()> {
        let mut offset = range.offset;
        while offset < range.end() {
            let mut piece = Source::from(&*ZEROES);
            piece.truncate((range.end() - offset).min(PIECE_BYTES as u64) as usize);
            let len = piece.len() as u64;
            self.write_all(cx, offset, Stability::Unstable, piece).resolve().await?;
            offset += len;
        }
        Ok(())
    }

    /// Returns data and holes as the file system reports them; one extent of data if it reports none.
    pub(crate) fn extents(self: &Arc<Self>, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        let (file, cx) = (self.clone(), cx.clone());
        Answer::later(async move {
            let mut extents = Extents::new(range, count_max);
            let mut goes_on = range.len_bytes > 0;
            while goes_on {
                let at = extents.next_offset();
                let found = file.seek(&cx, at, Whence::Data).await?;
                // A block with some data counts as data.
                let data = found - found % u64::from(file.bounds.geometry().block_bytes);
                if !extents.push(data.saturating_sub(at), Allocation::Hole) {
                    break;
                }
                let hole = file.bounds.padded(file.seek(&cx, found, Whence::Hole).await?);
                // A hole that moved during the search is not found: all up to the end is treated as data.
                let len = if hole > data { hole - data } else { u64::MAX };
                goes_on = extents.push(len, Allocation::Data);
            }
            Ok(extents)
        })
    }

    /// Finds the next data or hole; `u64::MAX` if there is none up to the end. Without support for ranges all
    /// is data.
    async fn seek(&self, cx: &Ctx, offset: u64, whence: Whence) -> Result<u64> {
        let found = match self.fs.ranges() {
            Some(ranges) => ranges.seek(cx, self.file, offset, whence),
            None => Answer::err(Error::NotSupported),
        };
        match found.resolve().await {
            Err(Error::NoDevice) => Ok(u64::MAX),
            Err(error) if is_unsupported(&error) && whence == Whence::Data => Ok(offset),
            Err(error) if is_unsupported(&error) => Ok(u64::MAX),
            found => found,
        }
    }
}
