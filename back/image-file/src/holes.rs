//! Holes of a raw image: discarding and zeroing ranges, and finding the extents of data and holes.

use std::os::fd::AsFd;

use tombolo_core::block::{Allocation, Extents, Range, Zeroing};
use tombolo_core::{Error, Result, Stability};
use tombolo_mem::{Buffer, Source};
use tombolo_sys::Errno;
use tombolo_sys::ranges::{AllocateMode, allocate, next_data, next_hole};

use crate::image::Image;

/// Maximum size of the buffer of zeroes that is written where the file system cannot zero a range, in bytes.
const PIECE_BYTES: usize = 1 << 20;

const PUNCH: AllocateMode = AllocateMode::PUNCH_HOLE.union(AllocateMode::KEEP_SIZE);
const ZERO: AllocateMode = AllocateMode::ZERO_RANGE.union(AllocateMode::KEEP_SIZE);

impl Image {
    /// Frees the range's space, if the file system supports it.
    pub(crate) fn discard(&self, range: Range) -> Result<()> {
        if range.len_bytes == 0 {
            return Ok(());
        }
        match self.allocate(PUNCH, range) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(crate) fn write_zeroes(&self, range: Range, how: Zeroing) -> Result<()> {
        if range.len_bytes == 0 {
            return Ok(());
        }
        match self.zero_fast(range, how.may_unmap) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP) if how.only_fast => return Err(Error::NotSupported),
            Err(Errno::OPNOTSUPP) => self.zero_by_writing(range)?,
            Err(errno) => return Err(errno.into()),
        }
        match how.stability {
            Stability::Unstable => Ok(()),
            _ if self.in_memory => Ok(()),
            _ => self.make_durable(),
        }
    }

    fn zero_fast(&self, range: Range, may_unmap: bool) -> std::result::Result<(), Errno> {
        let first = if may_unmap { PUNCH } else { ZERO };
        match self.allocate(first, range) {
            // File systems without ZERO_RANGE (tmpfs): punch a hole, then allocate.
            Err(Errno::OPNOTSUPP) if !may_unmap => {
                self.allocate(PUNCH, range)?;
                self.allocate(AllocateMode::KEEP_SIZE, range)
            }
            done => done,
        }
    }

    fn zero_by_writing(&self, range: Range) -> Result<()> {
        let zeroes = Buffer::new((range.len_bytes).min(PIECE_BYTES as u64) as usize);
        let mut offset = range.offset;
        while offset < range.end() {
            let len = (range.end() - offset).min(zeroes.len() as u64) as usize;
            let piece: Source = zeroes.source(0..len);
            self.write_all(offset, Stability::Unstable, piece)?;
            offset += len as u64;
        }
        Ok(())
    }

    fn allocate(&self, mode: AllocateMode, range: Range) -> std::result::Result<(), Errno> {
        let done = allocate(self.file.as_fd(), mode, range.offset, range.len_bytes);
        self.changed();
        done
    }

    /// Returns the data and holes at the start of the range, at most `count_max`, as the file system reports
    /// them.
    pub(crate) fn extents(&self, range: Range, count_max: usize) -> Result<Extents> {
        let mut extents = Extents::new(range, count_max);
        loop {
            let at = extents.next_offset();
            let found = match next_data(self.file.as_fd(), at) {
                Ok(data) => data,
                // ENXIO: no data follow, or the file ends before the disk.
                Err(Errno::NXIO) => u64::MAX,
                Err(errno) => return Err(errno.into()),
            };
            // A block that holds any data is reported as data.
            let data = found - found % u64::from(self.bounds.geometry().block_bytes);
            if data > at && !extents.push(data - at, Allocation::Hole) {
                return Ok(extents);
            }
            if data >= range.end() {
                return Ok(extents);
            }
            let hole = self.bounds.padded(next_hole(self.file.as_fd(), found)?);
            if hole <= data || !extents.push(hole - data, Allocation::Data) {
                return Ok(extents);
            }
        }
    }
}
