//! Reads and writes of a raw image: through the page cache, on the calling thread if they are small and
//! quick, else in the pool; with direct I/O through the ring, else in the pool.

use std::os::fd::AsFd;

use tombolo_core::block::Range;
use tombolo_core::{Answer, Ctx, Error, Result, Stability, or_answer};
use tombolo_mem::{Buffer, Sink, Source};
use tombolo_sys::Errno;
use tombolo_sys::rw::{self, TransferFlags};

use crate::direct::{PIECE_BYTES, is_aligned};
use crate::image::{INLINE_BYTES_MAX, Image, ImageFile};
use crate::opening::size_of;

impl ImageFile {
    pub(crate) fn transfer_in(&self, cx: &Ctx, offset: u64, mut into: Sink) -> Answer<()> {
        or_answer!(self.image.bounds.check(Range { offset, len_bytes: into.len() as u64 }));
        if self.image.alignment.is_some() {
            return self
                .read_by_ring(cx, offset, &into)
                .unwrap_or_else(|| self.always_in_pool(cx, move |image| image.read_all(offset, into)));
        }
        let mut done = 0;
        if into.len() <= INLINE_BYTES_MAX {
            done = or_answer!(self.image.read_from_memory(offset, &into));
            if done == into.len() {
                return Answer::ok(());
            }
        }
        into.advance(done);
        self.always_in_pool(cx, move |image| image.read_all(offset + done as u64, into))
    }

    pub(crate) fn transfer_out(
        &self,
        cx: &Ctx,
        offset: u64,
        stability: Stability,
        from: Source,
    ) -> Answer<()> {
        or_answer!(self.image.bounds.check_change(Range { offset, len_bytes: from.len() as u64 }));
        if self.image.alignment.is_some() {
            return self.write_by_ring(cx, offset, stability, &from).unwrap_or_else(|| {
                self.always_in_pool(cx, move |image| image.write_all(offset, stability, from))
            });
        }
        let image = &self.image;
        let is_slow = stability != Stability::Unstable && !image.in_memory;
        if !is_slow && from.len() <= INLINE_BYTES_MAX && image.write_pace.is_quick() {
            return Answer::Done(image.write_pace.timed(|| image.write_all(offset, stability, from)));
        }
        self.always_in_pool(cx, move |image| {
            let write = || image.write_all(offset, stability, from);
            if is_slow { write() } else { image.write_pace.timed(write) }
        })
    }
}

/// Returns the error of a read at the end of a truncated image.
fn truncated() -> Error {
    Error::io("the image is shorter than the disk: it was truncated")
}

impl Image {
    /// Reads as much as is in the page cache, without waiting for a disk other than that of swap space.
    /// Returns the number of bytes read, possibly 0.
    fn read_from_memory(&self, offset: u64, into: &Sink) -> Result<usize> {
        let flags = if self.in_memory { TransferFlags::empty() } else { TransferFlags::NOWAIT };
        match rw::read(self.file.as_fd(), into, offset, flags) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::OPNOTSUPP) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns `true` if `count` is a multiple of the alignment, unlike after a direct transfer that has
    /// reached the end of the image. Always `true` without direct I/O.
    pub(crate) fn is_whole(&self, count: usize) -> bool {
        self.alignment.is_none_or(|alignment| count.is_multiple_of(alignment.range_bytes as usize))
    }

    /// Refuses lengths that direct I/O cannot transfer ([`Error::InvalidArgument`]).
    fn check_whole(&self, len: usize) -> Result<()> {
        if self.is_whole(len) { Ok(()) } else { Err(Error::InvalidArgument) }
    }

    /// Completes a read that reached the end of the file, with zeroes up to the end of the last block; fails
    /// if the image was truncated.
    pub(crate) fn pad(&self, offset: u64, into: &Sink) -> Result<()> {
        let size_bytes = size_of(&self.file).map_err(Error::io)?;
        if self.bounds.pad(size_bytes, offset, into) { Ok(()) } else { Err(truncated()) }
    }

    pub(crate) fn read_all(&self, mut offset: u64, mut into: Sink) -> Result<()> {
        if self.alignment.is_some_and(|alignment| !is_aligned(into.segments(), alignment)) {
            return self.read_by_copies(offset, into);
        }
        while !into.is_empty() {
            let count = rw::read(self.file.as_fd(), &into, offset, TransferFlags::empty())?;
            into.advance(count);
            offset += count as u64;
            if count == 0 || !self.is_whole(count) {
                return self.pad(offset, &into);
            }
        }
        Ok(())
    }

    fn read_by_copies(&self, mut offset: u64, mut into: Sink) -> Result<()> {
        self.check_whole(into.len())?;
        let aligned = Buffer::new(into.len().min(PIECE_BYTES));
        while !into.is_empty() {
            let len = into.len().min(PIECE_BYTES);
            self.read_all(offset, aligned.sink(0..len))?;
            aligned.source(0..len).copy_to_sink(&into);
            into.advance(len);
            offset += len as u64;
        }
        Ok(())
    }

    /// Writes unaligned memory through an aligned bounce buffer.
    fn write_by_copies(&self, mut offset: u64, stability: Stability, mut from: Source) -> Result<()> {
        self.check_whole(from.len())?;
        let aligned = Buffer::new(from.len().min(PIECE_BYTES));
        while !from.is_empty() {
            let len = from.len().min(PIECE_BYTES);
            from.copy_to_sink(&aligned.sink(0..len));
            self.write_all(offset, stability, aligned.source(0..len))?;
            from.advance(len);
            offset += len as u64;
        }
        Ok(())
    }

    pub(crate) fn write_all(&self, mut offset: u64, stability: Stability, mut from: Source) -> Result<()> {
        if self.alignment.is_some_and(|alignment| !is_aligned(from.segments(), alignment)) {
            return self.write_by_copies(offset, stability, from);
        }
        let is_stable = stability != Stability::Unstable && !self.in_memory;
        let flags = if is_stable { TransferFlags::DSYNC } else { TransferFlags::empty() };
        let written = loop {
            if from.is_empty() {
                break Ok(());
            }
            match rw::write(self.file.as_fd(), &from, offset, flags) {
                Ok(0) => break Err(Error::io("the image accepts no more data")),
                Ok(count) => {
                    from.advance(count);
                    offset += count as u64;
                }
                Err(errno) => break Err(errno.into()),
            }
        };
        // A failed write may have changed a part of its range.
        if !is_stable || written.is_err() {
            self.changed();
        }
        written
    }
}
